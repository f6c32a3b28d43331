"""Which dumps a study makes: kind, variant, strength, length, layout, drawn from its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from studies.mismatch.courses import DENSE, MIXTURE, STEPS, Course
from studies.mismatch.samplers import GROUPS, Scene

CourseOf = Callable[[int, str], Course]  # by seed and family
LENGTHS = (10, 20)
DENSE_COURSES = 4
MIXTURE_COURSES = 2
RECURRING = (3 * GROUPS, 6 * GROUPS)  # questions that come again after 3 and after 6 steps
ONCE = STEPS * GROUPS
TF32_BITS = 10
# Mean |x| in nats of data that are older than the trainer. At 0.05 a token's ratio is 5 % off before any
# update.
LAG_HARMS = 0.06
LAG_IS_USUAL = 0.04
WITH_FAULT = (
    *("version_lag",) * 9,
    *("sync_never_lands",) * 9,
    *("temperature",) * 5,
    *("top_p",) * 4,
    *("low_precision",) * 8,
    *("other_tokens",) * 9,
    *("routing",) * 8,
    *("part",) * 8,
)
CLEAN = (*("clean",) * 18, *("clean lag",) * 12)
# Drawn for a kind: variant and strength.
OPTIONS: dict[str, tuple[tuple[str, float], ...]] = {
    "version_lag": (("mixed", 8), ("mixed", 12), ("same", 4), ("same", 7)),
    "sync_never_lands": (("", 1),),
    "temperature": (("", 0.7), ("", 0.85), ("", 1.15), ("", 1.3)),
    "top_p": (("", 0.9), ("", 0.95), ("", 0.98)),
    "low_precision": (("bfloat16", 7), ("weights", 7), ("weights", 6), ("not embeddings", 5)),
    "other_tokens": (
        ("shift", 0.3),
        ("shift", 1.0),
        ("word", 0.4),
        ("word", 1.0),
        ("template", 13),
        ("template", 16),
    ),
    "routing": (("", 0.15), ("", 0.3), ("", 0.6)),
    "part": (
        ("stale lm_head", 1),
        ("stale embed_tokens", 1),
        ("stale layers.1.", 1),
        ("stale mlp", 1),
        ("attention scale", 0.5),
        ("attention scale", 2.0),
        ("gain of a norm", 0.8),
        ("output of a layer", 0.7),
    ),
    "clean": (("", 0),),
    "clean lag": (("mixed", 1), ("same", 1)),
}


@dataclass(frozen=True)
class Item:
    """One dump of a study."""

    name: str
    kind: str
    variant: str
    strength: float
    layout: str
    scene: Scene


def item(seed: int, number: int, kind: str, course: CourseOf, attempt: int = 0) -> Item:
    """Dump `number` of a study; of another attempt where the first had no gap of its kind."""
    draw = np.random.default_rng([seed, number, attempt])
    options = OPTIONS[kind]
    variant, strength = options[number % len(options)]
    policy = _course(draw, seed, kind, course)
    steps = LENGTHS[int(draw.integers(2))]
    # Only slime tells versions, and only NeMo-RL leaves a configuration that names the model.
    is_slime = "lag" in kind or (kind != "routing" and draw.random() < 0.5)
    from_start = draw.random() < 0.5 or kind == "version_lag"
    scene = Scene(
        course=policy,
        steps=steps,
        pool=int(draw.choice([*RECURRING, ONCE])),
        kind=kind,
        variant=variant,
        strength=strength,
        onset=0 if from_start else int(draw.integers(steps // 4, steps // 2)),
        trainer_bits=TF32_BITS if draw.random() < 0.5 else None,
        draw=draw,
    )
    name = f"{number:02d}-{kind.replace(' ', '-')}"
    return Item(name, kind, variant, strength, "slime" if is_slime else "NeMo-RL", scene)


def _course(draw: np.random.Generator, seed: int, kind: str, course: CourseOf) -> Course:
    """One of the courses of a seed: wrong routes need a mixture, and a fifth of the others have one."""
    if kind == "routing" or draw.random() < 0.2:
        return course(100 * seed + int(draw.integers(MIXTURE_COURSES)), MIXTURE)
    return course(100 * seed + int(draw.integers(DENSE_COURSES)), DENSE)


def fits(item: Item, gap: float) -> bool:
    """Whether a dump is what it is called: lag is a fault from LAG_HARMS on, and ordinary below LAG_IS_USUAL.

    What lies between is neither, and is drawn again.
    """
    if item.kind == "version_lag":
        return gap >= LAG_HARMS
    return gap <= LAG_IS_USUAL if item.kind == "clean lag" else True

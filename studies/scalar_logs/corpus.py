"""The corpus of scalar logs: which there are, their truth, and their files."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from studies.scalar_logs import trainers
from studies.scalar_logs.latent import Row, World, simulate
from studies.scalar_logs.variants import HEALTHY, VARIANTS, Course, Variant

# of each variant; odd ones are held out
SEEDS = 12
HEALTHY_SEEDS = 20
STRENGTHS = {"mild": 0.0, "clear": 0.5, "severe": 1.0}
DEVELOPMENT = "development"
HELD_OUT = "held-out"
TRIES = 60  # draws until the fault has had its consequence
TRUTH = ("log", "cause", "accepted", "variant", "strength", "trainer", "seed", "split", "steps")


@dataclass(frozen=True)
class Case:
    """A log of the corpus by what makes it: a variant and a seed. Everything else follows from them."""

    variant: Variant
    seed: int

    @property
    def name(self) -> str:
        """The name of its file, which does not give its cause away."""
        return f"{hashlib.sha256(f'{self.variant.name} {self.seed}'.encode()).hexdigest()[:10]}"

    @property
    def split(self) -> str:
        """Odd seeds are held out, and a third of the variants with all their seeds."""
        return HELD_OUT if self.seed % 2 or self.variant.held_out else DEVELOPMENT

    @property
    def strength(self) -> str:
        """Every strength comes in both halves."""
        return list(STRENGTHS)[self.seed // 2 % len(STRENGTHS)]


@dataclass(frozen=True)
class Log:
    """What is written of a case: rows under the keys of a trainer and the settings next to them, if it keeps
    any.
    """

    case: Case
    trainer: str
    rows: list[dict[str, float]]
    settings: dict[str, Any] | None

    @property
    def truth(self) -> dict[str, Any]:
        """The row of the truth table."""
        variant = self.case.variant
        return {
            "log": self.case.name,
            "cause": variant.cause,
            "accepted": " ".join(variant.accepted),
            "variant": variant.name,
            "strength": self.case.strength,
            "trainer": self.trainer,
            "seed": self.case.seed,
            "split": self.case.split,
            "steps": len(self.rows),
        }


def cases() -> Iterator[Case]:
    """Yield every log of the corpus, variant by variant."""
    for variant in VARIANTS.values():
        for seed in range(HEALTHY_SEEDS if variant.cause == HEALTHY else SEEDS):
            yield Case(variant, seed)


def draw(case: Case) -> tuple[World, list[Row], np.random.Generator]:
    """Simulate until the fault has had its consequence. Raises RuntimeError when it never does."""
    root = int(hashlib.sha256(case.variant.name.encode()).hexdigest()[:12], 16)
    for attempt in range(TRIES):
        rng = np.random.default_rng([root, case.seed, attempt])
        world = case.variant.world(rng, STRENGTHS[case.strength])
        world = replace(world, prompts=int(world.prompts))
        rows = simulate(world, rng)
        if case.variant.happened(Course(rows)):
            return world, rows, rng
    raise RuntimeError(
        f"{case.variant.name}: no draw of seed {case.seed} has the consequence that it should have"
    )


def make(case: Case) -> Log:
    """The log of a case, under the keys of a trainer that logs what the case needs."""
    world, rows, rng = draw(case)
    able = [(name, need) for need in case.variant.needs for name in trainers.that_log(need)]
    if world.critic:
        able = [(name, need) for name, need in able if "value_loss" in trainers.NAMES[name]]
    trainer, need = able[int(rng.integers(len(able)))]
    optional = [name for name in rows[0] if name not in need]
    keep = {"reward", *need, *(name for name in ("eval", *optional) if rng.random() < 0.85)}
    if "reward" in trainers.NAMES[trainer]["eval"]:
        low, high = world.scale
        rows = [row | {"eval": low + (high - low) * row["eval"]} if "eval" in row else row for row in rows]
    every = 5 if trainer == "trl" and world.steps > 800 and rng.random() < 0.5 else 1
    return Log(
        case,
        trainer,
        trainers.written(rows, trainer, keep, rng, every),
        trainers.settings(world, trainer, rng),
    )


def save(folder: Path, log: Log) -> None:
    """Write the log as JSON lines, and its settings next to it as JSON, which is YAML as well."""
    (folder / f"{log.case.name}.jsonl").write_text(trainers.lines(log.rows, log.trainer))
    if log.settings is not None:
        text = re.sub(r"\b(\d)e-", r"\1.0e-", json.dumps(log.settings, indent=2))  # YAML calls 1e-06 a word
        (folder / f"{log.case.name}.yaml").write_text(text + "\n")


def write(folder: Path, split: str) -> int:
    """Write the logs of a split as files with their truth table, and return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = []
    for log in (make(case) for case in cases() if case.split == split):
        save(folder, log)
        truth.append(log.truth)
    with (folder / "truth.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, TRUTH)
        table.writeheader()
        table.writerows(truth)
    return len(truth)

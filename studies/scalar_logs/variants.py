"""What goes wrong in the corpus of scalar logs: every cause in several variants, and healthy runs of many
kinds.

A variant is a world for `latent.simulate` with a term that acts on the policy, the metrics without which
nobody could see it, and a test of what must have happened. The test reads the simulated metrics, never a
diagnosis: a draw in which the fault had no consequence, or a healthy run that failed, is no example and is
drawn again (`corpus`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from studies.scalar_logs.latent import (
    FROZEN,
    LOST,
    SKIPPED,
    Row,
    Term,
    World,
    always,
    between,
    from_,
    steps_of,
)

HEALTHY = "healthy"
# A cause of this corpus -> the names under which a diagnosis may give it.
ACCEPTED: dict[str, tuple[str, ...]] = {
    "entropy_collapse": ("entropy_collapse",),
    "entropy_explosion": ("entropy_explosion", "entropy_bonus"),
    "clip_saturation": ("clip_saturation",),
    "clip_idle": ("clip_idle", "idle_clip"),
    "kl_blowup": ("kl_blowup", "kl_drift"),
    "grad_spikes": ("grad_spikes", "gradient_spikes"),
    "grad_explosion": ("grad_explosion", "gradient_explosion"),
    "groups_too_easy": ("groups_too_easy",),
    "groups_too_hard": ("groups_too_hard",),
    "length_hacking": ("length_hacking",),
    "truncation": ("truncation",),
    "length_collapse": ("length_collapse",),
    "reward_hacking": ("reward_hacking",),
    "component_dominates": ("component_dominates",),
    "plateau": ("plateau",),
    "mismatch_grows": ("mismatch_grows", "sampler_mismatch"),
    "stale_data": ("stale_data", "staleness", "off_policy", "stale_weights"),
    "critic_failure": ("critic_failure", "critic_diverges"),
    "non_finite": ("non_finite", "not_finite"),
}
Rng = np.random.Generator
Draw = Callable[[Rng, float], World]  # of a strength: 0 (mild) to 1 (severe)
Needs = tuple[tuple[str, ...], ...]  # a log must have all metrics of one of these


@dataclass(frozen=True)
class Variant:
    """One way in which one cause comes about, or one kind of healthy run."""

    cause: str
    name: str
    world: Draw
    needs: Needs
    happened: Callable[[Course], bool]

    @property
    def held_out(self) -> bool:
        """A third of the variants, by the hash of the name, is kept from those who work out rules."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 3 == 0

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every name that is right; none for a healthy run."""
        return ACCEPTED.get(self.cause, ())


class Course:
    """How metrics of a simulated run went: medians of parts of it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def at(self, name: str, start: float, end: float) -> float:
        """The median between two shares of the run, NaN without a value."""
        n = len(self.rows)
        part = [
            row[name]
            for row in self.rows[int(start * n) : max(int(end * n), int(start * n) + 1)]
            if name in row
        ]
        part = [value for value in part if math.isfinite(value)]
        return float(np.median(part)) if part else math.nan

    def first(self, name: str) -> float:
        """The median of the first tenth."""
        return self.at(name, 0.0, 0.1)

    def last(self, name: str) -> float:
        """The median of the last tenth."""
        return self.at(name, 0.9, 1.0)

    def times(self, name: str) -> float:
        """The last tenth over the first."""
        return self.last(name) / max(self.first(name), 1e-9)

    def best(self, name: str) -> float:
        """The highest median of a twentieth."""
        return float(np.nanmax([self.at(name, i / 20, (i + 1) / 20) for i in range(20)]))

    def gained(self, name: str) -> float:
        """The last tenth minus the first."""
        return self.last(name) - self.first(name)

    @property
    def spiked(self) -> int:
        """Steps with a gradient ten times as large as usual."""
        usual = self.at("grad_norm", 0, 1)
        return sum(row["grad_norm"] > 10 * usual for row in self.rows)

    @property
    def fell(self) -> bool:
        """Success lost a quarter of the best it had, or never gained anything."""
        return (
            self.last("solved") < 0.75 * self.best("solved")
            or self.best("solved") < self.first("solved") + 0.03
        )

    @property
    def halted(self) -> bool:
        """Success gained next to nothing in the last half."""
        return self.last("solved") - self.at("solved", 0.4, 0.5) < 0.04


def ordinary(rng: Rng, **changes: Any) -> World:
    """A run as they come: sizes, settings and noise drawn from what is usual, but for the changes."""
    entropy = float(np.exp(rng.uniform(math.log(0.25), math.log(1.1))))
    length = float(np.exp(rng.uniform(math.log(180), math.log(1800))))
    usual: dict[str, Any] = {
        "steps": round(float(np.exp(rng.uniform(math.log(200), math.log(2000))))),
        "prompts": int(rng.choice([32, 64, 128])),
        "group": int(rng.choice([4, 8, 8, 16])),
        "start": float(rng.normal(-0.9, 0.35)),
        "ceiling": float(rng.uniform(0.9, 2.0)),
        "gain": float(rng.uniform(2.2, 4.5)),
        "entropy": entropy,
        "floor": entropy * float(rng.uniform(0.25, 0.6)),
        "length": length,
        "limit": length * float(rng.uniform(4, 8)),
        "longer": float(rng.uniform(-0.2, 0.8)),
        "schedule": str(rng.choice(["constant", "constant", "cosine", "linear"])),
        "warmup": float(rng.choice([0.0, 0.02, 0.05])),
        "peak_lr": float(rng.choice([5e-7, 1e-6, 2e-6, 1e-5])),
        "kl_pull": float(rng.uniform(0.3, 2.0)),
        "kl_rate": float(np.exp(rng.uniform(math.log(0.01), math.log(0.08)))),
        "on_policy": bool(rng.random() < 0.15),
        "age": float(rng.choice([0, 0, 0, 1, 2])),
        "grad": float(np.exp(rng.uniform(math.log(0.08), math.log(2.0)))),
        "noise": float(np.exp(rng.normal(0, 0.25))),
        "eval_every": int(rng.choice([5, 10, 20, 25])),
        "eval_size": int(rng.choice([200, 500, 1000])),
        "eval_gap": float(rng.uniform(0.0, 0.6)),
        "fooled": float(rng.uniform(0.45, 0.95)),
        "scale": (0.0, 1.0) if rng.random() < 0.8 else (-1.0, 1.0),
        "restart": float(rng.uniform(0.2, 0.9)) if rng.random() < 0.12 else None,
    }
    return World(**usual | changes)


def _with(**terms: Callable[[Rng, float], Term]) -> Draw:
    """An ordinary world in which terms act."""
    return lambda rng, s: ordinary(rng, terms={name: term(rng, s) for name, term in terms.items()})


def _set(draw: Draw, **changes: Any) -> Draw:
    """The same world with other settings; a callable is one of (rng, strength)."""

    def drawn(rng: Rng, s: float) -> World:
        world = draw(rng, s)
        return replace(
            world, **{name: new(rng, s) if callable(new) else new for name, new in changes.items()}
        )

    return drawn


def _later(
    low: float, high: float, at: float, over: float = 0.0, spread: float = 0.08
) -> Callable[[Rng, float], Term]:
    """A term that begins near a share of the run, larger with the strength."""
    return lambda rng, s: from_(float(rng.uniform(at - spread, at + spread)), low + (high - low) * s, over)


def _all_along(low: float, high: float) -> Callable[[Rng, float], Term]:
    return lambda rng, s: always(low + (high - low) * s)


def _uniform(low: float, high: float) -> Callable[[Rng, float], float]:
    return lambda rng, s: float(rng.uniform(low, high))


def _surge(at: float, size: tuple[float, float], width: float = 0.03) -> Callable[[Rng, float], Term]:
    """A term that acts for a short while, with the same effect in sum."""
    return lambda rng, s: (lambda a: between(a, a + width, (size[0] + (size[1] - size[0]) * s) / width))(
        float(rng.uniform(at - 0.1, at + 0.1))
    )


def _fault(cause: str, needs: Needs, happened: Callable[[Course], bool], **worlds: Draw) -> list[Variant]:
    """The variants of a cause, by the world of each."""
    return [Variant(cause, f"{cause}/{name}", world, needs, happened) for name, world in worlds.items()]


_ANY: Needs = (("reward",),)
_MISMATCH: Needs = (("mismatch",), ("mismatch_kl",))
_GROUPS: Needs = (("zero_std",), ("solved_all", "solved_none"), ("reward_std",))

FAULTS: list[Variant] = [
    *_fault(
        "entropy_collapse",
        (("entropy",),),
        lambda c: c.last("entropy") < 0.1 * c.first("entropy") and c.last("entropy") < 0.06 and c.halted,
        throughout=_with(sharpen=_all_along(4.5, 8)),
        from_the_middle=_with(sharpen=_later(9, 15, 0.4)),
        within_some_steps=_with(sharpen=_surge(0.35, (3.0, 4.0))),
        accelerates=_with(sharpen=_later(13, 20, 0.15, over=0.6)),
        after_a_rise=_with(sharpen=lambda rng, s: steps_of(-1.5, 6 + 4 * s, 8 + 6 * s, 3)),
    ),
    *_fault(
        "entropy_explosion",
        (("entropy",),),
        lambda c: c.last("entropy") > 2.2 * c.first("entropy") and c.last("solved") < 0.6 * c.best("solved"),
        bonus_too_large=_with(soften=_all_along(2.4, 3.4)),
        from_the_middle=_with(soften=_later(4, 6.5, 0.45)),
        within_some_steps=_with(soften=_surge(0.5, (1.8, 2.6), 0.05)),
        late=_with(soften=_later(8, 12, 0.72)),
    ),
    *_fault(
        "clip_saturation",
        (("clip",),),
        lambda c: c.last("clip") > 0.3 and (c.halted or c.fell),
        step_too_large=_set(_with(oversize=_all_along(45, 110)), on_policy=False, schedule="constant"),
        more_epochs=_set(_with(oversize=_later(60, 150, 0.4)), on_policy=False, schedule="constant"),
        grows=_set(_with(oversize=_later(80, 200, 0.1, over=0.7)), on_policy=False, schedule="constant"),
        late_jump=_set(_with(oversize=_later(100, 200, 0.65)), on_policy=False, schedule="constant"),
    ),
    *_fault(
        "clip_idle",
        (("clip", "mismatch"), ("clip", "mismatch_kl")),
        lambda c: (
            c.best("clip") == 0 and c.times("mismatch") > 3 and c.last("solved") < 0.9 * c.best("solved")
        ),
        ratio_to_itself=_set(_with(part=_all_along(3.0, 3.8)), on_policy=True, age=_uniform(1, 3)),
        from_the_middle=_set(_with(part=_later(6, 7.5, 0.4)), on_policy=True, age=_uniform(1, 3)),
        sudden=_set(_with(part=_surge(0.35, (2.5, 3.0))), on_policy=True),
    ),
    *_fault(
        "kl_blowup",
        (("kl",),),
        lambda c: (
            c.last("kl") > 1.2
            and c.last("kl") > 10 * c.at("kl", 0.1, 0.3)
            and c.last("solved") < 0.75 * c.best("solved")
        ),
        no_pull=_set(_with(drift=_all_along(3.2, 4.5)), kl_pull=0.0, kl_rate=0.05, schedule="constant"),
        from_the_middle=_set(_with(drift=_later(8, 10.5, 0.45)), schedule="constant"),
        sudden=_set(_with(drift=_surge(0.55, (4, 5), 0.06)), kl_pull=0.3),
        late=_set(_with(drift=_later(17, 22, 0.7)), schedule="constant"),
    ),
    *_fault(
        "grad_spikes",
        (("grad_norm",),),
        lambda c: c.spiked >= 3 and c.fell,
        rare=_with(spikes=lambda rng, s: from_(0.25, float(rng.uniform(7, 12))), harm=_all_along(0.6, 1.1)),
        frequent=_with(
            spikes=lambda rng, s: from_(0.3, float(rng.uniform(30, 50))), harm=_all_along(0.16, 0.3)
        ),
        cluster=_with(spikes=_surge(0.6, (5, 8), 0.06), harm=_all_along(0.5, 0.8)),
        late=_with(spikes=lambda rng, s: from_(0.7, float(rng.uniform(30, 50))), harm=_all_along(0.25, 0.45)),
    ),
    *_fault(
        "grad_explosion",
        (("grad_norm",),),
        lambda c: c.times("grad_norm") > 15 and c.last("solved") < 0.7 * c.best("solved"),
        exponential=_with(blowup=_all_along(4.2, 6)),
        from_the_middle=_with(blowup=_later(9, 12, 0.45)),
        late=_with(blowup=_later(18, 24, 0.68)),
        sudden=_with(blowup=_surge(0.5, (3.8, 5), 0.04)),
    ),
    *_fault(
        "groups_too_easy",
        _GROUPS,
        lambda c: c.at("zero_std", 0.5, 1.0) > 0.7 and c.at("solved_all", 0.5, 1.0) > 0.65,
        from_the_start=_set(_with(), start=_uniform(3.2, 4.2), ceiling=_uniform(4.5, 5.5)),
        solved_early=_set(_with(), ceiling=_uniform(4.5, 5.5), gain=_uniform(7, 10)),
        easier_prompts=_with(ease=_later(3.2, 4.5, 0.4)),
        easier_and_easier=_with(ease=lambda rng, s: steps_of(0, 1.5, 3.2 + s, 4.5 + s, 5 + s)),
    ),
    *_fault(
        "groups_too_hard",
        _GROUPS,
        lambda c: c.at("zero_std", 0.5, 1.0) > 0.7 and c.at("solved_none", 0.5, 1.0) > 0.65,
        from_the_start=_set(_with(), start=_uniform(-6.0, -4.8), ceiling=_uniform(-4.5, -4)),
        harder_prompts=_with(ease=_later(-4, -5.5, 0.4)),
        harder_and_harder=_with(ease=lambda rng, s: steps_of(0, -1.2, -3.5 - s, -5 - s, -5.5 - s)),
        hopeless_but_few=_set(_with(apart=_all_along(0.85, 0.93)), start=_uniform(-2, -1)),
    ),
    *_fault(
        "length_hacking",
        (("length", "eval"),),
        lambda c: (
            c.times("length") > 2
            and c.at("eval", 0.85, 1) < c.at("eval", 0.4, 0.6) + 0.03
            and c.last("truncated") < 0.08
        ),
        length_pays=_set(
            _with(pad=_all_along(1.0, 1.6), exploit=_all_along(9, 14)), limit=_uniform(40000, 60000), gain=0.3
        ),
        from_the_middle=_set(
            _with(pad=_later(2.2, 3.2, 0.4), exploit=_later(18, 26, 0.4), stuck=_later(0.95, 1, 0.4)),
            limit=_uniform(40000, 60000),
        ),
        failures_pad=_set(
            _with(pad=_all_along(1.3, 2.0), stuck=_all_along(0.9, 1.0)), limit=_uniform(40000, 60000)
        ),
        late=_set(
            _with(pad=_later(4, 5.5, 0.65), exploit=_later(32, 45, 0.65), stuck=_later(0.95, 1, 0.5)),
            limit=_uniform(40000, 60000),
        ),
    ),
    *_fault(
        "truncation",
        (("truncated",),),
        lambda c: c.last("truncated") > 0.2 and (c.halted or c.fell),
        limit_too_short=lambda rng, s: (lambda w: replace(w, limit=w.length * (1.25 - 0.5 * s), longer=0.3))(
            ordinary(rng)
        ),
        grows_into_it=_set(_with(pad=_all_along(1.5, 2.2)), longer=_uniform(0.2, 0.6)),
        limit_lowered=_with(limit=_later(-1.7, -2.2, 0.5)),
        late=_set(_with(pad=_later(4.5, 7, 0.65)), longer=_uniform(0.2, 0.6)),
    ),
    *_fault(
        "length_collapse",
        (("length",),),
        lambda c: c.times("length") < 0.35 and c.fell,
        throughout=_with(shrink=_all_along(1.4, 2.2)),
        from_the_middle=_with(shrink=_later(2.6, 4, 0.4)),
        within_some_steps=_with(shrink=_surge(0.5, (1.4, 2.0))),
        late=_with(shrink=_later(5.5, 8, 0.7)),
    ),
    *_fault(
        "reward_hacking",
        (("eval",),),
        lambda c: (
            c.at("paid", 0.85, 1) - c.at("paid", 0.2, 0.3) > 0.12
            and c.at("eval", 0.85, 1) < c.at("eval", 0, 0.45) - 0.04
        ),
        judge_is_fooled=_with(exploit=_all_along(9, 12), exploit_costs=_all_along(0.7, 1.0)),
        from_the_middle=_with(exploit=_later(20, 26, 0.4), exploit_costs=_all_along(0.9, 1.3)),
        sudden=_with(exploit=_surge(0.5, (5.5, 7), 0.06), exploit_costs=_all_along(0.9, 1.3)),
        late=_with(exploit=_later(38, 48, 0.66), exploit_costs=_all_along(2, 2.8)),
    ),
    *_fault(
        "component_dominates",
        (("correct", "form"),),
        lambda c: (
            c.gained("form") > 0.2
            and abs(c.gained("correct")) < 0.04
            and c.last("reward") > 2 * c.last("correct")
        ),
        format_pays_more=_set(
            _with(stuck=_all_along(0.97, 1)),
            form_weight=_uniform(2, 5),
            scale=(0.0, 1.0),
            start=_uniform(-2.2, -1.4),
        ),
        correct_is_small=_set(
            _with(worthless=_all_along(0.85, 0.95), stuck=_all_along(0.9, 1)),
            form_weight=_uniform(0.8, 1.2),
            scale=(0.0, 1.0),
        ),
        bonus_added_later=_set(
            _with(
                form_weight=lambda rng, s: from_(0.3, 2 + 3 * s),
                forms=lambda rng, s: between(0, 0.3, 1.0),
                stuck=lambda rng, s: from_(0.25, 1.0),
            ),
            scale=(0.0, 1.0),
            form_weight=0.05,
            start=_uniform(-2.2, -1.4),
            gain=1.0,
        ),
    ),
    *_fault(
        "plateau",
        _ANY,
        lambda c: (
            abs(c.last("solved") - c.at("solved", 0.25, 0.4)) < 0.035
            and abs(c.at("solved", 0.5, 0.7) - c.at("solved", 0.25, 0.4)) < 0.035
            and 0.12 < c.last("solved") < 0.72
        ),
        step_too_small=_set(_with(stuck=_all_along(0.96, 0.99)), kl_rate=0.002),
        early_ceiling=_set(_with(), ceiling=_uniform(-0.2, 0.4), gain=_uniform(16, 24), schedule="constant"),
        stuck=_with(stuck=_later(0.98, 1.0, 0.2)),
    ),
    *_fault(
        "mismatch_grows",
        _MISMATCH,
        lambda c: (
            c.times("mismatch") > 4 and c.best("clip") > 0 and c.last("solved") < 0.9 * c.best("solved")
        ),
        throughout=_set(_with(part=_all_along(2.9, 3.8)), on_policy=False, age=0.0),
        from_the_middle=_set(_with(part=_later(6, 7.5, 0.4)), on_policy=False, age=0.0),
        engine_replaced=_set(_with(part=_surge(0.45, (2.4, 3.0))), on_policy=False, age=0.0),
        late=_set(_with(part=_later(13, 16, 0.68)), on_policy=False, age=0.0),
    ),
    *_fault(
        "stale_data",
        (("staleness",),),
        lambda c: c.last("staleness") > 8 and (c.fell or c.halted),
        queue_grows=_set(_with(age=lambda rng, s: from_(0.1, 16 + 14 * s, 0.8)), age=1.0, on_policy=False),
        sync_stops=_set(
            _with(age=lambda rng, s: from_(float(rng.uniform(0.4, 0.6)), 18 + 14 * s, 0.15)),
            age=1.0,
            on_policy=False,
        ),
        always_old=_set(_with(age=_all_along(12, 22)), age=1.0, on_policy=False),
        late=_set(_with(age=lambda rng, s: from_(0.7, 24 + 14 * s, 0.06)), age=1.0, on_policy=False),
    ),
    *_fault(
        "critic_failure",
        (("explained_variance",), ("value_loss",)),
        lambda c: c.fell or c.halted,
        diverges=_set(_with(critic=_all_along(2.2, 3.2)), critic=True),
        from_the_middle=_set(_with(critic=_later(4.5, 6.5, 0.4)), critic=True),
        sudden=_set(_with(critic=_surge(0.5, (2.0, 2.8), 0.04)), critic=True),
        late=_set(_with(critic=_later(9, 13, 0.68)), critic=True),
    ),
    *_fault(
        "non_finite",
        (("grad_norm", "loss"),),
        lambda c: True,
        weights_are_lost=_with(non_finite=lambda rng, s: from_(float(rng.uniform(0.3, 0.8)), LOST)),
        some_steps=_with(non_finite=lambda rng, s: from_(float(rng.uniform(0.2, 0.6)), SKIPPED)),
        kl_overflows=_set(_with(non_finite=lambda rng, s: from_(float(rng.uniform(0.3, 0.8)), FROZEN))),
        one_step_kills=_with(non_finite=lambda rng, s: from_(float(rng.uniform(0.1, 0.3)), LOST)),
    ),
]


def _well(c: Course) -> bool:
    """It learned, kept it, and evaluates as it trains."""
    learned = c.gained("solved") > 0.1 and c.last("solved") > 0.93 * c.best("solved")
    going_on = c.last("solved") - c.at("solved", 0.3, 0.45) > 0.02
    calm = (
        c.last("kl") < 0.5
        and c.last("truncated") < 0.12
        and c.last("clip") < 0.2
        and c.at("zero_std", 0.5, 0.9) < 0.6
    )
    lively = 0.15 < c.times("entropy") < 1.8 and c.times("mismatch") < 2.5
    return learned and going_on and calm and lively and c.at("eval", 0.85, 1) > c.at("eval", 0, 0.15) + 0.04


HEALTHY_KINDS: list[Variant] = _fault(
    HEALTHY,
    _ANY,
    _well,
    usual=_with(),
    slow=_set(
        _with(),
        gain=_uniform(0.8, 1.4),
        schedule="constant",
        start=_uniform(-1.2, -0.4),
        ceiling=_uniform(1.4, 2.2),
    ),
    fast=_set(_with(), gain=_uniform(5, 7), ceiling=_uniform(0.9, 1.6)),
    noisy=_set(_with(), prompts=_uniform(12, 20), noise=_uniform(1.6, 2.4)),
    harmless_spikes=_with(spikes=_all_along(4, 25)),
    one_spike=_with(spikes=lambda rng, s: (lambda a: between(a, a + 0.02, 60))(float(rng.uniform(0.2, 0.9)))),
    entropy_falls=_with(sharpen=_all_along(0.2, 0.7)),
    entropy_rises=_set(_with(soften=_all_along(0.2, 0.45)), floor=_uniform(0.9, 1.0)),
    solved_at_the_end=_set(_with(), ceiling=_uniform(3.4, 4.4), gain=_uniform(1.2, 1.9), schedule="constant"),
    kl_grows_gently=_set(_with(drift=_all_along(0.5, 1.5)), kl_pull=0.2, kl_rate=_uniform(0.03, 0.06)),
    cosine=_set(_with(), schedule="cosine", gain=_uniform(3.5, 5)),
    linear=_set(_with(), schedule="linear", gain=_uniform(3.5, 5)),
    long_warmup=_set(_with(), warmup=_uniform(0.1, 0.2)),
    restarted=_set(_with(), restart=_uniform(0.2, 0.9)),
    on_policy=_set(_with(), on_policy=True, age=0.0),
    asynchronous=_set(_with(), age=_uniform(1, 4), on_policy=False),
    longer_as_it_learns=_set(
        _with(pad=_all_along(0.1, 0.4)), longer=_uniform(1.0, 1.8), limit=_uniform(30000, 40000)
    ),
    shorter_as_it_learns=_set(_with(shrink=_all_along(0.3, 0.6)), longer=_uniform(-0.3, 0.0)),
    some_are_cut=_set(_with(limit=_all_along(-1.1, -0.8)), longer=_uniform(-0.1, 0.1)),
    wide_clip=_set(_with(oversize=_all_along(4, 10)), on_policy=False),
    critic=_set(_with(), critic=True),
    format_first=_set(_with(), form_weight=_uniform(0.1, 0.3), start=_uniform(-2, -1.2)),
    mismatch_doubles=_with(part=_all_along(0.3, 0.8)),
    hard_prompts=_set(_with(), start=_uniform(-2.8, -2.0), ceiling=_uniform(0.5, 1.2), gain=_uniform(3.5, 5)),
)
VARIANTS: Mapping[str, Variant] = {variant.name: variant for variant in (*FAULTS, *HEALTHY_KINDS)}

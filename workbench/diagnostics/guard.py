"""What the fair-comparison guard looks at after every step: fingerprints, the first ratio, token identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.events import Event
from workbench.diagnostics.step import StepView
from workbench.spec import RATIO_TOLERANCE, Level, Unit, check

STEP = Level.STEP


def fingerprint(*parts: bytes) -> int:
    """A hash of 48 bits, which a DOUBLE holds exactly: a column with NULLs is read as one."""
    digest = blake2b(digest_size=6)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


@diagnostic(
    STEP,
    Unit.NONE,
    "hash of question, gold answer and prompt group of the trained trajectories, in order",
    "this project",
    sql_type="BIGINT",
)
def questions_hash(v: StepView) -> int:
    """Fingerprint of the questions that the step trained on; equal in arms with one seed and group size."""
    r = v.evidence.trained or v.evidence.rollouts
    asked = zip(r.group.tolist(), r.question, r.gold, strict=True)
    return fingerprint(*(f"{group}\t{question}\t{gold}".encode() for group, question, gold in asked))


@diagnostic(
    STEP,
    Unit.NONE,
    "hash of the trained tokens, prompts included, and the loss mask",
    "this project",
    sql_type="BIGINT",
)
def batch_hash(v: StepView) -> int | None:
    """Fingerprint of the batch that the step trained on; two steps with the same one trained on one batch twice."""
    return v.evidence.batch_hash


@diagnostic(STEP, Unit.NATS, "max |delta| of the first update, where delta is 0 by construction", "this project")
def first_log_ratio_abs_max(v: StepView) -> float | None:
    """Rounding in the first update on fresh old log-probs; NULL where another policy than the trained one took them."""
    column = None if v.updates is None or not v.evidence.fresh else v.updates["log_ratio_abs_max"]
    return None if column is None or not len(column) or np.ma.getmaskarray(column)[0] else float(column[0])


@diagnostic(
    STEP, Unit.COUNT, "trained rows that are not the tokens and turns as sampled", "this project", sql_type="BIGINT"
)
def token_mismatches(v: StepView) -> int | None:
    """Trajectories whose trained tokens or turn ids are not those of the sampler; NULL where it kept no record."""
    return None if v.evidence.mismatches is None else len(v.evidence.mismatches)


class _Violation(NamedTuple):
    message: str
    diagnostic: str
    value: float
    threshold: float | None = None


class GuardWatch:
    """The checks of the guard along a live run: feed it the row of table `step` of every step once, in order.

    A violation that lasts is one event; a step without it arms the check again.
    """

    def __init__(self) -> None:
        self._batches: dict[float, int] = {}  # fingerprint -> the first step that trained on it
        self._broken: set[str] = set()

    def step(
        self, step: int, measured: Mapping[str, float | None], mismatches: Sequence[tuple[int, int]] = ()
    ) -> list[Event]:
        """The violations of `step`; `mismatches` says where those are that `measured` counts."""
        found = {
            "first_ratio": _first_ratio(measured),
            "stuck_batch": self._stuck_batch(step, measured),
            "token_identity": _token_identity(measured, mismatches),
        }
        events = [
            Event(step, check(name).kind, check(name).severity, *violation)
            for name, violation in found.items()
            if violation is not None and name not in self._broken
        ]
        self._broken = {name for name, violation in found.items() if violation is not None}
        return events

    def _stuck_batch(self, step: int, measured: Mapping[str, float | None]) -> _Violation | None:
        seen = measured.get("batch_hash")
        if seen is None:
            return None
        first = self._batches.setdefault(seen, step)
        if first == step:
            return None
        return _Violation(f"the step trained on the very tokens of step {first}", "batch_hash", seen)


def _first_ratio(measured: Mapping[str, float | None]) -> _Violation | None:
    moved = measured.get("first_log_ratio_abs_max")
    if moved is None or not moved > RATIO_TOLERANCE:
        return None
    message = f"the first update saw a log-ratio of {moved:.3g} nats where it is 0 by construction"
    return _Violation(message, "first_log_ratio_abs_max", moved, RATIO_TOLERANCE)


def _token_identity(measured: Mapping[str, float | None], mismatches: Sequence[tuple[int, int]]) -> _Violation | None:
    count = measured.get("token_mismatches")
    if not count:
        return None
    where = f", first in trajectory {mismatches[0][0]}, turn {mismatches[0][1]}" if mismatches else ""
    message = f"{int(count)} trained trajectories are not the tokens and turns that were sampled{where}"
    return _Violation(message, "token_mismatches", count, 0.0)

"""The diagnosis of one log: every cause is looked for, what is found is ranked, what cannot be told is named."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.diagnosis.attribution import Culprit, attribute
from workbench.diagnosis.causes import CAUSES
from workbench.diagnosis.changepoint import first, slumped
from workbench.diagnosis.finding import Cause, Diagnosis, Finding, Moved
from workbench.diagnosis.log import Log

GRADES = ("proof", "sign", "pattern")
# No signals of training: clocks, fingerprints, counters.
_NO_SIGNAL = ("seconds_", "tokens_per_second", "memory_", "questions_hash", "batch_hash", "heldout_episodes", "updates",
              "first_log_ratio_abs_max")  # fmt: skip
_POINTS = 2
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES) -> Diagnosis:
    """Look for every cause in the log; proofs come before signs before patterns, then by confidence, then by step."""
    found: list[Finding] = []
    unanswered: dict[str, list[str]] = {}
    for cause in causes:
        if missing := cause.missing(log):
            unanswered[cause.name] = missing
        elif (clue := cause.look(log)) is not None:
            found.append(Finding(cause, clue))
    found.sort(key=lambda f: (GRADES.index(f.clue.grade), -f.clue.confidence, f.clue.step))
    names = [f.cause.name for f in found]
    ranked = tuple(Finding(f.cause, f.clue, tuple(n for n in names if n != f.cause.name)) for f in found)
    slump = slumped(log.series("step", "success"))
    return Diagnosis(log, ranked, moved(log), unanswered, slump, carriers(log, ranked))


def carriers(log: Log, findings: Sequence[Finding]) -> dict[int, tuple[Culprit, ...]]:
    """Of each step that a finding points at and whose batch is stored: the turns of it that stand out."""
    found: dict[int, tuple[Culprit, ...]] = {}
    for step in sorted({finding.clue.step for finding in findings}):
        batch = log.batch(step)
        if batch is not None and (here := tuple(one for one in attribute(batch) if one.stands_out)):
            found[step] = here
    return found


def moved(log: Log, until: int | None = None) -> tuple[Moved, ...]:
    """The step diagnostics that left their own past, earliest first; those after a collapse say nothing about it."""
    last = log.onset if until is None else until
    found = []
    for column in log.table("step").columns:
        if column in ("run_id", "step", "written_at", "success") or column.startswith(_NO_SIGNAL):
            continue
        series = log.series("step", column)
        departure = first(series, points=_POINTS, least=_LEAST if column.endswith("_frac") else 0.0)
        if departure is not None and (last is None or departure.step <= last):
            found.append(Moved(f"step.{column}", departure.step, departure.value, departure.usual))
    return tuple(sorted(found, key=lambda m: (m.step, m.column)))

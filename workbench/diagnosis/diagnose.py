"""The diagnosis of one log: run every cause, rank the findings."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sorl.diagnosis.attribution import Culprit, attribute
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import MARGIN, Evidence, first, slumped, spread
from sorl.diagnosis.finding import LONG, Cause, Clue, Diagnosis, Finding
from sorl.diagnosis.log import EVALUATION, PART, Log
from sorl.diagnosis.proofs import (
    PROVED,
    add_proof,
    defining_violation,
    denied_by,
    first_violations,
    follows_from,
    prove,
)
from sorl.measures import column_types
from sorl.spec import InputError
from sorl.spec.evidence import Check, Removal

# In the order of their rank, with the words of a report.
GRADES = {
    "intervention": "shown by intervention",
    "proof": "the record shows it",
    "sign": "clear sign",
    "pattern": "fits the pattern",
    "refuted": "refuted by intervention",
}
_KEYS = ("run_id", "step", "written_at", "success")
# No signals of training: clocks, fingerprints, counters.
_NO_SIGNAL = (
    "seconds_",
    "tokens_per_second",
    "memory_",
    "questions_hash",
    "batch_hash",
    "heldout_episodes",
    "updates",
    "first_log_ratio_abs_max",
    "revisit",
    "sampler_revisit",
    "trainer_revisit",
)
SLACK = 0.1  # of the run: two drifts whose beginnings lie so close began together
CONSEQUENCE = 0.6  # of the confidence of a finding that another one explains
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES, checks: Sequence[Check] = ()) -> Diagnosis:
    """Look for every cause in the log; rank by grade (of `GRADES`), then by confidence, then by step.

    `checks` of an audit of the run: what a violated identity proves leads, and one that holds withdraws the
    causes that it denies. A look that fails costs its own cause.
    """
    looks = _look_for(log, causes, checks)
    proved = prove(looks.findings, first_violations(checks), SLACK * log.span)
    withdrawn = _withdrawn(looks.findings, proved, checks)
    findings = [_tested(finding, log.tests.get(finding.cause.name)) for finding in proved]
    findings += _ranked(log, looks.findings, proved, withdrawn)
    failed = dict(looks.failed)
    with noting(failed, "the turns that stand out"):
        carriers = _carriers(log, findings)
    with noting(failed, "the first signals"):
        first_moved = moved(log)
    return Diagnosis(
        log,
        tuple(findings),
        first_moved if "the first signals" not in failed else (),
        looks.unanswered,
        slumped(log.series("step", "success")),
        carriers if "the turns that stand out" not in failed else {},
        failed,
        withdrawn,
    )


def _withdrawn(
    findings: Sequence[Finding], proved: Sequence[Finding], checks: Sequence[Check]
) -> dict[str, str]:
    """Return the causes that an identity denies, but those that are proved, each with that identity."""
    names_proved = {finding.cause.name for finding in proved}
    withdrawn = {}
    for finding in findings:
        identity = denied_by(finding, checks)
        if identity and finding.cause.name not in names_proved:
            withdrawn[finding.cause.name] = identity
    return withdrawn


def _ranked(
    log: Log, findings: Sequence[Finding], proved: Sequence[Finding], withdrawn: Collection[str]
) -> list[Finding]:
    """Return the findings that are neither proved nor withdrawn, by grade, confidence and step; what a proof
    or another finding explains is marked down.
    """
    left_out = {*withdrawn, *(finding.cause.name for finding in proved)}
    ranked = []
    for finding in findings:
        if finding.cause.name in left_out:
            continue
        settled = _settled(finding, findings, SLACK * log.span)
        if follows_from(settled, proved):
            settled = _as_consequence(settled)
        ranked.append(_tested(settled, log.tests.get(finding.cause.name)))
    grades = list(GRADES)
    return sorted(ranked, key=lambda f: (grades.index(f.clue.grade), -f.clue.confidence, f.clue.step))


class _Looks(NamedTuple):
    """What was found of each cause that was looked for."""

    findings: list[Finding]
    unanswered: dict[str, list[str]]  # cause -> what the log lacks to tell
    failed: dict[str, str]  # cause -> why it could not be checked


def _look_for(log: Log, causes: Sequence[Cause], checks: Sequence[Check]) -> _Looks:
    looks = _Looks([], {}, {})
    for cause in causes:
        is_too_short = cause.scalar and log.ledger and log.steps < LONG
        if is_too_short or not cause.arises(log):
            continue
        proof = defining_violation(cause, checks)
        with noting(looks.failed, cause.name):
            missing = cause.missing(log)
            if missing and proof is None:
                looks.unanswered[cause.name] = missing
                continue
            clue = None if missing else cause.clue(log)
            if proof is not None:
                clue = add_proof(clue, proof)
            if clue is not None:
                looks.findings.append(_weighed(Finding(cause, clue), log))
    return looks


@contextmanager
def noting(failed: dict[str, str], name: str, *raised: type[Exception]) -> Iterator[None]:
    """Keep an exception as why one thing could not be checked, but those that are to be `raised`: a record
    that contradicts itself may raise anything, and the others must go on.
    """
    try:
        yield
    except raised:
        raise
    except InputError as error:
        failed[name] = str(error)
    except Exception as error:  # noqa: BLE001 - the one place of a diagnosis where anything may fail
        failed[name] = f"{type(error).__name__}: {error}"


def _as_consequence(finding: Finding) -> Finding:
    """Mark down what a proof explains."""
    certain = min(finding.clue.confidence, CONSEQUENCE * PROVED)
    return finding._replace(clue=replace(finding.clue, grade="pattern", confidence=certain))


def _carriers(log: Log, findings: Sequence[Finding]) -> dict[int, tuple[Culprit, ...]]:
    """Return the turns that stand out of the stored batches of the findings, by step."""
    carriers = {}
    for step in sorted({finding.clue.shown for finding in findings}):
        batch = log.batch(step)
        outstanding = tuple(c for c in attribute(batch) if c.stands_out) if batch is not None else ()
        if outstanding:
            carriers[step] = outstanding
    return carriers


def _weighed(finding: Finding, log: Log) -> Finding:
    """Weigh a scalar finding by the harm that follows: a remark where the run learned, or had nothing to
    learn, and its reward has not fallen since; a warning where nobody can tell, because there is no
    reward, too few rows or no clear change. Curves of another trainer have no ledger that could tell more.
    """
    if log.ledger or not finding.cause.scalar or finding.cause.rewarded:
        return finding
    score = log.outcome(finding.clue.step)
    outcome = log.run.get("outcome")
    fell = score is not None and score.change < 0
    if outcome in ("healthy", "saturated") and not fell:
        return finding._replace(clue=replace(finding.clue, severity="info"))
    too_short = log.reading is not None and outcome is None
    is_open = score is None or too_short or (outcome == "no_clear_change" and not fell)
    if is_open and finding.severity == "critical":
        return finding._replace(clue=replace(finding.clue, severity="warning"))
    return finding


def _settled(finding: Finding, found: Sequence[Finding], slack: float) -> Finding:
    """Mark down what another finding explains that began no later: it fits as a consequence, and ranks behind
    it.
    """
    effect, trace, _ = finding

    def led(cause: Cause, clue: Clue) -> bool:
        if effect.residual:
            return not cause.residual
        if effect.name not in cause.explains or clue.step > trace.step + slack:
            return False
        # Of two that began together and may each have led to the other, the surer one did.
        mutual = cause.name in effect.explains and trace.step <= clue.step + slack
        return not mutual or clue.confidence > trace.confidence

    reasons = [0.9 * clue.confidence for cause, clue, _ in found if led(cause, clue)]
    known = min([CONSEQUENCE * trace.confidence, *reasons])
    return Finding(effect, replace(trace, grade="pattern", confidence=known)) if reasons else finding


def _tested(finding: Finding, tested: Removal | None) -> Finding:
    """Grade a finding by what forks without its cause do; a proof that is no reason of the fall stays one."""
    cause, clue, _ = finding
    if tested is not None and tested.saves:
        clue = replace(clue, grade="intervention")
    elif tested is not None and tested.refuted and clue.grade != "proof":
        clue = replace(clue, grade="refuted")
    return Finding(cause, clue, tested)


def signals(log: Log) -> Iterator[tuple[str, float]]:
    """Yield each step diagnostic that may say something, and the least spread that it can have.

    Of the columns that another trainer has under its own names only parts of the reward and evaluations are
    known to be no clock, counter or hardware.
    """
    ours = column_types("step")
    for column in log.table("step").columns:
        is_known = column in ours or column.startswith(PART) or EVALUATION.match(column) is not None
        if not is_known or column in _KEYS or column.startswith(_NO_SIGNAL):
            continue
        yield column, _LEAST if column.endswith("_frac") else 0.0


def moved(log: Log) -> tuple[Evidence, ...]:
    """The step diagnostics that left their own past, earliest first; those after a collapse say nothing about
    it.
    """
    looks = (first(log.series("step", column), points=2, least=least) for column, least in signals(log))
    found = (left for left in looks if left is not None and (log.onset is None or left.step <= log.onset))
    return tuple(sorted(found, key=lambda m: (m.step, m.column)))


def swung(log: Log) -> tuple[Evidence, ...]:
    """What the steps from the onset to the detection (the end) show that none before did, the farthest from
    it first.

    As `moved`, but by all of the past, however short: a fall in the first steps has no other.
    """
    found = []
    certain = log.first_known("detection_step")
    for column, least in signals(log) if log.onset is not None else ():
        series = log.series("step", column)
        steps = series.index.to_numpy()
        values = series.to_numpy()
        past = values[(steps < log.onset) & np.isfinite(values)]
        at = np.flatnonzero((steps >= log.onset) & (steps <= (np.inf if certain is None else certain)))
        if len(past) < 2 or not len(at):
            continue
        usual, wide = spread(past, 0.05, least)
        i = int(at[np.argmax(np.abs(values[at] - usual))])
        away = abs(values[i] - usual) / wide
        if away > MARGIN and not past.min() <= values[i] <= past.max():
            found.append((-away, Evidence(f"step.{column}", int(steps[i]), float(values[i]), usual)))
    return tuple(one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].column)))

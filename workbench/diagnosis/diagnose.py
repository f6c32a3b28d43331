"""The diagnosis of one log: run every cause, rank the findings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sorl.diagnosis.attribution import Culprit, attribute
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import slumped
from sorl.diagnosis.finding import LONG, Cause, Diagnosis, Finding
from sorl.diagnosis.log import Log
from sorl.diagnosis.proofs import add_proof, defining_violation, denied_by, first_violations, prove
from sorl.diagnosis.rank import SLACK, grade_by_test, rank_findings, weigh
from sorl.diagnosis.signals import moved
from sorl.spec import InputError
from sorl.spec.evidence import Check


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES, checks: Sequence[Check] = ()) -> Diagnosis:
    """Look for every cause in the log; rank by grade (of `GRADES`), then by confidence, then by step.

    `checks` of an audit of the run: what a violated identity proves leads, and one that holds withdraws the
    causes that it denies. A look that fails costs its own cause.
    """
    looks = _look_for(log, causes, checks)
    proved = prove(looks.findings, first_violations(checks), SLACK * log.span)
    withdrawn = _withdrawn(looks.findings, proved, checks)
    findings = [grade_by_test(finding, log.tests.get(finding.cause.name)) for finding in proved]
    findings += rank_findings(log, looks.findings, proved, withdrawn)
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
                looks.findings.append(weigh(Finding(cause, clue), log))
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


def _carriers(log: Log, findings: Sequence[Finding]) -> dict[int, tuple[Culprit, ...]]:
    """Return the turns that stand out of the stored batches of the findings, by step."""
    carriers = {}
    for step in sorted({finding.clue.shown for finding in findings}):
        batch = log.batch(step)
        outstanding = tuple(c for c in attribute(batch) if c.stands_out) if batch is not None else ()
        if outstanding:
            carriers[step] = outstanding
    return carriers

"""The order of findings: graded by what shows them, marked down where another finding explains them."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sorl.diagnosis.finding import Cause, Clue, Diagnosis, Finding
from sorl.diagnosis.log import Log
from sorl.diagnosis.proofs import PROVED, follows_from
from sorl.spec.evidence import Removal

# In the order of their rank, with the words of a report.
GRADES = {
    "intervention": "shown by intervention",
    "proof": "the record shows it",
    "sign": "clear sign",
    "pattern": "fits the pattern",
    "refuted": "refuted by intervention",
}
SLACK = 0.1  # of the run: two drifts whose beginnings lie so close began together
CONSEQUENCE = 0.6  # of the confidence of a finding that another one explains
_SEVERITIES = ("critical", "warning", "info")


def weigh(finding: Finding, log: Log) -> Finding:
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


def rank_findings(
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
        ranked.append(grade_by_test(settled, log.tests.get(finding.cause.name)))
    grades = list(GRADES)
    return sorted(ranked, key=lambda f: (grades.index(f.clue.grade), -f.clue.confidence, f.clue.step))


def _as_consequence(finding: Finding) -> Finding:
    """Mark down what a proof explains."""
    certain = min(finding.clue.confidence, CONSEQUENCE * PROVED)
    return finding._replace(clue=replace(finding.clue, grade="pattern", confidence=certain))


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


def grade_by_test(finding: Finding, tested: Removal | None) -> Finding:
    """Grade a finding by what forks without its cause do; a proof that is no reason of the fall stays one."""
    cause, clue, _ = finding
    if tested is not None and tested.saves:
        clue = replace(clue, grade="intervention")
    elif tested is not None and tested.refuted and clue.grade != "proof":
        clue = replace(clue, grade="refuted")
    return Finding(cause, clue, tested)


def is_later(d: Diagnosis, finding: Finding) -> bool:
    """Whether a finding shows only after the fall; curves without a ledger date it no closer than SLACK."""
    by = d.log.fallen_by
    if finding.tested is not None and (finding.tested.saves or finding.tested.refuted):
        return finding.tested.refuted
    if by is None or finding.clue.from_the_start:
        return False
    return finding.clue.shown > by + (0 if d.log.ledger else SLACK * d.log.span)


def in_order(d: Diagnosis) -> list[Finding]:
    """The findings, those that show only after the fall last; of the log of another trainer the critical ones
    before the warnings.
    """

    def rank(finding: Finding) -> tuple[bool, int]:
        return is_later(d, finding), _SEVERITIES.index(finding.severity) if d.log.reading else 0

    return sorted(d.findings, key=rank)

"""The diagnosis of one log: run every cause, rank the findings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sorl.diagnosis.attribution import attribute
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import MARGIN, Evidence, first, slumped, spread
from sorl.diagnosis.finding import LONG, Cause, Clue, Diagnosis, Finding
from sorl.diagnosis.log import EVALUATION, PART, Log
from sorl.recording.segments import schema_of
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
)
SLACK = 0.1  # of the run: two drifts whose beginnings lie so close began together
PROVED = 0.95  # confidence of a cause that an audit proves
CONSEQUENCE = 0.6  # of the confidence of a finding that another one explains
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES, checks: Sequence[Check] = ()) -> Diagnosis:
    """Look for every cause in the log; rank by grade (of `GRADES`), then by confidence, then by step.

    `checks` of an audit of the run prove the causes that are the violation of an identity by definition.
    """
    asked = [cause for cause in causes if not (cause.scalar and log.ledger and log.steps < LONG)]
    proofs = {cause.name: proof for cause in asked if (proof := _proof(cause, checks))}
    unanswered = {c.name: missing for c in asked if c.name not in proofs and (missing := c.missing(log))}
    looks = (
        (cause, _proved(None if cause.missing(log) else cause.clue(log), proofs.get(cause.name)))
        for cause in asked
        if cause.name not in unanswered
    )
    seen = [_weighed(Finding(cause, clue), log) for cause, clue in looks if clue is not None]
    found = [
        _tested(_settled(finding, seen, SLACK * log.span), log.tests.get(finding.cause.name))
        for finding in seen
    ]
    found.sort(key=lambda f: (list(GRADES).index(f.clue.grade), -f.clue.confidence, f.clue.step))
    batches = ((step, log.batch(step)) for step in sorted({finding.clue.shown for finding in found}))
    culprits = (
        (step, tuple(c for c in attribute(b) if c.stands_out)) for step, b in batches if b is not None
    )
    carriers = {step: here for step, here in culprits if here}
    return Diagnosis(
        log, tuple(found), moved(log), unanswered, slumped(log.series("step", "success")), carriers
    )


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


def _proof(cause: Cause, checks: Sequence[Check]) -> "Check | None":
    known = [check for check in checks if not check.missing]
    held = {check.step for check in known if check.identity == cause.holds and not check.violated}
    broken = [check for check in known if check.identity == cause.breaks and check.violated]
    return next((check for check in broken if not cause.holds or check.step in held), None)


def _proved(clue: Clue | None, proof: "Check | None") -> Clue | None:
    """Add to what the log shows that a recomputed step proves it."""
    if proof is None:
        return clue
    reading = f" ({proof.says})" if proof.says else ""
    says = f"step {proof.step} recomputed: `{proof.identity}` is violated{reading}"
    shown = Evidence(f"audit.{proof.identity}", proof.step, proof.logged, proof.expected)
    if clue is None:
        return Clue("proof", PROVED, proof.step, says, (shown,), *proof.trajectories[:1])
    both = (*clue.evidence, shown)
    return replace(clue, grade="proof", confidence=PROVED, says=f"{clue.says}; {says}", evidence=both)


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
    ours = set(schema_of("step").names)
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

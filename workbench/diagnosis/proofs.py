"""What an audit adds to a diagnosis: a violated identity leads, and one that holds withdraws what it denies.

Both sides of an identity were stored by the trainer, so its violation is a proof, whatever the bug is called.
A cause is read from what a fault leaves in the log. Where both fit, the violation proves the cause; where the
identity that the cause would break holds, it is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sorl.diagnosis.changepoint import Evidence
from sorl.diagnosis.finding import Cause, Clue, Finding
from sorl.spec.evidence import Check

AUDIT = "audit."  # begins the name of a finding that is the violation of an identity
PROVED = 0.95  # confidence of what an audit proves
_TOO = "; violated too: "
LATE = 3  # steps by which the trace of a proved cause may lag behind the violation, besides the slack


def first_violations(checks: Sequence[Check]) -> list[Check]:
    """Return the first violation of each identity, the earliest first; within a step in the audit's order.

    Those that only several steps together show come last: where they begin is not known to the step.
    """
    names = list(dict.fromkeys(check.identity for check in checks))
    order = {name: place for place, name in enumerate(names)}
    violated = [check for check in checks if check.violated]
    first: dict[str, Check] = {}
    for check in sorted(violated, key=lambda check: check.step):
        known = first.setdefault(check.identity, check)
        if known.step == check.step and known.holds_until is None:
            first[check.identity] = check  # the same one, after a search for where it begins
    return sorted(first.values(), key=lambda check: (check.is_pooled, check.step, order[check.identity]))


def defining_violation(cause: Cause, checks: Sequence[Check]) -> Check | None:
    """Return the first violation that is a cause by definition; None where there is none."""
    known = [check for check in checks if not check.missing]
    held = {check.step for check in known if check.identity == cause.holds and not check.violated}
    for check in known:
        is_broken = check.identity == cause.defined_by and check.violated
        if is_broken and (not cause.holds or check.step in held):
            return check
    return None


def prove(findings: Sequence[Finding], broken: Sequence[Check], slack: float) -> list[Finding]:
    """Return the findings that an audit proves, in the order of the violations `broken`.

    A violation is that of the surest cause which explains it and shows in the log; one that none explains is
    a finding of its own. Of several that begin in one step the first in the audit's order is the nearest to
    the bug, and the finding names the others beside it; a cause that explains it has no second one. A
    violation that only several steps together show is named beside one of these steps in the same way.

    `slack`: steps by which a drift may be dated late.
    """
    proved: list[Finding] = []
    left = list(findings)
    for check in broken:
        explained = next((i for i, finding in enumerate(proved) if explains(finding.cause, check)), None)
        if explained is not None:
            proved[explained] = _with_figure(proved[explained], check)
            continue
        fitting = [finding for finding in left if _fits(finding, check, slack)]
        beside = next((i for i, finding in enumerate(proved) if _began_with(finding, check)), None)
        has_cause = beside is not None and not proved[beside].cause.name.startswith(AUDIT)
        if fitting and not has_cause:
            best = max(fitting, key=lambda finding: (finding.clue.grade == "proof", finding.clue.confidence))
            left.remove(best)
            proved.append(best._replace(clue=add_proof(best.clue, check)))
        elif beside is not None:
            proved[beside] = _with_figure(proved[beside], check)
        else:
            proved.append(Finding(_cause_of(check), _clue_of(check)))
    return proved


def explains(cause: Cause, check: Check) -> bool:
    """Whether the violation of an identity is what a cause leads to."""
    return check.identity in (*cause.breaks, cause.defined_by)


def _fits(finding: Finding, check: Check, slack: float) -> bool:
    """Whether a violation proves a finding: a mere pattern has other explanations, and a trace that begins
    long after the violation is that of something else.
    """
    is_clear = finding.clue.grade in ("proof", "sign")
    return is_clear and explains(finding.cause, check) and finding.clue.step <= check.step + LATE + slack


def _began_with(finding: Finding, check: Check) -> bool:
    """Whether the violation that a finding stands for is of the same step, or among the steps of `check`."""
    audited = [shown.step for shown in finding.clue.evidence if shown.column.startswith(AUDIT)]
    return any(step == check.step or (check.is_pooled and step > check.step) for step in audited)


def add_proof(clue: Clue | None, check: Check) -> Clue:
    """Add to what the log shows that a recomputed step proves it."""
    if clue is None:
        return _clue_of(check)
    if _shows(clue, check):
        return clue
    evidence = (*clue.evidence, figure_of(check))
    says = f"{clue.says}; {sentence(check)}"
    return replace(clue, grade="proof", confidence=max(PROVED, clue.confidence), says=says, evidence=evidence)


def _with_figure(finding: Finding, check: Check) -> Finding:
    """Add the figure of another identity that the same cause violates."""
    if _shows(finding.clue, check):
        return finding
    evidence = (*finding.clue.evidence, figure_of(check))
    joint = ", " if _TOO in finding.clue.says else _TOO
    says = f"{finding.clue.says}{joint}`{check.identity}`"
    return finding._replace(clue=replace(finding.clue, says=says, evidence=evidence))


def _shows(clue: Clue, check: Check) -> bool:
    """Whether a clue has the figure of a violated identity already."""
    return any(shown.column == figure_of(check).column for shown in clue.evidence)


def _cause_of(check: Check) -> Cause:
    """Return the violation of an identity as a cause, whose title is what it means."""
    means = check.means or f"the identity {check.identity} is violated"
    return Cause(
        f"{AUDIT}{check.identity}",
        means[0].upper() + means[1:],
        lambda log: None,
        needs=(),
        change=check.change or "Look at the code that makes the logged side.",
        test=f"sorl audit {{run}} --step {check.step} --only {check.identity}",
    )


def _clue_of(check: Check) -> Clue:
    trajectory = check.trajectories[0] if check.trajectories else None
    return Clue(
        "proof",
        PROVED,
        check.step,
        sentence(check),
        (figure_of(check),),
        trajectory,
        from_the_start=check.holds_until is None,
    )


def sentence(check: Check) -> str:
    """Return a violated identity in words: both sides, what the difference looks like, since when."""
    sides = f"logged {check.logged:.4g}, must be {check.expected:.4g}"
    reading = f"; {check.says}" if check.says else ""
    says = f"step {check.step} recomputed: `{check.identity}` is violated ({sides}{reading})"
    return f"{says}{since(check)}"


def since(check: Check) -> str:
    """Return from which step on an identity is broken, where an earlier one was checked."""
    if check.holds_until is None or "holds until" in check.says:
        return ""
    changed = f", where {check.changed}" if check.changed else ""
    if check.holds_until == check.step - 1:
        return f"; it holds until step {check.holds_until}{changed}"
    return f"; it still holds in step {check.holds_until}, and none between is stored{changed}"


def figure_of(check: Check) -> Evidence:
    """Return the two sides of a violated identity as a figure."""
    return Evidence(f"{AUDIT}{check.identity}", check.step, check.logged, check.expected)


def denied_by(finding: Finding, checks: Sequence[Check]) -> str:
    """Return the identity that denies a finding: it was checked in a step since that of the finding, and
    holds in every step that was checked. Empty where none does.

    What the record itself proves of a step is denied by a check of that step alone: a fault may come and go.
    """
    identity = finding.cause.denied_by
    own = [check for check in checks if check.identity == identity and not check.missing]
    step = finding.clue.step
    is_proof = finding.clue.grade == "proof"
    is_checked = any(check.step == step if is_proof else check.step >= step for check in own)
    is_violated = any(check.violated for check in own)
    return identity if is_checked and not is_violated else ""


def follows_from(finding: Finding, proved: Sequence[Finding]) -> bool:
    """Whether what a log shows may be left behind by something that is proved: it began no earlier. What is
    trained is then not what is logged, and curves that show it say nothing about a second cause.
    """
    if finding.clue.grade not in ("sign", "pattern"):
        return False
    return any(proof.clue.step <= finding.clue.step for proof in proved)

"""What an audit adds to a diagnosis: a violated identity leads, and one that holds withdraws what it denies.

An identity is recomputed from both sides that the trainer stored, so its violation is a proof. A cause is
read from the curves that a fault leaves; where the identity that it would break holds, it is not the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sorl.diagnosis.changepoint import Evidence
from sorl.diagnosis.finding import Cause, Clue, Finding
from sorl.spec.evidence import Check

PROVED = 0.95  # confidence of a cause that an audit proves
# Identity -> causes that it denies where it holds: they cannot be without a violation of it.
DENIES: dict[str, tuple[str, ...]] = {
    "loss_mask": ("observation_leak", "prompt_leak", "padding_leak", "turn_shift"),
    "reward": ("reward_format", "reward_inverted", "reward_shifted", "reward_noise"),
    "behaviour_log_probs": ("stale_weights", "temperature", "low_precision", "route_mismatch"),
    "sampling": ("temperature_hidden",),
    "old_log_probs": ("corrupt_log_prob",),
    "reference_log_probs": ("reference_wrong",),
    "advantages": ("wrong_groups",),
    "gradient_clip": ("clipping_off",),
    "learning_rate": ("learning_rate",),
}


def find_proof(cause: Cause, checks: Sequence[Check]) -> Check | None:
    """Return the first violation that is a cause by definition; None where there is none."""
    known = [check for check in checks if not check.missing]
    held = {check.step for check in known if check.identity == cause.holds and not check.violated}
    for check in known:
        is_broken = check.identity == cause.breaks and check.violated
        if is_broken and (not cause.holds or check.step in held):
            return check
    return None


def add_proof(clue: Clue | None, proof: Check) -> Clue:
    """Add to what the log shows that a recomputed step proves it."""
    says = _sentence(proof)
    shown = _figure(proof)
    if clue is None:
        return Clue("proof", PROVED, proof.step, says, (shown,), *proof.trajectories[:1])
    both = (*clue.evidence, shown)
    return replace(clue, grade="proof", confidence=PROVED, says=f"{clue.says}; {says}", evidence=both)


def violations(checks: Sequence[Check], claimed: Iterable[str]) -> list[Finding]:
    """Return a finding for each violated identity, the nearest to its cause first; those that a cause of its
    own tells (`claimed`) are left out.
    """
    told = set(claimed)
    findings = []
    for check in checks:
        if not check.violated or check.identity in told:
            continue
        told.add(check.identity)
        clue = Clue("proof", PROVED, check.step, _sentence(check), (_figure(check),), *check.trajectories[:1])
        findings.append(Finding(_cause_of(check), clue))
    return findings


def _cause_of(check: Check) -> Cause:
    """Return the violation of an identity as a cause: what it means is the title."""
    means = check.means or f"the identity {check.identity} is violated"
    return Cause(
        f"audit.{check.identity}",
        means[0].upper() + means[1:],
        lambda log: None,
        needs=(),
        change="Look at the code that makes the logged side; `sorl audit` shows where they part.",
        test=f"sorl audit {{run}} --step {check.step} --only {check.identity}",
    )


def _sentence(check: Check) -> str:
    sides = f"logged {check.logged:.4g}, must be {check.expected:.4g}"
    reading = f"; {check.says}" if check.says else ""
    return f"step {check.step} recomputed: `{check.identity}` is violated ({sides}{reading})"


def _figure(check: Check) -> Evidence:
    return Evidence(f"audit.{check.identity}", check.step, check.logged, check.expected)


def denied_by(finding: Finding, checks: Sequence[Check]) -> str:
    """Return the identity that denies a finding: it was checked in a step since that of the finding, and
    holds in every step that was checked. Empty where none does, and of what the record itself proves.
    """
    if finding.clue.grade == "proof":
        return ""
    for identity, causes in DENIES.items():
        if finding.cause.name not in causes:
            continue
        own = [check for check in checks if check.identity == identity and not check.missing]
        is_recent = any(check.step >= finding.clue.step for check in own)
        if is_recent and not any(check.violated for check in own):
            return identity
    return ""


def follows_from(finding: Finding, broken: Sequence[Finding]) -> bool:
    """Whether a pattern may be what a violated identity leaves behind: it began no earlier. What is trained
    is then not what is logged, and curves that show it say nothing about a second cause.
    """
    if finding.clue.grade not in ("sign", "pattern"):
        return False
    return any(proof.clue.step <= finding.clue.step for proof in broken)

"""The update itself is at fault: critic, entropy bonus, reference, and steps too large for the data they rest on."""

from __future__ import annotations

import pandas as pd

from workbench.diagnosis.departure import first
from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

RUNAWAY = 8.0  # x the usual loss of the critic, at its worst


def _critic(log: Log) -> Clue | None:
    # Of a critic that catches itself again the loss stays high for some steps only.
    loss = log.series("minibatch", "value_loss", "max")
    rise = first(loss, "above", points=3, floor=0.2)
    variance = log.series("step", "explained_variance")
    if rise is None or float(loss[loss.index >= rise.step].max()) < RUNAWAY * rise.usual:
        return None
    after = variance[variance.index >= rise.step]
    worst = float(after.min()) if len(after) else float("nan")
    return Clue(
        "sign", 0.85, rise.step,
        f"from step {rise.step} on the critic's loss is {rise.value:.3g}, where {rise.usual:.3g} was usual; its values "
        f"explain {worst:.2f} of the variance of the returns at worst (0 = as good as a constant)",
        (
            Evidence("minibatch.value_loss", rise.step, rise.value, rise.usual),
            Evidence("step.explained_variance", rise.step, worst, None),
        ),
    )  # fmt: skip


def _entropy(log: Log) -> Clue | None:
    """A bonus pushes on and on; after a collapse or one huge step the entropy jumps and stays where it is."""
    entropy = log.series("step", "entropy")
    start = first(entropy, "above", points=2, floor=0.1)
    if start is None:
        return None
    since = entropy[entropy.index >= start.step]
    climbs = since.corr(pd.Series(range(len(since)), index=since.index), method="spearman")
    lost = first(log.series("step", "success"), "below", points=2, margin=3.0, floor=0.1)
    fell_before = lost is not None and lost.step < start.step - 1
    if len(since) < 5 or climbs < 0.9 or since.iloc[-1] < 2 * since.iloc[0] or fell_before:
        return None
    return Clue(
        "sign", 0.75, start.step,
        f"entropy climbs from step {start.step} on without a halt, from {start.usual:.3g} to "
        f"{float(since.max()):.3g} nats a token: the policy is paid for noise",
        (Evidence("step.entropy", start.step, start.value, start.usual),),
    )  # fmt: skip


def _reference(log: Log) -> Clue | None:
    distance = log.series("step", "kl_ref")
    if len(distance) < 3:
        return None
    begins = float(distance.iloc[0])
    if int(distance.index[0]) == 0 and begins > 0.02:
        return Clue(
            "proof", 0.9, 0,
            f"the policy is {begins:.3g} nats a token from its reference before it has learned anything: the "
            "reference is not the model that training began with",
            (Evidence("step.kl_ref", 0, begins, 0.0),),
        )  # fmt: skip
    jump = first(distance, "above", points=2, floor=0.3)
    moved = log.series("step", "kl_k3")
    if jump is None or jump.value < 3 * max(jump.usual, 1e-3):
        return None
    step_kl = float(moved.get(jump.step, float("nan")))
    return Clue(
        "sign", 0.9, jump.step,
        f"the distance to the reference jumps from {jump.usual:.3g} to {jump.value:.3g} nats in step {jump.step}, "
        f"while the policy moved by {step_kl:.2g}: the reference changed, not the policy",
        (Evidence("step.kl_ref", jump.step, jump.value, jump.usual),),
    )  # fmt: skip


CRITIC = Cause(
    "critic_diverges",
    "The critic diverges",
    "critical",
    ("minibatch.value_loss",),
    "Lower learn.critic.lr, clip its gradient, check the targets; a method without a critic tells whether it matters.",
    "--set algorithm=grpo",
    _critic,
)
ENTROPY_BONUS = Cause(
    "entropy_bonus",
    "The policy is pushed into noise",
    "warning",
    ("step.entropy", "step.success"),
    "Lower the entropy coefficient, or let it decay.",
    "--set learn.entropy_coef=0.0",
    _entropy,
)
REFERENCE = Cause(
    "reference_wrong",
    "The KL reference is another model",
    "critical",
    ("step.kl_ref",),
    "Load the reference from the checkpoint that training began with, and freeze it.",
    "sorl sql \"SELECT step, kl_ref, kl_k3 FROM step WHERE run_id = '{run}' ORDER BY step\"",
    _reference,
)

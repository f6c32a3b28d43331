"""Faults of the update: its settings, the critic, the reference, and steps that are too large."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sorl.diagnosis.causes.batch import culprit
from sorl.diagnosis.changepoint import Evidence, before, first, reward_after
from sorl.diagnosis.finding import Clue, bounded, cause, sql, third
from sorl.diagnosis.log import Log
from sorl.diagnosis.standing import counted, from_onset
from sorl.spec.reading import NotFinite

CLOSE = 1.01  # x, of two numbers that should be one
# x the lowest loss of the critic; share of the variance that it explained once
LOSS = 3.0
EXPLAINED = 0.2
RUNAWAY = 8.0  # x the usual loss of the critic, at its worst
FAR = 0.02  # nats from a reference: nearer, a policy that learns is as far
BEFORE = 4  # steps before the onset, in which its reason is looked for
_METRICS = 4  # that are named of those that are no numbers
_TAIL = 3.0  # token ratio, from which a token with a negative advantage is far outside every clip range


@cause(
    "minibatch.lr",
    breaks=("learning_rate", "peak_learning_rate"),
    denied_by="learning_rate",
    change=(
        "Look at the schedule: warm-up, a resumed scheduler, a scale by world size or by accumulation steps."
    ),
    test=sql("SELECT step, max(lr) FROM minibatch", "GROUP BY step ORDER BY step"),
    options=("learn.policy.lr",),
)
def learning_rate(log: Log) -> Clue | None:
    """The learning rate is not the one that was set."""
    lr = log.series("minibatch", "lr", "max")
    meant = log.settings.get("learn.policy.lr")
    usual = float(lr.iloc[: max(1, len(lr) // 5)].median()) if meant is None else float(meant)
    found = log.first_above("minibatch", "lr", 1.5 * usual, usual)
    past = lr.iloc[:0] if found is None else lr[lr.index < found.step]
    if found is None or (meant is None and (past.nunique() > 1 or len(past) < BEFORE)):
        return None  # a warm-up or a schedule: nobody says which
    source = "the settings say" if meant is not None else "it began with"
    says = f"the optimizer's learning rate is {found.value:.3g}, where {source} {usual:.3g}"
    return Clue.since("proof" if meant is not None else "sign", 0.97, found, says)


@cause(
    "minibatch.grad_norm_after",
    breaks=("gradient_clip",),
    denied_by="gradient_clip",
    needs_settings=("learn.policy.max_grad_norm",),
    change=(
        "Clip after the gradients are unscaled and gathered, before optimizer.step(); check that the"
        " parameters clipped are those that are stepped."
    ),
    test="--set learn.policy.max_grad_norm=1.0",
)
def clipping_off(log: Log) -> Clue | None:
    """Gradient clipping is configured but not applied."""
    if (bound := log.settings.get("learn.policy.max_grad_norm")) is None:
        return None
    found = log.first_above("minibatch", "grad_norm_after", CLOSE * float(bound), float(bound))
    most = log.series("minibatch", "grad_norm_after", "max").max()
    says = f"norms up to {most:.3g}, though max_grad_norm = {bound:g}: clipping is configured and not applied"
    says = f"the optimizer steps along gradients with {says}"
    return None if found is None else Clue.since("proof", 0.97, found, says)


@cause(
    "critic",
    breaks=("critic_loss", "critic_gradient", "weights"),
    without={"learn.critic.lr": third},
    change=(
        "Lower learn.critic.lr, clip its gradient, check the targets; a method without a critic tells whether"
        " it matters."
    ),
    test="--set algorithm=grpo",
    options=("learn.critic.lr",),
)
def critic_diverges(log: Log) -> Clue | None:
    """The critic diverges."""
    if not log.ledger:
        return _critic(log)
    loss = log.series("minibatch", "value_loss", "max")
    variance = log.series("step", "explained_variance")
    rise = first(loss, "above", points=3, floor=0.2)
    # Of a critic that catches itself again the loss stays high for some steps only.
    if rise is None or float(loss[loss.index >= rise.step].max()) < RUNAWAY * rise.usual:
        return None
    worst = float(variance[variance.index >= rise.step].min())  # NaN where nothing was measured since
    says = (
        f"from step {rise.step} on the critic's loss is {rise.value:.3g}, where {rise.usual:.3g} was usual;"
        " its "
    )
    says += f"values explain {worst:.2f} of the variance of the returns at worst (0 = as good as a constant)"
    return Clue("sign", 0.85, rise.step, says, (rise, Evidence("step.explained_variance", rise.step, worst)))


def _critic(log: Log) -> Clue | None:
    """The same of a log of scalars, in which a loss may be noisy for thousands of steps."""
    loss = log.curve("minibatch.value_loss")
    variance = log.curve("step.explained_variance")
    evidence = []
    sentences = []
    if loss is not None and loss.end > LOSS * loss.low:
        evidence.append(Evidence(loss.column, loss.left("up", since=loss.lowest()), loss.end, loss.low))
        sentences.append(f"the loss of the critic grows {loss.course(since=loss.lowest())}")
    if variance is not None and variance.end < 0 and variance.high > EXPLAINED:
        step = variance.left("down", since=variance.highest())
        evidence.append(Evidence(variance.column, step, variance.end, variance.high))
        share = "the share of the variance of the returns that its values explain falls"
        sentences.append(f"{share} {variance.course(since=variance.highest())}")
    if not evidence:
        return None
    evidence.sort(key=lambda e: (e.step, e.column))
    step = evidence[0].step
    says = f"{', and '.join(sentences)}, clearly from step {step} on{reward_after(log.outcome(step))}"
    return Clue("sign", 0.85, step, says, tuple(evidence))


@cause(
    "step.kl_ref",
    needs_ledger=True,
    breaks=("reference_log_probs", "reference_still"),
    denied_by="reference_log_probs",
    defined_by="reference_log_probs",
    change="Load the reference from the checkpoint that training began with, and freeze it.",
    test=sql("SELECT step, kl_ref, kl_k3 FROM step", "ORDER BY step"),
)
def reference_wrong(log: Log) -> Clue | None:
    """The KL reference is another model."""
    distance = log.series("step", "kl_ref")
    if len(distance) < 3:
        return None
    # Its mean over the first step has what that step's updates moved; the first update has not.
    each = log.series("minibatch", "kl_ref", "first")
    begins = float((each if len(each) else distance).iloc[0])
    if int(distance.index[0]) == 0 and begins > FAR:
        says = (
            f"the policy is {begins:.3g} nats a token from its reference before it has learned anything: the "
        )
        says += "reference is not the model that training began with"
        return Clue.of("proof", 0.9, Evidence("step.kl_ref", 0, begins, 0.0), says)
    jump = first(distance, "above", points=2, floor=0.3)
    moved = log.series("step", "kl_k3")
    if jump is None or jump.value < max(FAR, 3 * jump.usual):
        return None
    # Another one is another one from then on: a policy that learns, or a batch with rare tokens, comes near
    # again.
    past = distance[distance.index < jump.step]
    since = distance[distance.index >= jump.step]
    step_kl = float(moved.get(jump.step, float("nan")))
    if 3 * step_kl > jump.value or not since.min() > 2 * past.max():
        return None
    says = (
        f"the distance to the reference jumps from {jump.usual:.3g} to {jump.value:.3g} nats in step"
        f" {jump.step}, "
    )
    says += f"while the policy moved by {step_kl:.2g}: the reference changed, not the policy"
    return Clue.of("sign", 0.9, jump, says)


@cause(
    "step.entropy",
    "step.success",
    # The updates after one with a bonus begin with other weights than those that the loss leads to.
    breaks=("loss", "gradient", "log_probs"),
    without={"learn.entropy_coef": 0.0},
    needs_ledger=True,
    severity="warning",
    explains=("entropy_explosion",),
    change="Lower the entropy coefficient, or let it decay.",
    test="--set learn.entropy_coef=0.0",
)
def entropy_bonus(log: Log) -> Clue | None:
    """The policy is pushed into noise."""
    entropy = log.series("step", "entropy")
    start = first(entropy, "above", points=2, floor=0.1)
    if start is None:
        return None
    # A bonus pushes on and on; after a collapse or one huge step the entropy jumps and stays where it is.
    since = entropy[entropy.index >= start.step]
    # Spearman's correlation: pandas computes it with scipy, which the core lacks.
    ranks = pd.Series(range(len(since)), index=since.index, dtype=float)
    climbs = since.rank().corr(ranks)
    lost = first(log.series("step", "success"), "below", points=2, margin=3.0, floor=0.1)
    fell_before = lost is not None and lost.step < start.step - 1
    if len(since) < 5 or climbs < 0.9 or since.iloc[-1] < 2 * since.iloc[0] or fell_before:
        return None
    says = f"from {start.usual:.3g} to {float(since.max()):.3g} nats a token: the policy is paid for noise"
    return Clue.of("sign", 0.75, start, f"entropy climbs steadily from step {start.step} on, {says}")


@cause(
    "minibatch.non_finite",
    change=(
        "Look at the batch of that step in the order in which it is computed, for the first value that is no"
        " number: rewards and advantages, log-probs and ratios, the loss, the gradient."
    ),
    test="sorl replay {run} --step {step}",
)
def not_finite(log: Log) -> Clue | None:
    """A metric of the training is not a number."""
    found = log.first_above("minibatch", "non_finite", 0.0, how="sum")
    if found is None:
        return None
    says = f"loss or gradient is NaN or Inf in step {found.step}"
    if log.reading is not None and log.reading.not_finite:
        says = _no_numbers(log.reading.not_finite)
    return Clue.of("proof", 0.6, found, says)


def _no_numbers(parts: Sequence[NotFinite]) -> str:
    """Return which metrics are NaN or infinite in which rows; those of the same rows together."""
    metrics: dict[str, list[str]] = {}
    for part in parts[:_METRICS]:
        metrics.setdefault(part.share(), []).append(part.metric)
    sentences = []
    for share, names in metrics.items():
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        sentences.append(f"{listed} {'is' if len(names) == 1 else 'are'} NaN or infinite in {share}")
    more = len(parts) - _METRICS
    if more > 0:
        sentences.append(f"{counted(more, 'more metric')} of the log too")
    return "; ".join(sentences)


@cause(
    "minibatch.ratio_max",
    "reward",
    without={"learn.staleness": 0, "learn.epochs": 1},
    explains=("groups_too_hard", "kl_blowup", "entropy_explosion", "truncation"),
    change="Try fewer epochs, fresher data, a dual clip, turn ratios, or a smaller learning rate.",
    test="--set learn.staleness=0 --set learn.epochs=1",
    options=("learn.epochs", "learn.staleness", "learn.policy.lr"),
)
def off_policy(log: Log) -> Clue | None:
    """The rollouts are too old, or used too often, for the policy that trains on them."""
    ages = log.series("step", "staleness")
    passes = log.series("minibatch", "epoch", "max")
    age = float(ages.mean()) if len(ages) else 0.0  # of the data, in iterations
    epochs = float(passes.max()) + 1 if len(passes) else 1.0
    ratio = log.series("minibatch", "ratio_max", "max")
    begin, end = _window(log)
    near = ratio[(ratio.index >= begin) & (ratio.index <= end)]
    if near.empty or (age == 0 and epochs == 1) or float(near.max()) <= _TAIL:
        return None
    high = _high_ratio(near, log)
    says = (
        f"the rollouts are {age:.1f} iterations old on average and used {counted(int(epochs), 'time')}; token"
        " ratios"
    )
    says += (
        f" reach {high.largest:.3g} in step {high.step}, {from_onset(high.step, log.onset or 0)}, and a plain"
        " ratio clip does not limit such tokens where their advantage is negative"
    )
    shown = Evidence("minibatch.ratio_max", high.step, high.largest, before(ratio, begin))
    return Clue("pattern", 0.6, high.begins, says, (shown,), *culprit(log, high.step, "gradient_share"))


class _HighRatio(NamedTuple):
    """Token ratios far outside every clip range: the first step with one, and the largest."""

    begins: int
    step: int  # of the largest
    largest: float


def _high_ratio(ratio: pd.Series, log: Log) -> _HighRatio:
    """Find the high ratios of a stretch of steps that has some.

    The largest ratio may come when all is lost: of those that can be a reason, the largest is named.
    """
    steps = ratio.index.to_numpy()
    values = ratio.to_numpy()
    early = np.where(steps <= log.fallen_by, values, 0.0)
    at = int(np.argmax(early if early.max() > _TAIL else values))
    return _HighRatio(int(steps[np.argmax(values > _TAIL)]), int(steps[at]), float(values[at]))


@cause(
    "minibatch.grad_norm",
    "reward",
    without={"learn.policy.max_grad_norm": bounded},
    explains=("groups_too_hard", "kl_blowup", "entropy_explosion", "truncation"),
    change="Bound the gradient norm, or lower the learning rate.",
    test="--set learn.policy.max_grad_norm=1.0",
    options=("learn.policy.max_grad_norm", "learn.policy.lr"),
)
def step_size(log: Log) -> Clue | None:
    """A single update was too large."""
    norm = log.series("minibatch", "grad_norm", "max")
    begin, end = _window(log)
    spike = first(norm[norm.index <= end], "above", points=1, floor=0.5)
    bound = log.settings.get("learn.policy.max_grad_norm")
    if spike is None or spike.step < begin - BEFORE or (bound is not None and spike.value > float(bound)):
        return None
    says = f"the gradient norm leaps from {spike.usual:.3g} to {spike.value:.3g} in step {spike.step}, "
    says += from_onset(spike.step, log.onset or 0)
    says += (
        "; no max_grad_norm is set" if bound is None and "learn.policy.max_grad_norm" in log.settings else ""
    )
    return Clue.of("pattern", 0.5, spike, says, *culprit(log, spike.step, "gradient_share"))


def _window(log: Log) -> tuple[int, int]:
    """First and last step of the stretch in which the reason of a collapse lies; an empty one without a
    collapse.
    """
    if log.onset is None:
        return 0, -1
    detected = log.first_known("detection_step")
    return max(0, log.onset - BEFORE), log.onset + BEFORE if detected is None else detected

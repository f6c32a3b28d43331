"""How the policy moves, as the scalars of any trainer show it: entropy, clip fraction, KL,
sampler, gradient.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sorl.diagnosis.changepoint import CLEAR, Curve, Evidence, Outcome, reward_after, sure
from sorl.diagnosis.finding import Clue, bounded, cause, rows_in_words, scalar, third
from sorl.diagnosis.log import Log

PER_TOKEN = "nats a token"
GONE = 0.12  # of the entropy of the start; healthy runs keep more while they still learn
NOISE = 1.6  # x the lowest entropy that it had
LOUD = 1.0  # nats a token, above which an entropy that rises matters also where the reward does not fall
DEAD = 0.01  # nats a token: the policy is certain of every one
STILL_NORM = 1e-3  # of its largest gradient norm, that a dead policy has left
STUCK_KL = 0.01  # nats a token from the reference, that a policy which moves soon exceeds
STUCK_STEPS = 100
START_KL = 0.5  # nats a token from the reference in the first steps: it is another model
FIRST_STEPS = 2  # that count as the first
CLIPPED = 0.25  # of the tokens; of healthy runs less than 0.2
# nats a token from the reference, and in one update
FAR = 1.0
STEP = 0.1
AWAY = 8.0  # x the KL of the start
# x the median of so many points around; how many of them
SPIKE = 10.0
SPIKES = 3
AROUND = 25
HARMLESS = 10  # spikes after which the reward is the same: they are no cause of anything
NORM = 8.0  # x the gradient norm of the start
# Median norms of the develop half of the corpus of real logs lie between 1e-3 and 60.
UNSCALED_NORM = 1e5
ZERO_ROWS = 8  # with a gradient of zero at the end of a log; of a shorter log all rows
APART = 3.0  # x the disagreement of sampler and trainer of the start
# Of float32: kernels differ by 1e-7 to 2e-5 nats a token on average, and the KL is half of the square.
ROUNDING = {"minibatch.mismatch": 1e-4, "step.mismatch_kl": 5e-9}


@scalar(
    "step.entropy",
    without={"learn.policy.lr": third},
    explains=(
        "groups_too_easy",
        "groups_too_hard",
        "groups_agree",
        "clip_saturation",
        "length_collapse",
        "grad_spikes",
    ),
    change=(
        "Raise the upper clip bound, add a small entropy bonus, or lower the learning rate; go back to a"
        " checkpoint from before this step, as exploration does not come back by itself."
    ),
    test=(
        "from a checkpoint before this step, a small entropy bonus must hold the entropy and let the reward"
        " rise on"
    ),
    options=("slots.clip.high", "learn.entropy_coef", "learn.policy.lr"),
)
def entropy_collapse(log: Log, entropy: Curve) -> Clue | None:
    """The policy has stopped exploring: its entropy collapses."""
    left = entropy.end / entropy.begin if entropy.begin > 0 else 1.0
    step = entropy.left("down")
    score = log.outcome(step)
    learns = score is not None and score.late > 0
    if left > (GONE / 3 if learns else GONE) or (score is not None and score.solved):
        return None
    says = f"entropy falls {entropy.course(PER_TOKEN)}, clearly from step {step} on{reward_after(score)}"
    certain = sure(GONE / max(left, 1e-4), 0.65)
    return Clue.of("pattern" if learns else "sign", certain, entropy.shown(step), says)


@scalar(
    "step.entropy",
    without={"learn.entropy_coef": 0.0, "learn.policy.lr": third},
    explains=(
        "kl_blowup",
        "clip_saturation",
        "mismatch_grows",
        "grad_spikes",
        "length_collapse",
        "truncation",
        "grad_explosion",
        "groups_too_hard",
    ),
    change="Lower the entropy bonus if there is one, or the learning rate; look for a drift of the sampler.",
    test=(
        "the same run without an entropy bonus, then with half the learning rate: one of them must hold the"
        " entropy"
    ),
    options=("learn.entropy_coef", "learn.policy.lr", "correction"),
)
def entropy_explosion(log: Log, entropy: Curve) -> Clue | None:
    """The policy dissolves into noise: its entropy explodes."""
    least = entropy.least()
    usual = least.value
    step = entropy.left("up", since=least)
    score = log.outcome(step)
    noise = max(NOISE * usual, usual + CLEAR * entropy.error)
    if entropy.low <= 0 or entropy.end < noise or (score is not None and score.change > 0):
        return None
    if entropy.end < LOUD and score is not None and score.change == 0:
        return None
    bonus = " (an entropy bonus is set)" if log.settings.get("learn.entropy_coef") else ""
    says = f"entropy rises {entropy.course(PER_TOKEN, least)}{bonus}, clearly from step {step} on"
    certain = sure(entropy.end / usual / NOISE, 0.65)
    return Clue.of("sign", certain, entropy.shown(step, usual), f"{says}{reward_after(score)}")


@scalar(
    "step.entropy",
    "minibatch.grad_norm",
    explains=(
        "entropy_collapse",
        "truncation",
        "length_collapse",
        "groups_too_hard",
        "groups_too_easy",
        "groups_agree",
    ),
    rewarded=True,
    change=(
        "Go back to a checkpoint from before this step: all that is sampled now is the same, so nothing can"
        " be learned. Lower the learning rate or bound the gradient norm."
    ),
    test="sample one prompt many times: all answers must be the same",
    options=("learn.policy.lr", "learn.policy.max_grad_norm"),
)
def dead_policy(log: Log, entropy: Curve, norm: Curve) -> Clue | None:
    """The policy is dead: it always says the same, and no gradient is left."""
    if entropy.end > DEAD or norm.end > STILL_NORM * norm.high or norm.high <= 0:
        return None
    step = entropy.left("down", since=entropy.highest())
    says = (
        f"entropy falls {entropy.course(PER_TOKEN, entropy.highest())}, clearly from step {step} on, and the"
    )
    says += f" gradient norm {norm.course(since=norm.highest())}{reward_after(log.outcome(step))}"
    return Clue.of("sign", 0.97, entropy.shown(step, entropy.high), says)


@scalar(
    "step.kl_ref",
    "reward",
    severity="warning",
    change=(
        "Raise the learning rate, take more updates of a batch, or check that the weights are trained at all."
    ),
    test="ten times the learning rate must move the KL within some steps",
    options=("learn.policy.lr", "learn.epochs"),
)
def no_update(log: Log, kl: Curve, reward: Curve) -> Clue | None:
    """The policy hardly moves: it stays at its reference."""
    few = kl.steps[-1] - kl.steps[0] < STUCK_STEPS
    score = Outcome.of(reward, int(reward.steps[0]))
    if few or float(np.quantile(np.abs(kl.values), 0.95)) > STUCK_KL or score.change > 0 or score.solved:
        return None
    says = f"in all {len(kl):,} rows the KL to the reference is at most {np.abs(kl.values).max():.2g} nats a"
    says += f" token{reward_after(score)}"
    return Clue.of("pattern", 0.6, kl.shown(int(kl.steps[0])), says)


def _far_at_first(log: Log) -> Clue | None:
    """Find in a short log that its first row is far from the reference."""
    kl = log.series("step", "kl_ref")
    return None if kl.empty else _far_from_reference(int(kl.index[0]), float(kl.iloc[0]))


def _far_from_reference(step: int, kl: float) -> Clue | None:
    if step > FIRST_STEPS or kl < START_KL:
        return None
    says = f"the KL to the reference is {kl:.2g} nats a token in the first step, where it should be 0"
    return Clue.of("sign", 0.85, Evidence("step.kl_ref", step, kl, 0.0), says)


@scalar(
    "step.kl_ref",
    when_short=_far_at_first,
    change="Check which weights the reference has, and whether both see the same prompt and the same mask.",
    test="the KL of the untrained policy to its reference must be 0",
)
def reference_mismatch(log: Log, kl: Curve) -> Clue | None:
    """The run does not start at its reference."""
    if float(np.median(kl.values[:3])) < START_KL:
        return None
    return _far_from_reference(int(kl.steps[0]), float(kl.values[0]))


@scalar(
    "clip fraction",
    without={"learn.epochs": 1, "learn.policy.lr": third},
    explains=("entropy_collapse", "kl_blowup", "grad_spikes", "groups_too_hard"),
    change=(
        "Lower the learning rate, take fewer updates of a batch, or fresher data; a wider clip range only"
        " hides it."
    ),
    test="one update of a batch, or half the learning rate, must bring the clip fraction down",
    options=("learn.policy.lr", "learn.epochs", "learn.staleness"),
)
def clip_saturation(log: Log, clip: Curve) -> Clue | None:
    """Most of what the batch says is clipped away."""
    rises = clip.end > 2 * clip.begin
    if clip.end < CLIPPED or (not rises and clip.begin < 1.5 * CLIPPED):
        return None
    step = clip.left("up") if rises else int(clip.steps[0])
    says = f"the share of tokens that are clipped, and give no gradient, goes {clip.course('%')}"
    says += f", clearly from step {step} on" if rises else ""
    certain = sure(clip.end / CLIPPED, 0.65)
    return Clue.of("sign", certain, clip.shown(step), f"{says}{reward_after(log.outcome(step))}")


@scalar(
    "clip fraction",
    explains=("mismatch_grows", "kl_blowup", "entropy_explosion", "entropy_collapse", "groups_too_hard"),
    change=(
        "Take the ratio to the log-probs of the policy that sampled. To log-probs that the trainer took"
        " itself before its only update the ratio is 1, and the clip cannot act."
    ),
    test="log the ratio to the sampler's log-probs: it must leave 1 where the clip fraction does not leave 0",
    options=("correction",),
)
def clip_idle(log: Log, clip: Curve) -> Clue | None:
    """The clip never acts while policy and sampler part."""
    apart = next((c for c in map(log.curve, ("sampler mismatch", "step.approx_kl")) if c and _grown(c)), None)
    if apart is None or np.quantile(clip.values, 0.95) > 1e-5:
        return None
    step = apart.left("up")
    says = f"next to no token is clipped in {len(clip):,} rows, and yet {_NAMES[apart.column]} grows"
    says += f" {apart.course()}, clearly from step {step} on: the ratio that is clipped is not what moves"
    return Clue.of("sign", sure(apart.end / max(apart.begin, 1e-9) / APART, 0.65), apart.shown(step), says)


@scalar(
    "sampler mismatch",
    without={"engine.dtype": "float32"},
    explains=(
        "kl_blowup",
        "clip_saturation",
        "entropy_explosion",
        "grad_spikes",
        "grad_explosion",
        "groups_too_hard",
    ),
    change=(
        "Compare the log-probs of both engines on one batch after each weight sync; until the reason is"
        " found, correct with truncated or masked importance weights."
    ),
    test="some steps at learning rate 0: if it grows still, the engines drift; if not, the weights come late",
    options=("correction",),
)
def mismatch_grows(log: Log, apart: Curve) -> Clue | None:
    """Sampler and trainer drift apart."""
    if not _grown(apart):
        return None
    step = apart.left("up")
    says = f"{_NAMES[apart.column]} grows {apart.course()}, clearly from step {step} on: old weights in the"
    says += " sampler, or kernels that differ more on what the policy writes now"
    certain = sure(apart.end / max(apart.begin, 1e-9) / APART, 0.65)
    return Clue.of("sign", certain, apart.shown(step), f"{says}{reward_after(log.outcome(step))}")


_NAMES = {
    "minibatch.mismatch": "the mean |log-ratio| of trainer and sampler",
    "step.mismatch_kl": "the KL of sampler and trainer",
    "step.approx_kl": "the KL of an update",
}


def _grown(distance: Curve) -> bool:
    """Whether a distance of policy and sampler has grown APART times, clear of its noise and of rounding."""
    least = ROUNDING.get(distance.column, 0.0)
    return distance.end > max(least, APART * distance.begin, distance.begin + CLEAR * distance.error)


@scalar(
    "KL",
    without={"learn.policy.lr": third},
    explains=(
        "entropy_collapse",
        "entropy_explosion",
        "clip_saturation",
        "length_collapse",
        "grad_explosion",
        "grad_spikes",
        "mismatch_grows",
        "truncation",
        "groups_too_hard",
        "reward_hacking",
    ),
    change=(
        "Raise the KL coefficient, lower the learning rate, or go back to a checkpoint from before this step."
    ),
    test=(
        "from a checkpoint before this step, ten times the KL coefficient must hold the KL without a lower"
        " reward"
    ),
    options=("slots.kl.beta", "learn.policy.lr"),
)
def kl_blowup(log: Log, kl: Curve) -> Clue | None:
    """The policy runs away from its reference: the KL blows up."""
    mark = STEP if kl.column == "step.approx_kl" else FAR
    step = kl.left("up")
    score = log.outcome(step)
    middle = float(np.median(kl.part(0.45, 0.55)))
    bends = kl.end - middle > 2 * (middle - kl.begin)  # a healthy KL grows evenly, or ever more slowly
    if kl.end < max(mark, AWAY * kl.begin) or (score is not None and score.late > 0 and not bends):
        return None
    says = f"the KL grows {kl.course(PER_TOKEN)}, clearly from step {step} on{reward_after(score)}"
    return Clue.of("sign", sure(kl.end / mark, 0.65), kl.shown(step), says)


@scalar(
    "minibatch.grad_norm",
    without={"learn.policy.max_grad_norm": bounded},
    severity="warning",
    explains=("step_size", "groups_too_hard", "entropy_explosion", "entropy_collapse"),
    change=(
        "Bound the gradient norm, or lower its bound; open the batches of these steps: one long or corrupt"
        " rollout has most of it."
    ),
    test=(
        "the same run with a lower bound on the gradient norm: it must have fewer spikes and learn at least"
        " as well"
    ),
    options=("learn.policy.max_grad_norm", "learn.policy.lr"),
)
def grad_spikes(log: Log, _: Curve) -> Clue | None:
    """The gradient spikes again and again."""
    norm = Curve.of("minibatch.grad_norm", log.series("minibatch", "grad_norm", "max"))
    if norm is None or norm.end > NORM / 2 * norm.begin:
        return None
    usual = norm.series.rolling(AROUND, center=True, min_periods=5).median()
    spikes = norm.series[norm.series > np.maximum(SPIKE * usual, usual + 8 * norm.noise)]
    if not SPIKES <= len(spikes) <= 0.1 * len(norm):
        return None
    step = int(spikes.index[0])
    times = spikes / usual[spikes.index]
    worst = float(times.max())
    score = log.outcome(step)
    hurts = _falls_after(log.curve("reward"), spikes.index)
    is_down = score is not None and score.change < 0
    known = log.settings.get("learn.policy.max_grad_norm") is not None
    if not hurts and not is_down and (known or len(spikes) >= HARMLESS):
        return None
    effect = _effect_of_spikes(hurts, is_down, worst)
    says = (
        f"in {len(spikes)} steps the gradient norm is {times.min():.3g} to {worst:.3g} times that of its"
        f" neighbours, first in step {step}; the reward is {effect.says}"
    )
    shown = Evidence(norm.column, step, float(spikes.iloc[0]), float(usual[step]))
    return Clue.of("sign" if hurts else "pattern", effect.certain, shown, says)


class _Effect(NamedTuple):
    """What the reward does after spikes of the gradient, and how certain it is that they matter."""

    says: str
    certain: float


def _effect_of_spikes(hurts: bool, is_down: bool, worst: float) -> _Effect:
    """`hurts`: the reward falls after most of them; `is_down`: it is lower since the first one."""
    if hurts:
        return _Effect("lower after them", sure(worst / SPIKE, 0.65))
    if is_down:
        return _Effect("lower since", 0.6)
    return _Effect("no lower after them, and no bound is known", 0.5)


def _falls_after(reward: Curve | None, steps: pd.Index) -> bool:
    """Whether the reward is lower after most of these steps than before them."""
    if reward is None:
        return False
    falls = []
    for step in steps:
        earlier, later = reward.around(int(step), 0.03)
        falls.append(earlier.value - later.value)
    return float(np.median(falls)) > 1.5 * reward.error


@scalar(
    "minibatch.grad_norm",
    without={"learn.policy.max_grad_norm": bounded},
    explains=(
        "kl_blowup",
        "entropy_explosion",
        "entropy_collapse",
        "clip_saturation",
        "mismatch_grows",
        "length_collapse",
        "groups_too_hard",
    ),
    change=(
        "Bound the gradient norm, lower the learning rate, and go back to a checkpoint from before this step."
    ),
    test="from a checkpoint before this step, half the learning rate must keep the norm where it was",
    options=("learn.policy.max_grad_norm", "learn.policy.lr"),
)
def grad_explosion(log: Log, norm: Curve) -> Clue | None:
    """The gradient explodes and stays large."""
    if norm.end <= 0 or norm.end < NORM * norm.begin:
        return None
    step = norm.left("up")
    says = f"the gradient norm grows {norm.course()}, clearly from step {step} on"
    certain = sure(norm.end / max(norm.begin, 1e-9) / NORM, 0.65)
    return Clue.of("sign", certain, norm.shown(step), f"{says}{reward_after(log.outcome(step))}")


@cause(
    "minibatch.grad_norm",
    severity="warning",
    explains=("grad_spikes", "step_size", "grad_explosion"),
    change=(
        "Look for a loss scale that is not divided out before the norm is taken, a sum over tokens where a"
        " mean is meant, and log-probs of masked tokens in the loss."
    ),
    test="the norm of one batch's gradient in float32, without a loss scale, must be the one that is logged",
    options=("learn.policy.max_grad_norm",),
)
def unscaled_gradient(log: Log) -> Clue | None:
    """The gradient norm is thousands of times larger than that of any run that learns."""
    norm = log.series("minibatch", "grad_norm", "max")
    finite = norm[np.isfinite(norm)]
    if log.ledger or finite.empty or float(finite.median()) < UNSCALED_NORM:
        return None
    step = int(finite.index[0])
    amount = f"{finite.iloc[0]:.3g} in the only row" if len(finite) == 1 else _range_in_words(finite)
    says = f"the gradient norm is {amount}; in runs that learn it is rarely above 100"
    says += ": with a clip on the norm only its direction is left, without one every step is far too long"
    shown = Evidence("minibatch.grad_norm", step, float(finite.iloc[0]), 0.0)
    return Clue("sign", 0.8, step, says, (shown,), from_the_start=True)


def _range_in_words(norm: pd.Series) -> str:
    return f"{norm.min():.3g} to {norm.max():.3g} in {len(norm):,} rows"


@cause(
    "minibatch.grad_norm",
    explains=("no_update", "clip_idle"),
    change=(
        "Check, in this order: that the parameters of the optimizer require a gradient (adapters attached,"
        " gradient checkpointing with enable_input_require_grads), that the mask of trained tokens is not"
        " empty, that advantages are not all zero, and that the loss is not detached."
    ),
    test="after one backward pass every trained parameter must have a gradient that is not zero",
)
def zero_gradient(log: Log) -> Clue | None:
    """The update does nothing: the gradient is exactly zero."""
    norm = log.series("minibatch", "grad_norm", "max")
    zeros = _zeros_at_the_end(norm)
    if log.ledger or zeros.empty or len(zeros) < min(ZERO_ROWS, len(norm)):
        return None
    kl = log.series("step", "kl_ref").reindex(zeros.index).dropna()
    spread = _spread_of_rewards(log, zeros.index)
    is_flat = spread is not None and not spread.differs
    if kl.nunique() > 1 or is_flat or _has_other_reason(log, zeros.index):
        return None  # the policy moves, so the norm is not measured; or there is nothing to learn from
    says = f"the gradient norm is exactly zero in {rows_in_words(len(zeros), len(norm))}"
    is_still = len(kl) > 0 and not kl.any()
    if is_still:
        says += ", and so is the KL to the reference"
    if spread is not None:
        says += f", although {spread.words}"
    is_certain = is_still and spread is not None and len(zeros) >= ZERO_ROWS
    step = int(zeros.index[0])
    return Clue(
        "pattern" if spread is None else "sign",
        0.9 if is_certain else 0.6,
        step,
        says,
        (Evidence("minibatch.grad_norm", step, 0.0, float(norm.iloc[0])),),
        severity="critical" if is_certain else "warning",
        from_the_start=len(zeros) == len(norm),
    )


def _zeros_at_the_end(norm: pd.Series) -> pd.Series:
    """Return the rows since which a gradient norm is exactly zero."""
    other = np.flatnonzero(norm.to_numpy() != 0)
    return norm.iloc[other[-1] + 1 :] if len(other) else norm


class _Spread(NamedTuple):
    """Whether rewards differ in most of some steps, in the words for it."""

    differs: bool
    words: str


def _spread_of_rewards(log: Log, steps: pd.Index) -> _Spread | None:
    """Return whether rewards differ in most of these steps; None where no column tells."""
    within_groups = "rewards differ within groups"
    unanimous = log.series("step", "zero_advantage_frac").reindex(steps).dropna()
    if len(unanimous):
        return _Spread(float(unanimous.median()) < 1, within_groups)
    for column, words in (("group_reward_std", within_groups), ("reward_std", "rewards differ")):
        deviation = log.series("step", column).reindex(steps).dropna()
        if len(deviation):
            return _Spread(float(deviation.median()) > 0, words)
    return None


def _has_other_reason(log: Log, steps: pd.Index) -> bool:
    """Return whether the gradient must be zero in these steps, or cannot have been: the policy is certain of
    every token, or the run learns.
    """
    entropy = log.series("step", "entropy").reindex(steps).dropna()
    is_dead = len(entropy) > 0 and float(entropy.median()) <= DEAD
    return is_dead or log.run.get("outcome") == "healthy"

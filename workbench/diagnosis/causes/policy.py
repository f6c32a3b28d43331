"""How the policy moves, as the scalars of any trainer show it: entropy, clip fraction, KL, gradient, sampler."""

import numpy as np
import pandas as pd

from workbench.diagnosis.curve import Curve, outcome, sure, told
from workbench.diagnosis.finding import Clue, Grade, scalar
from workbench.diagnosis.log import Log

GONE = 0.12  # of the entropy of the start; a healthy run keeps more while it still learns
GAIN = 1.6  # x the lowest entropy that it had
CLIPPED = 0.25  # of the tokens; a healthy PPO clips less than 0.1 to 0.2
FAR = 1.0  # nats a token from the reference
SPIKE, SPIKES, AROUND = 10.0, 3, 25  # x the median of so many points around; how many of them
HARMLESS = 10  # spikes after which the reward was the same: they are no cause of anything
NORM = 8.0  # x the gradient norm of the start
APART = 3.0  # x the disagreement of sampler and trainer of the start


@scalar(
    needs=("step.entropy",),
    explains=("groups_too_easy", "groups_too_hard", "clip_saturation", "length_collapse", "grad_spikes"),
    change="Raise the upper clip bound (clip-higher), add a small entropy bonus, or lower the learning rate; go back to "
    "a checkpoint from before this step, as exploration does not come back by itself.",
    test="--set learn.entropy_coef=0.001",
)
def entropy_collapse(log: Log) -> Clue | None:
    """The policy has stopped exploring: its entropy collapses."""
    if (entropy := log.curve("step.entropy")) is None or entropy.begin <= 0:
        return None
    left, step = entropy.end / entropy.begin, entropy.left("down")
    score = log.outcome(step)
    if left > GONE or (score is not None and score.solved):
        return None
    learns = score is not None and score.late > 0
    if learns and left > GONE / 3:
        return None
    grade: Grade = "pattern" if learns else "sign"
    return Clue.of(
        grade, sure(GONE / max(left, 1e-4)), "step.entropy", step, entropy.end, entropy.begin,
        f"from step {step} on entropy falls from {entropy.begin:.3g} to {entropy.end:.3g} nats a token, "
        f"{100 * left:.2g} % of what it was{told(score)}",
    )  # fmt: skip


@scalar(
    needs=("step.entropy",),
    explains=("kl_blowup", "clip_saturation", "mismatch_grows", "grad_spikes", "length_collapse", "truncation", "grad_explosion", "groups_too_hard"),
    change="Lower the entropy bonus if there is one, or the learning rate; look for a drift between sampler and trainer.",
    test="--set learn.entropy_coef=0.0",
)
def entropy_explosion(log: Log) -> Clue | None:
    """The policy dissolves into noise: its entropy explodes."""
    if (entropy := log.curve("step.entropy")) is None or entropy.begin <= 0:
        return None
    usual = min(entropy.begin, entropy.low)
    times, step = entropy.end / max(usual, 1e-9), entropy.left("up")
    score = log.outcome(step)
    if times < GAIN or entropy.end - usual < 5 * entropy.error or (score is not None and score.change > 0):
        return None
    return Clue.of(
        "sign", sure(times / GAIN), "step.entropy", step, entropy.end, usual,
        f"from step {step} on entropy rises from {usual:.3g} to {entropy.end:.3g} nats a token, "
        f"{times:.2g} times what it was{told(score)}",
    )  # fmt: skip


@scalar(
    needs=("clip",),
    explains=("entropy_collapse", "kl_blowup", "grad_spikes", "groups_too_hard"),
    change="Lower the learning rate, take fewer updates per batch, or fresher data; a wider clip range only hides it.",
    test="--set learn.epochs=1",
)
def clip_saturation(log: Log) -> Clue | None:
    """Most of what the batch says is clipped away."""
    if (clipped := log.curve("clip")) is None:
        return None
    if clipped.end < CLIPPED or clipped.end < 2 * clipped.begin and clipped.begin < 1.5 * CLIPPED:
        return None
    step = clipped.left("up") if clipped.end > 2 * clipped.begin else int(clipped.steps[0])
    return Clue.of(
        "sign", sure(clipped.end / CLIPPED), "step.clip_frac", step, clipped.end, clipped.begin,
        f"the clip fraction goes from {clipped.begin:.3g} to {clipped.end:.3g} from step {step} on: that share of the "
        f"tokens gets no gradient{told(log.outcome(step))}",
    )  # fmt: skip


@scalar(
    needs=("clip",),
    explains=("mismatch_grows", "kl_blowup", "entropy_explosion", "entropy_collapse", "groups_too_hard"),
    change="Compute the ratio against the log-probs of the policy that sampled: with one update a batch and log-probs "
    "taken by the trainer itself the ratio is 1 and the clip cannot act.",
    test="--set learn.old_log_prob='behaviour'",
)
def clip_idle(log: Log) -> Clue | None:
    """The clip never acts while policy and sampler part."""
    clipped, found = log.curve("clip"), _apart(log)
    if clipped is None or found is None or np.quantile(clipped.values, 0.95) > 1e-5:
        return None
    column, curve = found
    step = curve.left("up")
    return Clue.of(
        "sign", sure(curve.end / max(curve.begin, 1e-9) / APART), "step.clip_frac", step, 0.0, None,
        f"not one token is clipped in {len(clipped):,} steps, and yet {_name(column)} goes from {curve.begin:.2g} to "
        f"{curve.end:.2g} from step {step} on: the ratio that is clipped is not the one that moves",
    )  # fmt: skip


@scalar(
    needs=("mismatch",),
    explains=("kl_blowup", "clip_saturation", "entropy_explosion", "grad_spikes", "grad_explosion", "not_finite", "groups_too_hard"),
    change="Compare the log-probs of both engines on one batch, after each weight sync; correct with truncated or masked "
    "importance weights until it is found. At lr = 0 it must not grow: if it does, the engines drift, not the policy.",
    test="--set learn.policy.lr=0.0",
)
def mismatch_grows(log: Log) -> Clue | None:
    """Sampler and trainer drift apart."""
    if (found := _apart(log, ("minibatch.mismatch", "step.mismatch_kl"))) is None:
        return None
    column, curve = found
    step = curve.left("up")
    return Clue.of(
        "sign", sure(curve.end / max(curve.begin, 1e-9) / APART), column, step, curve.end, curve.begin,
        f"from step {step} on {_name(column)} grows from {curve.begin:.2g} to {curve.end:.2g}: old weights in the sampler, "
        f"or kernels that differ more as the policy changes{told(log.outcome(step))}",
    )  # fmt: skip


def _apart(
    log: Log, columns: tuple[str, ...] = ("minibatch.mismatch", "step.mismatch_kl", "step.approx_kl"),
) -> tuple[str, Curve] | None:  # fmt: skip
    """The first of these distances of policy and sampler that has grown APART times and lies clear of its noise."""
    for column in columns:
        curve = log.curve(column)
        if curve is not None and curve.end > APART * curve.begin and curve.end - curve.begin > 5 * curve.error:
            return column, curve
    return None


_NAMED = {"mismatch": "the mean |log-ratio| of trainer and sampler", "mismatch_kl": "the KL of sampler and trainer",
          "approx_kl": "the KL of an update"}  # fmt: skip


def _name(column: str) -> str:
    return _NAMED[column.split(".")[1]]


@scalar(
    needs=("kl",),
    explains=("entropy_collapse", "entropy_explosion", "clip_saturation", "length_collapse", "grad_explosion", "grad_spikes", "mismatch_grows", "truncation", "not_finite", "groups_too_hard", "reward_hacking"),
    change="Raise the KL coefficient, lower the learning rate, or go back to a checkpoint from before this step.",
    test="--set learn.kl.coef=0.01",
)
def kl_blowup(log: Log) -> Clue | None:
    """The policy runs away from its reference: the KL blows up."""
    column = "step.kl_ref" if log.measured("step", "kl_ref") else "step.approx_kl"
    if (kl := log.curve(column)) is None:
        return None
    step = kl.left("up")
    score = log.outcome(step)
    bends = kl.end - kl.level(0.45, 0.55) > 2 * (kl.level(0.45, 0.55) - kl.begin)
    far = kl.end > FAR if column == "step.kl_ref" else kl.end > 0.1
    if not far or kl.end < 8 * kl.begin or (score is not None and score.late > 0 and not bends):
        return None
    return Clue.of(
        "sign", sure(kl.end / (FAR if column == "step.kl_ref" else 0.1)), column, step, kl.end, kl.begin,
        f"from step {step} on the KL runs from {kl.begin:.3g} to {kl.end:.3g} nats a token{told(score)}",
    )  # fmt: skip


@scalar(
    severity="warning",
    needs=("minibatch.grad_norm",),
    explains=("step_size", "groups_too_hard", "entropy_explosion", "entropy_collapse"),
    change="Bound the gradient norm; open the batches of these steps: one long or corrupt trajectory carries most of it.",
    test="--set learn.policy.max_grad_norm=1.0",
)
def grad_spikes(log: Log) -> Clue | None:
    """The gradient spikes again and again."""
    series = log.series("minibatch", "grad_norm", "max")
    series = series[np.isfinite(series)].sort_index()
    if (norm := Curve.of(series)) is None or norm.end > NORM / 2 * norm.begin:
        return None
    usual = series.rolling(AROUND, center=True, min_periods=5).median()
    spikes = series[(series > SPIKE * usual) & (series > usual + 8 * norm.noise)]
    if not SPIKES <= len(spikes) <= 0.1 * len(series):
        return None
    hurt = _hurt(log, spikes.index)
    bounded = log.settings.get("learn.policy.max_grad_norm") is not None
    if not hurt and (bounded or len(spikes) >= HARMLESS):
        return None
    step, worst = int(spikes.index[0]), float((spikes / usual[spikes.index]).max())
    after = "the reward is lower after them" if hurt else "no bound is known, and the reward is the same after them so far"
    return Clue.of(
        "sign" if hurt else "pattern", sure(worst / SPIKE) if hurt else 0.5, "minibatch.grad_norm", step,
        float(spikes.iloc[0]), float(usual[step]),
        f"in {len(spikes)} steps the gradient norm is {SPIKE:g} to {worst:.3g} times its neighbours', first in step {step}; "
        f"{after}",
    )  # fmt: skip


def _hurt(log: Log, steps: pd.Index) -> bool:
    """Whether the reward is lower after most of these steps than before them."""
    if (reward := log.curve("reward")) is None:
        return False
    falls = [before - after for before, after in (reward.around(int(step), 0.03) for step in steps)]
    return float(np.median(falls)) > 1.5 * reward.error


@scalar(
    needs=("minibatch.grad_norm",),
    explains=("kl_blowup", "entropy_explosion", "entropy_collapse", "clip_saturation", "mismatch_grows", "not_finite", "length_collapse", "groups_too_hard"),
    change="Bound the gradient norm, lower the learning rate, and go back to a checkpoint from before this step.",
    test="--set learn.policy.max_grad_norm=1.0",
)
def grad_explosion(log: Log) -> Clue | None:
    """The gradient explodes and stays there."""
    if (norm := log.curve("minibatch.grad_norm")) is None or norm.end < NORM * norm.begin:
        return None
    step = norm.left("up")
    score = log.outcome(step)
    return Clue.of(
        "sign", sure(norm.end / norm.begin / NORM), "minibatch.grad_norm", step, norm.end, norm.begin,
        f"from step {step} on the gradient norm grows from {norm.begin:.3g} to {norm.end:.3g}{told(score)}",
    )  # fmt: skip

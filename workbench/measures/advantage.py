"""Advantages, the critic behind them, and the weights of the rollout correction."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sorl.measures.declare import OURS, VERL, Measure, diagnostic
from sorl.measures.tokens import Segments, Tokens, quotient
from sorl.spec import Alarm, Level, Unit

BAPO = "arXiv 2510.18927 (BAPO)"
STEP = Level.STEP
TRAJECTORY = Level.TRAJECTORY
TURN = Level.TURN
UPDATE = Level.UPDATE


def _correction_scale(t: Tokens, by: Segments) -> np.ndarray:
    pull = np.abs(t.advantages)
    return quotient(by.total(t.correction * pull), by.total(pull))


def _masked_share(t: Tokens, by: Segments) -> np.ndarray:
    pull = np.abs(t.advantages)
    return quotient(by.total(np.where(t.correction == 0, pull, 0.0)), by.total(pull))


def _good_share(t: Tokens, by: Segments) -> np.ndarray:
    good = by.total(np.where(t.advantages > 0, np.minimum(t.ratio, 1.2) * t.advantages, 0.0))
    bad = by.total(np.where(t.advantages < 0, np.maximum(t.ratio, 0.8) * -t.advantages, 0.0))
    return quotient(good, good + bad)


OF_TOKENS = (
    Measure(
        "advantage_std",
        (UPDATE, TURN, STEP),
        Unit.REWARD,
        "population std of A over tokens",
        "rlwatch (advantage variance)",
        "Spread of the advantages of the tokens.",
        lambda t, by: by.std(t.advantages),
        alarm=Alarm("above", 3.0, "rlwatch: advantage std above 3 times its baseline", relative="baseline"),
    ),
    Measure(
        "positive_advantage_frac",
        (UPDATE,),
        Unit.FRACTION,
        "P / (P + Q), P = sum over A > 0 of min(r, 1.2) A, Q = sum over A < 0 of max(r, 0.8) |A|",
        f"{BAPO}, at PPO's bounds",
        "Share of the surrogate's weight on what should become likelier; low = negative samples dominate.",
        _good_share,
    ),
    Measure(
        "gradient_share",
        (TURN,),
        Unit.FRACTION,
        "sum |d loss / d log_prob| of the turn / that of its update",
        OURS,
        "Share of the update's gradient signal that comes from the turn: finds the culprit.",
        lambda t, by: quotient(by.total(t.weight), t.by_update.total(t.weight)[by.first(t.update)]),
        roll="share",
    ),
    Measure(
        "corrected_frac",
        (UPDATE, STEP),
        Unit.FRACTION,
        "<1[omega capped, or set to 0]>_m",
        f"{VERL} (rollout_is_ratio_fraction_high, masked_fraction)",
        "Share of tokens whose weight the rollout correction capped or set to 0; NULL without one.",
        lambda t, by: by.mean(t.corrected),
        alarm=Alarm(
            "above",
            0.1,
            "beyond a tenth of the tokens the correction does the training; the mark is ours",
            points=3,
        ),
    ),
    Measure(
        "advantage",
        (TURN, TRAJECTORY),
        Unit.REWARD,
        "<A>_m",
        OURS,
        "Mean advantage of the tokens, as trained on (after whitening, if any).",
        lambda t, by: by.mean(t.advantages),
        roll="tokens",
    ),
    Measure(
        "advantage_mean",
        (UPDATE,),
        Unit.REWARD,
        "<A>_m",
        "verl (critic/advantages/mean)",
        "Mean advantage of the tokens of the update.",
        lambda t, by: by.mean(t.advantages),
    ),
    Measure(
        "advantage_abs_max",
        (UPDATE,),
        Unit.REWARD,
        "max |A|",
        "verl (critic/advantages/max, min)",
        "Largest advantage of one token.",
        lambda t, by: by.maximum(np.abs(t.advantages)),
    ),
    Measure(
        "advantage_positive_frac",
        (UPDATE,),
        Unit.FRACTION,
        "<1[A > 0]>_m",
        BAPO,
        "Share of tokens with a positive advantage.",
        lambda t, by: by.mean(t.advantages > 0),
    ),
    Measure(
        "advantage_negative_frac",
        (UPDATE,),
        Unit.FRACTION,
        "<1[A < 0]>_m",
        BAPO,
        "Share of tokens with a negative advantage; the rest have 0.",
        lambda t, by: by.mean(t.advantages < 0),
    ),
    Measure(
        "advantage_zero_frac",
        (UPDATE,),
        Unit.FRACTION,
        "<1[|A| < 0.01]>_m",
        "arXiv 2502.01600 (LOOP drops these)",
        "Share of tokens with almost no advantage: they teach nothing.",
        lambda t, by: by.mean(np.abs(t.advantages) < 0.01),
    ),
    Measure(
        "correction_mean",
        (UPDATE, TURN, TRAJECTORY),
        Unit.RATIO,
        "<omega>_m after the cap or the mask",
        f"{VERL} (rollout_is_mean)",
        "Mean weight of the rollout correction on a token; NULL without one.",
        lambda t, by: by.mean(t.correction),
        roll="tokens",
    ),
    Measure(
        "correction_scale",
        (UPDATE, STEP),
        Unit.RATIO,
        "sum omega |A| / sum |A|, omega after the cap or the mask",
        f"{OURS}; NeMo-RL pull request 2269 (sampling_importance_ratio 0.06)",
        "Factor by which the rollout correction scales the pull of the batch; NULL without one.",
        _correction_scale,
        alarm=Alarm(
            "below",
            0.5,
            "more than half of the gradient is gone; weights of whole sequences fall so low where many tokens"
            " differ a little. The mark is ours",
            points=3,
        ),
    ),
    Measure(
        "correction_masked_frac",
        (UPDATE, STEP),
        Unit.FRACTION,
        "sum |A| 1[omega = 0] / sum |A|",
        OURS,
        "Share of the pull of the batch that the mask of the rollout correction takes out; NULL without a"
        " correction.",
        _masked_share,
        no_alarm="`corrected_frac` has it",
    ),
    Measure(
        "correction_ess_frac",
        (UPDATE, STEP),
        Unit.FRACTION,
        "(sum omega)^2 / (n sum omega^2), omega after the cap or the mask",
        f"{VERL} (rollout_is_eff_sample_size)",
        "Effective sample size of the weights of the rollout correction, as a share of the tokens; NULL"
        " without one.",
        lambda t, by: quotient(by.total(t.correction) ** 2, by.n * by.total(t.correction**2)),
        no_alarm="`correction_scale` has it, and a mark of its own would depend on the method",
    ),
    *(
        Measure(
            f"corrected_{name}_frac",
            (UPDATE,),
            Unit.FRACTION,
            f"<1[A {sign} 0] 1[omega capped, or set to 0]>_m",
            OURS,
            f"The part of corrected_frac with a {name} advantage; NULL without a rollout correction.",
            lambda t, by, of=of: by.mean(t.corrected & of(t.advantages, 0)),
        )
        for name, sign, of in (("positive", ">", np.greater), ("negative", "<", np.less))
    ),
    Measure(
        "value",
        (TURN,),
        Unit.REWARD,
        "V_old(s_k), at the first token of the turn",
        "arXiv 2512.17008 (turn states)",
        "Critic's value when the turn began; NULL without a critic.",
        lambda t, by: by.first(t.values_old),
        roll="turns",
    ),
    Measure(
        "value_error",
        (TURN,),
        Unit.REWARD,
        "V_old(s_k) - G, at the first token of the turn",
        OURS,
        "Error of that value; its mean over turns of one index is the critic's bias there. NULL without a"
        " critic.",
        lambda t, by: by.first(t.values_old - t.returns),
        roll="turns",
    ),
)


def _judged(t: Tokens, by: Segments, *columns: np.ndarray) -> tuple[Segments, list[np.ndarray]]:
    """Return the partition and `columns` at the tokens where the critic has a target."""
    if t.evidence.target is None:
        return by, list(columns)
    return Segments(by.ids[t.target], by.size), [x[t.target] for x in columns]


@diagnostic(
    (UPDATE, STEP),
    Unit.NONE,
    "1 - Var(G - V_old) / (Var(G) + 1e-5), unbiased variances over the tokens with a target",
    "Search-R1 and verl (critic/vf_explained_var)",
    alarm=Alarm(
        "below",
        0.0,
        "at 0 the critic is no better than a constant; five points because it is erratic",
        points=5,
    ),
)
def explained_variance(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the variance of the returns that the values behind the advantages explain; NULL without a
    critic.

    Tokens with a target: all that the policy wrote, or the first of each turn where the critic values turns.
    """
    at, (old, returns) = _judged(t, by, t.values_old, t.returns)
    return 1.0 - at.variance(returns - old) / (at.variance(returns) + 1e-5)


@diagnostic(
    UPDATE,
    Unit.FRACTION,
    "<1[(V^c - G)^2 > (V - G)^2]> over the tokens with a target, V^c = clamp(V, V_old +- eps_V)",
    "verl core_algos.py (vf_clipfrac)",
)
def vf_clip_frac(t: Tokens, by: Segments) -> np.ndarray | None:
    """Share of tokens where the value clip stopped the critic's gradient; NULL without a critic or a value
    clip.
    """
    width = t.evidence.value_clip
    if width is None:
        return None
    at, (value, old, returns) = _judged(t, by, t.values, t.values_old, t.returns)
    # Not V_old + clip(V - V_old): its rounding would make every second value inside the range a clipped one.
    clipped = np.clip(value, old - width, old + width)
    return at.mean((clipped - returns) ** 2 > (value - returns) ** 2)


def _mean_error(
    t: Tokens, by: Segments, of: Callable[..., Any] = np.abs, where: np.ndarray | None = None
) -> Any:
    """Mean of the errors V_old - G, (S,), over the tokens with a target, of those `where` if given."""
    at, (old, returns, *inside) = _judged(t, by, t.values_old, t.returns, *([] if where is None else [where]))
    return at.mean(of(old - returns), *inside)


VALUE_ERRORS = (
    Measure(
        "value_mae",
        (UPDATE,),
        Unit.REWARD,
        "<|V_old - G|> over the tokens with a target",
        OURS,
        "Mean absolute error of the values behind the advantages; NULL without a critic.",
        _mean_error,
    ),
    Measure(
        "value_mae_out_of_range",
        (UPDATE,),
        Unit.REWARD,
        "<|V_old - G|> over the tokens out of range with a target",
        OURS,
        "The same where the ratio left the clip's range: are advantages wrong where data is stale? NULL for"
        " none.",
        lambda t, by: _mean_error(t, by, where=t.out_of_range),
    ),
    Measure(
        "value_bias",
        (UPDATE,),
        Unit.REWARD,
        "<V_old - G> over the tokens with a target",
        OURS,
        "Mean error of the values behind the advantages; above 0 = too optimistic. NULL without a critic.",
        lambda t, by: _mean_error(t, by, np.asarray),
    ),
)

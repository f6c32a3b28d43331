"""Importance ratios: how far the policy has moved from the one that the surrogate compares with.

Functions take the trained tokens and a partition of them, and return one value per segment.
"""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import CLAMP, Segments, Tokens, quotient
from workbench.spec import Alarm, Level, Unit

STEP, TRAJECTORY, TURN, UPDATE = Level.STEP, Level.TRAJECTORY, Level.TURN, Level.UPDATE
OURS = "verl has the mark for another ratio, pi_old / mu; on pi_theta / pi_old it is ours, to be calibrated"


@diagnostic(
    (UPDATE, STEP),
    Unit.RATIO,
    "<exp(clamp(delta, +-20))>_m",
    "verl rollout_corr_helper.py",
    alarms={STEP: Alarm("above", 2.0, f"samples of the old policy have a mean of 1; {OURS}", points=2)},
)
def ratio_mean(t: Tokens, by: Segments) -> np.ndarray:
    """Mean token ratio; 1 in expectation over samples of the old policy."""
    return by.mean(t.ratio)


@diagnostic((UPDATE,), Unit.RATIO, "population std of r", "verl rollout_corr_helper.py")
def ratio_std(t: Tokens, by: Segments) -> np.ndarray:
    """Spread of the token ratios."""
    return by.std(t.ratio)


@diagnostic((UPDATE, TURN, TRAJECTORY, STEP), Unit.RATIO, "max r", "verl rollout_corr_helper.py", roll="max")
def ratio_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest token ratio. With a negative advantage nothing bounds it unless the dual clip is on."""
    return by.maximum(t.ratio)


@diagnostic((UPDATE, TURN), Unit.RATIO, "min r", "verl rollout_corr_helper.py", roll="min")
def ratio_min(t: Tokens, by: Segments) -> np.ndarray:
    """Smallest token ratio; drift to 0 on good tokens starves them of gradient."""
    return by.minimum(t.ratio)


@diagnostic((UPDATE,), Unit.RATIO, "<w>_m, w = the ratio that the algorithm pools", "this project")
def unit_ratio_mean(t: Tokens, by: Segments) -> np.ndarray:
    """Mean of the ratio that entered the surrogate (token, turn or sequence)."""
    return by.mean(t.unit_ratio)


@diagnostic((UPDATE,), Unit.RATIO, "max w, w = the ratio that the algorithm pools", "this project")
def unit_ratio_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest ratio that entered the surrogate."""
    return by.maximum(t.unit_ratio)


@diagnostic((UPDATE,), Unit.RATIO, "min w, w = the ratio that the algorithm pools", "this project")
def unit_ratio_min(t: Tokens, by: Segments) -> np.ndarray:
    """Smallest ratio that entered the surrogate."""
    return by.minimum(t.unit_ratio)


@diagnostic((UPDATE,), Unit.NATS, "quantile .01 of delta = log_prob - log_prob_old", "TRL grpo_trainer.py")
def log_ratio_q01(t: Tokens, by: Segments) -> np.ndarray:
    """1 % quantile of the token log-ratios."""
    return t.log_ratio_quantiles[0]


@diagnostic((UPDATE,), Unit.NATS, "quantile .05 of delta", "TRL grpo_trainer.py")
def log_ratio_q05(t: Tokens, by: Segments) -> np.ndarray:
    """5 % quantile of the token log-ratios."""
    return t.log_ratio_quantiles[1]


@diagnostic((UPDATE,), Unit.NATS, "quantile .5 of delta", "TRL grpo_trainer.py")
def log_ratio_q50(t: Tokens, by: Segments) -> np.ndarray:
    """Median of the token log-ratios."""
    return t.log_ratio_quantiles[2]


@diagnostic((UPDATE,), Unit.NATS, "quantile .95 of delta", "TRL grpo_trainer.py")
def log_ratio_q95(t: Tokens, by: Segments) -> np.ndarray:
    """95 % quantile of the token log-ratios."""
    return t.log_ratio_quantiles[3]


@diagnostic((UPDATE,), Unit.NATS, "quantile .99 of delta", "TRL grpo_trainer.py")
def log_ratio_q99(t: Tokens, by: Segments) -> np.ndarray:
    """99 % quantile of the token log-ratios."""
    return t.log_ratio_quantiles[4]


@diagnostic((UPDATE,), Unit.NATS, "population std of delta", "this project")
def log_ratio_std(t: Tokens, by: Segments) -> np.ndarray:
    """Spread of the token log-ratios; their mean is -approx_kl."""
    return by.std(t.log_ratio)


@diagnostic((UPDATE,), Unit.RATIO, "median of r over the tokens with A > 0", "arXiv 2603.10069 (drift of the ratios)")
def ratio_positive_q50(t: Tokens, by: Segments) -> np.ndarray:
    """Median ratio of the tokens to be reinforced; on the way to 0 they lose their gradient. NULL without any."""
    good = t.advantage > 0
    return Segments(by.ids[good], by.size).quantiles(t.ratio[good], (0.5,))[0]


@diagnostic((UPDATE,), Unit.NATS, "max |delta|", "TRL grpo_trainer.py")
def log_ratio_abs_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest move of one token, before any clamp."""
    return by.maximum(np.abs(t.log_ratio))


@diagnostic((UPDATE,), Unit.COUNT, "#{|delta| > 20}", "verl core_algos.py clamps there")
def clamp_hits(t: Tokens, by: Segments) -> np.ndarray:
    """Tokens whose log-ratio was clamped before exp; one is already a broken update."""
    return by.total(np.abs(t.log_ratio) > 20.0)


@diagnostic((UPDATE,), Unit.RATIO, "max over turns of exp(mean delta of the turn)", "arXiv 2511.20718 Lemma 4.1")
def turn_ratio_geo_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest geometric turn ratio; averaging inside the turn hides outliers, so read it beside ratio_max."""
    return t.turns_by_update.maximum(np.exp(t.by_turn.mean(t.clamped)))


@diagnostic((UPDATE,), Unit.RATIO, "max over turns of the mean r of the turn", "arXiv 2511.20718")
def turn_ratio_arith_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest arithmetic turn ratio; at least the geometric one."""
    return t.turns_by_update.maximum(t.by_turn.mean(t.ratio))


@diagnostic((UPDATE,), Unit.NATS, "max over turns of |sum delta of the turn|", "arXiv 2602.10693 (sums, not means)")
def turn_log_ratio_sum_abs_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest log of a product ratio of a turn: the drift of the turn that length normalisation hides."""
    return t.turns_by_update.maximum(np.abs(t.by_turn.total(t.clamped)))


@diagnostic((UPDATE, STEP), Unit.FRACTION, "(sum r)^2 / (n sum r^2) over tokens", "verl rollout_corr_helper.py")
def ess_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Effective sample size of the token ratios as a share of the tokens, in (1/n, 1]."""
    return np.minimum(by.total(t.ratio) ** 2 / (by.n * by.total(t.ratio**2)), 1.0)


@diagnostic((UPDATE,), Unit.FRACTION, "(sum W)^2 / (n sum W^2), W = exp(sum delta of a sequence)", "arXiv 2602.10693")
def ess_sequence_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Effective sample size of the product ratios of whole trajectories, as a share of the trajectories."""
    log_weight = t.by_sequence.total(t.clamped)
    groups = t.sequences_by_update
    # A common factor does not change the share; without it exp would overflow.
    weight = np.exp(log_weight - groups.spread(groups.maximum(log_weight)))
    return np.minimum(groups.total(weight) ** 2 / (groups.n * groups.total(weight**2)), 1.0)


@diagnostic(
    (UPDATE, STEP),
    Unit.NONE,
    "<r^2>_m - 1",
    "verl rollout_corr_helper.py (chi2_token)",
    alarms={STEP: Alarm("above", 1.0, f"as if half of the tokens weighed nothing; {OURS}", points=2)},
)
def chi2(t: Tokens, by: Segments) -> np.ndarray:
    """Chi-square divergence of the new policy from the old one, estimated on tokens of the old one.

    The variance of the ratios only where ratio_mean is 1; in general <(r - 1)^2>_m + 2 (ratio_mean - 1).
    """
    return by.mean(t.ratio**2) - 1.0


@diagnostic(
    (UPDATE,),
    Unit.NONE,
    "mean over sequences of W^2 - 1, W = exp(clamp(sum delta of a sequence, +-20))",
    "verl rollout_corr_helper.py (chi2_seq)",
)
def chi2_sequence(t: Tokens, by: Segments) -> np.ndarray:
    """The same divergence by the product ratios of whole trajectories; far above chi2 where tokens drift one way."""
    weight = np.exp(np.clip(t.by_sequence.total(t.clamped), -CLAMP, CLAMP))
    return t.sequences_by_update.mean(weight**2) - 1.0


@diagnostic((TURN,), Unit.RATIO, "exp(mean delta of the turn)", "arXiv 2511.20718 Lemma 4.1", roll="turns")
def ratio_geo(t: Tokens, by: Segments) -> np.ndarray:
    """Geometric turn ratio, the one of Turn-PPO and ST-PPO."""
    return np.exp(by.mean(t.clamped))


@diagnostic((TURN,), Unit.RATIO, "mean r of the turn", "arXiv 2511.20718", roll="turns")
def ratio_arith(t: Tokens, by: Segments) -> np.ndarray:
    """Arithmetic turn ratio."""
    return by.mean(t.ratio)


@diagnostic((TURN,), Unit.RATIO, "exp(clamp(sum delta of the turn, +-20))", "AgileRL (sum pooling)", roll="turns")
def ratio_prod(t: Tokens, by: Segments) -> np.ndarray:
    """Product turn ratio: the unbiased importance weight of the whole turn."""
    return np.exp(np.clip(by.total(t.clamped), -20.0, 20.0))


@diagnostic((TURN,), Unit.NATS, "sum delta of the turn", "arXiv 2602.10693 (sums, not means)", roll="turns")
def log_ratio_sum(t: Tokens, by: Segments) -> np.ndarray:
    """Log of the product ratio of the turn, each token clamped to +-20."""
    return by.total(t.clamped)


@diagnostic((TURN,), Unit.FRACTION, "sum r of the turn / sum r of its update", "this project", roll="share")
def ratio_mass_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the update's importance weight that lies on the turn."""
    return quotient(by.total(t.ratio), t.by_update.total(t.ratio)[by.first(t.update)])

"""Distances between policies: new and old, new and reference, trainer and sampler; entropy; likelihood displacement."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import NO_MARK, OTHER, OURS, VERL, diagnostic
from workbench.diagnostics.tokens import CLAMP, Segments, Tokens, quotient
from workbench.spec import Alarm, Level, Unit

STEP, TRAJECTORY, TURN, UPDATE = Level.STEP, Level.TRAJECTORY, Level.TURN, Level.UPDATE


def k3(log_ratio: np.ndarray) -> np.ndarray:
    """exp(x) - 1 - x with x clamped to +-20, never negative: k3 of KL(q || p) on samples of q for x = log p - log q."""
    x = np.clip(log_ratio, -CLAMP, CLAMP)
    return np.maximum(np.expm1(x) - x, 0.0)


@diagnostic(
    (UPDATE, TURN, TRAJECTORY, STEP),
    Unit.NATS,
    "<-delta>_m (k1)",
    "Search-R1 and verl (ppo_kl)",
    roll="tokens",
    alarm=OTHER,
)
def approx_kl(t: Tokens, by: Segments) -> np.ndarray:
    """KL of the new policy from the old one; unbiased on samples of the old policy, so it can be negative."""
    return by.mean(-t.log_ratio)


@diagnostic(UPDATE, Unit.NATS, "<delta^2 / 2>_m (k2)", "Schulman, Approximating KL Divergence (2020)")
def kl_k2(t: Tokens, by: Segments) -> np.ndarray:
    """Second-order estimate of the same KL; low variance, biased for large moves."""
    return by.mean(t.log_ratio**2 / 2)


@diagnostic(
    (UPDATE, TURN, STEP),
    Unit.NATS,
    "<exp(delta) - 1 - delta>_m (k3)",
    "Schulman, Approximating KL Divergence (2020)",
    roll="tokens",
    alarm=Alarm(
        "above",
        10.0,
        "second-best precursor after the gradient norm in this project's small runs "
        "(6 of 15 collapses); the factor 10 is ours, to be calibrated",
        relative="baseline",
    ),
)
def kl_k3(t: Tokens, by: Segments) -> np.ndarray:
    """Estimate of the same KL that is never negative; far above kl_k2 means that the upper tail dominates."""
    return by.mean(k3(t.log_ratio))


@diagnostic(
    (UPDATE, STEP),
    Unit.NATS,
    "<exp(-x) - 1 + x>_m, x = log_prob - log_prob_ref (k3)",
    "verl core_algos.py (low_var_kl, which ends at 10)",
    alarm=f"rlwatch counts sigmas of a rolling window, which a steady growth never leaves; {NO_MARK}",
)
def kl_ref(t: Tokens, by: Segments) -> np.ndarray | None:
    """Distance from the frozen reference, 0 where the two agree; NULL without one.

    On samples of the new policy it would estimate KL(new || reference); the tokens are samples of an older one.
    """
    return None if t.reference is None else by.mean(k3(-t.reference))


@diagnostic(
    (UPDATE, TURN, TRAJECTORY, STEP),
    Unit.NATS,
    "<H_t>_m, H = logsumexp(z) - sum p z",
    "verl core_algos.py",
    roll="tokens",
    alarm=Alarm(
        "below",
        0.3,
        "relative to the run's own start, because absolute floors (rlwatch: 1.0) "
        "do not carry to small models; the factor is ours",
        points=3,
        relative="baseline",
    ),
)
def entropy(t: Tokens, by: Segments) -> np.ndarray:
    """Entropy of the policy at the tokens that it wrote. It can rise before a collapse as well as fall."""
    return by.mean(t.entropy)


@diagnostic(UPDATE, Unit.FRACTION, "<1[H_t < 0.01]>_m", OURS)
def entropy_low_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens at which the policy no longer chooses."""
    return by.mean(t.entropy < 0.01)


def _entropy_of(t: Tokens, by: Segments, span: int) -> np.ndarray | None:
    return None if t.span is None else by.mean(t.entropy, t.span == span)


@diagnostic(UPDATE, Unit.NATS, "<H_t> over the tokens from <think> to </think>", OURS)
def entropy_think(t: Tokens, by: Segments) -> np.ndarray | None:
    """Entropy where the policy thinks; NULL where it did not, or the tags are not single tokens."""
    return _entropy_of(t, by, 1)


@diagnostic(UPDATE, Unit.NATS, "<H_t> over the tokens from <search> to </search>", OURS)
def entropy_search(t: Tokens, by: Segments) -> np.ndarray | None:
    """Entropy where the policy searches; NULL where it did not, or the tags are not single tokens."""
    return _entropy_of(t, by, 2)


@diagnostic(UPDATE, Unit.NATS, "<H_t> over the tokens from <answer> to </answer>", OURS)
def entropy_answer(t: Tokens, by: Segments) -> np.ndarray | None:
    """Entropy where the policy answers; NULL where it did not, or the tags are not single tokens."""
    return _entropy_of(t, by, 3)


def _displacement(t: Tokens, good: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean delta of each sequence, and which sequences have a mean advantage of that sign."""
    sign = t.by_sequence.mean(t.advantage) >= 0
    return t.by_sequence.mean(t.log_ratio), sign if good else ~sign


@diagnostic(UPDATE, Unit.NATS, "mean over sequences with A >= 0 of the mean delta", "arXiv 2512.04220 (LLDS)")
def displacement_positive(t: Tokens, by: Segments) -> np.ndarray:
    """How much likelier good trajectories have become per token; negative = lazy likelihood displacement."""
    shift, good = _displacement(t, True)
    return t.sequences_by_update.mean(shift, good)


@diagnostic(UPDATE, Unit.NATS, "mean over sequences with A < 0 of the mean delta", "arXiv 2512.04220 (LLDS)")
def displacement_negative(t: Tokens, by: Segments) -> np.ndarray:
    """How much likelier bad trajectories have become per token."""
    shift, bad = _displacement(t, False)
    return t.sequences_by_update.mean(shift, bad)


@diagnostic(UPDATE, Unit.NATS, "mean over sequences with A >= 0 of the mean log_prob", "arXiv 2512.04220 (LLDS)")
def log_prob_positive(t: Tokens, by: Segments) -> np.ndarray:
    """How likely good trajectories are per token; a steady fall is the second phase of the LLD death spiral."""
    _, good = _displacement(t, True)
    return t.sequences_by_update.mean(t.by_sequence.mean(t.log_prob), good)


@diagnostic(UPDATE, Unit.FRACTION, "share of sequences with A >= 0 whose mean delta < 0", "arXiv 2512.04220 (LLDS)")
def displaced_positive_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of good trajectories that the policy has made less likely."""
    shift, good = _displacement(t, True)
    return t.sequences_by_update.mean(np.where(np.isnan(shift), np.nan, shift < 0), good)


@diagnostic(
    (UPDATE, TURN),
    Unit.NATS,
    "<|log_prob_old - log_prob_behaviour|>_m",
    "TRL (sampling_logp_difference/mean)",
    roll="tokens",
)
def mismatch(t: Tokens, by: Segments) -> np.ndarray:
    """Disagreement of trainer and sampler about the same tokens: precision, temperature, staleness."""
    return by.mean(np.abs(t.mismatch))


@diagnostic(UPDATE, Unit.NATS, "max |log_prob_old - log_prob_behaviour|", "TRL (sampling_logp_difference/max)")
def mismatch_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest disagreement of trainer and sampler about one token."""
    return by.maximum(np.abs(t.mismatch))


@diagnostic(UPDATE, Unit.NONE, "Pearson correlation of p_old and p_behaviour over tokens", "prime-rl, verl")
def mismatch_pearson(t: Tokens, by: Segments) -> np.ndarray:
    """Whether trainer and sampler order the tokens alike; NULL where one of them is constant."""
    old = np.exp(t.log_prob - t.log_ratio)
    sampler = np.exp(t.log_prob - t.log_ratio - t.mismatch)
    a, b = old - by.spread(by.mean(old)), sampler - by.spread(by.mean(sampler))
    return quotient(by.mean(a * b), np.sqrt(by.mean(a**2) * by.mean(b**2)))


@diagnostic(
    (UPDATE, STEP),
    Unit.NATS,
    "<log_prob_behaviour - log_prob_old>_m (k1)",
    f"{VERL} (kl)",
    alarm=Alarm("above", 0.1, "verl docs/algo/rollout_corr.md, health check: |KL| above 0.1", points=2),
)
def mismatch_kl(t: Tokens, by: Segments) -> np.ndarray:
    """KL of the trainer's old policy from the sampler."""
    return by.mean(-t.mismatch)


@diagnostic(UPDATE, Unit.NATS, "<exp(x) - 1 - x>_m, x = log_prob_old - log_prob_behaviour", f"{VERL} (k3_kl)")
def mismatch_k3(t: Tokens, by: Segments) -> np.ndarray:
    """The same KL by the estimator that is never negative."""
    return by.mean(k3(t.mismatch))


def _sampler_surprise(t: Tokens) -> np.ndarray:
    """Of each sequence log_ppl_old - log_ppl_behaviour: the mean of log_prob_behaviour - log_prob_old."""
    return t.by_sequence.mean(-t.mismatch)


@diagnostic(
    UPDATE, Unit.NATS, "mean over sequences of the mean of log_prob_behaviour - log_prob_old", f"{VERL} (log_ppl_diff)"
)
def mismatch_log_ppl(t: Tokens, by: Segments) -> np.ndarray:
    """How much higher the trainer's log-perplexity of a trajectory is than that of the sampler that wrote it."""
    return t.sequences_by_update.mean(_sampler_surprise(t))


@diagnostic(
    UPDATE, Unit.RATIO, "mean over sequences of exp(mean of log_prob_behaviour - log_prob_old)", f"{VERL} (ppl_ratio)"
)
def mismatch_ppl_ratio(t: Tokens, by: Segments) -> np.ndarray:
    """The trainer's perplexity of a trajectory over the sampler's; 1 where they agree."""
    return t.sequences_by_update.mean(np.exp(_sampler_surprise(t)))

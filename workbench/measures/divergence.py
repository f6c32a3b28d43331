"""Distances between policies: new and old, new and reference, trainer and sampler; entropy; likelihood
displacement.
"""

import numpy as np

from sorl.measures.declare import NO_MARK, OTHER, OURS, VERL, Measure, diagnostic
from sorl.measures.tokens import CLAMP, Segments, Tokens, quotient
from sorl.spec import Alarm, Level, Unit

SCHULMAN = "Schulman, Approximating KL Divergence (2020)"
MINIRL = "arXiv 2512.01374 (MiniRL), 2510.11370 (R3)"
LLDS = "arXiv 2512.04220 (LLDS)"
TRL = "TRL (sampling_logp_difference"
CORE_ALGOS = "verl core_algos.py"
STEP = Level.STEP
TRAJECTORY = Level.TRAJECTORY
TURN = Level.TURN
UPDATE = Level.UPDATE


def k3(log_ratio: np.ndarray) -> np.ndarray:
    """exp(x) - 1 - x with x clamped to +-20, never negative: k3 of KL(q || p) on samples of q for x = log p -
    log q.
    """
    x = np.clip(log_ratio, -CLAMP, CLAMP)
    return np.maximum(np.expm1(x) - x, 0.0)


def _good(t: Tokens) -> np.ndarray:
    return t.by_sequence.mean(t.advantages) >= 0


def _moved(t: Tokens) -> np.ndarray:
    return t.by_sequence.mean(t.log_ratio)


POLICIES = (
    Measure(
        "approx_kl",
        (UPDATE, TURN, TRAJECTORY, STEP),
        Unit.NATS,
        "<-delta>_m (k1)",
        "Search-R1 and verl (ppo_kl)",
        "KL of the new policy from the old one; unbiased on samples of the old policy, so it can be"
        " negative.",
        lambda t, by: by.mean(-t.log_ratio),
        roll="tokens",
        no_alarm=OTHER,
    ),
    Measure(
        "kl_k3",
        (UPDATE, TURN, STEP),
        Unit.NATS,
        "<exp(delta) - 1 - delta>_m (k3)",
        SCHULMAN,
        "Estimate of the same KL that is never negative; far above kl_k2 means that the upper tail"
        " dominates.",
        lambda t, by: by.mean(k3(t.log_ratio)),
        roll="tokens",
        alarm=Alarm(
            "above",
            10.0,
            "second-best precursor after the gradient norm in this project's small runs (6 of 15 collapses);"
            " the factor 10 is ours, to be calibrated",
            relative="baseline",
        ),
    ),
    Measure(
        "kl_ref",
        (UPDATE, STEP),
        Unit.NATS,
        "<exp(-x) - 1 + x>_m, x = log_prob - log_prob_ref (k3)",
        f"{CORE_ALGOS} (low_var_kl, which ends at 10)",
        "Distance from the frozen reference; NULL without one. KL(new || reference) on samples of the new"
        " policy.",
        lambda t, by: by.mean(k3(t.log_prob_ref - t.log_prob)),
        no_alarm=f"rlwatch counts sigmas of a rolling window, which a steady growth never leaves; {NO_MARK}",
    ),
    Measure(
        "entropy",
        (UPDATE, TURN, TRAJECTORY, STEP),
        Unit.NATS,
        "<H_t>_m, H = logsumexp(z) - sum p z",
        CORE_ALGOS,
        "Entropy of the policy at its tokens. It can rise before a collapse as well as fall.",
        lambda t, by: by.mean(t.entropy),
        roll="tokens",
        alarm=Alarm(
            "below",
            0.3,
            "relative to the run's own start, because absolute floors (rlwatch: 1.0) do not carry to small"
            " models; the factor is ours",
            points=3,
            relative="baseline",
        ),
    ),
    Measure(
        "mismatch_kl",
        (UPDATE, STEP),
        Unit.NATS,
        "<log_prob_behaviour - log_prob_old>_m (k1)",
        f"{VERL} (kl)",
        "KL of the trainer's old policy from the sampler.",
        lambda t, by: by.mean(-t.mismatch),
        alarm=Alarm("above", 0.1, "verl docs/algo/rollout_corr.md, health check: |KL| above 0.1", points=2),
    ),
)


@diagnostic(UPDATE, Unit.NONE, "Pearson correlation of p_old and p_behaviour over tokens", "prime-rl, verl")
def mismatch_pearson(t: Tokens, by: Segments) -> np.ndarray:
    """Whether trainer and sampler order the tokens alike; NULL where one of them is constant."""
    old = np.exp(t.log_prob - t.log_ratio)
    sampler = np.exp(t.log_prob - t.log_ratio - t.mismatch)
    a = old - by.spread(by.mean(old))
    b = sampler - by.spread(by.mean(sampler))
    return quotient(by.mean(a * b), np.sqrt(by.mean(a**2) * by.mean(b**2)))


OF_TOKENS_AND_SEQUENCES = (
    Measure(
        "kl_k2",
        (UPDATE,),
        Unit.NATS,
        "<delta^2 / 2>_m (k2)",
        SCHULMAN,
        "Second-order estimate of the same KL; low variance, biased for large moves.",
        lambda t, by: by.mean(t.log_ratio**2 / 2),
    ),
    Measure(
        "entropy_low_frac",
        (UPDATE,),
        Unit.FRACTION,
        "<1[H_t < 0.01]>_m",
        OURS,
        "Share of tokens at which the policy no longer chooses.",
        lambda t, by: by.mean(t.entropy < 0.01),
    ),
    Measure(
        "mismatch",
        (UPDATE, TURN),
        Unit.NATS,
        "<|log_prob_old - log_prob_behaviour|>_m",
        f"{TRL}/mean)",
        "Disagreement of trainer and sampler about the same tokens: precision, temperature, staleness.",
        lambda t, by: by.mean(np.abs(t.mismatch)),
        roll="tokens",
    ),
    Measure(
        "mismatch_max",
        (UPDATE,),
        Unit.NATS,
        "max |log_prob_old - log_prob_behaviour|",
        f"{TRL}/max)",
        "Largest disagreement of trainer and sampler about one token.",
        lambda t, by: by.maximum(np.abs(t.mismatch)),
    ),
    Measure(
        "mismatch_k3",
        (UPDATE,),
        Unit.NATS,
        "<exp(x) - 1 - x>_m, x = log_prob_old - log_prob_behaviour",
        f"{VERL} (k3_kl)",
        "The same KL by the estimator that is never negative.",
        lambda t, by: by.mean(k3(t.mismatch)),
    ),
    *(
        Measure(
            f"entropy_{span}",
            (UPDATE,),
            Unit.NATS,
            f"<H_t> over the tokens from <{span}> to </{span}>",
            OURS,
            f"Entropy where the policy {verb}; NULL where it did not, or the tags are not single tokens.",
            lambda t, by, number=number: by.mean(t.entropy, t.span == number),
        )
        for number, span, verb in (
            (1, "think", "thinks"),
            (2, "search", "searches"),
            (3, "answer", "answers"),
        )
    ),
    Measure(
        "route_mismatch_frac",
        (UPDATE, TURN),
        Unit.FRACTION,
        "<share of layers whose top-k experts differ>_m",
        MINIRL,
        "Mixture of experts: choices of the sampler that the trainer's routers, under the old weights, do "
        "not make. NULL of a dense model, and where one of the two did not record its routes.",
        lambda t, by: by.mean(t.route_mismatch),
        roll="tokens",
    ),
    Measure(
        "route_shift_frac",
        (UPDATE, TURN),
        Unit.FRACTION,
        "<share of layers whose top-k experts differ>_m",
        MINIRL,
        "Mixture of experts: choices under the old weights that the routers would not make now, even if a "
        "routing replay makes them repeat it. NULL of a dense model.",
        lambda t, by: by.mean(t.route_shift),
        roll="tokens",
    ),
    Measure(
        "router_entropy",
        (UPDATE, TURN),
        Unit.NATS,
        "<mean over layers of the entropy of the router's softmax>_m",
        OURS,
        "Mixture of experts: how evenly the routers spread over all experts. NULL of a dense model.",
        lambda t, by: by.mean(t.router_entropy),
        roll="tokens",
    ),
    Measure(
        "displacement_positive",
        (UPDATE,),
        Unit.NATS,
        "mean over sequences with A >= 0 of the mean delta",
        LLDS,
        "How much likelier good trajectories have become per token; negative = lazy likelihood displacement.",
        lambda t, by: t.sequences_by_update.mean(_moved(t), _good(t)),
    ),
    Measure(
        "displacement_negative",
        (UPDATE,),
        Unit.NATS,
        "mean over sequences with A < 0 of the mean delta",
        LLDS,
        "How much likelier bad trajectories have become per token.",
        lambda t, by: t.sequences_by_update.mean(_moved(t), ~_good(t)),
    ),
    Measure(
        "log_prob_positive",
        (UPDATE,),
        Unit.NATS,
        "mean over sequences with A >= 0 of the mean log_prob",
        LLDS,
        "Log-prob of good trajectories per token; a steady fall is the second phase of the LLD death spiral.",
        lambda t, by: t.sequences_by_update.mean(t.by_sequence.mean(t.log_prob), _good(t)),
    ),
    Measure(
        "displaced_positive_frac",
        (UPDATE,),
        Unit.FRACTION,
        "share of sequences with A >= 0 whose mean delta < 0",
        LLDS,
        "Share of good trajectories that the policy has made less likely.",
        lambda t, by: t.sequences_by_update.mean(
            np.where(np.isnan(_moved(t)), np.nan, _moved(t) < 0), _good(t)
        ),
    ),
    Measure(
        "mismatch_log_ppl",
        (UPDATE,),
        Unit.NATS,
        "mean over sequences of the mean of log_prob_behaviour - log_prob_old",
        f"{VERL} (log_ppl_diff)",
        "Log-perplexity of a trajectory by trainer less sampler.",
        lambda t, by: t.sequences_by_update.mean(t.by_sequence.mean(-t.mismatch)),
    ),
    Measure(
        "mismatch_ppl_ratio",
        (UPDATE,),
        Unit.RATIO,
        "mean over sequences of exp(mean of log_prob_behaviour - log_prob_old)",
        f"{VERL} (ppl_ratio)",
        "The trainer's perplexity of a trajectory over the sampler's.",
        lambda t, by: t.sequences_by_update.mean(np.exp(t.by_sequence.mean(-t.mismatch))),
    ),
)

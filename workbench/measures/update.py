"""The optimizer update itself, as the learner reports it, and what its probe measures."""

from itertools import chain, starmap

import numpy as np

from sorl.measures.declare import OURS, TRAINERS, Measure, diagnostic, reported
from sorl.measures.tokens import Segments, Tokens
from sorl.spec import Level, Unit

MCCANDLISH = "McCandlish et al., arXiv 1812.06162, appendix A.1"
VERL = "verl metric_utils.py (variance proxies)"
TAGS = "arXiv 2606.26027"

UPDATE = (
    reported(
        "grad_norm",
        Unit.NORM,
        "||g||_2 before gradient clipping",
        TRAINERS,
        "Norm of the policy's gradient, stabiliser applied, gradient clipping not yet.",
    ),
    reported(
        "grad_norm_after",
        Unit.NORM,
        "min(||g||_2, max_grad_norm)",
        TRAINERS,
        "Norm of the policy's gradient that the optimizer stepped along; 0 where an early stop left it out.",
    ),
    reported(
        "critic_grad_norm",
        Unit.NORM,
        "||g_critic||_2 before gradient clipping",
        TRAINERS,
        "Norm of the critic's gradient; NULL without a critic.",
    ),
    reported(
        "policy_loss",
        Unit.NONE,
        "the algorithm's policy term",
        TRAINERS,
        "Loss without KL and entropy terms.",
    ),
    reported("kl_loss", Unit.NONE, "beta KL", TRAINERS, "KL term of the loss."),
    reported(
        "value_loss",
        Unit.NONE,
        "0.5 <max((V - G)^2, (V^c - G)^2)>_m",
        "verl core_algos.py (compute_value_loss)",
        "Loss of the critic; NULL without one.",
    ),
    reported("lr", Unit.NONE, "learning rate", TRAINERS, "Learning rate of the policy."),
    reported(
        "expert_load_max",
        Unit.RATIO,
        "max over layers and experts of E n_le / sum_e n_le",
        "arXiv 2101.03961",
        "Assignments of the busiest expert of any layer over those of an even load, by trained tokens; E ="
        " all went to one. NULL of a dense model.",
    ),
    Measure(
        "tokens",
        (Level.UPDATE,),
        Unit.TOKENS,
        "sum m",
        TRAINERS,
        "Tokens that the update trained on.",
        lambda t, by: by.count,
        sql_type="BIGINT",
    ),
)


@diagnostic(
    Level.UPDATE,
    Unit.COUNT,
    "#{NaN or Inf} in delta, A, H under the mask, and in losses and gradient norms",
    "arXiv 2502.01600 (LOOP skips and counts them)",
    sql_type="BIGINT",
)
def non_finite(t: Tokens, by: Segments) -> np.ndarray:
    """Numbers of the update that are not finite; one is enough to end a run."""
    entropy = 0.0 if t.evidence.entropy is None else t.entropy
    bad = ~(np.isfinite(t.log_ratio) & np.isfinite(t.advantages) & np.isfinite(entropy))
    count = np.bincount(t.update, weights=bad, minlength=t.updates)
    if (counted := t.scalar("non_finite")) is not None:
        return count + np.ma.filled(counted, 0.0)
    losses = (
        t.scalar(name) for name in ("grad_norm", "critic_grad_norm", "policy_loss", "kl_loss", "value_loss")
    )
    return count + sum(~np.isfinite(np.ma.filled(values, 0.0)) for values in losses if values is not None)


n_tokens = Measure(
    "n_tokens",
    (Level.TURN,),
    Unit.TOKENS,
    "n_k = sum m of the turn",
    OURS,
    "Tokens that the policy wrote in it.",
    lambda t, by: by.count,
    sql_type="BIGINT",
    roll="turns",
)

# Of each tag of the protocol: its name in the columns, the tag, and what the policy does and did by writing
# it.
TAG_WORDS = (
    ("search", "<search>", "searches that it began", "beginning a search where none was begun"),
    ("search_end", "</search>", "ends of its searches", "ending a search where none was ended"),
    ("answer", "<answer>", "answers that it began", "beginning an answer where none was begun"),
)


def _tag_columns(name: str, tag: str, written: str, elsewhere: str) -> tuple[Measure, Measure]:
    """The probability of a tag where it was written, and where another token was."""
    on = reported(
        f"{name}_on_prob",
        Unit.FRACTION,
        f"mean p of {tag} where it was written",
        TAGS,
        f"How sure the policy is of the {written}; NULL where there is none, or no such token.",
    )
    off = reported(
        f"{name}_off_prob",
        Unit.FRACTION,
        f"mean p of {tag} where another token was written",
        TAGS,
        f"Probability of {elsewhere}; NULL where there is no such token.",
    )
    return on, off


# Measured on every n-th update that trains a token (learn.probe_every, 0 = never), as it costs about an
# update. The gradient is that of the policy's loss with its KL term, without an entropy bonus and before a
# stabiliser's factor on gradients; the parts are made of sequences with a trained token.
PROBE = (
    reported(
        "gradient_cosine",
        Unit.NONE,
        "mean cos(g_a, g_b) over pairs of four parts of the minibatch",
        OURS,
        "Agreement inside a minibatch; near 0 the gradient is noise. NULL without a probe (as every column of"
        " the probe) and with fewer than two sequences (as the noise).",
    ),
    reported(
        "gradient_cosine_previous",
        Unit.NONE,
        "cos(g, g of the last probe)",
        OURS,
        "Agreement with the last gradient that was probed; below 0 for long = the updates undo each other."
        " NULL at the first probe.",
    ),
    reported(
        "noise_trace",
        Unit.NONE,
        "S = (mean |g_b|^2 - |g_B|^2) / (mean 1 / b - 1 / B), b = B / 4 sequences",
        MCCANDLISH,
        "Trace of the covariance of a sequence's gradient; average over updates before dividing.",
    ),
    reported(
        "noise_signal",
        Unit.NONE,
        "|G|^2 = |g_B|^2 - S / B",
        MCCANDLISH,
        "Unbiased squared norm of the true gradient; it can be negative where there is little signal.",
    ),
    reported(
        "noise_scale",
        Unit.COUNT,
        "S / |G|^2",
        MCCANDLISH,
        "Sequences beyond which a larger minibatch hardly helps; NULL where noise_signal is not positive.",
    ),
    reported(
        "proxy_signal",
        Unit.NONE,
        "|g|^2",
        VERL,
        "Squared norm of the gradient of the loss; compare along one run only.",
    ),
    reported(
        "proxy_power",
        Unit.NONE,
        "mean_i sum_t omega^2 A^2 Q_t, Q_t = 1 - 2 p_t + sum_v p_v^2",
        VERL,
        "Total power of the sequences' gradients in logit space; omega is the rollout correction, 1 without"
        " one. Token by token and of the new policy: verl squares the mean A and omega of a sequence, p of"
        " the old.",
    ),
    reported(
        "proxy_noise",
        Unit.NONE,
        "(proxy_power - proxy_signal) / (number of sequences - 1)",
        VERL,
        "Variance of the minibatch's gradient by the two proxies; compare along one run only.",
    ),
    reported(
        "control_on_prob",
        Unit.FRACTION,
        "mean p of the tag where <search>, </search>, <answer> or </answer> was written",
        TAGS,
        "How sure the policy is of the tags that it wrote; NULL where there is none, or no such token.",
    ),
    reported(
        "control_off_prob",
        Unit.FRACTION,
        "mean sum of p of the four tags where another token was written",
        TAGS,
        "Probability of a tag where none was written; it spikes before the structure of the turns breaks.",
    ),
    *chain.from_iterable(starmap(_tag_columns, TAG_WORDS)),
)

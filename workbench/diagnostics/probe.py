"""What the probe measures on every n-th update (learn.probe_every): agreement, noise, and the tags of the protocol.

NULL on the other updates, on updates without a trained token, and everywhere while learn.probe_every is 0: a
measurement costs about as much as an update. The gradient is that of the policy's loss with its KL term, without an
entropy bonus and before a stabiliser's factor on gradients; the parts are made of sequences with a trained token.
"""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens
from workbench.spec import Level, Unit

UPDATE = Level.UPDATE
MCCANDLISH = "McCandlish et al., arXiv 1812.06162, appendix A.1"
VERL = "verl metric_utils.py (variance proxies)"
TAGS = "arXiv 2606.26027"


@diagnostic(UPDATE, Unit.NONE, "mean cos(g_a, g_b) over pairs of four parts of the minibatch", "this project")
def gradient_cosine(t: Tokens, by: Segments) -> np.ndarray | None:
    """Agreement inside a minibatch; near 0 the gradient is noise.

    NULL on updates without a probe (as every column of the probe) and with fewer than two sequences.
    """
    return t.scalar("gradient_cosine")


@diagnostic(UPDATE, Unit.NONE, "cos(g, g of the last probe)", "this project")
def gradient_cosine_previous(t: Tokens, by: Segments) -> np.ndarray | None:
    """Agreement with the last gradient that was probed; below 0 for long = the updates undo each other.

    NULL at the first probe. With learn.probe_every = 1 it is the gradient of the update before.
    """
    return t.scalar("gradient_cosine_previous")


@diagnostic(UPDATE, Unit.NONE, "S = (mean |g_b|^2 - |g_B|^2) / (mean 1 / b - 1 / B), b = B / 4 sequences", MCCANDLISH)
def noise_trace(t: Tokens, by: Segments) -> np.ndarray | None:
    """Trace of the covariance of a sequence's gradient; average it over updates before dividing.

    NULL with fewer than two sequences.
    """
    return t.scalar("noise_trace")


@diagnostic(UPDATE, Unit.NONE, "|G|^2 = |g_B|^2 - S / B", MCCANDLISH)
def noise_signal(t: Tokens, by: Segments) -> np.ndarray | None:
    """Unbiased squared norm of the true gradient; it can be negative where there is little signal.

    NULL with fewer than two sequences.
    """
    return t.scalar("noise_signal")


@diagnostic(UPDATE, Unit.COUNT, "S / |G|^2", MCCANDLISH)
def noise_scale(t: Tokens, by: Segments) -> np.ndarray | None:
    """Sequences beyond which a larger minibatch hardly helps; NULL where noise_signal is not positive: undefined."""
    return t.scalar("noise_scale")


@diagnostic(UPDATE, Unit.NONE, "|g|^2", VERL)
def proxy_signal(t: Tokens, by: Segments) -> np.ndarray | None:
    """Squared norm of the gradient of the loss; compare along one run only. NULL on updates without a probe."""
    return t.scalar("proxy_signal")


@diagnostic(UPDATE, Unit.NONE, "mean_i sum_t omega^2 A^2 Q_t, Q_t = 1 - 2 p_t + sum_v p_v^2", VERL)
def proxy_power(t: Tokens, by: Segments) -> np.ndarray | None:
    """Total power of the sequences' gradients in logit space; omega is the rollout correction, 1 without one.

    Token by token and by the policy as it is: verl squares the mean A and the mean omega of a sequence and takes p of
    the old policy. NULL on updates without a probe.
    """
    return t.scalar("proxy_power")


@diagnostic(UPDATE, Unit.NONE, "(proxy_power - proxy_signal) / (number of sequences - 1)", VERL)
def proxy_noise(t: Tokens, by: Segments) -> np.ndarray | None:
    """Variance of the minibatch's gradient by the two proxies; compare along one run only.

    NULL with fewer than two sequences.
    """
    return t.scalar("proxy_noise")


@diagnostic(
    UPDATE, Unit.FRACTION, "mean p of the tag where <search>, </search>, <answer> or </answer> was written", TAGS
)  # fmt: skip
def control_on_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """How sure the policy is of the tags that it wrote; NULL where it wrote none or they are not single tokens."""
    return t.scalar("control_on_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean sum of p of the four tags where another token was written", TAGS)
def control_off_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """Probability of a tag where none was written; it spikes before the structure of the turns breaks.

    NULL where the tags are not single tokens.
    """
    return t.scalar("control_off_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean p of <search> where it was written", TAGS)
def search_on_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """How sure the policy is of the searches that it began; NULL where there is none, or no such token."""
    return t.scalar("search_on_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean p of <search> where another token was written", TAGS)
def search_off_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """Probability of beginning a search where none was begun; NULL where there is no such token."""
    return t.scalar("search_off_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean p of </search> where it was written", TAGS)
def search_end_on_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """How sure the policy is of the ends of its searches; NULL where there is none, or no such token."""
    return t.scalar("search_end_on_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean p of </search> where another token was written", TAGS)
def search_end_off_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """Probability of ending a search where none was ended; NULL where there is no such token."""
    return t.scalar("search_end_off_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean p of <answer> where it was written", TAGS)
def answer_on_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """How sure the policy is of the answers that it began; NULL where there is none, or no such token."""
    return t.scalar("answer_on_prob")


@diagnostic(UPDATE, Unit.FRACTION, "mean p of <answer> where another token was written", TAGS)
def answer_off_prob(t: Tokens, by: Segments) -> np.ndarray | None:
    """Probability of beginning an answer where none was begun; NULL where there is no such token."""
    return t.scalar("answer_off_prob")

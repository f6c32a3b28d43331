"""The gap of trainer and sampler: what tells its reasons apart.

x is the trainer's log-prob of a sampled token, before the updates of its step, less the sampler's. How large
x is says little about why. A reason shows in which tokens differ, to which side, and how they lie in a row:

- another temperature moves every likely token to the same side;
- a truncated distribution (top-p, top-k) makes every token likelier to the sampler;
- other token ids leave a row as it was up to the first of them, and no token after it;
- other experts change some tokens much and the rest hardly.
"""

import numpy as np

from sorl.measures.declare import OURS, Measure, diagnostic
from sorl.measures.tokens import Segments, Tokens, quotient
from sorl.spec import Level, Unit

UPDATE = Level.UPDATE
NOISE = 1e-4  # nats; kernels of one precision differ by less
LIKELY = np.log(0.5)
FEWEST = 8  # tokens, without which nothing is said of a share or of a row
DOUBT = 1e-3  # added to 1 - p, so that a certain token is not divided by nothing
BEGUN = 2  # tokens of a row before the earliest place at which it can break, and after the last
SMALLEST = 1e-6  # of |x| / doubt: what float32 still tells apart
BROKEN = 1.5  # powers of ten between the two parts of a row that is called broken


def doubt(t: Tokens) -> np.ndarray:
    """1 - p of each token by the trainer, (M,): how far a small change of the logits can move it."""
    return -np.expm1(np.minimum(t.log_prob_trainer, 0.0)) + DOUBT


def _share(t: Tokens, by: Segments, of: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Share of tokens; masked where fewer than FEWEST count."""
    counted = by.total(among)
    share = quotient(by.total(of & among), counted)
    few = np.ma.filled(counted, 0.0) < FEWEST
    return np.ma.array(np.ma.getdata(share), mask=np.ma.getmaskarray(share) | few)


gap = Measure(
    "gap",
    (UPDATE, Level.TRAJECTORY),
    Unit.NATS,
    "<|x|>_m",
    OURS,
    "Disagreement of trainer and sampler, as `mismatch`, and also where the trainer takes the"
    " sampler's log-probs"
    " for the old ones: then of the first update, NULL in later ones.",
    lambda t, by: by.mean(np.abs(t.gap), t.is_unmoved),
)


@diagnostic(UPDATE, Unit.RATIO, "Cov(log_prob_behaviour, log p) / Var(log p), p of the trainer", OURS)
def gap_slope(t: Tokens, by: Segments) -> np.ndarray:
    """Slope of the sampler's log-prob against the trainer's: above 1 the sampler is sharper; NULL where all
    are alike.
    """
    where = t.is_unmoved
    trainer = t.log_prob_trainer - by.spread(by.mean(t.log_prob_trainer, where))
    sampler = t.log_prob_behaviour - by.spread(by.mean(t.log_prob_behaviour, where))
    return quotient(by.mean(trainer * sampler, where), by.mean(trainer**2, where))


@diagnostic(UPDATE, Unit.FRACTION, "share with x < 0 of the tokens with p > 1/2 and |x| > 1e-4", OURS)
def gap_sharper_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the likely tokens that differ which the sampler finds likelier; a temperature moves all to one
    side. NULL where fewer than 8 differ.
    """
    likely = t.is_unmoved & (t.log_prob_trainer > LIKELY) & (np.abs(t.gap) > NOISE)
    return _share(t, by, t.gap < 0, likely)


@diagnostic(UPDATE, Unit.FRACTION, "share with x < 0 of the tokens with |x| > 1e-4", OURS)
def gap_likelier_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the tokens that differ which the sampler finds likelier: all of them where it leaves out
    unlikely ones. NULL where fewer than 8 differ.
    """
    return _share(t, by, t.gap < 0, t.is_unmoved & (np.abs(t.gap) > NOISE))


@diagnostic(UPDATE, Unit.RATIO, "<z^4>_m / <z^2>_m^2, z = x / (1.001 - p) where p < .95", OURS)
def gap_kurtosis(t: Tokens, by: Segments) -> np.ndarray:
    """How much of the gap a few tokens carry: 3 where a normal error is added to the logits, far more where
    some tokens change and the rest do not.
    """
    open_tokens = t.is_unmoved & (doubt(t) > 0.05)
    z = t.gap / doubt(t)
    return quotient(by.mean(z**4, open_tokens), by.mean(z**2, open_tokens) ** 2)


@diagnostic(UPDATE, Unit.FRACTION, "share of rows whose |x| / (1.001 - p) grows by 10^1.5 at one place", OURS)
def gap_broken_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the rows in which trainer and sampler agree up to a token and not after it. Rows with fewer
    than 8 tokens are left out.
    """
    size = np.log10(np.abs(t.gap) / doubt(t) + SMALLEST)
    starts = np.flatnonzero(np.diff(t.sequence, prepend=-1))
    rises = np.array([_rise(part) for part in np.split(size, starts[1:])]) if len(starts) else np.zeros(0)
    known = np.isfinite(rises) & t.is_unmoved[starts]
    return t.sequences_by_update.mean(np.where(known, rises > BROKEN, 0.0), known)


def _rise(size: np.ndarray) -> float:
    """Difference of the means after and before the best place to cut a row in two; NaN of a short one."""
    n = len(size)
    if n < FEWEST:
        return float("nan")
    total = np.cumsum(size)
    before = np.arange(BEGUN, n - BEGUN + 1)
    head = total[before - 1] / before
    tail = (total[-1] - total[before - 1]) / (n - before)
    explained = before * (n - before) * (tail - head) * np.abs(tail - head)
    best = int(explained.argmax())
    return float(tail[best] - head[best])

"""The trajectories and turns behind a spike: those that the other tokens do not explain.

Two quantities of each trained token are looked at: the mismatch of sampler and trainer, log p_old - log p_mu,
and the log-ratio of every update, log p - log p_old. A token's deviation z is its size in units of what is
usual in this batch for tokens that are as certain: a token of probability 1 hardly moves, a rare one moves by
nats in any healthy run. Its surprise is s = -log P(Z >= z) over the tokens of the batch, continued by a
Pareto tail beyond their 97.5 % quantile. A turn's score is the largest sum of s - CHANCE over a stretch of
its tokens; that stretch is its span, drawn tighter where single tokens stand far above the rest. Of N
independent tokens, RARE N exp(-RATE x) stretches score x or more by chance (Karlin and Altschul 1990): what a
healthy batch of this size has of them says how far a turn stands out. Nothing comes from outside the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sorl.store.batches import StoredBatch

Quantity = Literal["mismatch", "log_ratio"]
CHANCE = 2.0  # surprise per token that a span must exceed on average; that of a token of a healthy batch is 1
RATE = 0.797  # solves E exp(RATE (s - CHANCE)) = exp(-RATE CHANCE) / (1 - RATE) = 1 for s ~ Exp(1)
RARE = 0.094  # by simulation of 20,000 x 1,000 such tokens
QUANTITIES = 2
# stretches by chance alone, below which one stands out: one healthy batch in a hundred names a turn
EXPECTED = 0.01
TIGHT = 0.25  # of the largest surprise of a span, that its tokens must exceed on average
# Quantiles of 1 - p between groups of tokens of like certainty: finer where a token can move.
EDGES = (0.2, 0.4, 0.55, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98)
FLOOR = 1e-3  # nats: what two kernels may disagree by, and nothing that matters
# quantiles that the tail is fitted to
_BODY = 0.9
_TAIL = 0.975
# bounds of its exponent
_STEEP = 3.0
_FLAT = 1.0
_MOST = 1e12  # a deviation, that of Inf and NaN included
_SHOWN = 80  # characters of the text of a span


@dataclass(frozen=True)
class Culprit:
    """A turn and the span of it that carries a spike: token positions `first` to `last` of the row, both
    included.
    """

    trajectory: int
    turn: int  # from 1
    first: int
    last: int
    quantity: Quantity
    value: float  # the quantity at its most deviating token of the span: nats
    score: float
    expected: float  # stretches of a healthy batch of this size that would score as high
    text: str = ""  # of the span; escape it before it is shown

    @property
    def stands_out(self) -> bool:
        """Whether chance does not explain it."""
        return self.expected < EXPECTED


class _Turn(NamedTuple):
    """The trained tokens of a turn."""

    row: int
    number: int  # from 1
    tokens: np.ndarray  # their positions in the row


class _Deviations(NamedTuple):
    """A quantity of all tokens, (B, T) each."""

    quantity: Quantity
    deviation: np.ndarray  # z, how far from what is usual
    value: np.ndarray  # nats


class _Span(NamedTuple):
    """A stretch of scores: their sum, and the first and the last of them."""

    score: float
    first: int
    last: int


@np.errstate(all="ignore")  # NaN and Inf are what is looked for
def attribute(stored: StoredBatch) -> list[Culprit]:
    """Return every turn (a stretch of trained tokens) of the batch, most unusual first; `stands_out`: not by
    chance.
    """
    trained = stored.mask
    if not trained.any():
        return []
    turns = _turns_of(stored)
    best: dict[tuple[int, int], Culprit] = {}  # by row and turn
    for measured in _quantities(stored):
        scores = np.zeros(trained.shape)
        scores[trained] = _surprise(measured.deviation[trained]) - CHANCE
        for turn in turns:
            culprit = _culprit(stored, turn, measured, scores)
            place = (turn.row, turn.number)
            if culprit is not None and (place not in best or best[place].score < culprit.score):
                best[place] = culprit
    return sorted(best.values(), key=lambda c: (-c.score, c.trajectory, c.turn))


def _turns_of(stored: StoredBatch) -> list[_Turn]:
    """The turns of the batch that have trained tokens, row by row."""
    trained = stored.mask
    turn = stored.turn
    turns = []
    for row in range(len(turn)):
        for number in np.unique(turn[row][trained[row] & (turn[row] > 0)]):
            tokens = np.flatnonzero(trained[row] & (turn[row] == number))
            turns.append(_Turn(row, int(number), tokens))
    return turns


def _culprit(stored: StoredBatch, turn: _Turn, measured: _Deviations, scores: np.ndarray) -> Culprit | None:
    """The turn with its span by one quantity; None where no stretch of it scores above chance."""
    own = scores[turn.row, turn.tokens]
    score, first, last = _best_span(own)
    if score <= 0:
        return None
    highest = own[first : last + 1].max() + CHANCE
    _, first, last = _best_span(own + CHANCE - max(CHANCE, TIGHT * highest))
    span = turn.tokens[first : last + 1]
    worst = span[int(np.argmax(own[first : last + 1]))]
    text = "".join(stored.texts.get(int(token), "") for token in stored.tokens[turn.row, span])
    return Culprit(
        trajectory=int(stored.trajectory[turn.row]),
        turn=turn.number,
        first=int(span[0]),
        last=int(span[-1]),
        quantity=measured.quantity,
        value=float(measured.value[turn.row, worst]),
        score=float(score),
        expected=float(QUANTITIES * RARE * stored.mask.sum() * np.exp(-RATE * score)),
        text=text[:_SHOWN],
    )


def _quantities(stored: StoredBatch) -> Iterator[_Deviations]:
    """Each quantity that the batch has; of several updates the largest deviation."""
    old = stored.log_prob_old
    behaviour = stored.log_prob_behaviour
    trained = stored.mask
    likeliest = old if behaviour is None else np.maximum(old, behaviour)
    if behaviour is not None and "log_prob_old" not in stored.absent:
        gap = old - behaviour
        yield _Deviations("mismatch", _deviation(gap, _doubt(likeliest), trained), gap)
    if stored.absent & {"log_prob", "log_prob_old"}:
        return
    deviation = np.zeros(old.shape)
    value = np.zeros(old.shape)
    for update in stored.updates:
        mask = trained[update.rows] if update.mask is None else update.mask
        ratio = update.log_prob - old[update.rows]
        z = _deviation(ratio, _doubt(np.maximum(likeliest[update.rows], update.log_prob)), mask)
        further = mask & (z > deviation[update.rows])
        deviation[update.rows] = np.where(further, z, deviation[update.rows])
        value[update.rows] = np.where(further, ratio, value[update.rows])
    yield _Deviations("log_ratio", deviation, value)


def _doubt(log_prob: np.ndarray) -> np.ndarray:
    """1 - p, (B, T): how far a token's log-prob can move."""
    return -np.expm1(np.minimum(np.nan_to_num(log_prob, nan=0.0), 0.0))


def _deviation(x: np.ndarray, doubt: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """|x| over the median |x| of the tokens of like certainty (B, T), at least FLOOR; off the mask 0."""
    away = np.nan_to_num(np.abs(x), nan=np.inf)
    found = np.zeros(x.shape)
    if not mask.any():
        return found
    known = np.where(away < FLOOR, 0.0, away)[mask]
    inside = doubt[mask]
    edges = np.unique(np.quantile(inside, EDGES))
    group = np.searchsorted(edges, inside, side="right")
    usual = np.array(
        [np.median(known[group == g]) if (group == g).any() else 0.0 for g in range(len(edges) + 1)]
    )
    found[mask] = known / np.maximum(usual[group], FLOOR)
    return found


def _surprise(z: np.ndarray) -> np.ndarray:
    """-log P(Z >= z) of each of (N,) deviations among all of them, beyond their 97.5 % quantile by a Pareto
    tail.
    """
    order = np.sort(z)
    rank = len(z) - np.searchsorted(order, z, side="left")  # how many are at least as large, itself included
    body = -np.log(rank / len(z))
    # Below 1 lies what is usual, or nothing at all: no tail begins there.
    low, high = (min(max(float(x), 1.0), _MOST) for x in np.quantile(order, (_BODY, _TAIL), method="lower"))
    steep = np.log((1 - _BODY) / (1 - _TAIL)) / max(np.log(high / low), 1e-12)
    alpha = min(max(steep, _FLAT), _STEEP)
    tail = -np.log(1 - _TAIL) + alpha * np.log(np.clip(z, high, _MOST) / high)
    return np.asarray(np.where(z > high, tail, np.minimum(body, -np.log(1 - _TAIL))))


def _best_span(scores: np.ndarray) -> _Span:
    """The stretch with the largest sum; the shortest of equal ones."""
    before = np.concatenate([[0.0], scores.cumsum()])
    gains = before[1:] - np.minimum.accumulate(before[:-1])
    last = int(gains.argmax())
    first = last - int(before[last::-1].argmin())
    return _Span(float(gains[last]), first, last)

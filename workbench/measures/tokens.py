"""The trained tokens of a step as flat columns, and sums over any partition of them.

Selecting the tokens of the loss mask once, before anything is computed, is what makes every diagnostic
independent of padding, of values under the mask and of the order of sequences; flat numpy columns make a step
cost a few milliseconds.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sorl.measures.evidence import Evidence, Known

CLAMP = 20.0  # log-ratios are clamped to +-20 before exp, as in verl's core_algos.py
QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
FLAGS = ("active_low", "active_high", "out_of_range", "dual", "corrected", "target")  # of the evidence, bool


class Segments:
    """A partition of M tokens into S segments: `ids` (M,) in 0..S-1. Reductions return (S,), masked where
    empty.
    """

    def __init__(self, ids: np.ndarray, size: int) -> None:
        self.ids = ids
        self.size = size
        self.count = np.bincount(ids, minlength=size)
        self.present = np.flatnonzero(self.count)
        self._order = None if bool(np.all(ids[1:] >= ids[:-1])) else np.argsort(ids, kind="stable")
        self._starts = (np.cumsum(self.count) - self.count)[self.present]

    def _sorted(self, x: np.ndarray) -> np.ndarray:
        return x if self._order is None else x[self._order]

    def full(self, values: np.ndarray) -> np.ndarray:
        """Return one value per present segment -> (S,), masked where a segment is empty."""
        if len(self.present) == self.size:
            return values
        out = np.ma.masked_all(self.size, dtype=values.dtype)
        out[self.present] = values
        return out

    @cached_property
    def n(self) -> np.ndarray:
        """Tokens of each segment, masked where there are none."""
        return self.full(self.count[self.present].astype(np.float64))

    def _reduce(self, ufunc: np.ufunc, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)
        return self.full(ufunc.reduceat(self._sorted(x), self._starts) if len(self._starts) else x[:0])

    def total(self, x: np.ndarray) -> np.ndarray:
        """Sum over each segment."""
        return self._reduce(np.add, x)

    def maximum(self, x: np.ndarray) -> np.ndarray:
        """Maximum over each segment; NaN where it holds one."""
        return self._reduce(np.maximum, x)

    def minimum(self, x: np.ndarray) -> np.ndarray:
        """Minimum over each segment; NaN where it holds one."""
        return self._reduce(np.minimum, x)

    def first(self, x: np.ndarray) -> np.ndarray:
        """Value at the first token of each segment."""
        return self.full(self._sorted(x)[self._starts])

    def mean(self, x: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """Mean over each segment, over the tokens of `where` if given; masked where there are none."""
        if where is None:
            return self.total(x) / self.n
        return quotient(self.total(np.where(where, x, 0.0)), self.total(where))

    def std(self, x: np.ndarray) -> np.ndarray:
        """Population standard deviation over each segment (two passes)."""
        return np.sqrt(self.mean((x - self.spread(self.mean(x))) ** 2))

    def variance(self, x: np.ndarray) -> np.ndarray:
        """Unbiased variance over each segment; masked where it has fewer than two tokens."""
        return quotient(self.total((x - self.spread(self.mean(x))) ** 2), self.n - 1)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Give every token its segment's value, (S,) -> (M,)."""
        return np.ma.getdata(values)[self.ids]

    def quantiles(self, x: np.ndarray, at: Sequence[float]) -> list[np.ndarray]:
        """Linear-interpolation quantiles of each segment, one (S,) array per entry of `at`; NaN where it
        holds one.
        """
        q = np.asarray(at)
        ordered = self._sorted(x)
        out = np.empty((len(self.present), len(q)))
        for row, (begin, size) in enumerate(zip(self._starts, self.count[self.present], strict=True)):
            values = np.sort(ordered[begin : begin + size])
            rank = q * (size - 1)
            below = rank.astype(np.int64)
            low = values[below]
            high = values[np.minimum(below + 1, size - 1)]
            # Inf - Inf would make a NaN that is not in the data
            step = np.where(np.isinf(low) | (rank == below), 0.0, (high - low) * (rank - below))
            out[row] = np.nan if np.isnan(values[-1]) else low + step
        return [self.full(column) for column in out.T]


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, masked (not measured) where b <= 0."""
    undefined = np.ma.getdata(b) <= 0
    if not np.ma.isMaskedArray(a) and not np.ma.isMaskedArray(b) and not undefined.any():
        return np.asarray(a / b)
    mask = undefined | np.ma.getmaskarray(a) | np.ma.getmaskarray(b)
    return np.ma.array(np.ma.getdata(a) / np.where(undefined, 1.0, np.ma.getdata(b)), mask=mask)


_of: Any = cached_property  # a column that is computed from others, at its first use


class Tokens:
    """The M trained tokens of a step's updates as columns (M,), in order of update, sequence and position.

    Every tensor of the evidence is a column by its name: float64, or bool if it is one of FLAGS.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.known = Known(evidence)
        self.updates, self.rows, self.width = (int(n) for n in evidence.mask.shape)
        self._index = evidence.mask.bool().reshape(-1).nonzero().squeeze(1)
        self.position = self._index.cpu().numpy()
        self.sequence = self.position // self.width  # row of the stack: update * B + sequence
        self.update = self.sequence // self.rows
        self.turn = self.flat("turn")
        self.trajectory = evidence.trajectory.reshape(-1).cpu().numpy()[self.sequence]

    def __getattr__(self, name: str) -> np.ndarray:
        """Take a tensor of the evidence at the tokens, at its first use. Raises Missing where it lacks the
        tensor.
        """
        column = self.flat(name).astype(bool if name in FLAGS else np.float64, copy=False)
        setattr(self, name, column)
        return column

    def flat(self, name: str) -> np.ndarray:
        """Return a tensor of the evidence at the tokens, as NumPy has it. Raises Missing where it lacks the
        tensor.
        """
        x = getattr(self.known, name)
        # numpy has no bfloat16, and selecting there is several times faster
        if x.is_cpu and x.element_size() != 2:
            return np.asarray(x.detach().reshape(-1).numpy()[self.position])
        chosen = x.detach().reshape(-1).index_select(0, self._index)
        return np.asarray((chosen.double() if x.is_floating_point() else chosen).cpu().numpy())

    @cached_property
    def old_is_sampler(self) -> bool:
        """Whether the old log-probs are the sampler's own, so that they say nothing about the trainer."""
        return bool(np.array_equal(self.log_prob_old, self.log_prob_behaviour))

    def scalar(self, name: str) -> np.ndarray | None:
        """A value per update as the learner reported it, masked where it is None; None when it was never
        reported.
        """
        values = self.evidence.scalars.get(name)
        if values is None:
            return None
        missing = [v is None for v in values]
        known = np.array([0.0 if v is None else v for v in values], dtype=np.float64)
        return np.ma.array(known, mask=missing) if any(missing) else known

    # Partitions: every token in one segment; a segment per update (U,); per sequence of an update that has a
    # token; per turn of one that has a token; the sequences and the turns, partitioned by update.
    whole: Segments = _of(lambda t: Segments(np.zeros(len(t.update), dtype=np.int64), 1))
    by_update: Segments = _of(lambda t: Segments(t.update, t.updates))
    by_sequence: Segments = _of(lambda t: _compact(t.sequence))
    by_turn: Segments = _of(lambda t: _compact(t.sequence * (int(t.turn.max(initial=0)) + 1) + t.turn))
    sequences_by_update: Segments = _of(lambda t: Segments(t.by_sequence.first(t.update), t.updates))
    turns_by_update: Segments = _of(lambda t: Segments(t.by_turn.first(t.update), t.updates))

    # Columns (M,) that are made of others, nats unless they are ratios
    log_ratio: np.ndarray = _of(lambda t: t.log_prob - t.log_prob_old)  # delta, as it is
    # delta within +-20; NaN stays NaN
    clamped: np.ndarray = _of(lambda t: np.clip(t.log_ratio, -CLAMP, CLAMP))
    ratio: np.ndarray = _of(lambda t: np.exp(t.clamped))  # token ratio r, whatever the algorithm pools
    # the ratio that the surrogate used
    unit_ratio: np.ndarray = _of(lambda t: t.flat("ratio").astype(np.float64))
    # (U,) each
    log_ratio_quantiles: list[np.ndarray] = _of(lambda t: t.by_update.quantiles(t.log_ratio, QUANTILES))
    mismatch: np.ndarray = _of(lambda t: t.log_prob_old - t.log_prob_behaviour)
    # (M,) of the policy before the step's updates. A trainer that takes the sampler's log-probs for the old
    # ones tells them in its first update alone.
    log_prob_trainer: np.ndarray = _of(lambda t: t.log_prob if t.old_is_sampler else t.log_prob_old)
    is_unmoved: np.ndarray = _of(
        lambda t: t.update == 0 if t.old_is_sampler else np.ones(len(t.update), bool)
    )
    gap: np.ndarray = _of(lambda t: t.log_prob_trainer - t.log_prob_behaviour)
    active: np.ndarray = _of(lambda t: t.active_low | t.active_high)  # gradient stopped by the clip
    weight: np.ndarray = _of(lambda t: np.abs(t.gradient_weight))  # |d loss / d log_prob|


def _compact(keys: np.ndarray) -> Segments:
    """Return a segment per distinct key, in order of the keys."""
    steps = np.diff(keys)
    if bool(np.all(steps >= 0)):
        ids = np.concatenate([np.zeros(min(len(keys), 1), dtype=np.int64), np.cumsum(steps > 0)])
    else:
        ids = np.unique(keys, return_inverse=True)[1]
    return Segments(ids, int(ids.max(initial=-1)) + 1)

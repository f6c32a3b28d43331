"""The trained tokens of a step as flat columns, and sums over any partition of them.

Selecting the tokens of the loss mask once, before anything is computed, is what makes every diagnostic independent of
padding, of values under the mask and of the order of sequences; flat numpy columns make a step cost a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from workbench.diagnostics.evidence import Evidence

if TYPE_CHECKING:
    from torch import Tensor

CLAMP = 20.0  # log-ratios are clamped to +-20 before exp, as in verl's core_algos.py


class Segments:
    """A partition of M tokens into S segments: `ids` (M,) in 0..S-1. Reductions return (S,), masked where empty."""

    def __init__(self, ids: np.ndarray, size: int) -> None:
        self.ids = ids
        self.size = size
        self.count = np.bincount(ids, minlength=size)
        self.present = np.flatnonzero(self.count)
        self._order = None if bool(np.all(ids[1:] >= ids[:-1])) else np.argsort(ids, kind="stable")
        self._starts = (np.cumsum(self.count) - self.count)[self.present]

    def sorted(self, x: np.ndarray) -> np.ndarray:
        """`x` (M,) in segment order."""
        return x if self._order is None else x[self._order]

    def bounds(self) -> list[tuple[int, int]]:
        """(begin, end) of each segment that has a token, in segment order."""
        return [(int(a), int(a + n)) for a, n in zip(self._starts, self.count[self.present], strict=True)]

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
        return self.full(ufunc.reduceat(self.sorted(x), self._starts) if len(self._starts) else x[:0])

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
        return self.full(self.sorted(x)[self._starts])

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
        total = self.total((x - self.spread(self.mean(x))) ** 2)
        return quotient(total, self.n - 1)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Give every token its segment's value, (S,) -> (M,)."""
        return np.ma.getdata(values)[self.ids]

    def quantiles(self, x: np.ndarray, at: Sequence[float]) -> list[np.ndarray]:
        """Linear-interpolation quantiles of each segment, one (S,) array per entry of `at`; NaN where it holds one."""
        q = np.asarray(at)
        ordered = self.sorted(x)
        out = np.empty((len(self.present), len(q)))
        for row, (begin, end) in enumerate(self.bounds()):
            values = np.sort(ordered[begin:end])
            rank = q * (end - begin - 1)
            below = rank.astype(np.int64)
            low, high = values[below], values[np.minimum(below + 1, end - begin - 1)]
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


def _floats(name: str) -> cached_property[np.ndarray]:
    """Return a tensor of the evidence at the tokens."""
    return cached_property(lambda tokens: tokens._column(name))


def _flags(name: str) -> cached_property[np.ndarray]:
    return cached_property(lambda tokens: tokens._column(name, bool))


def _optional(name: str) -> cached_property[np.ndarray | None]:
    return cached_property(lambda tokens: None if getattr(tokens.evidence, name) is None else tokens._column(name))


class Tokens:
    """The M trained tokens of a step's updates as columns (M,), in order of update, sequence and position."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.updates, self.rows, self.width = (int(n) for n in evidence.mask.shape)
        self._index = evidence.mask.bool().reshape(-1).nonzero().squeeze(1)
        self.position = self._index.cpu().numpy()
        self.sequence = self.position // self.width  # row of the stack: update * B + sequence
        self.update = self.sequence // self.rows
        self.turn = self._flat(evidence.turn)
        self.trajectory = evidence.trajectory.reshape(-1).cpu().numpy()[self.sequence]

    def _flat(self, x: Tensor) -> np.ndarray:
        if x.is_cpu and x.element_size() != 2:  # numpy has no bfloat16, and selecting there is several times faster
            return np.asarray(x.detach().reshape(-1).numpy()[self.position])
        chosen = x.detach().reshape(-1).index_select(0, self._index)
        return np.asarray((chosen.double() if x.is_floating_point() else chosen).cpu().numpy())

    def _column(self, name: str, dtype: type = np.float64) -> np.ndarray:
        return self._flat(getattr(self.evidence, name)).astype(dtype, copy=False)

    def scalar(self, name: str) -> np.ndarray | None:
        """A value per update as the learner reported it, masked where it is None; None when it was never reported."""
        values = self.evidence.scalars.get(name)
        if values is None:
            return None
        missing = [v is None for v in values]
        if not any(missing):
            return np.array(values, dtype=np.float64)
        return np.ma.array([0.0 if v is None else v for v in values], mask=missing, dtype=np.float64)

    # Partitions

    @cached_property
    def whole(self) -> Segments:
        """Every token of the step in one segment."""
        return Segments(np.zeros(len(self.update), dtype=np.int64), 1)

    @cached_property
    def by_update(self) -> Segments:
        """A segment per update, (U,)."""
        return Segments(self.update, self.updates)

    @cached_property
    def by_sequence(self) -> Segments:
        """A segment per sequence of an update that has a token."""
        return _compact(self.sequence)

    @cached_property
    def by_turn(self) -> Segments:
        """A segment per turn of a sequence of an update that has a token."""
        return _compact(self.sequence * (int(self.turn.max(initial=0)) + 1) + self.turn)

    def by_trajectory(self, size: int) -> Segments:
        """Return a segment per trajectory of the step, (N,), over all updates that trained on it."""
        return Segments(self.trajectory, size)

    @cached_property
    def sequences_by_update(self) -> Segments:
        """The sequences of `by_sequence`, partitioned by update."""
        return Segments(self.by_sequence.first(self.update), self.updates)

    @cached_property
    def turns_by_update(self) -> Segments:
        """The turns of `by_turn`, partitioned by update."""
        return Segments(self.by_turn.first(self.update), self.updates)

    # Columns (M,)

    log_prob = _floats("log_prob")  # under the policy at the start of the update
    unit_ratio = _floats("ratio")  # the ratio that the surrogate used (token, turn or sequence)
    low = _flags("active_low")  # gradient stopped by the lower bound
    high = _flags("active_high")  # gradient stopped by the upper bound
    out_of_range = _flags("out_of_range")  # token ratio outside the bounds, whatever the sign of the advantage
    dual = _flags("dual")  # the dual clip closed the gate
    factor = _floats("factor")  # of the stabiliser
    advantage = _floats("advantages")
    entropy = _floats("entropy")  # of the policy
    correction = _optional("correction")  # weight of the rollout correction; None without one
    span = _optional("span")  # 1 in a thought, 2 in a search, 3 in an answer, else 0; None where the tags are not known
    value = _optional("values")  # critic at the start of the update; None without a critic
    value_old = _optional("values_old")  # critic that made the advantages; None without a critic
    returns = _optional("returns")  # target of the critic; None without a critic

    @cached_property
    def log_ratio(self) -> np.ndarray:
        """delta = log_prob - log_prob_old, as it is."""
        return self.log_prob - self._column("log_prob_old")

    @cached_property
    def clamped(self) -> np.ndarray:
        """delta clamped to +-20; NaN stays NaN."""
        return np.clip(self.log_ratio, -CLAMP, CLAMP)

    @cached_property
    def ratio(self) -> np.ndarray:
        """Token ratio r = exp(delta), whatever the algorithm pools."""
        return np.exp(self.clamped)

    @cached_property
    def mismatch(self) -> np.ndarray:
        """log_prob_old - log_prob_behaviour."""
        return self._column("log_prob_old") - self._column("log_prob_behaviour")

    @cached_property
    def reference(self) -> np.ndarray | None:
        """log_prob - log_prob_ref; None without a reference."""
        return None if self.evidence.log_prob_ref is None else self.log_prob - self._column("log_prob_ref")

    @cached_property
    def corrected(self) -> np.ndarray | None:
        """The correction capped the weight or set it to 0; None without one."""
        return None if self.evidence.corrected is None else self._column("corrected", bool)

    @cached_property
    def active(self) -> np.ndarray:
        """Gradient stopped by the clip."""
        return self.low | self.high

    @cached_property
    def weight(self) -> np.ndarray:
        """|d loss / d log_prob|."""
        return np.abs(self._column("gradient_weight"))

    @cached_property
    def target(self) -> np.ndarray | None:
        """The critic is trained there; None where it is at every token."""
        return None if self.evidence.target is None else self._column("target", bool)

    @cached_property
    def log_ratio_quantiles(self) -> list[np.ndarray]:
        """Quantiles .01, .05, .5, .95, .99 of delta per update, five arrays (U,)."""
        return self.by_update.quantiles(self.log_ratio, (0.01, 0.05, 0.5, 0.95, 0.99))


def _compact(keys: np.ndarray) -> Segments:
    """Return a segment per distinct key, in order of the keys."""
    steps = np.diff(keys)
    if bool(np.all(steps >= 0)):
        ids = np.concatenate([np.zeros(min(len(keys), 1), dtype=np.int64), np.cumsum(steps > 0)])
    else:
        ids = np.unique(keys, return_inverse=True)[1]
    return Segments(ids, int(ids.max(initial=-1)) + 1)

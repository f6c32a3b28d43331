"""What one algorithm did with each turn of each trajectory of an update: sums and extremes that tables add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from workbench.objective.ratio import LOG_LIMIT
from workbench.replay.surrogate import Cut, Weighed

SUMS = (
    "n_tokens", "ratio", "ratio_squared", "kl", "unit", "unit_squared", "low", "high", "out", "dual", "factor",
    "advantage", "weight", "weight_abs",
)  # fmt: skip
HIGHEST, LOWEST = ("ratio_high", "unit_high"), ("ratio_low", "unit_low")


@dataclass(frozen=True)
class Stretches:
    """Where each turn of each sequence of a cut begins in its flattened (b * W,) tokens; S turns in all."""

    start: np.ndarray  # (C,) of every stretch, padding included
    real: np.ndarray  # (C,) bool, false for padding; S are true
    trajectory: np.ndarray  # (S,)
    turn: np.ndarray  # (S,)

    @classmethod
    def of(cls, cut: Cut) -> Stretches:
        """The stretches of equal turn id; a row always begins one."""
        turn = cut.turn.numpy()
        begins = np.ones(turn.shape, bool)
        begins[:, 1:] = turn[:, 1:] != turn[:, :-1]
        start = np.flatnonzero(begins)
        ids = turn.ravel()[start]
        rows = cut.loaded.stored.trajectory[cut.update.rows]
        real = ids > 0
        return cls(start, real, rows[start // turn.shape[1]][real], ids[real])

    def total(self, x: Tensor) -> np.ndarray:
        """Sums over the stretches, (b, W) -> (S,) float64."""
        flat = x.reshape(-1).numpy()
        if flat.dtype == bool:
            if not flat.any():
                return np.zeros(len(self.turn))
            flat = flat.astype(np.float32)
        return np.add.reduceat(flat, self.start)[self.real].astype(np.float64)

    def highest(self, x: Tensor) -> np.ndarray:
        """Maxima; NaN where a token is NaN."""
        return np.maximum.reduceat(x.reshape(-1).numpy(), self.start)[self.real].astype(np.float64)

    def lowest(self, x: Tensor) -> np.ndarray:
        """Minima; NaN where a token is NaN."""
        return np.minimum.reduceat(x.reshape(-1).numpy(), self.start)[self.real].astype(np.float64)


Cells = dict[str, np.ndarray]  # trajectory, turn and each of SUMS, HIGHEST, LOWEST, (S,)


def shared(cut: Cut, at: Stretches) -> Cells:
    """What does not depend on the algorithm: token ratios r = exp(clamp(d, +-20)) and their moments."""
    d = (cut.log_prob - cut.log_prob_old).masked_fill_(~cut.columns.inside, 0)
    ratio = d.clamp(-LOG_LIMIT, LOG_LIMIT).exp_()
    lengths = np.diff(at.start, append=cut.turn.numel())[at.real]
    return {
        "trajectory": at.trajectory,
        "turn": at.turn,
        "n_tokens": lengths.astype(np.float64),
        "kl": -at.total(d),
        "ratio": at.total(ratio),
        "ratio_squared": at.total(ratio.square()),
        "ratio_high": at.highest(ratio),
        "ratio_low": at.lowest(ratio),
    }


def of_algorithm(weighed: Weighed, at: Stretches, common: Cells) -> Cells:
    """`common` with the ratio w that entered the surrogate, the clip's flags, the factor, A and d loss / d log-prob."""
    terms, batch = weighed.terms, weighed.batch
    assert batch.advantages is not None
    n = common["n_tokens"]
    one = terms.factor.stride() == (0, 0)  # the same factor for all tokens
    found: Mapping[str, np.ndarray] = {
        "unit": at.total(terms.ratio),
        "unit_squared": at.total(terms.ratio.square()),
        "unit_high": at.highest(terms.ratio),
        "unit_low": at.lowest(terms.ratio),
        "low": at.total(terms.active_low),
        "high": at.total(terms.active_high),
        "out": at.total(terms.out_of_range),
        "dual": at.total(terms.dual),
        "factor": n * float(terms.factor[0, 0]) if one else at.total(terms.factor),
        "advantage": at.total(batch.advantages),
        "weight": at.total(weighed.weight),
        "weight_abs": at.total(weighed.weight.abs()),
    }
    return {**common, **found}

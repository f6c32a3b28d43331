"""Boundaries of collapse with their uncertainty: a curve whose width is fitted, with a shift of each seed.

Each run has a threshold in log2 of the searched setting and collapses where the setting lies above it:

    threshold = boundary + shift + width * noise,    noise ~ N(0, 1)

`boundary` belongs to a column, `width` to an arm, `shift` to a seed in an arm: N(common, OWN^2), where
`common` is what the seed does in all arms, N(0, SHARED^2). So the boundary is the setting at which half of the runs of
a new seed collapse, and what a seed does in all arms cancels where two arms are compared. A search picks its runs by
earlier outcomes alone, so the likelihood is that of a plan made beforehand.

Weak priors: an arm's boundaries are normal around their common centre with a deviation of 1.5 doublings, and the centre
is normal around the middle of the searched range with half the range as deviation; the distance from 10 to 90 % is
log-normal around .8 doublings, by a factor of 2 for all arms together and of 1.35 for an arm; SHARED is half-normal
with a scale of .4 doublings, OWN has a density of exp(-(OWN / .3)^2 / 2) / OWN from .01 doublings on.

The posterior is drawn by Gibbs sampling (Albert and Chib 1993) with a fixed random stream. Independent data sets can be
drawn side by side: `bench/region_coverage.py` does so to measure how often the intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

TEN_TO_NINETY = 2.563  # the distance from 10 to 90 % of a normal distribution with deviation 1
APART = 1.5  # doublings, of an arm's boundaries around their centre
WIDTH, WIDTH_SPREAD, ARM_SPREAD = 0.8, 0.7, 0.3  # from 10 to 90 %, doublings; deviations of its log: all arms, one arm
OWN, SHARED = 0.3, 0.4  # doublings, scales of the priors of a seed's shift in one arm and in all
CHAINS, BURN, KEEP = 24, 150, 500
_WIDTHS, _SHIFTS = np.geomspace(0.02, 8.0, 48), np.geomspace(0.01, 4.0, 40)  # grids of the deviations
# Log densities on the grid, which is even in the logarithm: half-normal, and the same over the deviation itself, which
# puts most of it near none.
_SHARED_PRIOR = -0.5 * (_SHIFTS / SHARED) ** 2 + np.log(_SHIFTS)
_OWN_PRIOR = -0.5 * (_SHIFTS / OWN) ** 2

Arm = tuple[str, str]  # its series and slice


@dataclass(frozen=True)
class Trials:
    """The runs of one or several data sets: log2 x and whether each collapsed, and what belongs to what.

    A unit is a seed in an arm. Indices count over all data sets.
    """

    x: np.ndarray
    collapsed: np.ndarray
    column: np.ndarray  # of each run
    unit: np.ndarray  # of each run
    arm_of_column: np.ndarray
    arm_of_unit: np.ndarray
    seed_of_unit: np.ndarray
    set_of_arm: np.ndarray
    set_of_seed: np.ndarray

    def times(self, copies: int) -> Trials:
        """Return the same data sets so often, one after the other."""
        units, columns, arms = len(self.seed_of_unit), len(self.arm_of_column), len(self.set_of_arm)
        sets, seeds = int(self.set_of_arm.max()) + 1, len(self.set_of_seed)

        def again(indices: np.ndarray, count: int) -> np.ndarray:
            return (indices + count * np.arange(copies)[:, None]).ravel()

        return Trials(
            np.tile(self.x, copies), np.tile(self.collapsed, copies), again(self.column, columns),
            again(self.unit, units), again(self.arm_of_column, arms), again(self.arm_of_unit, arms),
            again(self.seed_of_unit, seeds), again(self.set_of_arm, sets), again(self.set_of_seed, sets),
        )  # fmt: skip


@dataclass(frozen=True)
class Posterior:
    """Draws of log2 of each column's boundary (D, columns), and of doublings from 10 to 90 % of each arm (D, arms)."""

    boundaries: np.ndarray
    widths: np.ndarray


def fit(
    arms: Sequence[Arm], y: pd.Series, x: pd.Series, seeds: pd.Series, collapsed: pd.Series, low: float, high: float
) -> tuple[Posterior, list[tuple[Arm, float]], list[Arm]]:
    """The posterior of one data set, the (arm, y) of each column and the name of each arm; settings not in log2."""
    columns = list(dict.fromkeys(zip(arms, (float(v) for v in y), strict=True)))
    names = list(dict.fromkeys(arms))
    units = list(dict.fromkeys(zip(arms, seeds, strict=True)))
    known = list(dict.fromkeys(seeds))
    at = {column: i for i, column in enumerate(columns)}
    place = {unit: i for i, unit in enumerate(units)}
    trials = Trials(
        np.log2(x.to_numpy(float)), collapsed.to_numpy(bool),
        np.array([at[arm, float(v)] for arm, v in zip(arms, y, strict=True)]),
        np.array([place[unit] for unit in zip(arms, seeds, strict=True)]),
        np.array([names.index(arm) for arm, _ in columns]), np.array([names.index(arm) for arm, _ in units]),
        np.array([known.index(seed) for _, seed in units]), np.zeros(len(names), int), np.zeros(len(known), int),
    )  # fmt: skip
    found = draw(trials.times(CHAINS), math.log2(low), math.log2(high), BURN, KEEP)
    boundaries, widths = (part.reshape(KEEP * CHAINS, -1) for part in (found.boundaries, found.widths))
    return Posterior(boundaries, widths), columns, names


def draw(trials: Trials, low: float, high: float, burn: int, keep: int, seed: int = 0) -> Posterior:
    """`keep` draws after `burn` that are thrown away; low and high bound the searched range, in log2."""
    sampler = _Sampler(trials, low, high, seed)
    boundaries, widths = [], []
    for step in range(burn + keep):
        sampler.sweep()
        if step >= burn:
            boundaries.append(sampler.boundary)
            widths.append(sampler.width * TEN_TO_NINETY)
    return Posterior(np.array(boundaries), np.array(widths))


class _Sampler:
    """The state of the Gibbs sampler; every method draws one part of it given the others."""

    def __init__(self, trials: Trials, low: float, high: float, seed: int) -> None:
        self.t = trials
        self.random = np.random.default_rng(seed)
        self.arm = trials.arm_of_column[trials.column]  # of each run
        self.set_of_unit = trials.set_of_arm[trials.arm_of_unit]
        self.set_of_run = trials.set_of_arm[self.arm]
        self.sets = int(trials.set_of_arm.max()) + 1
        self.columns, self.units = len(trials.arm_of_column), len(trials.arm_of_unit)
        self.arms, self.seeds = len(trials.set_of_arm), len(trials.set_of_seed)
        self.sign = np.where(trials.collapsed, 1.0, -1.0)
        self.middle, self.reach = (low + high) / 2, ((high - low) / 2) ** 2
        tried = np.bincount(trials.column, minlength=self.columns)
        self.boundary = np.bincount(trials.column, trials.x, self.columns) / np.maximum(tried, 1)
        self.centre = np.full(self.arms, self.middle)
        self.shift, self.common = np.zeros(self.units), np.zeros(self.seeds)
        self.usual = np.full(self.sets, math.log(WIDTH / TEN_TO_NINETY))
        self.width = np.exp(self.usual)[trials.set_of_arm]
        self.own, self.shared = np.full(self.sets, OWN), np.full(self.sets, SHARED / 2)

    def sweep(self) -> None:
        self.thresholds()
        self.boundaries()
        self.shifts()
        self.levels()
        self.deviations()
        self.widths()

    def thresholds(self) -> None:
        """Of each run, above its setting unless it collapsed."""
        from scipy.special import ndtr, ndtri

        mean, width = self.boundary[self.t.column] + self.shift[self.t.unit], self.width[self.arm]
        share = np.maximum(ndtr(self.sign * (self.t.x - mean) / width), 1e-300)
        self.threshold = mean + width * self.sign * ndtri(share * self.random.random(len(share)))
        self.weight = 1 / self.width**2

    def boundaries(self) -> None:
        t, weight, apart = self.t, self.weight[self.t.arm_of_column], 1 / APART**2
        total = np.bincount(t.column, self.threshold - self.shift[t.unit], self.columns) * weight
        total += self.centre[t.arm_of_column] * apart
        self.boundary = self._normal(total, np.bincount(t.column, minlength=self.columns) * weight + apart)
        total = np.bincount(t.arm_of_column, self.boundary, self.arms) * apart + self.middle / self.reach
        self.centre = self._normal(total, np.bincount(t.arm_of_column) * apart + 1 / self.reach)

    def shifts(self) -> None:
        t, weight, own = self.t, self.weight[self.t.arm_of_unit], 1 / self.own**2
        total = np.bincount(t.unit, self.threshold - self.boundary[t.column], self.units) * weight
        total += self.common[t.seed_of_unit] * own[self.set_of_unit]
        precision = np.bincount(t.unit, minlength=self.units) * weight + own[self.set_of_unit]
        self.shift = self._normal(total, precision)
        own = own[t.set_of_seed]
        precision = np.bincount(t.seed_of_unit) * own + 1 / self.shared[t.set_of_seed] ** 2
        self.common = self._normal(np.bincount(t.seed_of_unit, self.shift) * own, precision)

    def levels(self) -> None:
        """Move boundaries against seeds, within each arm and over all: one by one they would take long to get there."""
        t, own = self.t, 1 / self.own[self.t.set_of_arm] ** 2
        total = np.bincount(t.arm_of_unit, self.shift - self.common[t.seed_of_unit]) * own
        total -= (self.centre - self.middle) / self.reach
        up = self._normal(total, np.bincount(t.arm_of_unit) * own + 1 / self.reach)
        self._lift(up)
        self.shift = self.shift - up[t.arm_of_unit]
        total = np.bincount(t.set_of_seed, self.common) / self.shared**2
        total -= np.bincount(t.set_of_arm, self.centre - self.middle) / self.reach
        precision = np.bincount(t.set_of_seed) / self.shared**2 + np.bincount(t.set_of_arm) / self.reach
        up = self._normal(total, precision)
        self._lift(up[t.set_of_arm])
        self.common, self.shift = self.common - up[t.set_of_seed], self.shift - up[self.set_of_unit]

    def _lift(self, up: np.ndarray) -> None:
        self.boundary, self.centre = self.boundary + up[self.t.arm_of_column], self.centre + up

    def deviations(self) -> None:
        """Of the seeds' shifts, first as they are, then with the shifts measured in deviations: small ones as well."""
        t = self.t
        apart = self.shift - self.common[t.seed_of_unit]
        self.own = self._deviation(apart, self.set_of_unit, _OWN_PRIOR)
        self.shared = self._deviation(self.common, t.set_of_seed, _SHARED_PRIOR)
        rest = self.threshold - self.boundary[t.column]
        score = apart / self.own[self.set_of_unit]
        self.own = self._scale(score[t.unit], rest - self.common[t.seed_of_unit][t.unit], _OWN_PRIOR)
        apart = score * self.own[self.set_of_unit]
        score = self.common / self.shared[t.set_of_seed]
        self.shared = self._scale(score[t.seed_of_unit][t.unit], rest - apart[t.unit], _SHARED_PRIOR)
        self.common = score * self.shared[t.set_of_seed]
        self.shift = self.common[t.seed_of_unit] + apart

    def widths(self) -> None:
        t, logs = self.t, np.log(_WIDTHS)
        rest = self.threshold - self.boundary[t.column] - self.shift[t.unit]
        squares, runs = np.bincount(self.arm, rest**2, self.arms), np.bincount(self.arm, minlength=self.arms)
        density = -0.5 * ((logs - self.usual[t.set_of_arm][:, None]) / ARM_SPREAD) ** 2
        self.width = self._pick(density - runs[:, None] * logs - squares[:, None] / (2 * _WIDTHS**2), _WIDTHS)
        total = np.bincount(t.set_of_arm, np.log(self.width)) / ARM_SPREAD**2
        total += math.log(WIDTH / TEN_TO_NINETY) / WIDTH_SPREAD**2
        self.usual = self._normal(total, np.bincount(t.set_of_arm) / ARM_SPREAD**2 + 1 / WIDTH_SPREAD**2)

    def _normal(self, total: np.ndarray, precision: np.ndarray) -> np.ndarray:
        return total / precision + self.random.standard_normal(len(total)) / np.sqrt(precision)

    def _deviation(self, values: np.ndarray, of: np.ndarray, prior: np.ndarray) -> np.ndarray:
        squares, count = np.bincount(of, values**2, self.sets), np.bincount(of, minlength=self.sets)
        logs = -count[:, None] * np.log(_SHIFTS) - squares[:, None] / (2 * _SHIFTS**2)
        return self._pick(logs + prior, _SHIFTS)

    def _scale(self, score: np.ndarray, rest: np.ndarray, prior: np.ndarray) -> np.ndarray:
        weighted = score * self.weight[self.arm]
        square = np.bincount(self.set_of_run, weighted * score, self.sets)[:, None]
        product = np.bincount(self.set_of_run, weighted * rest, self.sets)[:, None]
        return self._pick(product * _SHIFTS - square * _SHIFTS**2 / 2 + prior, _SHIFTS)

    def _pick(self, logs: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return a value of the grid for each row of log densities."""
        mass = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
        return np.asarray(grid[(mass < self.random.random((len(mass), 1)) * mass[:, -1:]).sum(1)])

"""The fit of a stability region: boundaries and widths drawn from their posterior, so that few seeds say how
sure they are.

Axes: the searched setting x as log2 x, so that lengths are doublings; the condition y of a column as log2 y,
or as log2(1 + y) where one of the conditions is 0. A run collapses where x lies above its threshold
(docs/regions.md):

    threshold = boundary + shift + width * noise,    noise ~ N(0, 1)

`boundary` belongs to a column, `width` to an arm, `shift` to a seed in an arm: N(common, OWN^2), where
`common` is what the seed does in all arms, N(0, SHARED^2).

Weak priors: an arm's boundaries are normal around their common centre with a deviation of 1.5 doublings, and
the centre is normal around the middle of the searched range with half the range as deviation; the distance
from 10 to 90 % is log-normal around .8 doublings, by a factor of 2 for all arms together and of 1.35 for an
arm; SHARED is half-normal with a scale of .4 doublings, OWN has a density of exp(-(OWN / .3)^2 / 2) / OWN
from .01 doublings on.

The posterior is drawn by Gibbs sampling (Albert and Chib 1993) with a fixed random stream. Independent data
sets can be drawn side by side: `bench/region_coverage.py` does so to measure how often the intervals hold the
truth.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

TEN_TO_NINETY = 2.563  # the distance from 10 to 90 % of a normal distribution with deviation 1
APART = 1.5  # doublings, of an arm's boundaries around their centre
# from 10 to 90 %, doublings; deviations of its log: all arms, one arm
WIDTH = 0.8
WIDTH_SPREAD = 0.7
ARM_SPREAD = 0.3
# doublings, scales of the priors of a seed's shift in one arm and in all
OWN = 0.3
SHARED = 0.4
CHAINS = 24
BURN = 150
KEEP = 500
# grids of the deviations
_WIDTHS = np.geomspace(0.02, 8.0, 48)
_SHIFTS = np.geomspace(0.01, 4.0, 40)
# Log densities on the grid, which is even in the logarithm: half-normal, and the same over the deviation
# itself, which puts most of it near none.
_SHARED_PRIOR = -0.5 * (_SHIFTS / SHARED) ** 2 + np.log(_SHIFTS)
_OWN_PRIOR = -0.5 * (_SHIFTS / OWN) ** 2

Arm = tuple[str, str]  # its series and slice
# Draws of log2 of the boundary by arm and condition y, and of the doublings from 10 to 90 % by arm, (D,).
Fitted = tuple[dict[Arm, dict[float, np.ndarray]], dict[Arm, np.ndarray]]


class Trials(NamedTuple):
    """The runs of one or several data sets and what belongs to what; indices count over all data sets."""

    x: np.ndarray  # log2 of the searched setting
    collapsed: np.ndarray
    column: np.ndarray  # of each run
    unit: np.ndarray  # of each run: its seed in its arm
    arm_of_column: np.ndarray
    arm_of_unit: np.ndarray
    seed_of_unit: np.ndarray
    set_of_arm: np.ndarray
    set_of_seed: np.ndarray


def fit(runs: pd.DataFrame, low: float, high: float) -> Fitted:
    """Return draws (D,) of log2 of the boundary, by arm and condition y, and of each arm's width, of a
    Landscape.
    """
    first_of_arm = _first_runs(_codes(runs, ["series", "slice"]))
    first_of_column = _first_runs(_codes(runs, ["series", "slice", "y"]))
    drawn = draw(_side_by_side(runs), math.log2(low), math.log2(high), BURN, KEEP)
    boundaries, widths = (part.reshape(KEEP * CHAINS, -1).T for part in drawn)
    names = list(zip(runs["series"], runs["slice"], strict=True))
    by_arm: dict[Arm, dict[float, np.ndarray]] = {names[i]: {} for i in first_of_arm}
    for i in np.argsort(runs["y"].to_numpy()[first_of_column], kind="stable"):
        first = first_of_column[i]
        by_arm[names[first]][float(runs["y"].iloc[first])] = boundaries[i]
    return by_arm, {names[i]: width for i, width in zip(first_of_arm, widths, strict=True)}


def _codes(runs: pd.DataFrame, keys: list[str]) -> np.ndarray:
    """The number of each run's group, in the order of the groups' first runs."""
    return np.asarray(runs.groupby(keys, sort=False).ngroup().to_numpy())


def _first_runs(codes: np.ndarray) -> np.ndarray:
    return np.unique(codes, return_index=True)[1]


def _side_by_side(runs: pd.DataFrame) -> Trials:
    """The runs CHAINS times, as independent data sets: each is one chain."""
    arm = _codes(runs, ["series", "slice"])
    column = _codes(runs, ["series", "slice", "y"])
    unit = _codes(runs, ["series", "slice", "seed"])
    seed = _codes(runs, ["seed"])
    first_of_unit = _first_runs(unit)
    return Trials(
        x=np.tile(np.log2(runs["x"].to_numpy(float)), CHAINS),
        collapsed=np.tile(runs["collapsed"], CHAINS),
        column=_repeat_codes(column),
        unit=_repeat_codes(unit),
        arm_of_column=_repeat_codes(arm[_first_runs(column)]),
        arm_of_unit=_repeat_codes(arm[first_of_unit]),
        seed_of_unit=_repeat_codes(seed[first_of_unit]),
        set_of_arm=_repeat_codes(0 * _first_runs(arm)),
        set_of_seed=_repeat_codes(np.zeros(seed.max() + 1, int)),
    )


def _repeat_codes(codes: np.ndarray) -> np.ndarray:
    """The codes once a chain, those of each chain after those of the chain before."""
    return np.asarray((codes + (codes.max() + 1) * np.arange(CHAINS)[:, None]).ravel())


def draw(
    trials: Trials, low: float, high: float, burn: int, keep: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Draw log2 of each column's boundary and each arm's doublings from 10 to 90 %, (keep, n), in a range of
    log2.
    """
    sampler = _GibbsSampler(trials, low, high, seed)
    boundaries = []
    widths = []
    for step in range(burn + keep):
        sampler.sweep()
        if step >= burn:
            boundaries.append(sampler.boundary)
            widths.append(sampler.width * TEN_TO_NINETY)
    return np.array(boundaries), np.array(widths)


def _sum_by(codes: np.ndarray, values: np.ndarray | None = None, groups: int = 0) -> np.ndarray:
    """The sum of the values with each code, or how many have it."""
    return np.bincount(codes, values, groups)


class _GibbsSampler:
    """The state of the chains, and a method for each step of a sweep.

    A sweep draws every quantity once, given the newest values of all others. The order of the steps, and of
    the draws in each, fixes the random stream.
    """

    def __init__(self, trials: Trials, low: float, high: float, seed: int) -> None:
        self.trials = trials
        self.random = np.random.default_rng(seed)
        # what belongs to what
        self.arm = trials.arm_of_column[trials.column]  # of each run
        self.set_of_unit = trials.set_of_arm[trials.arm_of_unit]
        self.set_of_run = trials.set_of_arm[self.arm]
        self.sign = np.where(trials.collapsed, 1.0, -1.0)
        self.columns = len(trials.arm_of_column)
        self.units = len(trials.arm_of_unit)
        self.arms = len(trials.set_of_arm)
        self.sets = int(trials.set_of_arm.max()) + 1
        # the prior of a centre
        self.middle = (low + high) / 2
        self.spread = ((high - low) / 2) ** 2
        # the state
        runs_of_column = np.maximum(_sum_by(trials.column, None, self.columns), 1)
        self.boundary = _sum_by(trials.column, trials.x, self.columns) / runs_of_column
        self.centre = np.full(self.arms, self.middle)
        self.shift = np.zeros(self.units)
        self.common = np.zeros(len(trials.set_of_seed))
        self.usual = np.full(self.sets, math.log(WIDTH / TEN_TO_NINETY))
        self.width = np.exp(self.usual)[trials.set_of_arm]
        self.own = np.full(self.sets, OWN)
        self.shared = np.full(self.sets, SHARED / 2)

    def sweep(self) -> None:
        """Draw every quantity once."""
        threshold = self._draw_thresholds()
        weight = 1 / self.width**2
        self._draw_boundaries(threshold, weight)
        self._draw_shifts(threshold, weight)
        self._move_boundaries_against_seeds()
        self._draw_deviations()
        rest = threshold - self.boundary[self.trials.column]
        self._rescale_deviations(rest, weight)
        self._draw_widths(rest)

    def _draw_thresholds(self) -> np.ndarray:
        """The threshold of each run: above its setting unless it collapsed."""
        t = self.trials
        mean = self.boundary[t.column] + self.shift[t.unit]
        width = self.width[self.arm]
        share = np.maximum(scipy.special.ndtr(self.sign * (t.x - mean) / width), 1e-300)
        noise = scipy.special.ndtri(share * self.random.random(len(share)))
        return np.asarray(mean + width * self.sign * noise)

    def _draw_boundaries(self, threshold: np.ndarray, weight: np.ndarray) -> None:
        """The boundaries, and the centre of each arm's."""
        t = self.trials
        by_column = weight[t.arm_of_column]
        apart = 1 / APART**2
        weighted = (
            _sum_by(t.column, threshold - self.shift[t.unit], self.columns) * by_column
            + self.centre[t.arm_of_column] * apart
        )
        self.boundary = self._normal(weighted, _sum_by(t.column, None, self.columns) * by_column + apart)
        weighted = _sum_by(t.arm_of_column, self.boundary, self.arms) * apart + self.middle / self.spread
        self.centre = self._normal(weighted, _sum_by(t.arm_of_column) * apart + 1 / self.spread)

    def _draw_shifts(self, threshold: np.ndarray, weight: np.ndarray) -> None:
        """The shift of each seed in each arm, and what it does in all."""
        t = self.trials
        by_unit = weight[t.arm_of_unit]
        by_set = 1 / self.own**2
        weighted = _sum_by(t.unit, threshold - self.boundary[t.column], self.units) * by_unit
        weighted += self.common[t.seed_of_unit] * by_set[self.set_of_unit]
        precision = _sum_by(t.unit, None, self.units) * by_unit + by_set[self.set_of_unit]
        self.shift = self._normal(weighted, precision)
        by_seed = by_set[t.set_of_seed]
        precision = _sum_by(t.seed_of_unit) * by_seed + 1 / self.shared[t.set_of_seed] ** 2
        self.common = self._normal(_sum_by(t.seed_of_unit, self.shift) * by_seed, precision)

    def _move_boundaries_against_seeds(self) -> None:
        """Move both together, within each arm and over all: one by one they would take long to get there."""
        t = self.trials
        spread = self.spread
        by_arm = (1 / self.own**2)[t.set_of_arm]
        between = self.shift - self.common[t.seed_of_unit]
        weighted = _sum_by(t.arm_of_unit, between) * by_arm - (self.centre - self.middle) / spread
        up = self._normal(weighted, _sum_by(t.arm_of_unit) * by_arm + 1 / spread)
        self.boundary = self.boundary + up[t.arm_of_column]
        self.centre = self.centre + up
        self.shift = self.shift - up[t.arm_of_unit]

        shared_square = self.shared**2
        weighted = (
            _sum_by(t.set_of_seed, self.common) / shared_square
            - _sum_by(t.set_of_arm, self.centre - self.middle) / spread
        )
        precision = _sum_by(t.set_of_seed) / shared_square + _sum_by(t.set_of_arm) / spread
        up = self._normal(weighted, precision)
        self.boundary = self.boundary + up[t.set_of_arm][t.arm_of_column]
        self.centre = self.centre + up[t.set_of_arm]
        self.common = self.common - up[t.set_of_seed]
        self.shift = self.shift - up[self.set_of_unit]

    def _draw_deviations(self) -> None:
        """The deviations of the shifts, given the shifts as they are."""
        t = self.trials
        between = self.shift - self.common[t.seed_of_unit]
        self.own = self._deviation(between, self.set_of_unit, _OWN_PRIOR)
        self.shared = self._deviation(self.common, t.set_of_seed, _SHARED_PRIOR)

    def _rescale_deviations(self, rest: np.ndarray, weight: np.ndarray) -> None:
        """Draw the deviations again, with the shifts measured in deviations: this reaches small ones too."""
        t = self.trials
        between = self.shift - self.common[t.seed_of_unit]
        score = between / self.own[self.set_of_unit]
        others = rest - self.common[t.seed_of_unit][t.unit]
        self.own = self._scale(score[t.unit], others, weight, _OWN_PRIOR)
        between = score * self.own[self.set_of_unit]
        score = self.common / self.shared[t.set_of_seed]
        others = rest - between[t.unit]
        self.shared = self._scale(score[t.seed_of_unit][t.unit], others, weight, _SHARED_PRIOR)
        self.common = score * self.shared[t.set_of_seed]
        self.shift = self.common[t.seed_of_unit] + between

    def _draw_widths(self, rest: np.ndarray) -> None:
        """The width of each arm, and the usual one of all."""
        t = self.trials
        logs = np.log(_WIDTHS)
        squares = _sum_by(self.arm, (rest - self.shift[t.unit]) ** 2, self.arms)[:, None]
        prior = -0.5 * ((logs - self.usual[t.set_of_arm][:, None]) / ARM_SPREAD) ** 2
        runs = _sum_by(self.arm, None, self.arms)[:, None]
        self.width = self._pick(prior - runs * logs - squares / (2 * _WIDTHS**2), _WIDTHS)
        weighted = _sum_by(t.set_of_arm, np.log(self.width)) / ARM_SPREAD**2
        weighted += math.log(WIDTH / TEN_TO_NINETY) / WIDTH_SPREAD**2
        self.usual = self._normal(weighted, _sum_by(t.set_of_arm) / ARM_SPREAD**2 + 1 / WIDTH_SPREAD**2)

    def _normal(self, weighted: np.ndarray, precision: np.ndarray) -> np.ndarray:
        noise = self.random.standard_normal(len(weighted)) / np.sqrt(precision)
        return np.asarray(weighted / precision + noise)

    def _pick(self, logs: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return a value of the grid for each row of log densities."""
        mass = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
        return np.asarray(grid[(mass < self.random.random((len(mass), 1)) * mass[:, -1:]).sum(1)])

    def _deviation(self, values: np.ndarray, sets: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Draw the deviation of each data set's values."""
        count = _sum_by(sets, None, self.sets)[:, None]
        square = _sum_by(sets, values**2, self.sets)[:, None]
        return self._pick(-count * np.log(_SHIFTS) - square / (2 * _SHIFTS**2) + prior, _SHIFTS)

    def _scale(
        self, score: np.ndarray, rest: np.ndarray, weight: np.ndarray, prior: np.ndarray
    ) -> np.ndarray:
        """Draw the deviation by which the scores explain what is left of the thresholds."""
        weighted = score * weight[self.arm]
        square = _sum_by(self.set_of_run, weighted * score, self.sets)[:, None]
        product = _sum_by(self.set_of_run, weighted * rest, self.sets)[:, None]
        return self._pick(product * _SHIFTS - square * _SHIFTS**2 / 2 + prior, _SHIFTS)

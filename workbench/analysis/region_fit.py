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
    arm, column, unit, seed = (
        runs.groupby(keys, sort=False).ngroup().to_numpy()
        for keys in (["series", "slice"], ["series", "slice", "y"], ["series", "slice", "seed"], ["seed"])
    )
    (_, of_arm), (_, of_column), (_, of_unit) = (
        np.unique(codes, return_index=True) for codes in (arm, column, unit)
    )
    x, collapsed = (
        np.tile(values, CHAINS) for values in (np.log2(runs["x"].to_numpy(float)), runs["collapsed"])
    )
    indices = (
        column,
        unit,
        arm[of_column],
        arm[of_unit],
        seed[of_unit],
        0 * of_arm,
        np.zeros(seed.max() + 1, int),
    )
    chains = ((codes + (codes.max() + 1) * np.arange(CHAINS)[:, None]).ravel() for codes in indices)
    found = draw(Trials(x, collapsed, *chains), math.log2(low), math.log2(high), BURN, KEEP)
    boundaries, widths = (part.reshape(KEEP * CHAINS, -1).T for part in found)
    names = list(zip(runs["series"], runs["slice"], strict=True))
    drawn: dict[Arm, dict[float, np.ndarray]] = {names[i]: {} for i in of_arm}
    for i in np.argsort(runs["y"].to_numpy()[of_column], kind="stable"):
        drawn[names[of_column[i]]][float(runs["y"].iloc[of_column[i]])] = boundaries[i]
    return drawn, {names[i]: width for i, width in zip(of_arm, widths, strict=True)}


def draw(
    trials: Trials, low: float, high: float, burn: int, keep: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Draw log2 of each column's boundary and each arm's doublings from 10 to 90 %, (keep, n), in a range of
    log2.
    """
    t = trials
    random = np.random.default_rng(seed)
    ndtr = scipy.special.ndtr
    ndtri = scipy.special.ndtri
    total = np.bincount  # of the values (or of ones) with each code
    arm = t.arm_of_column[t.column]
    set_of_unit = t.set_of_arm[t.arm_of_unit]
    set_of_run = t.set_of_arm[arm]
    sets = int(t.set_of_arm.max()) + 1
    sign = np.where(t.collapsed, 1.0, -1.0)
    middle = (low + high) / 2
    spread = ((high - low) / 2) ** 2
    columns = len(t.arm_of_column)
    units = len(t.arm_of_unit)
    arms = len(t.set_of_arm)

    def normal(weighted: np.ndarray, precision: np.ndarray) -> np.ndarray:
        return weighted / precision + random.standard_normal(len(weighted)) / np.sqrt(precision)

    def pick(logs: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return a value of the grid for each row of log densities."""
        mass = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
        return np.asarray(grid[(mass < random.random((len(mass), 1)) * mass[:, -1:]).sum(1)])

    def deviation(values: np.ndarray, of: np.ndarray, prior: np.ndarray) -> np.ndarray:
        count = total(of, None, sets)[:, None]
        square = total(of, values**2, sets)[:, None]
        return pick(-count * np.log(_SHIFTS) - square / (2 * _SHIFTS**2) + prior, _SHIFTS)

    def scale(score: np.ndarray, rest: np.ndarray, prior: np.ndarray) -> np.ndarray:
        weighted = score * weight[arm]
        square, product = (total(set_of_run, weighted * values, sets)[:, None] for values in (score, rest))
        return pick(product * _SHIFTS - square * _SHIFTS**2 / 2 + prior, _SHIFTS)

    boundary = total(t.column, t.x, columns) / np.maximum(total(t.column, None, columns), 1)
    centre = np.full(len(t.set_of_arm), middle)
    shift = np.zeros(len(t.seed_of_unit))
    common = np.zeros(len(t.set_of_seed))
    usual = np.full(sets, math.log(WIDTH / TEN_TO_NINETY))
    width = np.exp(usual)[t.set_of_arm]
    own = np.full(sets, OWN)
    shared = np.full(sets, SHARED / 2)
    boundaries = []
    widths = []
    for step in range(burn + keep):
        # The threshold of each run: above its setting unless it collapsed.
        mean = boundary[t.column] + shift[t.unit]
        share = np.maximum(ndtr(sign * (t.x - mean) / width[arm]), 1e-300)
        threshold = mean + width[arm] * sign * ndtri(share * random.random(len(share)))
        weight = 1 / width**2

        # The boundaries, and the centre of each arm's.
        by_column = weight[t.arm_of_column]
        apart = 1 / APART**2
        weighted = (
            total(t.column, threshold - shift[t.unit], columns) * by_column + centre[t.arm_of_column] * apart
        )
        boundary = normal(weighted, total(t.column, None, columns) * by_column + apart)
        weighted = total(t.arm_of_column, boundary, arms) * apart + middle / spread
        centre = normal(weighted, total(t.arm_of_column) * apart + 1 / spread)

        # The shift of each seed in each arm, and what it does in all.
        by_unit = weight[t.arm_of_unit]
        by_set = 1 / own**2
        weighted = total(t.unit, threshold - boundary[t.column], units) * by_unit
        weighted += common[t.seed_of_unit] * by_set[set_of_unit]
        shift = normal(weighted, total(t.unit, None, units) * by_unit + by_set[set_of_unit])
        by_seed = by_set[t.set_of_seed]
        precision = total(t.seed_of_unit) * by_seed + 1 / shared[t.set_of_seed] ** 2
        common = normal(total(t.seed_of_unit, shift) * by_seed, precision)

        # Move boundaries against seeds, within each arm and over all: one by one they would take long to get
        # there.
        by_arm = by_set[t.set_of_arm]
        weighted = total(t.arm_of_unit, shift - common[t.seed_of_unit]) * by_arm - (centre - middle) / spread
        up = normal(weighted, total(t.arm_of_unit) * by_arm + 1 / spread)
        boundary = boundary + up[t.arm_of_column]
        centre = centre + up
        shift = shift - up[t.arm_of_unit]
        weighted = total(t.set_of_seed, common) / shared**2 - total(t.set_of_arm, centre - middle) / spread
        up = normal(weighted, total(t.set_of_seed) / shared**2 + total(t.set_of_arm) / spread)
        boundary = boundary + up[t.set_of_arm][t.arm_of_column]
        centre = centre + up[t.set_of_arm]
        common = common - up[t.set_of_seed]
        shift = shift - up[set_of_unit]

        # The deviations of the shifts, first as they are, then with the shifts measured in deviations: small
        # ones too.
        between = shift - common[t.seed_of_unit]
        own = deviation(between, set_of_unit, _OWN_PRIOR)
        shared = deviation(common, t.set_of_seed, _SHARED_PRIOR)
        rest = threshold - boundary[t.column]
        score = between / own[set_of_unit]
        own = scale(score[t.unit], rest - common[t.seed_of_unit][t.unit], _OWN_PRIOR)
        between = score * own[set_of_unit]
        score = common / shared[t.set_of_seed]
        shared = scale(score[t.seed_of_unit][t.unit], rest - between[t.unit], _SHARED_PRIOR)
        common = score * shared[t.set_of_seed]
        shift = common[t.seed_of_unit] + between

        # The width of each arm, and the usual one of all.
        logs = np.log(_WIDTHS)
        squares = total(arm, (rest - shift[t.unit]) ** 2, arms)[:, None]
        density = -0.5 * ((logs - usual[t.set_of_arm][:, None]) / ARM_SPREAD) ** 2
        width = pick(density - total(arm, None, arms)[:, None] * logs - squares / (2 * _WIDTHS**2), _WIDTHS)
        weighted = total(t.set_of_arm, np.log(width)) / ARM_SPREAD**2
        weighted += math.log(WIDTH / TEN_TO_NINETY) / WIDTH_SPREAD**2
        usual = normal(weighted, total(t.set_of_arm) / ARM_SPREAD**2 + 1 / WIDTH_SPREAD**2)
        if step >= burn:
            boundaries.append(boundary)
            widths.append(width * TEN_TO_NINETY)
    return np.array(boundaries), np.array(widths)

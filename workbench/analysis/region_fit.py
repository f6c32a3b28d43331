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

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

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


def fit(
    runs: pd.DataFrame, low: float, high: float
) -> tuple[dict[Arm, dict[float, np.ndarray]], dict[Arm, np.ndarray]]:
    """Return draws (D,) of log2 of the boundary, by arm and condition y, and of each arm's width, of a Landscape."""
    arm, column, unit, seed = (
        runs.groupby(keys, sort=False).ngroup().to_numpy()
        for keys in (["series", "slice"], ["series", "slice", "y"], ["series", "slice", "seed"], ["seed"])
    )
    (_, of_arm), (_, of_column), (_, of_unit) = (np.unique(codes, return_index=True) for codes in (arm, column, unit))

    def chains(codes: np.ndarray) -> np.ndarray:
        return (codes + (codes.max() + 1) * np.arange(CHAINS)[:, None]).ravel()

    x, collapsed = (np.tile(values, CHAINS) for values in (np.log2(runs["x"].to_numpy(float)), runs["collapsed"]))
    indices = (column, unit, arm[of_column], arm[of_unit], seed[of_unit], 0 * of_arm, np.zeros(seed.max() + 1, int))
    found = draw(Trials(x, collapsed, *map(chains, indices)), math.log2(low), math.log2(high), BURN, KEEP)
    boundaries, widths = (part.reshape(KEEP * CHAINS, -1).T for part in found)
    names = list(zip(runs["series"], runs["slice"], strict=True))
    drawn: dict[Arm, dict[float, np.ndarray]] = {names[i]: {} for i in of_arm}
    for i in np.argsort(runs["y"].to_numpy()[of_column], kind="stable"):
        drawn[names[of_column[i]]][float(runs["y"].iloc[of_column[i]])] = boundaries[i]
    return drawn, {names[i]: width for i, width in zip(of_arm, widths, strict=True)}


def draw(trials: Trials, low: float, high: float, burn: int, keep: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw log2 of each column's boundary and each arm's doublings from 10 to 90 %, (keep, n), in a range of log2."""
    t, random, ndtr, ndtri = trials, np.random.default_rng(seed), scipy.special.ndtr, scipy.special.ndtri
    arm, set_of_unit = t.arm_of_column[t.column], t.set_of_arm[t.arm_of_unit]
    set_of_run, sets = t.set_of_arm[arm], int(t.set_of_arm.max()) + 1
    sign, middle, spread = np.where(t.collapsed, 1.0, -1.0), (low + high) / 2, ((high - low) / 2) ** 2
    columns, units, arms = len(t.arm_of_column), len(t.arm_of_unit), len(t.set_of_arm)

    def total(codes: np.ndarray, values: np.ndarray | None = None, n: int = 0) -> np.ndarray:
        return np.bincount(codes, values, n)

    def normal(weighted: np.ndarray, precision: np.ndarray) -> np.ndarray:
        return weighted / precision + random.standard_normal(len(weighted)) / np.sqrt(precision)

    def pick(logs: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return a value of the grid for each row of log densities."""
        mass = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
        return np.asarray(grid[(mass < random.random((len(mass), 1)) * mass[:, -1:]).sum(1)])

    def deviation(values: np.ndarray, of: np.ndarray, prior: np.ndarray) -> np.ndarray:
        logs = -total(of, n=sets)[:, None] * np.log(_SHIFTS) - total(of, values**2, sets)[:, None] / (2 * _SHIFTS**2)
        return pick(logs + prior, _SHIFTS)

    def scale(score: np.ndarray, rest: np.ndarray, prior: np.ndarray) -> np.ndarray:
        weighted = score * weight[arm]
        square, product = (total(set_of_run, weighted * values, sets)[:, None] for values in (score, rest))
        return pick(product * _SHIFTS - square * _SHIFTS**2 / 2 + prior, _SHIFTS)

    boundary = total(t.column, t.x, columns) / np.maximum(total(t.column, n=columns), 1)
    centre = np.full(len(t.set_of_arm), middle)
    shift, common = np.zeros(len(t.seed_of_unit)), np.zeros(len(t.set_of_seed))
    usual = np.full(sets, math.log(WIDTH / TEN_TO_NINETY))
    width = np.exp(usual)[t.set_of_arm]
    own, shared = np.full(sets, OWN), np.full(sets, SHARED / 2)
    boundaries, widths = [], []
    for step in range(burn + keep):
        # The threshold of each run: above its setting unless it collapsed.
        mean = boundary[t.column] + shift[t.unit]
        share = np.maximum(ndtr(sign * (t.x - mean) / width[arm]), 1e-300)
        threshold = mean + width[arm] * sign * ndtri(share * random.random(len(share)))
        weight = 1 / width**2

        # The boundaries, and the centre of each arm's.
        by_column, apart = weight[t.arm_of_column], 1 / APART**2
        weighted = total(t.column, threshold - shift[t.unit], columns) * by_column + centre[t.arm_of_column] * apart
        boundary = normal(weighted, total(t.column, n=columns) * by_column + apart)
        weighted = total(t.arm_of_column, boundary, arms) * apart + middle / spread
        centre = normal(weighted, total(t.arm_of_column) * apart + 1 / spread)

        # The shift of each seed in each arm, and what it does in all.
        by_unit, by_set = weight[t.arm_of_unit], 1 / own**2
        weighted = total(t.unit, threshold - boundary[t.column], units) * by_unit
        weighted += common[t.seed_of_unit] * by_set[set_of_unit]
        shift = normal(weighted, total(t.unit, n=units) * by_unit + by_set[set_of_unit])
        by_seed = by_set[t.set_of_seed]
        precision = total(t.seed_of_unit) * by_seed + 1 / shared[t.set_of_seed] ** 2
        common = normal(total(t.seed_of_unit, shift) * by_seed, precision)

        # Move boundaries against seeds, within each arm and over all: one by one they would take long to get there.
        by_arm = by_set[t.set_of_arm]
        weighted = total(t.arm_of_unit, shift - common[t.seed_of_unit]) * by_arm - (centre - middle) / spread
        up = normal(weighted, total(t.arm_of_unit) * by_arm + 1 / spread)
        boundary, centre, shift = boundary + up[t.arm_of_column], centre + up, shift - up[t.arm_of_unit]
        weighted = total(t.set_of_seed, common) / shared**2 - total(t.set_of_arm, centre - middle) / spread
        up = normal(weighted, total(t.set_of_seed) / shared**2 + total(t.set_of_arm) / spread)
        boundary, centre = boundary + up[t.set_of_arm][t.arm_of_column], centre + up[t.set_of_arm]
        common, shift = common - up[t.set_of_seed], shift - up[set_of_unit]

        # The deviations of the shifts, first as they are, then with the shifts measured in deviations: small ones too.
        between = shift - common[t.seed_of_unit]
        own, shared = deviation(between, set_of_unit, _OWN_PRIOR), deviation(common, t.set_of_seed, _SHARED_PRIOR)
        rest, score = threshold - boundary[t.column], between / own[set_of_unit]
        own = scale(score[t.unit], rest - common[t.seed_of_unit][t.unit], _OWN_PRIOR)
        between, score = score * own[set_of_unit], common / shared[t.set_of_seed]
        shared = scale(score[t.seed_of_unit][t.unit], rest - between[t.unit], _SHARED_PRIOR)
        common = score * shared[t.set_of_seed]
        shift = common[t.seed_of_unit] + between

        # The width of each arm, and the usual one of all.
        logs, squares = np.log(_WIDTHS), total(arm, (rest - shift[t.unit]) ** 2, arms)[:, None]
        density = -0.5 * ((logs - usual[t.set_of_arm][:, None]) / ARM_SPREAD) ** 2
        width = pick(density - total(arm, n=arms)[:, None] * logs - squares / (2 * _WIDTHS**2), _WIDTHS)
        weighted = total(t.set_of_arm, np.log(width)) / ARM_SPREAD**2
        weighted += math.log(WIDTH / TEN_TO_NINETY) / WIDTH_SPREAD**2
        usual = normal(weighted, total(t.set_of_arm) / ARM_SPREAD**2 + 1 / WIDTH_SPREAD**2)
        if step >= burn:
            boundaries.append(boundary)
            widths.append(width * TEN_TO_NINETY)
    return np.array(boundaries), np.array(widths)

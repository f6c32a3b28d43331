"""How often a region's intervals hold the truth: `python bench/region_coverage.py`.

Regions with known boundaries are searched as `sorl run` does (`sorl.grid.search`) and fitted as `sorl
compare` does. The collapse probability of a run rises from 10 to 90 % over so many steps of the ladder (a
step: .5 doublings); a seed moves all boundaries by N(0, seed) doublings, and those of each arm by N(0, arm)
more. Prints one Markdown table: boundary, shift: share of 95 % intervals that hold the truth, of boundaries
and of what two arms differ by (mean over the columns; half of the regions have equal arms); null: share of
comparisons of equal arms with p <= .05; any of six: share of regions with equal arms in which a comparison
has p <= .05 after Holm. The priors were chosen on the first ten rows, with another random stream; the other
rows had no part in it.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from sorl.analysis.region_fit import TEN_TO_NINETY, Trials, draw
from sorl.grid.search import Rule, search

STEP = 0.5  # doublings
PAIRS = ((1, 0), (2, 0), (3, 1), (3, 2), (5, 4), (4, 0))  # as the claims compare six algorithms
BURN = 300
KEEP = 1000


class Setting(NamedTuple):
    """One row: the truth and the plan."""

    width: float  # steps from 10 to 90 %
    seed: float = 0.0  # doublings
    arm: float = 0.0  # doublings
    seeds: int = 5
    columns: int = 3
    arms: int = 6
    points: int = 15
    uneven: bool = False  # widths of arms differ, by a factor of 2 up and down


CHOSEN = [Setting(width, seed) for seed in (0.0, 0.5) for width in (0.7, 1.3, 2.2, 3.5, 5.0)]
OTHERS = [
    Setting(1.0, 0.25),
    Setting(1.7),
    Setting(2.8, 0.25),
    Setting(1.3, 0.25, 0.25),
    Setting(3.5, 0.0, 0.25),
    Setting(1.8, 0.25, uneven=True),
    Setting(1.3, 0.5, seeds=3),
    Setting(2.2, 0.25, seeds=3),
    Setting(2.2, 0.5, seeds=10),
    Setting(2.2, 0.25, columns=1),
    Setting(1.3, 0.25, columns=2, arms=2),
    Setting(3.5, 0.25, columns=2, points=9),
]


def world(random: np.random.Generator, at: Setting, equal: bool) -> tuple[np.ndarray, np.ndarray]:
    """True boundaries (arms, columns) in log2, whether each possible run collapses (arms, columns, points,
    seeds).
    """
    width = np.full((at.arms, 1, 1, 1), at.width * STEP / TEN_TO_NINETY)
    if at.uneven:
        width = width * np.geomspace(0.5, 2.0, at.arms)[:, None, None, None]
    walk = random.uniform(3, at.points - 4) + np.cumsum(random.normal(0, 1.2, at.columns))
    apart = 0.0 if equal else random.normal(0, 1.5, (at.arms, 1))
    edges = np.clip(walk + np.zeros((at.arms, 1)) + apart, 1, at.points - 2) * STEP
    shift = random.normal(0, 1, at.seeds) * at.seed + random.normal(0, 1, (at.arms, at.seeds)) * at.arm
    noise = random.normal(size=(at.arms, at.columns, at.points, at.seeds))
    thresholds = edges[:, :, None, None] + shift[:, None, None, :] + width * noise
    return edges, np.arange(at.points)[:, None] * STEP > thresholds


def searched(collapsed: np.ndarray, at: Setting) -> np.ndarray:
    """The runs that the search asks for: arm, column, point, seed of each."""
    neighbours = [None, *range(at.columns - 1)]
    rule = Rule(at.points, at.seeds)
    return np.array(search(at.arms, neighbours, rule, lambda trial: bool(collapsed[trial])).done)


def trials(runs: list[np.ndarray], outcomes: list[np.ndarray], at: Setting) -> Trials:
    """Data sets side by side, as the sampler takes them."""
    sets = len(runs)
    arms = at.arms
    columns = at.columns
    seeds = at.seeds
    of = np.repeat(np.arange(sets), [len(part) for part in runs])
    arm, column, point, seed = np.concatenate(runs).T
    arm = of * arms + arm
    return Trials(
        point * STEP,
        np.concatenate(outcomes),
        arm * columns + column,
        arm * seeds + seed,
        np.repeat(np.arange(sets * arms), columns),
        np.repeat(np.arange(sets * arms), seeds),
        (np.arange(sets)[:, None, None] * seeds + np.zeros((arms, 1), int) + np.arange(seeds)).ravel(),
        np.repeat(np.arange(sets), arms),
        np.repeat(np.arange(sets), seeds),
    )


def held(
    random: np.random.Generator, at: Setting, sets: int, equal: bool
) -> tuple[float, float, float, float, float]:
    """Coverage of boundaries and of shifts, share of p <= .05 by pair and, after Holm, by data set; runs a
    region.
    """
    edges, outcomes = zip(*(world(random, at, equal) for _ in range(sets)), strict=True)
    runs = [searched(collapsed, at) for collapsed in outcomes]
    fell = [collapsed[tuple(done.T)] for collapsed, done in zip(outcomes, runs, strict=True)]
    drawn = draw(trials(runs, fell, at), 0.0, (at.points - 1) * STEP, BURN, KEEP)[0]
    drawn = drawn.reshape(KEEP, sets, at.arms, at.columns)
    truth = np.array(edges)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    boundary = np.mean((low <= truth) & (truth <= high))
    drawn = drawn.mean(-1)
    truth = truth.mean(-1)
    hits = []
    ps = []
    for one, other in (pair for pair in PAIRS if max(pair) < at.arms):
        gap = drawn[:, :, one] - drawn[:, :, other]
        low, high = np.quantile(gap, (0.025, 0.975), axis=0)
        between = truth[:, one] - truth[:, other]
        hits.append((low <= between) & (between <= high))
        ps.append(2 * np.minimum((gap < 0).mean(0), (gap > 0).mean(0)))
    p = np.array(ps)
    any_ = np.mean(p.min(0) * len(p) <= 0.05)
    return (
        float(boundary),
        float(np.mean(hits)),
        float(np.mean(p <= 0.05)),
        float(any_),
        sum(map(len, runs)) / sets,
    )


def main() -> None:
    """Print the table, a row at a time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sets", type=int, default=400, help="regions a row; half of them have equal arms")
    parser.add_argument("--stream", type=int, default=2026)
    given = parser.parse_args()
    print("| 10 to 90 % over | seed | arm | plan | boundary | shift | null | any of six | runs |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for number, at in enumerate([*CHOSEN, *OTHERS]):
        random = np.random.default_rng([given.stream, number])
        half = given.sets // 2
        same = held(random, at, half, True)
        apart = held(random, at, half, False)
        plan = f"{at.seeds} seeds, {at.columns} columns, {at.arms} arms, {at.points} values"
        plan += ", widths differ by arm" if at.uneven else ""
        boundary, shift = ((same[i] + apart[i]) / 2 for i in (0, 1))
        print(
            f"| {at.width:g} steps | {at.seed:g} | {at.arm:g} | {plan} | {100 * boundary:.1f} % |"
            f" {100 * shift:.1f} % | {100 * same[2]:.1f} % | {100 * same[3]:.1f} % |"
            f" {(same[4] + apart[4]) / 2:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

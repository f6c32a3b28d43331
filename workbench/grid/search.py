"""The adaptive search for the boundary of collapse: which runs to do next, as a function of those that are over.

A column is one arm at one condition; its points are the searched values in rising order. Collapse is taken to become
more likely from point to point, so where half of the runs collapse is found by bisection, from the boundary of the
neighbouring column where there is one, and the seeds are spent on the two points beside it. Nothing is random: the same
outcomes give the same proposals, so a search that was cut off goes on as if it had not been.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Trial(NamedTuple):
    """One run of a search: which arm, in which column, at which point, with which seed, all counted from 0."""

    arm: int
    column: int
    point: int
    seed: int


Column = Mapping[int, Mapping[int, bool]]  # point -> seed -> whether the run collapsed


@dataclass(frozen=True)
class Rule:
    """How a column is searched: its points, the seeds of a point beside the boundary, those of a first try.

    full: no search, every point with every seed.
    """

    points: int
    seeds: int
    probes: int = 2
    full: bool = False


@dataclass(frozen=True)
class Budget:
    """What may be spent on all columns together; None = as much as the search asks for."""

    runs: int | None = None
    seconds: float | None = None  # of training, all runs added up

    def cut(self, batch: Sequence[Trial], spent: Sequence[float]) -> list[Trial]:
        """As much of `batch` as is paid for after runs that took `spent` seconds; a run is expected to take their mean.

        The first run is always allowed, and a run that was begun is not cut off.
        """
        room = len(batch) if self.runs is None else self.runs - len(spent)
        if self.seconds is not None and spent:
            left = self.seconds - sum(spent)
            mean = sum(spent) / len(spent)
            room = min(room, len(batch) if mean <= 0 else int(max(0.0, left) / mean))
        return list(batch[: max(0, room)])


@dataclass(frozen=True)
class Progress:
    """How far a search has come: the runs that are over, those to do now, and whether the budget ended it."""

    done: tuple[Trial, ...]
    now: tuple[Trial, ...]
    rounds: int  # that are over
    exhausted: bool = False  # it would ask for more runs than the budget allows

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to run."""
        return not self.now


def bracket(column: Column, points: int) -> tuple[int, int]:
    """The tried points between which the boundary lies: the highest that is up, the lowest that is not.

    By the isotonic fit of the shares of collapsed runs, so that one odd run does not overrule its neighbours; -1 and
    `points` where no tried point is on that side. A share of exactly 1/2 is not up.
    """
    tried = sorted(column)
    if not tried:
        return -1, points
    from scipy.optimize import isotonic_regression

    shares = [sum(column[p].values()) / len(column[p]) for p in tried]
    fitted = isotonic_regression(shares, weights=[len(column[p]) for p in tried]).x
    up = [p for p, share in zip(tried, fitted, strict=True) if share < 0.5 - 1e-9]
    return (up[-1] if up else -1), next((p for p in tried if not up or p > up[-1]), points)


def wanted(column: Column, rule: Rule, start: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """(point, seed) of the runs that the column needs next; empty when its boundary is found.

    `start` is the bracket of the neighbouring column. A point is tried with `probes` seeds; where these disagree beside
    the boundary, and at last at both points beside it, every seed is run.
    """
    if rule.full:
        every = itertools.product(range(rule.points), range(rule.seeds))
        return [(p, seed) for p, seed in every if seed not in column.get(p, {})]
    low, high = bracket(column, rule.points)
    if not column:
        first = [(rule.points - 1) // 2] if start is None else [p for p in start if 0 <= p < rule.points]
        return [(p, seed) for p in first for seed in range(min(rule.probes, rule.seeds))]
    beside = [p for p in (low, high) if 0 <= p < rule.points]
    split = [p for p in beside if 0 < sum(column[p].values()) < len(column[p])]
    if high - low == 1 or any(len(column[p]) < rule.seeds for p in split):
        ends = beside if high - low == 1 else split
        return [(p, seed) for p in ends for seed in range(rule.seeds) if seed not in column[p]]
    between = _between(low, high, len(column), rule.points, warm=start is not None)
    return [(between, seed) for seed in range(min(rule.probes, rule.seeds))]


def _between(low: int, high: int, tried: int, points: int, warm: bool) -> int:
    """The point to try between two: halfway, or near the end that is known while the other is not."""
    step = 2 ** max(0, tried - 2)
    if warm and low < 0:
        return max(0, high - step)
    if warm and high >= points:
        return min(points - 1, low + step)
    return (low + high) // 2


def located(column: Column, points: int) -> tuple[int, int] | None:
    """The bracket of a column whose boundary is known to lie between two neighbouring points, or beyond an end."""
    low, high = bracket(column, points)
    return (low, high) if column and high - low == 1 else None


def search(
    arms: int,
    neighbours: Sequence[int | None],
    rule: Rule,
    outcome: Callable[[Trial], bool | None],
    budget: Budget | None = None,
    seconds: Callable[[Trial], float] = lambda _: 0.0,
) -> Progress:
    """Go through the rounds of a search as far as outcomes are known, and propose the runs of the next.

    A round is what every column of every arm asks for, given the rounds before it; it is over when all its runs are.
    `neighbours` has a column's neighbour of lower index, from whose bracket its own search starts once that is known.
    `outcome` is None for a run that is not over.
    """
    budget = budget or Budget()
    columns: dict[tuple[int, int], dict[int, dict[int, bool]]] = {
        (arm, number): {} for arm in range(arms) for number in range(len(neighbours))
    }
    starts: dict[tuple[int, int], tuple[int, int] | None] = {}
    done: list[Trial] = []
    spent: list[float] = []
    rounds = 0
    while True:
        asked = []
        for (arm, number), column in columns.items():
            neighbour = neighbours[number]
            if (arm, number) not in starts:
                found = None if neighbour is None else located(columns[arm, neighbour], rule.points)
                if neighbour is not None and found is None:
                    continue
                starts[arm, number] = found
            asked += [Trial(arm, number, *run) for run in wanted(column, rule, starts[arm, number])]
        now = budget.cut(asked, spent)
        outcomes = [outcome(trial) for trial in now]
        if not now or None in outcomes:
            return Progress(tuple(done), tuple(now), rounds, exhausted=len(now) < len(asked))
        for trial, collapsed in zip(now, outcomes, strict=True):
            columns[trial.arm, trial.column].setdefault(trial.point, {})[trial.seed] = bool(collapsed)
            spent.append(seconds(trial))
        done += now
        rounds += 1


def usual(neighbours: Sequence[int | None], rule: Rule, draws: int = 40) -> float:
    """Runs of one arm, the mean over searches without noise whose boundaries lie anywhere, each column by itself.

    Of many columns fewer `draws` are enough.
    """
    import random

    stream, total = random.Random(0), 0
    draws = min(draws, 1 + 2000 // len(neighbours))
    for _ in range(draws):
        edges = [stream.randint(0, rule.points) for _ in neighbours]
        total += len(search(1, neighbours, rule, lambda t, edges=edges: t.point >= edges[t.column]).done)  # type: ignore[misc]
    return total / draws

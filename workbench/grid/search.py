"""The region search: which runs to do next to find where half of the runs collapse.

A column is one arm at one condition; its points are the searched values in rising order. Collapse is taken to
become more likely from point to point, so the boundary is found by bisection, from the boundary of the
neighbouring column if there is one, and the seeds are spent on the two points next to it. Nothing is random:
the same outcomes give the same proposals, so a search that was stopped continues as if it had not been.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sorl.grid.cell import Arm
from sorl.spec import RegionSettings


class Trial(NamedTuple):
    """One run of a search: which arm, in which column, at which point, with which seed, all
    counted from 0.
    """

    arm: int
    column: int
    point: int
    seed: int


Column = Mapping[int, Mapping[int, bool]]  # point -> seed -> whether the run collapsed


@dataclass(frozen=True)
class Rule:
    """How a column is searched; `runs` and `seconds` of training limit all columns together."""

    points: int
    seeds: int
    probes: int = 2
    full: bool = False
    runs: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Progress:
    """The state of a search: finished runs, runs to do now, and whether the budget ended it."""

    done: tuple[Trial, ...]
    now: tuple[Trial, ...]  # empty when the search is over
    rounds: int  # finished
    exhausted: bool = False  # it would ask for more runs than the budget allows


def bracket(column: Column, points: int) -> tuple[int, int]:
    """Return the tried points between which the boundary lies: the highest that stays up, the lowest that
    does not.

    By the isotonic fit of the shares of collapsed runs: one odd run does not overrule its neighbours. -1 and
    `points` if no tried point is on that side; a share of exactly 1/2 does not stay up.
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

    `start` is the bracket of the neighbouring column. A point is tried with `probes` seeds; every seed is run
    if these disagree next to the boundary, and in the end at both points next to it.
    """
    if rule.full:
        every = itertools.product(range(rule.points), range(rule.seeds))
        return [(p, seed) for p, seed in every if seed not in column.get(p, {})]
    low, high = bracket(column, rule.points)
    if not column:
        first = [(rule.points - 1) // 2] if start is None else [p for p in start if 0 <= p < rule.points]
        return list(itertools.product(first, range(min(rule.probes, rule.seeds))))
    ends = [p for p in (low, high) if 0 <= p < rule.points]
    if high - low > 1:
        ends = [p for p in ends if 0 < sum(column[p].values()) < len(column[p])]
    if high - low == 1 or any(len(column[p]) < rule.seeds for p in ends):
        return [(p, seed) for p, seed in itertools.product(ends, range(rule.seeds)) if seed not in column[p]]
    # Halfway, or near the end that is known while the other is not: twice as far with each try.
    between = (low + high) // 2
    step = 2 ** max(0, len(column) - 2)
    if start is not None and low < 0:
        between = max(0, high - step)
    elif start is not None and high >= rule.points:
        between = min(rule.points - 1, low + step)
    return [(between, seed) for seed in range(min(rule.probes, rule.seeds))]


def search(
    arms: int,
    neighbours: Sequence[int | None],
    rule: Rule,
    outcome: Callable[[Trial], bool | None],
    seconds: Callable[[Trial], float] = lambda _: 0.0,
) -> Progress:
    """Go through the rounds of a search as far as outcomes are known, and propose the runs of the next round.

    A round is what every column asks for, given the rounds before it. A column starts from the bracket of its
    neighbour, once that is known. `outcome` is None for an unfinished run.
    """
    columns = _Columns(arms, neighbours, rule)
    done: list[Trial] = []
    spent: list[float] = []  # seconds of each
    rounds = 0
    while True:
        proposed = columns.propose()
        now = proposed[: _room(len(proposed), rule, spent)]
        outcomes = [outcome(trial) for trial in now]
        if not now or None in outcomes:
            return Progress(tuple(done), tuple(now), rounds, exhausted=len(now) < len(proposed))
        for trial, collapsed in zip(now, outcomes, strict=True):
            columns.add(trial, bool(collapsed))
            spent.append(seconds(trial))
        done += now
        rounds += 1


def _room(proposed: int, rule: Rule, spent: Sequence[float]) -> int:
    """Return how many of the proposed runs the budget allows.

    A run counts as the mean of those before it; the first is always allowed.
    """
    room = proposed if rule.runs is None else max(0, rule.runs - len(spent))
    if rule.seconds is not None and sum(spent) > 0:
        room = min(room, int(max(0.0, rule.seconds - sum(spent)) * len(spent) / sum(spent)))
    return room


class _Columns:
    """The columns of all arms: which of their runs collapsed, and from which bracket their search starts."""

    def __init__(self, arms: int, neighbours: Sequence[int | None], rule: Rule) -> None:
        self._neighbours = neighbours
        self._rule = rule
        places = itertools.product(range(arms), range(len(neighbours)))
        self._columns: dict[tuple[int, int], dict[int, dict[int, bool]]] = {place: {} for place in places}
        self._starts: dict[tuple[int, int], tuple[int, int] | None] = {}  # of the columns that have begun

    def add(self, trial: Trial, collapsed: bool) -> None:
        """Take the outcome of a run."""
        self._columns[trial.arm, trial.column].setdefault(trial.point, {})[trial.seed] = collapsed

    def propose(self) -> list[Trial]:
        """Return the runs that the columns ask for now; a column begins once its neighbour's boundary is
        known.
        """
        proposed: list[Trial] = []
        for (arm, number), column in self._columns.items():
            if not self._begin(arm, number):
                continue
            runs = wanted(column, self._rule, self._starts[arm, number])
            proposed += [Trial(arm, number, *run) for run in runs]
        return proposed

    def _begin(self, arm: int, number: int) -> bool:
        """Whether a column has begun, or can now."""
        if (arm, number) in self._starts:
            return True
        neighbour = self._neighbours[number]
        start = None if neighbour is None else bracket(self._columns[arm, neighbour], self._rule.points)
        if start is not None and start[1] - start[0] > 1:
            return False  # its boundary is not between two neighbouring points, or beyond an end, yet
        self._starts[arm, number] = start
        return True


def usual(neighbours: Sequence[int | None], rule: Rule) -> float:
    """Runs of one arm: the mean over at most 40 noise-free searches with a random boundary in each column."""
    stream = random.Random(0)
    total = 0
    draws = min(40, 1 + 2000 // len(neighbours))
    for _ in range(draws):
        edges = [stream.randint(0, rule.points) for _ in neighbours]

        def collapses(trial: Trial, edges: Sequence[int] = edges) -> bool:
            return trial.point >= edges[trial.column]

        total += len(search(1, neighbours, rule, collapses).done)
    return total / draws


@dataclass(frozen=True)
class Region:
    """The search of a grid: its arms, its columns and its progress."""

    settings: RegionSettings
    series: tuple[Arm, ...]
    columns: tuple[dict[str, Any], ...]  # conditions: the values of the numeric axes
    neighbours: tuple[int | None, ...]
    rule: Rule
    progress: Progress
    unjudged: int  # finished runs that are too short for the collapse rule

    @property
    def everything(self) -> int:
        """Runs of the full grid."""
        return len(self.series) * len(self.columns) * self.rule.points * self.rule.seeds

    def __str__(self) -> str:
        now = self.progress.now
        total = len(self.series) * len(self.columns)
        where = f"{len(now)} runs in {len({(t.arm, t.column) for t in now})} of {total} columns"
        return f"round {self.progress.rounds + 1}: {where}, {len(self.progress.done)} runs before"


def conditions(
    axes: Mapping[str, Sequence[Any]],
) -> tuple[tuple[dict[str, Any], ...], tuple[int | None, ...]]:
    """Return the columns that numeric axes span, the first axis fastest, and the neighbour of each, one value
    lower.
    """
    names = list(axes)[::-1]
    places = list(itertools.product(*(range(len(axes[name])) for name in names)))
    values = [axes[name] for name in names]
    columns = tuple(_condition(names, values, place) for place in places)
    neighbours: list[int | None] = []
    for place in places:
        axis = max((axis for axis, at in enumerate(place) if at), default=None)
        lower = place if axis is None else (*place[:axis], place[axis] - 1, *place[axis + 1 :])
        neighbours.append(None if axis is None else places.index(lower))
    return columns, tuple(neighbours)


def _condition(names: Sequence[str], values: Sequence[Sequence[Any]], place: Sequence[int]) -> dict[str, Any]:
    """The value of each axis at a place."""
    at_place = zip(names, values, place, strict=True)
    return {name: of_axis[at] for name, of_axis, at in at_place}

"""The region search: which runs to do next to find where half of the runs collapse, and the cells that are these runs.

A column is one arm at one condition; its points are the searched values in rising order. Collapse is taken to become
more likely from point to point, so the boundary is found by bisection, from the boundary of the neighbouring column if
there is one, and the seeds are spent on the two points next to it. Nothing is random: the same outcomes give the same
proposals, so a search that was stopped continues as if it had not been.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.grid.cell import Arm, Cell, arm_label
from workbench.spec import GridFile, InputError, RegionSettings

if TYPE_CHECKING:
    from workbench.grid.history import History


class Trial(NamedTuple):
    """One run of a search: which arm, in which column, at which point, with which seed, all counted from 0."""

    arm: int
    column: int
    point: int
    seed: int


Column = Mapping[int, Mapping[int, bool]]  # point -> seed -> whether the run collapsed


@dataclass(frozen=True)
class Rule:
    """How a column is searched: its points, the seeds of a point next to the boundary, those of a first try.

    full: no search, every point with every seed.
    """

    points: int
    seeds: int
    probes: int = 2
    full: bool = False


@dataclass(frozen=True)
class Budget:
    """Limits of all columns together; None = no limit."""

    runs: int | None = None
    seconds: float | None = None  # of training, all runs added up

    def cut(self, batch: Sequence[Trial], spent: Sequence[float]) -> list[Trial]:
        """The part of `batch` within the budget, after runs that took `spent` seconds; a run counts as their mean.

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
    """The state of a search: finished runs, runs to do now, and whether the budget ended it."""

    done: tuple[Trial, ...]
    now: tuple[Trial, ...]  # empty when the search is over
    rounds: int  # finished
    exhausted: bool = False  # it would ask for more runs than the budget allows


def bracket(column: Column, points: int) -> tuple[int, int]:
    """Return the tried points between which the boundary lies: the highest that stays up, the lowest that does not.

    By the isotonic fit of the shares of collapsed runs, so that one odd run does not overrule its neighbours; -1 and
    `points` if no tried point is on that side. A share of exactly 1/2 does not stay up.
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

    `start` is the bracket of the neighbouring column. A point is tried with `probes` seeds; every seed is run if these
    disagree next to the boundary, and in the end at both points next to it.
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
    """Return the point to try between two: halfway, or near the end that is known while the other is not."""
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
    """Go through the rounds of a search as far as outcomes are known, and propose the runs of the next round.

    A round is what every column of every arm asks for, given the rounds before it; it ends when its runs have ended.
    `neighbours` has a column's neighbour of lower index, from whose bracket its own search starts once that is known.
    `outcome` is None for an unfinished run.
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
    """Runs of one arm: the mean over noise-free searches with a random boundary in each column.

    Fewer `draws` are enough for many columns.
    """
    stream, total = random.Random(0), 0
    draws = min(draws, 1 + 2000 // len(neighbours))
    for _ in range(draws):
        edges = [stream.randint(0, rule.points) for _ in neighbours]
        total += len(search(1, neighbours, rule, lambda t, edges=edges: t.point >= edges[t.column]).done)  # type: ignore[misc]
    return total / draws


# ---------------------------------------------------------------------------------------------------------------------
# The cells of an experiment of kind region


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

    @property
    def most(self) -> int:
        """Most runs that the search can take."""
        return min(self.everything, self.settings.runs or self.everything)

    def where(self) -> str:
        """`round 2: 8 runs in 4 of 12 columns, 10 runs before`."""
        now = self.progress.now
        columns, total = {(t.arm, t.column) for t in now}, len(self.series) * len(self.columns)
        return (
            f"round {self.progress.rounds + 1}: {len(now)} runs in {len(columns)} of {total} columns, "
            f"{len(self.progress.done)} runs before"
        )


def _split(file: GridFile) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return the axes that tell arms apart (names and words), and those of the columns (numbers)."""

    def numeric(values: Sequence[Any]) -> bool:
        return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)

    arms = {key: values for key, values in file.axes.items() if not numeric(values)}
    return arms, {key: values for key, values in file.axes.items() if key not in arms}


def series_of(file: GridFile, algorithm: Any, controls: Sequence[Arm]) -> list[Arm]:
    """Return the arms of a region file: its axes of words crossed, and its named controls."""
    axes, _ = _split(file)
    crossed = []
    if axes or not controls:
        for values in itertools.product(*axes.values()):
            choices = dict(zip(axes, values, strict=True))
            varying = {key: value for key, value in choices.items() if len(axes[key]) > 1}
            crossed.append(Arm(arm_label(choices.get("algorithm", algorithm), varying), choices))
    return [*crossed, *controls]


def _columns_of(file: GridFile) -> tuple[tuple[dict[str, Any], ...], tuple[int | None, ...]]:
    """The conditions, the first numeric axis running fastest, and the neighbour of each: one value lower on an axis."""
    _, axes = _split(file)
    names = list(axes)[::-1]
    places = list(itertools.product(*(range(len(axes[name])) for name in names)))
    index = {place: i for i, place in enumerate(places)}
    columns = tuple({n: axes[n][at] for n, at in zip(names, place, strict=True)} for place in places)

    def neighbour(place: tuple[int, ...]) -> int | None:
        for axis in reversed(range(len(place))):
            if place[axis]:
                return index[*place[:axis], place[axis] - 1, *place[axis + 1 :]]
        return None

    return columns, tuple(neighbour(place) for place in places)


def grow(
    file: GridFile,
    series: Sequence[Arm],
    seeds: Sequence[int],
    make: Callable[[Arm, int], Cell],
    history: History | None,
) -> tuple[Region, list[Cell]]:
    """Return the search as far as the history allows, and its cells: the finished ones and those to run now."""
    settings = file.region
    assert settings is not None
    _check(file, settings, series)
    values, (columns, neighbours) = settings.lattice, _columns_of(file)
    several = [key for key, given in _split(file)[1].items() if len(given) > 1]
    cells: dict[Trial, Cell] = {}

    def cell(trial: Trial) -> Cell:
        if trial not in cells:
            arm, column, value = series[trial.arm], columns[trial.column], values[trial.point]
            choices = {**arm.choices, **column, settings.along: value}
            varying = {key: choices[key] for key in (*several, settings.along)}
            label = arm_label(arm.label, varying)  # ppo · staleness 16 · policy.lr 0.1
            cells[trial] = make(Arm(label, choices, arm.control), seeds[trial.seed])
        return cells[trial]

    def outcome(trial: Trial) -> bool | None:
        past = history.past(cell(trial)) if history else None
        return None if past is None else past.collapsed

    def seconds(trial: Trial) -> float:
        past = history.past(cell(trial)) if history else None
        return 0.0 if past is None else past.seconds

    for arm, column in itertools.product(range(len(series)), range(len(columns))):
        cell(Trial(arm, column, 0, 0))  # a mistake in an arm is reported now, not when its column begins
    rule = Rule(len(values), len(seeds), settings.probes, settings.search == "full")
    limit = None if settings.minutes is None else 60 * settings.minutes
    progress = search(len(series), neighbours, rule, outcome, Budget(settings.runs, limit), seconds)
    unjudged = sum(1 for t in progress.now if history and (p := history.past(cell(t))) and p.collapsed is None)
    region = Region(settings, tuple(series), columns, neighbours, rule, progress, unjudged)
    return region, [cell(trial) for trial in (*progress.done, *progress.now)]


def _check(file: GridFile, settings: RegionSettings, series: Sequence[Arm]) -> None:
    if settings.along in file.axes:
        raise InputError(f"'{settings.along}' is searched ([region] along) and an axis at once; delete the axis")
    for arm in series:
        if settings.along in arm.choices:
            raise InputError(f"arm '{arm.label}' sets '{settings.along}', which is searched; delete it from the arm")
        if "match" in arm.choices:
            raise InputError(f"arm '{arm.label}' has 'match', which a region cannot: its learning rate is searched")

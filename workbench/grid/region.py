"""An experiment of kind region: its arms, columns and searched values, and the cells that its search asks for now."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.grid.cell import Cell, arm_label
from workbench.grid.history import History
from workbench.grid.search import Budget, Progress, Rule, Trial, search
from workbench.spec import GridFile, InputError, RegionSettings

Make = Callable[[str, dict[str, Any], bool, int], Cell]  # label, choices, whether a control, seed


@dataclass(frozen=True)
class Series:
    """What has a region: an algorithm with whatever else distinguishes the arm, or a named control."""

    label: str
    choices: dict[str, Any]
    control: bool


@dataclass(frozen=True)
class Region:
    """A search and how far it has come."""

    settings: RegionSettings
    series: tuple[Series, ...]
    columns: tuple[dict[str, Any], ...]  # conditions: the values of the numeric axes
    neighbours: tuple[int | None, ...]
    rule: Rule
    progress: Progress
    unjudged: int  # runs that are finished and too short for the collapse rule

    @property
    def everything(self) -> int:
        """Runs of the full grid."""
        return len(self.series) * len(self.columns) * self.rule.points * self.rule.seeds

    @property
    def most(self) -> int:
        """Runs that the search can take at most."""
        return min(self.everything, self.settings.runs or self.everything)


def numeric(values: Sequence[Any]) -> bool:
    """Whether an axis has numbers for values: such axes are the columns of the search."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def split(file: GridFile) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The axes that tell arms apart (names and words), and those of the columns (numbers)."""
    arms = {key: values for key, values in file.axes.items() if not numeric(values)}
    return arms, {key: values for key, values in file.axes.items() if key not in arms}


def series_of(file: GridFile, algorithm: Any, controls: Sequence[tuple[str, dict[str, Any]]]) -> list[Series]:
    """The arms of a region file: its axes of words crossed, and its named controls."""
    axes, _ = split(file)
    crossed = []
    if axes or not controls:
        for values in itertools.product(*axes.values()):
            choices = dict(zip(axes, values, strict=True))
            varying = {key: value for key, value in choices.items() if len(axes[key]) > 1}
            crossed.append(Series(arm_label(choices.get("algorithm", algorithm), varying), choices, False))
    return [*crossed, *(Series(name, choices, True) for name, choices in controls)]


def columns_of(file: GridFile) -> tuple[tuple[dict[str, Any], ...], tuple[int | None, ...]]:
    """The conditions, the first numeric axis running fastest, and each one's neighbour of lower index.

    The neighbour is the condition one value lower on the first axis, or where there is none on the next.
    """
    _, axes = split(file)
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


def label_of(series: Series, column: Mapping[str, Any], several: Sequence[str], along: str, value: float) -> str:
    """The arm of a cell: `ppo · staleness 16 · policy.lr 0.1`; columns that do not vary are left out."""
    told = {key: column[key] for key in several}
    return arm_label(series.label, {**told, along: value})


def grow(
    file: GridFile, series: Sequence[Series], seeds: Sequence[int], make: Make, history: History | None
) -> tuple[Region, list[Cell]]:
    """The search as far as the history tells, and its cells: those that are over and those to run now."""
    settings = file.region
    assert settings is not None
    _check(file, settings, series)
    values, (columns, neighbours) = settings.lattice, columns_of(file)
    several = [key for key, given in split(file)[1].items() if len(given) > 1]
    cells: dict[Trial, Cell] = {}

    def cell(trial: Trial) -> Cell:
        if trial not in cells:
            arm, column, value = series[trial.arm], columns[trial.column], values[trial.point]
            choices = {**arm.choices, **column, settings.along: value}
            label = label_of(arm, column, several, settings.along, value)
            cells[trial] = make(label, choices, arm.control, seeds[trial.seed])
        return cells[trial]

    def outcome(trial: Trial) -> bool | None:
        past = history.past(cell(trial)) if history else None
        return None if past is None else past.collapsed

    def seconds(trial: Trial) -> float:
        past = history.past(cell(trial)) if history else None
        return 0.0 if past is None else past.seconds

    for arm, column in itertools.product(range(len(series)), range(len(columns))):
        cell(Trial(arm, column, 0, 0))  # whatever is wrong with an arm is said now, not when its column begins
    rule = Rule(len(values), len(seeds), settings.probes, settings.search == "full")
    limit = None if settings.minutes is None else 60 * settings.minutes
    progress = search(len(series), neighbours, rule, outcome, Budget(settings.runs, limit), seconds)
    unjudged = sum(1 for t in progress.now if history and (p := history.past(cell(t))) and p.collapsed is None)
    region = Region(settings, tuple(series), columns, neighbours, rule, progress, unjudged)
    return region, [cell(trial) for trial in (*progress.done, *progress.now)]


def _check(file: GridFile, settings: RegionSettings, series: Sequence[Series]) -> None:
    if settings.along in file.axes:
        raise InputError(f"'{settings.along}' is searched ([region] along) and an axis at once; delete the axis")
    for arm in series:
        if settings.along in arm.choices:
            raise InputError(f"arm '{arm.label}' sets '{settings.along}', which is searched; delete it from the arm")
        if "match" in arm.choices:
            raise InputError(f"arm '{arm.label}' has 'match', which a region cannot: its learning rate is searched")


def where(region: Region) -> str:
    """What the search does now, in a line."""
    now = region.progress.now
    columns = {(t.arm, t.column) for t in now}
    total = len(region.series) * len(region.columns)
    return (
        f"round {region.progress.rounds + 1}: {len(now)} runs in {len(columns)} of {total} columns, "
        f"{len(region.progress.done)} runs before"
    )

"""A grid file becomes cells: its arms are crossed with its seeds, resolved, checked and hashed.

A mistake is an InputError.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from sorl.algorithms import resolve
from sorl.grid.cell import Arm, Cell, algorithm_label, arm_label, expand, flatten, merge
from sorl.grid.folder import History, mean_factor, newest_start
from sorl.grid.fork import check_guard
from sorl.grid.grid_file import check_key, mistakes, parse_grid_file, read_grid_file
from sorl.grid.search import Region, Rule, Trial, conditions, search
from sorl.learn.faults import check
from sorl.objective import Algorithm
from sorl.spec import GridFile, InputError, RegionSettings, RunSettings, nearest
from sorl.spec.names import FolderName, slug

MOST_ARMS = 500
MOST_CELLS = 5000


@dataclass(frozen=True)
class Grid:
    """A grid file, resolved: all arms of a seed, then the next."""

    experiment: FolderName
    path: Path
    question: str
    toml: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...] = ()
    region: Region | None = None  # the search, of an experiment of kind region
    # a sentence for each cell whose stabiliser factor is that of an unfinished run
    waiting: tuple[str, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """The labels of the arms, in the order of the file."""
        return tuple(dict.fromkeys(cell.arm for cell in self.cells))

    def newest(self, runs: Path) -> Self:
        """Return the grid with the newest start of every cell in `runs`."""
        return replace(self, cells=tuple(newest_start(cell, runs) for cell in self.cells))


def load(
    path: Path, overrides: Sequence[str] = (), history: History | None = None, only: Sequence[str] = ()
) -> Grid:
    """Read a grid file and resolve its cells, those of the arms `only` where it names some.

    `overrides` are `key=value` in TOML: they change the base; `seeds=[0]` and `axes.KEY=[...]` change the
    file's lists. `history` holds the recorded runs, for a search and for matched learning rates.
    """
    text = read_grid_file(path)
    file = parse_grid_file(text, overrides, path)
    _refuse_too_large(file, path)
    experiment = FolderName(path.stem, f"{path} cannot be run: its name is the experiment's, and")
    base = _base_of(file, path)
    arms = _by_label([*_crossed_arms(file, base), *_named_arms(file, path)], path)
    chosen = _chosen_arms(arms, only, path)
    maker = _CellMaker(experiment, base, path)
    history = history or History(Path(os.devnull))
    grid = Grid(experiment, path, file.question, text, tuple(file.seeds))
    if file.region is not None:
        return _searched(grid, file, chosen, maker, history)
    return _crossed(grid, arms, chosen, maker, history)


def _refuse_too_large(file: GridFile, path: Path) -> None:
    """Raise InputError for too many cells, before any is made: each is resolved and hashed."""
    arms = math.prod(map(len, file.axes.values())) + len(file.arms)
    cells = arms * len(file.seeds)
    if arms > MOST_ARMS or cells > MOST_CELLS:
        most = f"at most {MOST_ARMS:,} arms and {MOST_CELLS:,} cells: split it into several files"
        raise InputError(f"{path} asks for {arms:,} arms and {cells:,} cells; a grid has {most}")


def _base_of(file: GridFile, path: Path) -> dict[str, Any]:
    """Return the settings of [base]. Raises InputError for a seed in it, and for an axis that is none."""
    base = expand(file.base, f"[base] of {path}")
    if "seed" in base:
        check_key("seed", str(path))
    for key, values in file.axes.items():
        check_key(key, f"[axes] of {path}")
        if not values:
            raise InputError(f"axis '{key}' in {path} is empty; give it at least one value or delete it")
    return base


def _crossed_arms(file: GridFile, base: Mapping[str, Any]) -> list[Arm]:
    """Return the arms that the axes span."""
    # The numbers of a region are its columns, and tell no arms apart.
    axes = {key: values for key, values in file.axes.items() if file.region is None or not _numeric(values)}
    if not axes and file.arms:
        return []
    default = base.get("algorithm", RunSettings.model_fields["algorithm"].default)
    arms = []
    for combination in itertools.product(*axes.values()):
        choices = dict(zip(axes, combination, strict=True))
        varying = {key: value for key, value in choices.items() if len(axes[key]) > 1}
        label = algorithm_label(choices.get("algorithm", default))
        arms.append(Arm(arm_label(label, varying), choices))
    return arms


def _named_arms(file: GridFile, path: Path) -> list[Arm]:
    """Return the arms of [[arms]], which are not crossed with the axes."""
    arms = []
    for table in file.arms:
        where = f"arm '{table.name}' of {path}"
        choices = flatten(expand(table.model_extra or {}, where))
        for key in choices:
            check_key(key, where)
        arms.append(Arm(table.name, choices, control=True))
    return arms


def _chosen_arms(arms: Mapping[str, Arm], only: Sequence[str], path: Path) -> list[Arm]:
    """Return the arms of these names, or all. Raises InputError for a name that no arm has."""
    for name in only:
        if name not in arms:
            raise InputError(f"no arm '{name}' in {path}{nearest(name, arms)}; arms: {'; '.join(arms)}")
    return [arm for label, arm in arms.items() if not only or label in only]


class _Resolved(NamedTuple):
    """The settings of an arm, checked, and the algorithm that they name."""

    settings: RunSettings
    algorithm: Algorithm


class _CellMaker:
    """Makes the cells of a grid file; the settings of an arm are resolved once for all its seeds."""

    def __init__(self, experiment: FolderName, base: Mapping[str, Any], path: Path) -> None:
        self._experiment = experiment
        self._base = base
        self._path = path
        self._resolved: dict[str, _Resolved] = {}  # by the label of the arm

    def cell(self, arm: Arm, seed: int) -> Cell:
        """Return the cell of an arm and a seed. Raises InputError for settings that do not fit."""
        if arm.label not in self._resolved:
            self._resolved[arm.label] = _resolved(self._base, arm, self._path)
        settings, algorithm = self._resolved[arm.label]
        own = settings.model_copy(update={"seed": seed})
        return Cell(self._experiment, arm.label, seed, own, algorithm, arm.control)

    def with_learning_rate(self, arm: Arm, cell: Cell, learning_rate: float) -> Cell:
        """Return a cell of an arm with a learning rate of its own."""
        choices = {**arm.choices, "learn.policy.lr": learning_rate}
        settings = _resolved(self._base, replace(arm, choices=choices), self._path).settings
        return replace(cell, settings=settings.model_copy(update={"seed": cell.seed}))


def _crossed(
    grid: Grid, arms: Mapping[str, Arm], chosen: Sequence[Arm], maker: _CellMaker, history: History
) -> Grid:
    """Return the grid with the cells of the chosen arms; those that wait for another run are left out."""
    cells: list[Cell] = []
    waiting: list[str] = []
    for seed, arm in itertools.product(grid.seeds, chosen):
        cell = maker.cell(arm, seed)
        if cell.settings.match is None:
            cells.append(cell)
            continue
        source = _source_run(cell, arms, maker, history, grid.path)
        if source.folder is None:
            waiting.append(source.waiting)
        else:
            learning_rate = _matched_learning_rate(cell, source.folder, grid.path)
            cells.append(maker.with_learning_rate(arm, cell, learning_rate))
    return _without_doubles(replace(grid, cells=tuple(cells), waiting=tuple(waiting)))


def refuse_waiting(grid: Grid) -> None:
    """Raise InputError where every cell of a grid waits for a run of another one."""
    if grid.waiting and not grid.cells:
        others = len(grid.waiting) - 1
        more = f" (and {others} more wait)" if others else ""
        raise InputError(f"nothing of {grid.path} can be trained yet: {grid.waiting[0]}{more}")


def _resolved(base: Mapping[str, Any], arm: Arm, path: Path) -> _Resolved:
    """Return the settings of an arm. Raises InputError for values and combinations that cannot be trained."""
    where = f"{path}, arm '{arm.label}'"
    try:
        named = merge(base, expand(arm.choices, where))
        settings = RunSettings.model_validate(merge(_defaults(named), named))
    except ValidationError as error:
        raise mistakes(error, path, f" (arm '{arm.label}')" if arm.choices else "") from None
    try:
        algorithm = resolve(settings.algorithm, settings.slots)
        check(settings, algorithm)
        if algorithm.needs_reference and not settings.learn.reference:
            raise InputError(
                f"the KL term of {algorithm.name} needs a reference policy; set learn.reference = true"
            )
        group = settings.learn.group_size or algorithm.group_size
        episodes = settings.learn.episodes
        if episodes % group:
            groups = f"{algorithm.name} samples groups of {group} rollouts, which do not divide"
            raise InputError(f"{groups} learn.episodes = {episodes}; set learn.group_size or learn.episodes")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    check_guard(settings, where)
    return _Resolved(settings, algorithm)


def _defaults(named: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting as it is where a file does not name it; a `model` has some of its own."""
    model = named.get("model")
    return (RunSettings(model=model) if isinstance(model, str) else RunSettings()).model_dump()


class _SourceRun(NamedTuple):
    """The finished run that a cell with `match` follows, or a sentence on what it waits for."""

    folder: Path | None
    waiting: str = ""


def _source_run(
    cell: Cell, arms: Mapping[str, Arm], maker: _CellMaker, history: History, path: Path
) -> _SourceRun:
    """Look for the run that `match` names: an arm of this file with the same seed, or EXPERIMENT/ARM."""
    source = str(cell.settings.match)
    where = _match_of(cell, path)
    experiment, _, arm = source.partition("/")
    if source in arms:
        other = maker.cell(arms[source], cell.seed)
        if other.settings.match is not None:
            raise InputError(f"{where} is matched itself; name the arm that it follows")
        folder = _finished_run(other, history)
        advice = ""
    elif arm:
        folder = history.elsewhere(FolderName(experiment, f"{where}: its experiment"), arm, cell.seed)
        advice = f"; train it with `sorl run experiments/{experiment}.toml`"
    else:
        known = f"arms: {', '.join(arms)}; an arm of another experiment is written EXPERIMENT/ARM"
        raise InputError(f"{where} is no arm of this file{nearest(source, arms)}; {known}")
    waiting = f"'{cell.arm}' seed {cell.seed} waits for {source} seed {cell.seed}{advice}"
    return _SourceRun(folder, "" if folder else waiting)


def _finished_run(cell: Cell, history: History) -> Path | None:
    past = history.past(cell)
    return None if past is None else past.folder


def _matched_learning_rate(cell: Cell, source: Path, path: Path) -> float:
    """Return the learning rate of a cell times the mean stabiliser factor of its source."""
    factor = mean_factor(source)
    if factor is None:
        where = _match_of(cell, path)
        raise InputError(f"{where}: its run with seed {cell.seed} has recorded no stabiliser_factor")
    return float(f"{cell.settings.learn.policy.lr * factor:.6g}")


def _match_of(cell: Cell, path: Path) -> str:
    return f"{path}, arm '{cell.arm}': match = '{cell.settings.match}'"


def _searched(grid: Grid, file: GridFile, series: Sequence[Arm], maker: _CellMaker, history: History) -> Grid:
    """Return the grid with the cells that its search has done and asks for now."""
    settings = file.region
    assert settings is not None
    _check_searched(settings, file, series, grid.path)
    numbers = {key: values for key, values in file.axes.items() if _numeric(values)}
    columns, neighbours = conditions(numbers)
    varying = [key for key, values in numbers.items() if len(values) > 1]
    trials = _Trials(grid.seeds, settings, series, columns, varying, maker, history)
    trials.check_columns()
    rule = _rule_of(settings, len(grid.seeds))
    progress = search(len(series), neighbours, rule, trials.outcome, trials.seconds)
    region = Region(
        settings=settings,
        series=tuple(series),
        columns=columns,
        neighbours=neighbours,
        rule=rule,
        progress=progress,
        unjudged=sum(map(trials.is_unjudged, progress.now)),
    )
    cells = tuple(map(trials.cell, (*progress.done, *progress.now)))
    return _without_doubles(replace(grid, cells=cells, region=region))


def _rule_of(settings: RegionSettings, seeds: int) -> Rule:
    seconds = None if settings.minutes is None else 60 * settings.minutes
    is_full = settings.search == "full"
    return Rule(len(settings.lattice), seeds, settings.probes, is_full, settings.runs, seconds)


def _check_searched(settings: RegionSettings, file: GridFile, series: Sequence[Arm], path: Path) -> None:
    """Raise InputError where the searched setting is unknown, an axis, or set by an arm."""
    along = settings.along
    check_key(along, f"[region] of {path}")
    if along in file.axes:
        twice = f"'{along}' is searched ([region] along) and an axis at once"
        raise InputError(f"{path}: {twice}; delete the axis")
    _refuse_setting(series, along, "is searched", path)
    _refuse_setting(series, "match", "a region cannot have: its learning rate is searched", path)


def _refuse_setting(arms: Sequence[Arm], key: str, why: str, path: Path) -> None:
    for arm in arms:
        if key in arm.choices:
            raise InputError(f"{path}: arm '{arm.label}' sets '{key}', which {why}; delete it from the arm")


class _Trials:
    """The cells of a search, each made once, and what is recorded of them."""

    def __init__(
        self,
        seeds: Sequence[int],
        settings: RegionSettings,
        series: Sequence[Arm],
        columns: Sequence[Mapping[str, Any]],
        varying: Sequence[str],  # axes with several values, which are part of a label
        maker: _CellMaker,
        history: History,
    ) -> None:
        self._seeds = seeds
        self._along = settings.along
        self._values = settings.lattice
        self._series = series
        self._columns = columns
        self._varying = varying
        self._maker = maker
        self._history = history
        self._cells: dict[Trial, Cell] = {}

    def check_columns(self) -> None:
        """Raise InputError for a mistake in an arm now, not when its column begins."""
        for arm, column in itertools.product(range(len(self._series)), range(len(self._columns))):
            self.cell(Trial(arm, column, 0, 0))

    def cell(self, trial: Trial) -> Cell:
        """Return the cell of a trial, its label such as `ppo · staleness 16 · policy.lr 0.1`."""
        if trial not in self._cells:
            arm = self._series[trial.arm]
            value = self._values[trial.point]
            choices = {**arm.choices, **self._columns[trial.column], self._along: value}
            varying = {key: choices[key] for key in (*self._varying, self._along)}
            label = arm_label(arm.label, varying)
            seed = self._seeds[trial.seed]
            self._cells[trial] = self._maker.cell(Arm(label, choices, arm.control), seed)
        return self._cells[trial]

    def outcome(self, trial: Trial) -> bool | None:
        """Return whether a finished run collapsed; None for an unfinished or unjudged one."""
        past = self._history.past(self.cell(trial))
        return None if past is None else past.collapsed

    def seconds(self, trial: Trial) -> float:
        """Return how long a finished run was trained; 0 for an unfinished one."""
        past = self._history.past(self.cell(trial))
        return past.seconds if past else 0.0

    def is_unjudged(self, trial: Trial) -> bool:
        """Whether a run is finished, but too short for the collapse rule."""
        past = self._history.past(self.cell(trial))
        return past is not None and past.collapsed is None


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _by_label(arms: Sequence[Arm], path: Path) -> dict[str, Arm]:
    """Return the arms by label. Raises InputError for two that would share a folder."""
    folders: dict[str, Arm] = {}
    for arm in arms:
        same = folders.setdefault(slug(arm.label), arm)
        if same is not arm:
            called = f"two arms of {path} are called '{same.label}' and '{arm.label}'"
            raise InputError(f"{called} and would share a folder name; give each its own")
    return {arm.label: arm for arm in arms}


def _without_doubles(grid: Grid) -> Grid:
    """Return the grid. Raises InputError where two cells are the same run."""
    by_hash: dict[str, Cell] = {}
    for cell in grid.cells:
        same = by_hash.setdefault(cell.config_hash, cell)
        if same is not cell and same.arm == cell.arm:
            raise InputError(f"seed {cell.seed} stands twice in 'seeds' of {grid.path}; delete one")
        if same is not cell:
            raise InputError(
                f"arms '{same.arm}' and '{cell.arm}' of {grid.path} are the same run; delete one"
            )
    return grid

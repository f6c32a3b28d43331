"""A grid file becomes cells: crossed, resolved, hashed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from workbench.grid.cell import Cell, arm_label, config_hash, run_id, slug
from workbench.grid.document import grid_file, known_key, override, parse, read, resolved
from workbench.grid.history import History
from workbench.grid.keys import expand, flatten, merge
from workbench.grid.matched import Waiting, matched
from workbench.grid.region import Region, Series, grow, series_of
from workbench.learn.faults.declared import check
from workbench.objective import Algorithm
from workbench.spec import GridFile, InputError, RunSettings, nearest

MOST_ARMS, MOST_CELLS = 500, 5000
Resolve = Callable[[str | dict[str, Any], dict[str, Any]], Algorithm]


@dataclass(frozen=True)
class Grid:
    """A grid file, read and resolved; the cells stand in the order of their runs: all arms of a seed, then the next.

    Where cells depend on what others recorded, these are the ones that are known: load it again once they are over.
    """

    experiment: str
    path: Path
    question: str
    toml: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    region: Region | None = None  # the search, of an experiment of kind region
    waiting: tuple[Waiting, ...] = ()  # cells that cannot be made before another run is finished

    @property
    def arms(self) -> tuple[str, ...]:
        """The labels of the arms, in the order of the file."""
        return tuple(dict.fromkeys(cell.arm for cell in self.cells))


@dataclass(frozen=True)
class _Arm:
    label: str
    choices: dict[str, Any]  # dotted keys
    control: bool


_Named = TypeVar("_Named", _Arm, Series)


def load(
    path: Path,
    overrides: Sequence[str] = (),
    resolve: Resolve | None = None,
    history: History | None = None,
    only: Sequence[str] = (),
) -> Grid:
    """Read a grid file and resolve its cells; every mistake in it is an InputError that names file and key.

    `overrides` are `key=value` in TOML's syntax: they change the base; `seeds=[0]` and `axes.KEY=[...]` change the
    file's own lists. `resolve` looks algorithms up (and checks their group size); without it only names are carried.
    `history` is what recorded runs say, for a search and for matched learning rates; without it nothing has run.
    `only` are the arms to make cells of, by name; all without it.
    """
    text = read(path)
    document = override(parse(text, path), overrides)
    file = grid_file(document, path)
    _refuse_many(file, path)
    base = expand(file.base, f"[base] of {path}")
    _refuse_seed(base, path)
    experiment = _experiment(path)
    grid = Grid(experiment, path, file.question, text, tuple(file.seeds), ())

    def cell(arm: _Arm, seed: int) -> Cell:
        return _cell(experiment, arm, seed, base, path, resolve)

    if file.region is not None:
        return _searched(grid, file, base, cell, history, only)
    arms = [*_crossed(file, base, path), *_controls(file, path)]
    _refuse_same_name(arms, path)
    return _listed(grid, arms, cell, history, only)


def _listed(
    grid: Grid, arms: Sequence[_Arm], cell: Callable[[_Arm, int], Cell], history: History | None, only: Sequence[str]
) -> Grid:
    """The grid with every cell of its arms, but for those that wait for another run's factor."""
    chosen = _chosen(arms, only, grid.path)
    sources = {arm.label: partial(cell, arm) for arm in arms}
    cells: list[Cell] = []
    waiting: list[Waiting] = []
    for seed, arm in itertools.product(grid.seeds, chosen):
        made = cell(arm, seed)
        if made.settings.match is not None:
            lr = matched(made, sources, history, f"{grid.path}, arm '{arm.label}'")
            if isinstance(lr, Waiting):
                waiting.append(lr)
                continue
            made = cell(replace(arm, choices={**arm.choices, "learn.policy.lr": lr}), seed)
        cells.append(made)
    _refuse_same_cell(cells, grid.path)
    return replace(grid, cells=tuple(cells), waiting=tuple(waiting))


def _searched(
    grid: Grid,
    file: GridFile,
    base: Mapping[str, Any],
    cell: Callable[[_Arm, int], Cell],
    history: History | None,
    only: Sequence[str],
) -> Grid:
    """The grid of a region: the cells of the search as far as it has come."""
    path = grid.path
    assert file.region is not None
    for key in (*file.axes, file.region.along):
        known_key(key, f"[axes] and [region] of {path}")
    _refuse_empty(file, path)
    controls = [(arm.label, arm.choices) for arm in _controls(file, path)]
    algorithm = base.get("algorithm", RunSettings.model_fields["algorithm"].default)
    series = series_of(file, algorithm, controls)
    _refuse_same_name([_Arm(arm.label, arm.choices, arm.control) for arm in series], path)
    series = _chosen(series, only, path)

    def make(label: str, choices: dict[str, Any], control: bool, seed: int) -> Cell:
        return cell(_Arm(label, choices, control), seed)

    try:
        region, cells = grow(file, series, grid.seeds, make, history)
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    _refuse_same_cell(cells, path)
    return replace(grid, cells=tuple(cells), region=region)


def _refuse_many(file: GridFile, path: Path) -> None:
    """Before any is made: each is resolved and hashed, and every arm is compared with every other."""
    crossed = math.prod(len(values) for values in file.axes.values())
    arms = crossed + len(file.arms)
    if arms > MOST_ARMS or arms * len(file.seeds) > MOST_CELLS:
        raise InputError(
            f"{path} asks for {arms * len(file.seeds):,} cells ({crossed:,} combinations of its axes, {len(file.arms)} "
            f"named arms, {len(file.seeds)} seeds); a grid has at most {MOST_ARMS:,} arms and {MOST_CELLS:,} cells: "
            "split it into several files"
        )


def _refuse_seed(table: Mapping[str, Any], path: Path) -> None:
    if "seed" in table:
        raise InputError(
            f"'seed' in {path} is no setting of one cell: seeds are crossed; write seeds = [{table['seed']}] at the top"
        )


def _crossed(file: GridFile, base: Mapping[str, Any], path: Path) -> list[_Arm]:
    if file.arms and not file.axes:
        return []
    for key, values in file.axes.items():
        known_key(key, f"[axes] of {path}")
        _refuse_seed({"seed": values} if key == "seed" else {}, path)
    _refuse_empty(file, path)
    algorithm = base.get("algorithm", RunSettings.model_fields["algorithm"].default)
    arms = []
    for combination in itertools.product(*file.axes.values()):
        choices = dict(zip(file.axes, combination, strict=True))
        varying = {key: value for key, value in choices.items() if len(file.axes[key]) > 1}
        arms.append(_Arm(arm_label(choices.get("algorithm", algorithm), varying), choices, control=False))
    return arms


def _refuse_empty(file: GridFile, path: Path) -> None:
    for key, values in file.axes.items():
        if not values:
            raise InputError(f"axis '{key}' in {path} is empty; give it at least one value or delete it")


def _controls(file: GridFile, path: Path) -> list[_Arm]:
    controls = []
    for arm in file.arms:
        where = f"arm '{arm.name}' of {path}"
        choices = flatten(expand(arm.model_extra or {}, where))
        for key in choices:
            known_key(key, where)
        _refuse_seed(choices, path)
        controls.append(_Arm(arm.name, choices, control=True))
    return controls


def _chosen(arms: Sequence[_Named], only: Sequence[str], path: Path) -> list[_Named]:
    """The arms of these names in the order of the file, all without names; InputError for one that is not there."""
    labels = [arm.label for arm in arms]
    for name in only:
        if name not in labels:
            raise InputError(f"no arm '{name}' in {path}{nearest(name, labels)}; arms: {'; '.join(labels)}")
    return [arm for arm in arms if not only or arm.label in only]


def _refuse_same_name(arms: Iterable[_Arm], path: Path) -> None:
    seen: dict[str, str] = {}
    for arm in arms:
        if arm.label in seen.values():
            raise InputError(f"two arms of {path} are called '{arm.label}'; give each its own name")
        if (same := seen.get(slug(arm.label))) is not None:
            raise InputError(f"arms '{same}' and '{arm.label}' of {path} would share a folder name; rename one")
        seen[slug(arm.label)] = arm.label


def _cell(experiment: str, arm: _Arm, seed: int, base: Mapping[str, Any], path: Path, resolve: Resolve | None) -> Cell:
    where = f"{path}, arm '{arm.label}'"
    given = merge(merge(base, expand(arm.choices, where)), {"seed": seed})
    settings = resolved(given, f"{path}", arm=arm.label if arm.choices else None)
    name = settings.algorithm if isinstance(settings.algorithm, str) else str(settings.algorithm.get("base", "ppo"))
    if resolve is not None:
        try:
            algorithm = resolve(settings.algorithm, settings.slots)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        name = algorithm.name
        if algorithm.needs_reference and not settings.learn.reference:
            raise InputError(f"{where}: the KL term of {name} needs a reference policy; set learn.reference = true")
        _check_fault(settings, algorithm, where)
        group = settings.learn.group_size or algorithm.group_size
        if settings.learn.episodes % group:
            raise InputError(
                f"{where}: {name} samples groups of {group} rollouts, which do not divide learn.episodes = "
                f"{settings.learn.episodes}; set learn.group_size or learn.episodes"
            )
    digest = config_hash(settings)
    return Cell(
        experiment=experiment,
        arm=arm.label,
        algorithm=name,
        seed=seed,
        settings=settings,
        config_hash=digest,
        run_id=run_id(experiment, arm.label, seed, digest),
        choices=arm.choices,
        control=arm.control,
    )


def _check_fault(settings: RunSettings, algorithm: Algorithm, where: str) -> None:
    try:
        check(settings, algorithm)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _refuse_same_cell(cells: Sequence[Cell], path: Path) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        same = seen.get(cell.config_hash)
        if same is not None and same.arm == cell.arm:
            raise InputError(f"seed {cell.seed} stands twice in 'seeds' of {path}; delete one")
        if same is not None:
            raise InputError(f"arms '{same.arm}' and '{cell.arm}' of {path} are the same run; delete one")
        seen[cell.config_hash] = cell


def _experiment(path: Path) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", path.stem):
        raise InputError(
            f"the file's name is the experiment's name: rename {path.name} to {slug(path.stem)}.toml "
            f"(letters, digits, '-', '_', '.')"
        )
    return path.stem

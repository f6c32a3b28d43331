"""A grid file becomes cells: read, changed by --set, checked, crossed, resolved, hashed; a mistake is an
InputError.
"""

import itertools
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sorl.algorithms import resolve
from sorl.grid.cell import (
    Arm,
    Cell,
    algorithm_label,
    arm_label,
    expand,
    flatten,
    merge,
    settings_keys,
)
from sorl.grid.folder import History, mean_factor, newest_start
from sorl.grid.fork import check_guard
from sorl.grid.search import Region, Rule, Trial, conditions, search
from sorl.learn.faults import check
from sorl.objective import Algorithm
from sorl.spec import GridFile, InputError, RunSettings, nearest
from sorl.spec.files import MIB, from_toml, read_text
from sorl.spec.names import FolderName, slug

MOST_ARMS = 500
MOST_CELLS = 5000
_MISTAKES = 10  # listed of one file
_QUOTED = 200  # characters of a wrong value
_EXAMPLES = {
    "question": 'question = "What does this grid find out?"',
    "name": 'name = "ppo, gradient clipping"',
}
Make = Callable[[Arm, int], Cell]


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
    text = _read(path)
    history = history or History(Path(os.devnull))
    file = _parse(text, overrides, path)
    arms = math.prod(map(len, file.axes.values())) + len(file.arms)
    seeds = len(file.seeds)
    if arms > MOST_ARMS or arms * seeds > MOST_CELLS:  # before any cell is made: each is resolved and hashed
        most = f"at most {MOST_ARMS:,} arms and {MOST_CELLS:,} cells: split it into several files"
        raise InputError(f"{path} asks for {arms:,} arms and {arms * seeds:,} cells; a grid has {most}")
    experiment = FolderName(path.stem, f"{path} cannot be run: its name is the experiment's, and")
    base = expand(file.base, f"[base] of {path}")
    if "seed" in base:
        _known_key("seed", str(path))
    for key, values in file.axes.items():
        _known_key(key, f"[axes] of {path}")
        if not values:
            raise InputError(f"axis '{key}' in {path} is empty; give it at least one value or delete it")
    # The numbers of a region are its columns, and tell no arms apart.
    axes = {key: values for key, values in file.axes.items() if file.region is None or not _numeric(values)}
    every: list[Arm] = []
    for combination in itertools.product(*axes.values()) if axes or not file.arms else ():
        choices = dict(zip(axes, combination, strict=True))
        varying = {key: value for key, value in choices.items() if len(axes[key]) > 1}
        default = base.get("algorithm", RunSettings.model_fields["algorithm"].default)
        label = algorithm_label(choices.get("algorithm", default))
        every.append(Arm(arm_label(label, varying), choices))
    for given in file.arms:
        where = f"arm '{given.name}' of {path}"
        choices = flatten(expand(given.model_extra or {}, where))
        for key in choices:
            _known_key(key, where)
        every.append(Arm(given.name, choices, control=True))
    by_label = _by_label(every, path)
    for name in only:
        if name not in by_label:
            raise InputError(
                f"no arm '{name}' in {path}{nearest(name, by_label)}; arms: {'; '.join(by_label)}"
            )
    chosen = [arm for arm in every if not only or arm.label in only]
    resolved: dict[str, tuple[RunSettings, Algorithm]] = {}  # of each arm, once for all its seeds

    def make(arm: Arm, seed: int) -> Cell:
        if arm.label not in resolved:
            resolved[arm.label] = _resolved(base, arm, path)
        settings, algorithm = resolved[arm.label]
        return Cell(
            experiment, arm.label, seed, settings.model_copy(update={"seed": seed}), algorithm, arm.control
        )

    grid = Grid(experiment, path, file.question, text, tuple(file.seeds))
    if file.region is not None:
        return _searched(grid, file, chosen, make, history)
    cells: list[Cell] = []
    waiting: list[str] = []
    for seed, arm in itertools.product(grid.seeds, chosen):
        cell = make(arm, seed)
        if cell.settings.match is not None:
            lr = _matched(cell, by_label, make, history, path)
            if isinstance(lr, str):
                waiting.append(lr)
                continue
            settings, _ = _resolved(base, replace(arm, choices={**arm.choices, "learn.policy.lr": lr}), path)
            cell = replace(cell, settings=settings.model_copy(update={"seed": seed}))
        cells.append(cell)
    return _without_doubles(replace(grid, cells=tuple(cells), waiting=tuple(waiting)))


def _resolved(base: Mapping[str, Any], arm: Arm, path: Path) -> tuple[RunSettings, Algorithm]:
    where = f"{path}, arm '{arm.label}'"
    try:
        named = merge(base, expand(arm.choices, where))
        settings = RunSettings.model_validate(merge(_defaults(named), named))
    except ValidationError as error:
        raise _mistakes(error, path, f" (arm '{arm.label}')" if arm.choices else "") from None
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
    return settings, algorithm


def _defaults(named: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting as it is where a file does not name it; a `model` has some of its own."""
    model = named.get("model")
    return (RunSettings(model=model) if isinstance(model, str) else RunSettings()).model_dump()


def _matched(cell: Cell, arms: Mapping[str, Arm], make: Make, history: History, path: Path) -> float | str:
    """Return the learning rate of a cell with `match`, its own times the factor of its source; or what it
    waits for.
    """
    source = str(cell.settings.match)
    where = f"{path}, arm '{cell.arm}': match = '{cell.settings.match}'"
    experiment, _, arm = source.partition("/")
    if source in arms:
        other = make(arms[source], cell.seed)
        if other.settings.match is not None:
            raise InputError(f"{where} is matched itself; name the arm that it follows")
        folder = past.folder if (past := history.past(other)) else None
    elif arm:
        folder = history.elsewhere(FolderName(experiment, f"{where}: its experiment"), arm, cell.seed)
    else:
        known = f"arms: {', '.join(arms)}; an arm of another experiment is written EXPERIMENT/ARM"
        raise InputError(f"{where} is no arm of this file{nearest(source, arms)}; {known}")
    if folder is None:
        train = "" if source in arms else f"; train it with `sorl run experiments/{experiment}.toml`"
        return f"'{cell.arm}' seed {cell.seed} waits for {source} seed {cell.seed}{train}"
    if (factor := mean_factor(folder)) is None:
        raise InputError(f"{where}: its run with seed {cell.seed} has recorded no stabiliser_factor")
    return float(f"{cell.settings.learn.policy.lr * factor:.6g}")


def _searched(grid: Grid, file: GridFile, series: Sequence[Arm], make: Make, history: History) -> Grid:
    settings = file.region
    path = grid.path
    assert settings is not None
    _known_key(settings.along, f"[region] of {path}")
    if settings.along in file.axes:
        twice = f"'{settings.along}' is searched ([region] along) and an axis at once"
        raise InputError(f"{path}: {twice}; delete the axis")
    for key, why in (
        (settings.along, "is searched"),
        ("match", "a region cannot have: its learning rate is searched"),
    ):
        for arm in series:
            if key in arm.choices:
                raise InputError(
                    f"{path}: arm '{arm.label}' sets '{key}', which {why}; delete it from the arm"
                )
    numbers = {key: values for key, values in file.axes.items() if _numeric(values)}
    values = settings.lattice
    columns, neighbours = conditions(numbers)
    several = [key for key, given in numbers.items() if len(given) > 1]

    @cache
    def cell(trial: Trial) -> Cell:
        arm = series[trial.arm]
        choices = {**arm.choices, **columns[trial.column], settings.along: values[trial.point]}
        varying = {key: choices[key] for key in (*several, settings.along)}
        label = arm_label(arm.label, varying)  # ppo · staleness 16 · policy.lr 0.1
        return make(Arm(label, choices, arm.control), grid.seeds[trial.seed])

    def outcome(trial: Trial) -> bool | None:
        past = history.past(cell(trial))
        return None if past is None else past.collapsed

    def seconds(trial: Trial) -> float:
        past = history.past(cell(trial))
        return past.seconds if past else 0.0

    for place in itertools.product(range(len(series)), range(len(columns))):
        cell(Trial(*place, 0, 0))  # a mistake in an arm is reported now, not when its column begins
    limit = None if settings.minutes is None else 60 * settings.minutes
    full = settings.search == "full"
    rule = Rule(len(values), len(grid.seeds), settings.probes, full, settings.runs, limit)
    progress = search(len(series), neighbours, rule, outcome, seconds)
    unjudged = sum(history.past(cell(t)) is not None and outcome(t) is None for t in progress.now)
    region = Region(settings, tuple(series), columns, neighbours, rule, progress, unjudged)
    found = tuple(cell(trial) for trial in (*progress.done, *progress.now))
    return _without_doubles(replace(grid, cells=found, region=region))


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _by_label(arms: Sequence[Arm], path: Path) -> dict[str, Arm]:
    folders: dict[str, Arm] = {}
    for arm in arms:
        same = folders.setdefault(slug(arm.label), arm)
        if same is not arm:
            called = f"two arms of {path} are called '{same.label}' and '{arm.label}'"
            raise InputError(f"{called} and would share a folder name; give each its own")
    return {arm.label: arm for arm in arms}


def _without_doubles(grid: Grid) -> Grid:
    seen: dict[str, Cell] = {}
    for cell in grid.cells:
        same = seen.setdefault(cell.config_hash, cell)
        if same is not cell and same.arm == cell.arm:
            raise InputError(f"seed {cell.seed} stands twice in 'seeds' of {grid.path}; delete one")
        if same is not cell:
            raise InputError(
                f"arms '{same.arm}' and '{cell.arm}' of {grid.path} are the same run; delete one"
            )
    return grid


def _read(path: Path) -> str:
    try:
        return read_text(path, MIB)
    except OSError as error:
        siblings = sorted(map(str, (path if path.is_dir() else path.parent).glob("*.toml")))
        listed = f"; there is: {', '.join(siblings)}" if siblings else ""
        why = (error.strerror or str(error)).lower()
        raise InputError(f"no grid file {path}{nearest(str(path), siblings)}: {why}{listed}") from None


def _parse(text: str, overrides: Sequence[str], path: Path) -> GridFile:
    try:
        document = from_toml(text)
    except ValueError as error:
        end = f"(at line {len(text.splitlines())}, the end of the file)"
        raise InputError(
            f"{path} is not valid TOML: {str(error).replace('(at end of document)', end)}"
        ) from None
    for override in overrides:
        key, value = option(override)
        axes = document.get("axes", {})
        base = document.get("base", {})
        axes = flatten(axes) if isinstance(axes, dict) else {}
        if key == "seeds":
            document["seeds"] = value
        elif key.startswith("axes."):
            document["axes"] = {**axes, key.removeprefix("axes."): value}
        elif key in axes:
            raise InputError(
                f"--set {key}: '{key}' is an axis of this grid; change it by --set 'axes.{key}=[...]'"
            )
        else:
            _known_key(key, "--set")
            if isinstance(base, dict):
                document["base"] = merge(expand(base, "[base]"), expand({key: value}, "--set"))
    try:
        if isinstance(document.get("axes"), dict):
            document["axes"] = flatten(document["axes"])
        return GridFile.model_validate(document)
    except ValidationError as error:
        raise _mistakes(error, path, of_file=True) from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def option(text: str, example: str = "learn.staleness=8", name: str = "--set") -> tuple[str, Any]:
    """Parse `key=value` of the option `name`, the value in TOML; a bare word is text, as quotes need quoting
    at a shell.
    """
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise InputError(f"{name} '{text}' is not key=value; write it like {name} {example}")
    try:
        return key, from_toml(f"value = {value}")["value"]
    except ValueError as error:
        if isinstance(error, tomllib.TOMLDecodeError) and re.sub(r"[-_.]", "", value).isalnum():
            return key, value
        form = "write numbers as 0.1, text as '\"text\"', lists as [0, 8]"
        raise InputError(f"{name} {key}: the value is not TOML ({error}); {form}") from None


def _known_key(key: str, where: str) -> None:
    if key == "seed":
        words = "seeds are crossed; write them at the top as seeds = [0, 1]"
        raise InputError(f"'seed' in {where} is no setting of one cell: {words}")
    if key.startswith("slots.") or any(
        known == key or known.startswith(f"{key}.") for known in settings_keys()
    ):
        return
    if key.startswith("algorithm."):
        slot = key.removeprefix("algorithm.")
        raise InputError(
            f"unknown key '{key}' in {where}; to set one slot of any algorithm write 'slots.{slot}'"
        )
    raise InputError(f"unknown key '{key}' in {where}{_suggestion(key)}")


def _suggestion(key: str) -> str:
    """` (did you mean 'learn.epochs'?)`: the nearest setting, by its full name or by its last part alone."""
    by_last = {known.rsplit(".", 1)[-1]: known for known in settings_keys()}
    close = get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1)
    return nearest(key, settings_keys()) or (f" (did you mean '{by_last[close[0]]}'?)" if close else "")


def _mistakes(error: ValidationError, path: Path, arm: str = "", of_file: bool = False) -> InputError:
    """Return the first mistakes, a line each: to find the nearest name for each of a thousand
    takes minutes.
    """
    found = error.errors()
    lines = dict.fromkeys(_explain(one, str(path), of_file) + arm for one in found[:_MISTAKES])
    return InputError("\n".join([*lines, *["and more; correct these first"][: len(found) > _MISTAKES]]))


def _explain(error: ErrorDetails, where: str, of_file: bool) -> str:
    """Say what pydantic found wrong in the words of the file: in its tables, or in the settings of a run."""
    key = ".".join(map(str, error["loc"]))
    kind = error["type"]
    message = error["msg"]
    given = repr(error["input"])
    given = given if len(given) <= _QUOTED else f"{given[:_QUOTED]} ..."
    if kind == "extra_forbidden" and not of_file:
        return f"unknown key '{key}' in {where}{_suggestion(key)}"
    if kind == "extra_forbidden" and any(known.split(".")[0] == key for known in settings_keys()):
        return (
            f"unknown key '{key}' at the top of {where}; settings of a run stand under [base]: write"
            f" 'base.{key}'"
        )
    if kind == "extra_forbidden":
        allowed = list(GridFile.model_fields)
        return (
            f"unknown key '{key}' in {where}{nearest(key, allowed)}; at the top are allowed:"
            f" {', '.join(allowed)}"
        )
    if kind == "missing":
        return f"{where} lacks '{key}'; write {_EXAMPLES.get(key.rsplit('.', 1)[-1], f'{key} = ...')}"
    if kind == "value_error":
        return f"{where}: {f'{key}: ' if key else ''}{message.removeprefix('Value error, ')}"
    if key.split(".")[0] == "algorithm":
        return f"'algorithm' in {where} must be a name or a table {{ base = \"ppo\", ... }}, got {given}"
    if kind == "model_type":
        message = "must be a table of settings"
    return f"'{key}' in {where}: {message.replace('Input should', 'must')}, got {given}"

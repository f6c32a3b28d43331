"""A grid file becomes cells: read, changed by --set, checked key by key, crossed, resolved, hashed.

Every mistake is an InputError that names the file, the key and what to write instead.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from workbench.grid.cell import (
    Arm,
    Cell,
    arm_label,
    config_hash,
    expand,
    flatten,
    merge,
    run_id,
    settings_keys,
    slug,
    suggestion,
)
from workbench.grid.history import History, Waiting, matched
from workbench.grid.search import Region, grow, series_of
from workbench.learn.faults import check
from workbench.objective import Algorithm
from workbench.spec import GridFile, InputError, RunSettings, nearest
from workbench.spec.files import MIB, from_toml, read_text

MOST_ARMS, MOST_CELLS = 500, 5000
_MISTAKES = 10  # listed of one file
_QUOTED = 200  # characters of a wrong value


Resolve = Callable[[str | dict[str, Any], dict[str, Any]], Algorithm]


@dataclass(frozen=True)
class Grid:
    """A grid file, read and resolved; cells are in the order of their runs: all arms of a seed, then the next seed.

    Where cells depend on what others recorded, these are the ones known so far: load the grid again when they are done.
    """

    experiment: str
    path: Path
    question: str
    toml: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    region: Region | None = None  # the search, of an experiment of kind region
    waiting: tuple[Waiting, ...] = ()  # cells whose settings depend on a run that is not finished

    @property
    def arms(self) -> tuple[str, ...]:
        """The labels of the arms, in the order of the file."""
        return tuple(dict.fromkeys(cell.arm for cell in self.cells))


def load(
    path: Path,
    overrides: Sequence[str] = (),
    resolve: Resolve | None = None,
    history: History | None = None,
    only: Sequence[str] = (),
) -> Grid:
    """Read a grid file and resolve its cells.

    `overrides` are `key=value` in TOML: they change the base; `seeds=[0]` and `axes.KEY=[...]` change the file's lists.
    `resolve` looks algorithms up and checks their group size; without it they are only names. `history` holds the
    recorded runs, for a search and for matched learning rates. `only` names the arms to make cells of; empty = all.
    """
    text = _read(path)
    file = _grid_file(_override(_parse(text, path), overrides), path)
    _refuse_many(file, path)
    base = expand(file.base, f"[base] of {path}")
    _refuse_seed(base, path)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", path.stem):
        raise InputError(
            f"the file's name is the experiment's name: rename {path.name} to {slug(path.stem)}.toml "
            f"(letters, digits, '-', '_', '.')"
        )
    grid = Grid(path.stem, path, file.question, text, tuple(file.seeds), ())
    make = partial(_cell, grid, base, resolve)
    for key, values in file.axes.items():
        known_key(key, f"[axes] of {path}")
        _refuse_seed({"seed": values} if key == "seed" else {}, path)
        if not values:
            raise InputError(f"axis '{key}' in {path} is empty; give it at least one value or delete it")
    algorithm = base.get("algorithm", RunSettings.model_fields["algorithm"].default)
    controls = [_control(arm.name, arm.model_extra or {}, path) for arm in file.arms]
    if file.region is not None:
        known_key(file.region.along, f"[region] of {path}")
        arms = _chosen(series_of(file, algorithm, controls), only, path)
        try:
            region, cells = grow(file, arms, grid.seeds, make, history)
        except InputError as error:
            raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        _refuse_same_cell(cells, path)
        return replace(grid, cells=tuple(cells), region=region)
    crossed = [] if file.arms and not file.axes else _crossed(file.axes, algorithm)
    return _listed_cells(grid, [*crossed, *controls], make, history, only)


def _listed_cells(
    grid: Grid, arms: Sequence[Arm], make: Callable[[Arm, int], Cell], history: History | None, only: Sequence[str]
) -> Grid:
    """Return the grid with every cell of its arms, except those that wait for the factor of another run."""
    chosen = _chosen(arms, only, grid.path)
    sources = {arm.label: partial(make, arm) for arm in arms}
    cells: list[Cell] = []
    waiting: list[Waiting] = []
    for seed, arm in itertools.product(grid.seeds, chosen):
        cell = make(arm, seed)
        if cell.settings.match is not None:
            lr = matched(cell, sources, history, f"{grid.path}, arm '{arm.label}'")
            if isinstance(lr, Waiting):
                waiting.append(lr)
                continue
            cell = make(replace(arm, choices={**arm.choices, "learn.policy.lr": lr}), seed)
        cells.append(cell)
    _refuse_same_cell(cells, grid.path)
    return replace(grid, cells=tuple(cells), waiting=tuple(waiting))


def _crossed(axes: Mapping[str, list[Any]], algorithm: Any) -> list[Arm]:
    arms = []
    for combination in itertools.product(*axes.values()):
        choices = dict(zip(axes, combination, strict=True))
        varying = {key: value for key, value in choices.items() if len(axes[key]) > 1}
        arms.append(Arm(arm_label(choices.get("algorithm", algorithm), varying), choices))
    return arms


def _control(name: str, given: Mapping[str, Any], path: Path) -> Arm:
    where = f"arm '{name}' of {path}"
    choices = flatten(expand(given, where))
    for key in choices:
        known_key(key, where)
    _refuse_seed(choices, path)
    return Arm(name, choices, control=True)


def _cell(grid: Grid, base: Mapping[str, Any], resolve: Resolve | None, arm: Arm, seed: int) -> Cell:
    where = f"{grid.path}, arm '{arm.label}'"
    given = merge(merge(base, expand(arm.choices, where)), {"seed": seed})
    settings = _resolved(given, f"{grid.path}", arm=arm.label if arm.choices else None)
    name = settings.algorithm if isinstance(settings.algorithm, str) else str(settings.algorithm.get("base", "ppo"))
    if resolve is not None:
        try:
            algorithm = resolve(settings.algorithm, settings.slots)
            check(settings, algorithm)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        name, group = algorithm.name, settings.learn.group_size or algorithm.group_size
        if algorithm.needs_reference and not settings.learn.reference:
            raise InputError(f"{where}: the KL term of {name} needs a reference policy; set learn.reference = true")
        if settings.learn.episodes % group:
            raise InputError(
                f"{where}: {name} samples groups of {group} rollouts, which do not divide learn.episodes = "
                f"{settings.learn.episodes}; set learn.group_size or learn.episodes"
            )
    digest = config_hash(settings)
    name_of_run = run_id(grid.experiment, arm.label, seed, digest)
    return Cell(
        grid.experiment, arm.label, name, seed, settings, digest, name_of_run, choices=arm.choices, control=arm.control
    )


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def _refuse_many(file: GridFile, path: Path) -> None:
    """Before any cell is made: each is resolved and hashed, and every arm is compared with every other."""
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


def _chosen(arms: Sequence[Arm], only: Sequence[str], path: Path) -> list[Arm]:
    """Return the arms of these names in the order of the file, all without names; InputError for an unknown one."""
    _refuse_same_name(arms, path)
    labels = [arm.label for arm in arms]
    for name in only:
        if name not in labels:
            raise InputError(f"no arm '{name}' in {path}{nearest(name, labels)}; arms: {'; '.join(labels)}")
    return [arm for arm in arms if not only or arm.label in only]


def _refuse_same_name(arms: Iterable[Arm], path: Path) -> None:
    seen: dict[str, str] = {}
    for arm in arms:
        if arm.label in seen.values():
            raise InputError(f"two arms of {path} are called '{arm.label}'; give each its own name")
        if (same := seen.get(slug(arm.label))) is not None:
            raise InputError(f"arms '{same}' and '{arm.label}' of {path} would share a folder name; rename one")
        seen[slug(arm.label)] = arm.label


def _refuse_same_cell(cells: Sequence[Cell], path: Path) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        same = seen.get(cell.config_hash)
        if same is not None and same.arm == cell.arm:
            raise InputError(f"seed {cell.seed} stands twice in 'seeds' of {path}; delete one")
        if same is not None:
            raise InputError(f"arms '{same.arm}' and '{cell.arm}' of {path} are the same run; delete one")
        seen[cell.config_hash] = cell


def known_key(key: str, where: str) -> None:
    """InputError, with the nearest one, for a key that is no setting of a run."""
    known = set(settings_keys())
    if key in known or key.startswith("slots.") or any(k.startswith(f"{key}.") for k in known):
        return
    if key.startswith("algorithm."):
        slot = key.removeprefix("algorithm.")
        raise InputError(f"unknown key '{key}' in {where}; to set one slot of any algorithm write 'slots.{slot}'")
    raise InputError(f"unknown key '{key}' in {where}{suggestion(key)}")


# ---------------------------------------------------------------------------------------------------------------------
# The text of the file


def _read(path: Path) -> str:
    try:
        return read_text(path, MIB)
    except (FileNotFoundError, NotADirectoryError):
        siblings = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        listed = f"; there is: {', '.join(siblings)}" if siblings else ""
        raise InputError(f"no grid file {path}{nearest(str(path), siblings)}{listed}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name a grid file in it, for example {path}/NAME.toml") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return from_toml(text)
    except ValueError as error:
        end = f"(at line {len(text.splitlines())}, the end of the file)"
        raise InputError(f"{path} is not valid TOML: {str(error).replace('(at end of document)', end)}") from None


def _override(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the document changed by `key=value`: its base, or its seeds and axes."""
    changed = dict(document)
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals or not key or not value.strip():
            raise InputError(f"--set '{override}' is not key=value; write it like --set learn.staleness=8")
        parsed = _value(value.strip(), key)
        axes = changed.get("axes", {})
        axes = flatten(axes) if isinstance(axes, dict) else {}
        if key == "seeds":
            changed["seeds"] = parsed
        elif key.startswith("axes."):
            changed["axes"] = {**axes, key.removeprefix("axes."): parsed}
        else:
            known_key(key, "--set")
            if key in axes:
                raise InputError(
                    f"--set {key}: '{key}' is an axis of this grid; write --set 'axes.{key}=[...]' to change the axis"
                )
            base = changed.get("base", {})
            if isinstance(base, dict):
                changed["base"] = merge(expand(base, "[base]"), expand({key: parsed}, "--set"))
    return changed


def _value(text: str, key: str) -> Any:
    try:
        return from_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    except ValueError as error:
        raise InputError(f"--set {key}: the value cannot be: {error}") from None
    # A bare word is what people type at a shell, where quotes need quoting.
    if not text.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(
            f"--set {key}={text}: the value is not TOML; write numbers as 0.1, text as '\"text\"', lists as [0, 8]"
        )
    return text


def _grid_file(document: dict[str, Any], path: Path) -> GridFile:
    if isinstance(document.get("axes"), dict):
        try:
            document = {**document, "axes": flatten(document["axes"])}
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    try:
        return GridFile.model_validate(document)
    except ValidationError as error:
        raise InputError(_mistakes(_explain_file(e, path) for e in error.errors())) from None


def _resolved(given: Mapping[str, Any], where: str, arm: str | None = None) -> RunSettings:
    """`given` merged over the defaults of a run and checked."""
    defaults = RunSettings().model_dump()
    try:
        return RunSettings.model_validate(merge(defaults, given))
    except ValidationError as error:
        suffix = f" (arm '{arm}')" if arm else ""
        raise InputError(_mistakes(f"{_explain(e, where)}{suffix}" for e in error.errors())) from None


def _mistakes(lines: Iterable[str]) -> str:
    """Return the first mistakes, a line each: to find the nearest name for each of a thousand takes minutes."""
    first = list(itertools.islice(dict.fromkeys(itertools.islice(lines, 3 * _MISTAKES)), _MISTAKES + 1))
    more = ["and more; correct these first"] if len(first) > _MISTAKES else []
    return "\n".join(first[:_MISTAKES] + more)


def _explain_file(error: ErrorDetails, path: Path) -> str:
    key = _dotted(error)
    if error["type"] == "extra_forbidden":
        known = list(GridFile.model_fields)
        if key in {k.split(".")[0] for k in settings_keys()}:
            return f"unknown key '{key}' at the top of {path}; settings of a run stand under [base]: write 'base.{key}'"
        return f"unknown key '{key}' in {path}{nearest(key, known)}; at the top are allowed: {', '.join(known)}"
    if error["type"] == "missing":
        hint = {"question": 'question = "What does this grid find out?"', "name": 'name = "ppo, gradient clipping"'}
        return f"{path} lacks '{key}'; write {hint.get(key.rsplit('.', 1)[-1], key + ' = ...')}"
    if error["type"] == "list_type" and key.startswith("axes."):
        given = json.dumps(error["input"], default=str)
        return f"'{key}' in {path} is {given}; an axis is a list: write [{given}]"
    return f"'{key}' in {path} {_must(error)}"


def _explain(error: ErrorDetails, where: str) -> str:
    key = _dotted(error)
    if error["loc"] and error["loc"][0] == "algorithm":
        given = _quoted(error["input"])
        return f"'algorithm' in {where} must be a name or a table {{ base = \"ppo\", ... }}, got {given}"
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}' in {where}{suggestion(key)}"
    if error["type"] == "value_error":
        return f"{where}: {f'{key}: ' if key else ''}{str(error['msg']).removeprefix('Value error, ')}"
    return f"'{key}' in {where} {_must(error)}"


def _must(error: ErrorDetails) -> str:
    message = str(error["msg"]).replace("Input should be", "must be").removesuffix(" after validation")
    if message.startswith("must be a valid dictionary or instance of"):
        message = "must be a table of settings"
    if not message.startswith("must"):
        message = f"is wrong: {message}"
    return f"{message}, got {_quoted(error['input'])}"


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]} ..."


def _dotted(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])

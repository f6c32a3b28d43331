"""What recorded runs say to a grid: outcomes, stabiliser factors, earlier starts and earlier settings of a cell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from workbench.grid.cell import COSMETIC, Cell, flatten, of_generation
from workbench.grid.folder import folder_of, held, last_row, read_identity, read_segments
from workbench.spec import COLLAPSED, UNDECIDED, InputError, nearest
from workbench.spec.files import MIB, from_toml, read_text

if TYPE_CHECKING:
    from workbench.grid.config import Grid

_MISSING = object()
_MANY = 6  # arms that a line lists


@dataclass(frozen=True)
class Past:
    """A finished run."""

    folder: Path
    outcome: str  # empty if it is too short for the collapse rule
    seconds: float  # of training

    @property
    def collapsed(self) -> bool | None:
        """Whether it collapsed or was falling at its end: a search continues below it. None if that is not known."""
        return self.outcome in (*COLLAPSED, *UNDECIDED) if self.outcome else None


class History:
    """The finished runs of a folder, each read once; with `since`, only those that ended later."""

    def __init__(self, runs: Path, since: datetime | None = None) -> None:
        self._runs, self._since = runs, since
        self._past: dict[str, Past] = {}

    def past(self, cell: Cell) -> Past | None:
        """Return how the newest start of the cell ended; None if it is not finished."""
        name = of_generation(cell, 1).run_id
        if name not in self._past:
            folder = folder_of(self._runs, of_generation(cell, max(1, last_generation(self._runs, cell))))
            row = last_row(folder)
            if row is None or row.get("status") != "finished":
                return None
            if self._since is not None and (row.get("ended_at") or datetime.min) < self._since:
                return None
            self._past[name] = Past(folder, row.get("outcome") or "", float(row.get("seconds") or 0.0))
        return self._past[name]

    def factor(self, cell: Cell) -> float | None:
        """Mean of `stabiliser_factor` over the updates of the cell's run; None if it is not finished."""
        past = self.past(cell)
        return None if past is None else _mean_factor(past.folder)

    def elsewhere(self, experiment: str, arm: str, seed: int) -> float | None:
        """Return the same for the newest finished run of an arm of another experiment; None without one."""
        found = []
        for folder in (self._runs / experiment).glob("*/"):
            names = read_identity(folder)
            if (names.get("arm"), names.get("seed")) == (arm, seed):
                row = last_row(folder)
                if row is not None and row.get("status") == "finished":
                    found.append((str(row.get("started_at") or ""), folder))
        return _mean_factor(max(found)[1]) if found else None


def _mean_factor(folder: Path) -> float | None:
    total, n = 0.0, 0
    for rows in read_segments(folder, "minibatch", ["stabiliser_factor"]):
        with suppress(pa.ArrowException, KeyError):  # text in the column, or no such column
            column = rows["stabiliser_factor"]
            total += float(pc.sum(column).as_py() or 0.0)
            n += len(column) - column.null_count
    return total / n if n else None


# ---------------------------------------------------------------------------------------------------------------------
# Learning rates that are matched run by run


@dataclass(frozen=True)
class Waiting:
    """A cell that cannot be made yet: the run whose factor it takes is not finished."""

    arm: str
    seed: int
    source: str  # arm of this file, or EXPERIMENT/ARM
    here: bool  # whether this grid trains the source

    def __str__(self) -> str:
        """`'ppo, matched' seed 3 waits for st-ppo seed 3`, and the command that trains a source of another grid."""
        text = f"'{self.arm}' seed {self.seed} waits for {self.source} seed {self.seed}"
        command = f"; train it with `sorl run experiments/{self.source.split('/')[0]}.toml`"
        return text if self.here else text + command


def matched(
    cell: Cell, sources: Mapping[str, Callable[[int], Cell]], history: History | None, where: str
) -> float | Waiting:
    """Return the learning rate of a cell with `match`: its own times the factor of its source; or what it waits for.

    `sources` makes the cell of each arm of the file for a seed. Raises InputError for a source that does not exist, is
    matched itself, or has recorded no factor.
    """
    source, seed = str(cell.settings.match), cell.seed
    here = source in sources
    if here:
        other = sources[source](seed)
        if other.settings.match is not None:
            raise InputError(f"{where}: match = '{source}' is matched itself; name the arm that it follows")
        factor = history.factor(other) if history else None
        if factor is None and history and history.past(other):
            raise InputError(f"{where}: the run of '{source}' seed {seed} has recorded no stabiliser_factor")
    else:
        experiment, slash, arm = source.partition("/")
        if not slash or not arm:
            raise InputError(
                f"{where}: match = '{source}' is no arm of this file{nearest(source, sources)}; arms: "
                f"{', '.join(sources)}; an arm of another experiment is written EXPERIMENT/ARM"
            )
        factor = history.elsewhere(experiment, arm, seed) if history else None
    if factor is None:
        return Waiting(cell.arm, seed, source, here)
    return float(f"{cell.settings.learn.policy.lr * factor:.6g}")


# ---------------------------------------------------------------------------------------------------------------------
# Starts from nothing


def last_generation(runs: Path, cell: Cell) -> int:
    """Return the number of the newest start of `cell` that has a folder; 0 without one."""
    first = of_generation(cell, 1).run_id
    name = re.compile(rf"{re.escape(first)}(?:-g(\d+))?")
    found = (name.fullmatch(f.name) for f in (runs / cell.experiment).glob(f"{first}*") if f.is_dir())
    return max((int(match[1] or 1) for match in found if match), default=0)


def newest(grid: Grid, runs: Path) -> Grid:
    """Return the grid with the newest start of every cell in `runs`."""
    return replace(grid, cells=tuple(of_generation(cell, max(1, last_generation(runs, cell))) for cell in grid.cells))


def fresh(grid: Grid, runs: Path) -> Grid:
    """Return the grid with a new start of every cell; InputError while one is being trained. Nothing is deleted."""
    cells = newest(grid, runs).cells
    folders = {cell.run_id: folder_of(runs, cell) for cell in cells}
    if busy := [name for name, folder in folders.items() if held(folder) or held(folder, "claim")]:
        raise InputError(f"--fresh cannot start over what another process trains: {', '.join(busy)}; stop it first")
    rows = {name: last_row(folder) for name, folder in folders.items()}
    unbegun = {name for name, row in rows.items() if row is None or row["status"] == "queued"}
    return replace(grid, cells=tuple(c if c.run_id in unbegun else of_generation(c, c.generation + 1) for c in cells))


# ---------------------------------------------------------------------------------------------------------------------
# Edited cells


def edits(runs: Path, cells: Sequence[Cell]) -> list[str]:
    """Return a line for every edit that makes cells new: the closest settings that ran under the same arm and seed.

    `cells` are those without a folder in `runs`.
    """
    before: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for arm, seed, settings in _recorded(runs, cells):
        before.setdefault((arm, seed), []).append(settings)
    changed: dict[str, list[Cell]] = {}
    for cell in cells:
        found = [_difference(old, cell) for old in before.get((cell.arm, cell.seed), [])]
        if found and all(found):  # else the same settings ran under another name: nothing was edited
            closest: list[str] = min(found, key=len)
            changed.setdefault("; ".join(closest), []).append(cell)
    return [f"{_arms_of(same)} ran before with {what}" for what, same in changed.items()]


def _recorded(runs: Path, cells: Sequence[Cell]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    new = {folder_of(runs, cell) for cell in cells}
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        for folder in sorted((runs / experiment).glob("*/")):
            names = {} if folder in new else read_identity(folder)
            if "arm" in names and "seed" in names:
                with suppress(OSError, ValueError):  # no settings, or unreadable ones: nothing to compare with
                    yield names["arm"], names["seed"], flatten(from_toml(read_text(folder / "config.toml", MIB)))


def _difference(old: dict[str, Any], cell: Cell) -> list[str]:
    new = flatten(cell.settings.model_dump(mode="json"))
    values = {
        key: (_in_words(old.get(key, _MISSING)), _in_words(new.get(key, _MISSING)))
        for key in dict.fromkeys([*new, *old])
        if key not in COSMETIC
    }
    return [f"{key} = {was}, now {is_now}" for key, (was, is_now) in values.items() if was != is_now]


def _in_words(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    # TOML has no null, so the recorded settings say "none" where these are None.
    return "none" if value in (None, "none") else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _arms_of(cells: Sequence[Cell]) -> str:
    """`ppo seeds 0, 1`: the arms, each with its seeds."""
    arms: dict[str, list[int]] = {}
    for cell in cells:
        arms.setdefault(cell.arm, []).append(cell.seed)
    names = [f"{arm} seed{'s' if len(s) > 1 else ''} {', '.join(map(str, s))}" for arm, s in arms.items()]
    return "; ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more arms" if len(names) > _MANY else "")

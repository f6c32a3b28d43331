"""What was edited since a cell ran: a cell with other settings is a new cell, and this names the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.grid.cell import COSMETIC, Cell
from workbench.grid.folder import folder_of, read_identity
from workbench.grid.keys import flatten
from workbench.spec.files import MIB, from_toml, read_text

_MISSING = object()
_MANY = 6  # names that a line lists


def edits(runs: Path, cells: Sequence[Cell]) -> list[str]:
    """A line for every edit that makes cells new: what ran under the same arm and seed, with other settings.

    `cells` are those that have not run yet in `runs`. The closest of the earlier settings is compared with.
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
    return [f"{_who(same)} ran before with {what}" for what, same in changed.items()]


def _recorded(runs: Path, cells: Sequence[Cell]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    new = {folder_of(runs, cell) for cell in cells}
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        for folder in sorted((runs / experiment).glob("*/")):
            who = {} if folder in new else read_identity(folder)
            if "arm" in who and "seed" in who:
                with suppress(OSError, ValueError):  # none, or none that can be read: nothing to compare with
                    yield who["arm"], who["seed"], flatten(from_toml(read_text(folder / "config.toml", MIB)))


def _difference(old: dict[str, Any], cell: Cell) -> list[str]:
    new = flatten(cell.settings.model_dump(mode="json"))
    lines = []
    for key in dict.fromkeys([*new, *old]):
        was, is_now = old.get(key, _MISSING), new.get(key, _MISSING)
        if key not in COSMETIC and _word(was) != _word(is_now):
            lines.append(f"{key} = {_word(was)}, now {_word(is_now)}")
    return lines


def _word(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    # TOML has no null, so the recorded settings say "none" where these are None.
    return "none" if value in (None, "none") else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _who(cells: Sequence[Cell]) -> str:
    """`ppo seeds 0, 1`: the arms, each with its seeds."""
    arms: dict[str, list[int]] = {}
    for cell in cells:
        arms.setdefault(cell.arm, []).append(cell.seed)
    names = [f"{arm} seed{'s' if len(s) > 1 else ''} {', '.join(map(str, s))}" for arm, s in arms.items()]
    return "; ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more arms" if len(names) > _MANY else "")

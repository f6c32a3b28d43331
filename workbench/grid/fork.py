"""Children of a run: what its state lets them change, and the next start of a cell whose guard rolled it
back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sorl.algorithms import resolve
from sorl.grid.cell import Cell, expand, merge
from sorl.learn.run import settings_of
from sorl.spec import InputError, RunSettings
from sorl.spec.rollback import Rollback

# What the state of a parent fixes.
FIXED = (
    "model",
    "prompt",
    "policy",
    "world",
    "warmstart",
    "seed",
    "iterations",
    "fork",
    "guard",
    "learn.episodes",
    "learn.group_size",
    "learn.old_log_prob",
    "learn.old_values",
    "learn.policy.kind",
    "learn.critic.kind",
)


def allowed(name: str, changes: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise InputError for a change that the parent's state does not fit."""
    for key in changes:
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED):
            raise InputError(f"arm '{name}' changes {key}, which cannot change in the middle of a run")
    slots = {k.removeprefix("slots."): v for k, v in changes.items() if k.startswith("slots.")}
    parent = resolve(settings.algorithm, settings.slots)
    child = resolve(
        changes.get("algorithm", settings.algorithm), {**settings.slots, **expand(slots, "the arm")}
    )
    if child.critic and not parent.critic:
        raise InputError(
            f"arm '{name}': '{child.name}' needs a critic, and the parent has none to go on with"
        )
    if name == "no-critic" and not parent.critic:
        raise InputError(f"arm '{name}': '{parent.name}' has no critic to drop")
    if child.group_size != parent.group_size:
        raise InputError(
            f"arm '{name}': '{child.name}' has other groups than the parent; its state does not fit"
        )


def check_guard(settings: RunSettings, where: str) -> None:
    """Raise InputError, beginning with `where`, for a change of the guard that a run cannot go on with."""
    if settings.guard is None:
        return
    changed = settings
    for number, change in enumerate(settings.guard.changes, start=1):
        name = f"change {number} of the guard"
        try:
            allowed(name, change, changed)
            changed = _changed(changed, change)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise InputError(f"{where}: {name}: {key}: {first['msg']}") from None
        except InputError as error:
            raise InputError(f"{where}: {str(error).replace('arm ', '', 1)}") from None


def next_start(cell: Cell, rollback: Rollback) -> Cell:
    """Return the start of a cell after a rollback: from that checkpoint, with one more change."""
    assert cell.settings.guard is not None
    fork = {
        "experiment": rollback.experiment,
        "run": rollback.run,
        "at_step": rollback.at_step,
        "seed": cell.settings.seed,
    }
    guarded = cell.settings.guard.model_copy(update={"done": rollback.number})
    settings = _changed(cell.settings, {**rollback.change, "fork": fork}).model_copy(
        update={"guard": guarded}
    )
    return replace(
        cell,
        settings=settings,
        resolved=resolve(settings.algorithm, settings.slots),
        generation=cell.generation + 1,
        own_hash=cell.config_hash,
    )


def rolled_back(cell: Cell, folder: Path) -> Cell:
    """Return a cell with the settings of its folder, where a rollback of an earlier start made them."""
    if cell.settings.guard is None or not (folder / "config.toml").is_file():
        return cell
    settings = settings_of(folder)
    if settings.guard is None or not settings.guard.done:
        return cell
    resolved = resolve(settings.algorithm, settings.slots)
    return replace(cell, settings=settings, resolved=resolved, own_hash=cell.config_hash)


def _changed(settings: RunSettings, change: Mapping[str, Any]) -> RunSettings:
    """Return settings with a change by dotted keys. Raises ValidationError for a wrong value."""
    table = json.loads(settings.model_dump_json())
    return RunSettings.model_validate(merge(table, expand(change, "the change")))

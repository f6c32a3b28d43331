"""A cell of a grid: one arm, one seed, everything resolved, and the names it goes by."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.grid.keys import flatten, short
from workbench.spec import COSMETIC as COSMETIC
from workbench.spec import CollapseSettings, RunSettings

# How runs were judged when their names were first made of it: a run that trains the same keeps its name.
_MEDIANS = {
    "collapse.window": 5, "collapse.baseline": 5, "collapse.severe": 0.5, "collapse.mild": 0.2, "collapse.points": 5,
    "collapse.sigmas": 3.0,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of a grid: what trains (`settings`), what it is called, what sets it apart (`choices`)."""

    experiment: str
    arm: str
    algorithm: str
    seed: int
    settings: RunSettings
    config_hash: str
    run_id: str
    choices: dict[str, Any] = field(default_factory=dict)  # dotted keys that the axes or the control set
    control: bool = False  # a named single change, not crossed with the axes
    generation: int = 1  # which time it is started from nothing


def config_hash(settings: RunSettings) -> str:
    """SHA-256 of the canonical JSON of the resolved settings (sorted keys) without the cosmetic ones."""
    flat = {k: v for k, v in flatten(settings.model_dump(mode="json")).items() if k not in COSMETIC}
    if settings.collapse == CollapseSettings():
        flat |= _MEDIANS
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def run_id(experiment: str, arm: str, seed: int, digest: str) -> str:
    """The name of the run's folder: arm, seed and eight digits that tell configuration and experiment apart.

    The experiment is part of the digits because a run belongs to one: two grids may share a control.
    """
    return f"{slug(arm)}-s{seed}-{hashlib.sha256(f'{experiment} {digest}'.encode()).hexdigest()[:8]}"


def of_generation(cell: Cell, generation: int) -> Cell:
    """The same cell at its n-th start from nothing, from 1; from the second on the run's name ends in `-g2`, ..."""
    first = re.sub(r"-g\d+$", "", cell.run_id)
    return replace(cell, generation=generation, run_id=first if generation == 1 else f"{first}-g{generation}")


def slug(text: str) -> str:
    """`text` as a file name: ASCII letters, digits, dots and single dashes."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+", "-", ascii_text).strip("-.").lower()[:80] or "run"


def algorithm_label(algorithm: str | dict[str, Any]) -> str:
    """An algorithm's name, or its base's with the changed options: `ppo (ratio turn arithmetic)`."""
    if not isinstance(algorithm, dict):
        return str(algorithm)
    changes = [f"{slot} {_value(value)}" for slot, value in algorithm.items() if slot != "base"]
    base = str(algorithm.get("base", "variant"))
    return f"{base} ({', '.join(changes)})" if changes else base


def arm_label(algorithm: str | dict[str, Any], varying: dict[str, Any]) -> str:
    """Algorithm and the values of the axes that vary: `ppo · staleness 8`."""
    values = [f"{short(key)} {_value(value)}" for key, value in varying.items() if key != "algorithm"]
    return " · ".join([algorithm_label(algorithm), *values])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return " ".join(_value(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return "/".join(_value(v) for v in value)
    return str(value)

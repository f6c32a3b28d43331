"""A cell of a grid, one arm with one seed: its resolved settings, its names, and dotted keys of settings.

`learn.staleness` and `[learn] staleness` are the same setting.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from workbench.spec import COSMETIC as COSMETIC
from workbench.spec import CollapseSettings, InputError, RunSettings, nearest

# Tables that are values, not groups of settings: an algorithm is replaced as a whole.
ATOMIC = ("algorithm",)
# How runs were judged when their names were first made of it: a run that trains the same keeps its name.
_MEDIANS = {
    "collapse.window": 5, "collapse.baseline": 5, "collapse.severe": 0.5, "collapse.mild": 0.2, "collapse.points": 5,
    "collapse.sigmas": 3.0,
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """What the seeds of an arm share: its name and the dotted keys that the axes or the control set."""

    label: str
    choices: dict[str, Any]
    control: bool = False  # a named single change, not crossed with the axes


@dataclass(frozen=True)
class Cell:
    """One run of a grid: what trains (`settings`), its names, and what sets it apart (`choices`)."""

    experiment: str
    arm: str
    algorithm: str
    seed: int
    settings: RunSettings
    config_hash: str
    run_id: str
    choices: dict[str, Any] = field(default_factory=dict)  # those of its arm
    control: bool = False
    generation: int = 1  # counts its starts from nothing


def config_hash(settings: RunSettings) -> str:
    """SHA-256 of the canonical JSON of the resolved settings (sorted keys) without the cosmetic ones."""
    flat = {k: v for k, v in flatten(settings.model_dump(mode="json")).items() if k not in COSMETIC}
    if settings.collapse == CollapseSettings():
        flat |= _MEDIANS
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def run_id(experiment: str, arm: str, seed: int, digest: str) -> str:
    """Return the name of the run's folder: arm, seed and eight digits of configuration and experiment.

    The experiment is in the digits because a run belongs to one: two grids may share a control.
    """
    return f"{slug(arm)}-s{seed}-{hashlib.sha256(f'{experiment} {digest}'.encode()).hexdigest()[:8]}"


def of_generation(cell: Cell, generation: int) -> Cell:
    """Return the same cell at its n-th start from nothing, from 1; from the second on its run id ends in `-g2`, ..."""
    first = re.sub(r"-g\d+$", "", cell.run_id)
    return replace(cell, generation=generation, run_id=first if generation == 1 else f"{first}-g{generation}")


def slug(text: str) -> str:
    """`text` as a file name: ASCII letters, digits, dots and single dashes."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+", "-", ascii_text).strip("-.").lower()[:80] or "run"


def algorithm_label(algorithm: str | dict[str, Any]) -> str:
    """Return an algorithm's name, or its base's with the changed options: `ppo (ratio turn arithmetic)`."""
    if not isinstance(algorithm, dict):
        return str(algorithm)
    changes = [f"{slot} {_short_value(value)}" for slot, value in algorithm.items() if slot != "base"]
    base = str(algorithm.get("base", "variant"))
    return f"{base} ({', '.join(changes)})" if changes else base


def arm_label(algorithm: str | dict[str, Any], varying: dict[str, Any]) -> str:
    """Algorithm and the values of the axes that vary: `ppo · staleness 8`."""
    values = [f"{short(key)} {_short_value(value)}" for key, value in varying.items() if key != "algorithm"]
    return " · ".join([algorithm_label(algorithm), *values])


def _short_value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return " ".join(_short_value(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return "/".join(_short_value(v) for v in value)
    return str(value)


def differing(arms: Mapping[str, RunSettings]) -> dict[str, dict[str, Any]]:
    """Dotted key -> arm -> value, for every setting but the seed that is not the same in all arms."""
    flat = {arm: flatten(settings.model_dump(mode="json", exclude={"seed"})) for arm, settings in arms.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    rows = {key: {arm: settings.get(key) for arm, settings in flat.items()} for key in keys}
    return {key: row for key, row in rows.items() if len({repr(value) for value in row.values()}) > 1}


# ---------------------------------------------------------------------------------------------------------------------
# Dotted keys


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; an atomic table (`algorithm`), an empty table and a list are values.

    Raises InputError for a key that is given twice, once dotted and once in a table.
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value and name not in ATOMIC
        for inner, leaf in (flatten(value, f"{name}.") if nested else {name: value}).items():
            if inner in flat:
                raise InputError(f"'{inner}' is given twice, once dotted and once in a table; keep one of them")
            flat[inner] = leaf
    return flat


def expand(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`{"learn.staleness": 8}` as `{"learn": {"staleness": 8}}`; InputError for a key that is given twice."""
    nested: dict[str, Any] = {}
    for key, value in flatten(table).items():
        *path, last = key.split(".")
        if not all((*path, last)):
            raise InputError(f"key '{key}' in {where} has an empty part; write it like 'learn.staleness'")
        node = nested
        for depth, part in enumerate(path, start=1):
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                given = ".".join(path[:depth])
                raise InputError(f"'{given}' in {where} is a value and a table ('{key}') at once; keep one of them")
        if last in node:
            raise InputError(f"'{key}' is given twice in {where}, once dotted and once in a table; keep one of them")
        node[last] = value
    return nested


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; the inputs stay as they are."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping) and key not in ATOMIC
        merged[key] = merge(under, value) if both else value  # type: ignore[arg-type]
    return merged


def settings_keys(model: type[BaseModel] = RunSettings, prefix: str = "") -> Iterator[str]:
    """Yield every setting of a run as a dotted key, in the order of the declaration."""
    for name, declared in model.model_fields.items():
        types = (declared.annotation, *get_args(declared.annotation))
        inner = [a for a in types if isinstance(a, type) and issubclass(a, BaseModel)]
        if inner:
            yield from settings_keys(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def suggestion(key: str) -> str:
    """` (did you mean 'learn.epochs'?)`: the nearest setting, by its full name or by its last part alone."""
    by_last: dict[str, list[str]] = {}
    for known in settings_keys():
        by_last.setdefault(known.rsplit(".", 1)[-1], []).append(known)
    last = key.rsplit(".", 1)[-1]
    if last in by_last:
        return f" (did you mean {' or '.join(repr(known) for known in by_last[last])}?)"
    if found := nearest(key, list(settings_keys())):
        return found
    close = nearest(last, by_last)
    return next((f" (did you mean '{known[-1]}'?)" for name, known in by_last.items() if f"'{name}'" in close), "")


@cache
def short(key: str) -> str:
    """Return the shortest ending of a dotted key that no other setting shares: `learn.staleness` -> `staleness`."""
    parts = key.split(".")
    if parts[0] == "slots":
        return ".".join(parts[1:]) or key
    known = set(settings_keys())
    for n in range(1, len(parts)):
        ending = ".".join(parts[-n:])
        if sum(k == ending or k.endswith(f".{ending}") for k in known) == 1:
            return ending
    return key

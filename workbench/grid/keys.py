"""Dotted keys: `learn.staleness` and `[learn] staleness` are the same setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from workbench.spec import InputError, RunSettings, nearest

# Tables that are values, not groups of settings: an algorithm is replaced as a whole.
ATOMIC = ("algorithm",)


def expand(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`{"learn.staleness": 8}` as `{"learn": {"staleness": 8}}`; a key given in both spellings is an InputError."""
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


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; an atomic table (`algorithm`), an empty table and a list are values.

    A key spelled twice stays twice visible to `expand`: the spelling of the file is kept as it is.
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in ATOMIC:
            for inner, leaf in flatten(value, f"{name}.").items():
                if inner in flat:
                    raise InputError(f"'{inner}' is given twice, once dotted and once in a table; keep one of them")
                flat[inner] = leaf
        elif name in flat:
            raise InputError(f"'{name}' is given twice, once dotted and once in a table; keep one of them")
        else:
            flat[name] = value
    return flat


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; the inputs stay as they are."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping) and key not in ATOMIC
        merged[key] = merge(under, value) if both else value  # type: ignore[arg-type]
    return merged


def settings_keys(model: type[BaseModel] = RunSettings, prefix: str = "") -> Iterator[str]:
    """Every setting of a run as a dotted key, in the order of the declaration."""
    for name, field in model.model_fields.items():
        inner = [a for a in (field.annotation, *get_args(field.annotation)) if _is_settings(a)]
        if inner:
            yield from settings_keys(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _is_settings(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def suggestion(key: str) -> str:
    """` (did you mean 'learn.epochs'?)`: the nearest setting, by its full name or by its last part alone."""
    known = list(settings_keys())
    last = key.rsplit(".", 1)[-1]
    same_name = [k for k in known if k.rsplit(".", 1)[-1] == last]
    if len(same_name) == 1:
        return f" (did you mean '{same_name[0]}'?)"
    if same_name:
        return f" (did you mean {' or '.join(repr(k) for k in same_name)}?)"
    if found := nearest(key, known):
        return found
    by_last = {k.rsplit(".", 1)[-1]: k for k in known}
    close = nearest(last, by_last)
    return next((f" (did you mean '{k}'?)" for name, k in by_last.items() if f"'{name}'" in close), "")


@cache
def short(key: str) -> str:
    """The shortest ending of a dotted key that no other setting shares: `learn.staleness` -> `staleness`."""
    parts = key.split(".")
    if parts[0] == "slots":
        return ".".join(parts[1:]) or key
    known = set(settings_keys())
    for n in range(1, len(parts)):
        ending = ".".join(parts[-n:])
        if sum(k == ending or k.endswith(f".{ending}") for k in known) == 1:
            return ending
    return key

"""Algorithms to replay: by name, with changed slots, or from a TOML file of variants."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.spec import InputError
from workbench.spec.files import MIB, from_toml, read_text

if TYPE_CHECKING:
    from workbench.objective import Algorithm


def algorithms_of(
    meta: Mapping[str, Any], names: Sequence[str], file: Path | None, changes: Sequence[str]
) -> tuple[str, dict[str, Algorithm]]:
    """The label of the algorithm that ran (`meta` of its batch), and all to replay by label, that one first.

    `names`: known algorithms, each with the slots that `changes` (`clip.high=0.3`) set; without names and without
    `file` the six of the core, or with changes only the one that ran, changed. `file`: a table a variant, {base = ...,
    slot = ...}. Raises InputError for what cannot be read.
    """
    from workbench.algorithms import CORE, resolve
    from workbench.grid.cell import algorithm_label
    from workbench.grid.keys import merge

    ran = meta["algorithm"] if isinstance(meta["algorithm"], dict) else {"base": meta["algorithm"]}
    ran = merge(ran, meta["slots"])
    own = algorithm_label(ran if len(ran) > 1 else ran["base"])
    found = {own: resolve(ran)}
    slots = _slots(changes)
    tables: list[dict[str, Any]] = [{"base": name} for name in names]
    if not tables and file is None:
        tables = [ran] if slots else [{"base": name} for name in CORE]
    for table in tables:
        whole = merge(table, slots)
        found.setdefault(algorithm_label(whole if len(whole) > 1 else whole["base"]), resolve(whole))
    for name, table in _read(file).items():
        if name in found:
            raise InputError(f"variant [{name}] in {file} has the name of another algorithm of this replay; rename it")
        try:
            found[name] = resolve(table)
        except InputError as error:
            raise InputError(f"variant [{name}] in {file}: {error}") from None
    return own, found


def _slots(changes: Sequence[str]) -> dict[str, Any]:
    from workbench.grid.keys import expand

    flat: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        key = key.strip().removeprefix("slots.")
        if not equals or not key or not value.strip():
            raise InputError(f"--set '{change}' is not SLOT.OPTION=VALUE; write it like --set clip.high=0.3")
        try:
            flat[key] = from_toml(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            flat[key] = value.strip()  # a bare word is what people type at a shell
        except ValueError as error:
            raise InputError(f"--set {key}: the value cannot be: {error}") from None
    return expand(flat, "--set")


def _read(file: Path | None) -> dict[str, dict[str, Any]]:
    if file is None:
        return {}
    example = 'write it like [wide] base = "ppo" clip = { high = 0.5 }, a table a variant'
    try:
        found = from_toml(read_text(file, MIB))
    except OSError as error:
        raise InputError(f"cannot read --variants '{file}': {error.strerror}") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--variants '{file}' is not valid TOML: {error}; {example}") from None
    if not found or not all(isinstance(table, dict) for table in found.values()):
        raise InputError(f"--variants '{file}' has something else than tables at its top; {example}")
    return found

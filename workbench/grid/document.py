"""The text of a grid file: read, changed by --set, checked key by key, every mistake with what to type instead."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from workbench.grid.keys import expand, flatten, merge, settings_keys, suggestion
from workbench.spec import GridFile, InputError, RunSettings, nearest
from workbench.spec.files import MIB, from_toml, read_text

_MISTAKES = 10  # that are listed of a file
_QUOTED = 200  # characters of a wrong value


def read(path: Path) -> str:
    """The text of a grid file; InputError, with the files that are there, where it cannot be read."""
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


def parse(text: str, path: Path) -> dict[str, Any]:
    """The TOML document; InputError with the line where it is none."""
    try:
        return from_toml(text)
    except ValueError as error:
        end = f"(at line {len(text.splitlines())}, the end of the file)"
        raise InputError(f"{path} is not valid TOML: {str(error).replace('(at end of document)', end)}") from None


def override(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The document changed by `key=value`: the base, or the file's own seeds and axes."""
    changed = dict(document)
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals or not key or not value.strip():
            raise InputError(f"--set '{override}' is not key=value; write it like --set learn.staleness=8")
        parsed = _value(value.strip(), key)
        if key == "seeds":
            changed["seeds"] = parsed
        elif key.startswith("axes."):
            axes = changed.get("axes", {})
            changed["axes"] = {**(flatten(axes) if isinstance(axes, dict) else {}), key.removeprefix("axes."): parsed}
        else:
            known_key(key, "--set")
            _refuse_axis(key, changed.get("axes", {}))
            base = changed.get("base", {})
            if isinstance(base, dict):
                table = merge(expand(base, "[base]"), expand({key: parsed}, "--set"))
                changed["base"] = table
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


def _refuse_axis(key: str, axes: Any) -> None:
    if isinstance(axes, dict) and key in flatten(axes):
        raise InputError(
            f"--set {key}: '{key}' is an axis of this grid; write --set 'axes.{key}=[...]' to change the axis"
        )


def grid_file(document: dict[str, Any], path: Path) -> GridFile:
    """The checked file; every mistake in it is named in one InputError."""
    if isinstance(document.get("axes"), dict):
        document = {**document, "axes": _once(lambda: flatten(document["axes"]), path)}
    try:
        return GridFile.model_validate(document)
    except ValidationError as error:
        raise InputError(_listed(_explain_file(e, document, path) for e in error.errors())) from None


def _once(flat: Callable[[], dict[str, Any]], path: Path) -> dict[str, Any]:
    try:
        return flat()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _explain_file(error: ErrorDetails, document: Mapping[str, Any], path: Path) -> str:
    key = _dotted(error["loc"])
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


def known_key(key: str, where: str) -> None:
    """InputError, with the nearest one, for a key that is no setting of a run."""
    known = set(settings_keys())
    if key in known or key.startswith("slots.") or any(k.startswith(f"{key}.") for k in known):
        return
    if key.startswith("algorithm."):
        slot = key.removeprefix("algorithm.")
        raise InputError(f"unknown key '{key}' in {where}; one slot of whatever algorithm runs is 'slots.{slot}'")
    raise InputError(f"unknown key '{key}' in {where}{suggestion(key)}")


def resolved(given: Mapping[str, Any], where: str, arm: str | None = None) -> RunSettings:
    """`given` merged over the defaults of a run and checked; every mistake in it is named in one InputError."""
    defaults = RunSettings().model_dump()
    try:
        return RunSettings.model_validate(merge(defaults, given))
    except ValidationError as error:
        suffix = f" (arm '{arm}')" if arm else ""
        raise InputError(_listed(f"{_explain(e, where)}{suffix}" for e in error.errors())) from None


def _listed(lines: Iterable[str]) -> str:
    """The first mistakes, a line each: to find the nearest name for each of a thousand takes minutes."""
    first = list(itertools.islice(dict.fromkeys(itertools.islice(lines, 3 * _MISTAKES)), _MISTAKES + 1))
    more = ["and more; mend these first"] if len(first) > _MISTAKES else []
    return "\n".join(first[:_MISTAKES] + more)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]} ..."


def _explain(error: ErrorDetails, where: str) -> str:
    loc = error["loc"]
    if loc and loc[0] == "algorithm":
        return (
            f"'algorithm' in {where} must be a name or a table {{ base = \"ppo\", ... }}, got {_quoted(error['input'])}"
        )
    key = _dotted(loc)
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}' in {where}{suggestion(key)}"
    if error["type"] == "value_error":
        return f"{where}: {f'{key}: ' if key else ''}{str(error['msg']).removeprefix('Value error, ')}"
    return f"'{key}' in {where} {_must(error)}"


def _must(error: ErrorDetails) -> str:
    message = str(error["msg"]).replace("Input should be", "must be")
    if message.startswith("must be a valid dictionary or instance of"):
        message = "must be a table of settings"
    if message.endswith(" after validation"):
        message = message.replace(" after validation", "")
    if not message.startswith("must"):
        message = f"is wrong: {message}"
    return f"{message}, got {_quoted(error['input'])}"


def _dotted(loc: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in loc)

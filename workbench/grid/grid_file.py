"""The text of a grid file: read, changed by --set, checked; mistakes are told in the words of the file."""

import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sorl.grid.cell import expand, flatten, merge, settings_keys
from sorl.spec import GridFile, InputError, nearest
from sorl.spec.files import MIB, from_toml, read_text

_MISTAKES = 10  # listed of one file
_QUOTED = 200  # characters of a wrong value
_EXAMPLES = {
    "question": 'question = "What does this grid find out?"',
    "name": 'name = "ppo, gradient clipping"',
}


def read_grid_file(path: Path) -> str:
    """Return the text of a grid file. Raises InputError with the files next to it where there is none."""
    try:
        return read_text(path, MIB)
    except OSError as error:
        siblings = sorted(map(str, (path if path.is_dir() else path.parent).glob("*.toml")))
        listed = f"; there is: {', '.join(siblings)}" if siblings else ""
        why = (error.strerror or str(error)).lower()
        raise InputError(f"no grid file {path}{nearest(str(path), siblings)}: {why}{listed}") from None


def parse_grid_file(text: str, overrides: Sequence[str], path: Path) -> GridFile:
    """Return a grid file with the `overrides` of --set. Raises InputError with all mistakes in it."""
    try:
        document = from_toml(text)
    except ValueError as error:
        end = f"(at line {len(text.splitlines())}, the end of the file)"
        raise InputError(
            f"{path} is not valid TOML: {str(error).replace('(at end of document)', end)}"
        ) from None
    for override in overrides:
        _override(document, *option(override))
    try:
        if isinstance(document.get("axes"), dict):
            document["axes"] = flatten(document["axes"])
        return GridFile.model_validate(document)
    except ValidationError as error:
        raise mistakes(error, path, of_file=True) from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _override(document: dict[str, Any], key: str, value: Any) -> None:
    """Change the seeds, an axis or a setting of the base in the tables of a grid file."""
    axes = document.get("axes", {})
    axes = flatten(axes) if isinstance(axes, dict) else {}
    base = document.get("base", {})
    if key == "seeds":
        document["seeds"] = value
    elif key.startswith("axes."):
        document["axes"] = {**axes, key.removeprefix("axes."): value}
    elif key in axes:
        raise InputError(
            f"--set {key}: '{key}' is an axis of this grid; change it by --set 'axes.{key}=[...]'"
        )
    else:
        check_key(key, "--set")
        if isinstance(base, dict):
            document["base"] = merge(expand(base, "[base]"), expand({key: value}, "--set"))


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


def check_key(key: str, where: str) -> None:
    """Raise InputError for a dotted key that is no setting of a cell, with the nearest one."""
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


def mistakes(error: ValidationError, path: Path, arm: str = "", of_file: bool = False) -> InputError:
    """Return the first mistakes, a line each: to find the nearest name for each of a thousand
    takes minutes.
    """
    errors = error.errors()
    lines = list(dict.fromkeys(_explain(mistake, str(path), of_file) + arm for mistake in errors[:_MISTAKES]))
    if len(errors) > _MISTAKES:
        lines.append("and more; correct these first")
    return InputError("\n".join(lines))


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

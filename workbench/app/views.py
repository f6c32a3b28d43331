"""Saved views: names for addresses of the app, in `views.toml` beside the database of a runs folder.

An address holds all choices of a screen, the panels of Compare among them, so a saved view is also a page of
panels of one's own. The file is TOML, to be read, shared and edited by hand; nothing in it is trusted.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tomli_w

from sorl.app.text import visible
from sorl.spec import InputError
from sorl.spec.files import MIB, read_text
from sorl.store.example import is_example

FILE = "views.toml"
LONGEST_NAME = 80  # characters
MOST = 200  # views of a folder
_LONGEST_ADDRESS = 8_000  # characters
# `screen?choices`, as links within the app are written: neither another site nor a script
_ADDRESS = re.compile(r"[a-z]{1,20}\?[^\s\"'<>\\]*")


class View(NamedTuple):
    """A name and the address that it stands for, relative to the app: `compare?experiment=demo`."""

    name: str
    address: str


class Saved(NamedTuple):
    """The views of a folder, and what is wrong with its file, in a sentence."""

    views: list[View]
    remark: str = ""


def read(runs: Path) -> Saved:
    """Return the saved views of a runs folder; none where nobody saved any."""
    try:
        return parse(read_text(runs / FILE, MIB))
    except FileNotFoundError:
        return Saved([])
    except (OSError, InputError) as error:
        return Saved([], f"{FILE} cannot be read: {error}")


def parse(text: str) -> Saved:
    """Return the views in a TOML text, each name once, and say how many of its entries are no views."""
    try:
        entries = tomllib.loads(text).get("view", [])
    except tomllib.TOMLDecodeError as error:
        return Saved([], f"{FILE} is no TOML: {error}")
    if not isinstance(entries, list):
        return Saved([], f"{FILE} has no list of views: [[view]]")
    views: dict[str, View] = {}
    for entry in entries[:MOST]:
        view = _view_of(entry)
        if view is not None:
            views[view.name] = view
    bad = len(entries) - len(views)
    remark = f"{bad} of {len(entries)} entries of {FILE} are no views, or too many." if bad else ""
    return Saved(list(views.values()), remark)


def written(views: Sequence[View]) -> str:
    """Return views as the text of a TOML file."""
    return tomli_w.dumps({"view": [view._asdict() for view in views]})


def save(runs: Path, views: Sequence[View]) -> None:
    """Add views to those of a runs folder; one with a known name replaces it. Raises InputError."""
    known = {view.name: view for view in read(runs).views}
    for view in views:
        checked = _view_of(view._asdict())
        if checked is None:
            raise InputError("a view needs a name, and the address of a screen of this app")
        known[checked.name] = checked
    if len(known) > MOST:
        raise InputError(f"{FILE} holds at most {MOST} views; delete some first")
    _write(runs, list(known.values()))


def delete(runs: Path, name: str) -> None:
    """Take a view out of the file of a runs folder. Raises InputError."""
    _write(runs, [view for view in read(runs).views if view.name != name])


def _view_of(entry: object) -> View | None:
    if not isinstance(entry, dict):
        return None
    name = entry.get("name")
    address = entry.get("address")
    if not isinstance(name, str) or not isinstance(address, str):
        return None
    name = visible(" ".join(name.split()))[:LONGEST_NAME]
    if not name or len(address) > _LONGEST_ADDRESS or not _ADDRESS.fullmatch(address):
        return None
    return View(name, address)


def _write(runs: Path, views: Sequence[View]) -> None:
    if is_example(runs):
        raise InputError("the recorded example keeps no views: copy the link, or open a folder of your own")
    path = runs / FILE
    unfinished = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        unfinished.write_text(written(views), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot keep views in '{path}': {why}") from None

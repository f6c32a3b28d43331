"""The formats of logs, each told by what a file or folder holds, in the order in which they are tried."""

from __future__ import annotations

import csv
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sorl.importing import trackers
from sorl.importing.json_files import (
    is_json_document,
    is_json_lines,
    json_document,
    json_lines,
    newest_state,
)
from sorl.importing.notebooks import is_html, is_notebook, notebook, page
from sorl.importing.rows import Rows
from sorl.importing.tables import is_table, parquet, table
from sorl.importing.text import opened, text_of
from sorl.spec import InputError
from sorl.spec.files import open_file

__all__ = ["FOLDERS", "FORMATS", "Format", "format_of", "opened", "runs_in", "text_of"]

HEAD = 65536  # bytes that tell a format


@dataclass(frozen=True)
class Format:
    """A format: whether a path holds it, by the path and its first bytes (none of a folder), and how it is
    read.

    `read` yields the runs in it. What it raises besides InputError becomes one line for the user.
    """

    name: str
    holds: Callable[[Path, bytes], bool]
    read: Callable[[Path], Iterable[Rows]]


def _text(path: Path) -> Iterator[Rows]:
    """What a program has printed. Its many patterns take longer to compile than most logs to be read."""
    from sorl.importing.text_records import text_log

    yield from text_log(path)


# In the order in which they are tried; a new format is a function that yields runs, and its line here.
FORMATS: list[Format] = [
    Format("TensorBoard", lambda path, head: b"brain.Event:" in head[:64], trackers.tensorboard),
    Format("W&B", lambda path, head: head[:4] == b":W&B", trackers.wandb),
    Format("SwanLab", lambda path, head: head[:4] == b":SWL", trackers.swanlab),
    Format(
        "trackio", lambda path, head: trackers.has_tables(path, head, "metrics", "configs"), trackers.trackio
    ),
    Format(
        "MLflow",
        lambda path, head: trackers.has_tables(path, head, "metrics", "params", "runs"),
        trackers.mlflow,
    ),
    Format("Parquet", lambda path, head: head[:4] == b"PAR1", parquet),
    Format("notebook", is_notebook, notebook),
    Format("HTML", is_html, page),
    Format("JSON lines", is_json_lines, json_lines),
    Format("JSON", is_json_document, json_document),
    Format("CSV", is_table, table),
    Format("text", lambda path, head: bool(text_of(head)), _text),
]
FOLDERS: list[Format] = [
    Format("Aim", lambda path, head: (path / ".aim").is_dir(), trackers.aim),
    Format(
        "MLflow",
        lambda path, head: (path / "meta.yaml").is_file() and (path / "metrics").is_dir(),
        trackers.mlflow_folder,
    ),
    Format("TensorBoard", lambda path, head: any(path.glob("*tfevents*")), trackers.tensorboard),
    Format("TRL", lambda path, head: bool(newest_state(path)), json_document),
]
_NONE = f"in no format that is known: {', '.join(dict.fromkeys(known.name for known in FORMATS))}"
# What a library raises on a damaged file, in words that are not for a user.
_DAMAGE = (
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    EOFError,
    csv.Error,
    zlib.error,
    pa.ArrowException,
    sqlite3.Error,
    struct.error,
)


def format_of(path: Path) -> Format | None:
    """Return the format of a file or folder; None for a folder without one. InputError for a file without
    one.
    """
    if path.is_dir():
        return next((known for known in FOLDERS if known.holds(path, b"")), None)
    with open_file(path) as file:
        head = file.read(HEAD)
    if not head:
        raise InputError(f"'{path}' holds no rows: it is empty")
    for known in FORMATS:
        if known.holds(path, head):
            return known
    raise InputError(f"'{path}' is {_NONE}")


def runs_in(path: Path, log_format: Format) -> Iterator[Rows]:
    """Yield the runs of a source. Raises InputError, one line, for whatever is wrong with it."""
    try:
        yield from log_format.read(path)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"'{path}' is read with {error.name}: run `pip install 'sorl[logs]'`") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or 'reading it failed'}") from None
    except MemoryError:
        raise InputError(f"'{path}' does not fit into memory; give a part of it") from None
    except _DAMAGE:
        raise InputError(f"'{path}' is damaged, or no {log_format.name} of a known version") from None

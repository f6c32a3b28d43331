"""The formats of logs, each told by what a file or folder holds: text and tables here, trackers next door."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pyarrow as pa

from sorl.integrations import trackers
from sorl.integrations.names import STEP, place
from sorl.integrations.rows import CELLS, Column, Rows, column, numbers
from sorl.spec import InputError
from sorl.spec.files import MIB, encoding_of, from_json, open_file, read_text

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

# bytes that tell a format; of a line; of one JSON value
HEAD = 65536
LINE = 4 * MIB
DOCUMENT = 64 * MIB
_USUAL = ("metrics", "trainer_state", "log", "logs", "console", "history", "progress")
_CHUNK = 20_000  # rows of a table that are read at once
_CONSOLE = re.compile(r"(?:^|\s)step:(\d+) - (\S+:.*)")
_SPOKEN = re.compile(r"(?:[\w.]+\()?([^()]*)\)?")  # of np.float64(0.5) the 0.5
_PANEL = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<end>__MIN|__MAX|__STEP)?")  # W&B: a chart saved as CSV


@dataclass(frozen=True)
class Format:
    """A format: whether a path holds it, by the path and its first bytes (none of a folder), and how it is
    read.

    `read` yields the runs in it. What it raises as OSError, ValueError or KeyError becomes one line for the
    user.
    """

    name: str
    holds: Callable[[Path, bytes], bool]
    read: Callable[[Path], Iterable[Rows]]


def text_of(head: bytes) -> str:
    """Return the first bytes as text, without a character that they cut; empty for what is binary."""
    encoding = encoding_of(head)
    return "" if encoding == "utf-8-sig" and b"\0" in head else head.decode(encoding, errors="ignore")


def opened(path: Path) -> TextIO:
    """Return a file as text, UTF-8 or UTF-16."""
    file = open_file(path)
    return io.TextIOWrapper(file, encoding_of(file.peek(2)))


def _title(path: Path) -> str:
    """Return the name of a run: of the file, or of its folder where every file of its kind has that name."""
    folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
    return folder.name if path.stem in _USUAL else path.stem


def _first_line(head: bytes) -> str:
    return text_of(head).lstrip().split("\n", 1)[0].rstrip("\r")


def _is_lines(path: Path, head: bytes) -> bool:
    if path.suffix in (".jsonl", ".ndjson"):
        return bool(text_of(head))
    try:
        found = from_json(_first_line(head))
    except ValueError:
        return False
    return isinstance(found, dict) and "log_history" not in found


def json_lines(path: Path) -> Iterator[Rows]:
    """One object a line; a last line that was cut off is left out, any other broken one is an error."""
    rows = Rows(_title(path))
    with opened(path) as file:
        yield rows.extend(_objects(file, path, rows.notes))


def _objects(file: TextIO, path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(iter(partial(file.readline, LINE), ""), start=1):
        if not line.strip():
            continue
        try:
            row = _parsed(line)
        except ValueError as error:
            if not line.endswith("\n") and len(line) < LINE:
                notes.append(f"the last line, {number:,}, was cut off and left out")
                return
            long = f"it is longer than {LINE // MIB} MiB" if len(line) >= LINE else str(error)
            raise InputError(f"line {number} of '{path}' is not JSON: {line[:60]!r} ({long})") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of '{path}' is no object with metrics: {line[:60]!r}")
        row = flat(row)
        # A block of rows is held at once: of long ones the numbers.
        yield row if len(line) < HEAD // 8 else {k: v for k, v in row.items() if isinstance(v, int | float)}


def _parsed(line: str) -> Any:
    if orjson is not None:  # it takes a fifth of the time, and knows no NaN
        with suppress(ValueError):
            return orjson.loads(line)
    return from_json(line)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return one flat row: metrics that are nested one level (`{"data": {...}, "step": 3}`)
    join the others.
    """
    if dict not in map(type, row.values()):
        return row
    inner = {key: value for table in row.values() if isinstance(table, dict) for key, value in table.items()}
    return inner | {key: value for key, value in row.items() if not isinstance(value, dict)}


def json_document(path: Path) -> Iterator[Rows]:
    """A list of rows, or `log_history` in a trainer_state.json; of a folder with checkpoints the newest."""
    path = _newest_state(path) or path
    found = from_json(read_text(path, DOCUMENT))
    rows = Rows(_title(path))
    history = found.pop("log_history", None) if isinstance(found, dict) else found
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise InputError(f"'{path}' is neither a list of objects nor a trainer_state.json with log_history")
    rows.config = {} if found is history else found
    yield rows.extend(map(flat, history))


def _newest_state(folder: Path) -> Path | None:
    """Return the trainer_state.json of a folder, or that of its last checkpoint, which has all rows before
    it.
    """
    found = folder.glob("checkpoint-*/trainer_state.json")
    last = {int(re.sub(r"\D", "", file.parent.name) or 0): file for file in found}
    own = folder / "trainer_state.json"
    return own if own.is_file() else last[max(last)] if last else None


def _heading(head: bytes) -> tuple[str, list[str]]:
    """Return what parts the cells of a table, and the names of its columns."""
    line = _first_line(head)
    separator = max(",;\t", key=line.count)
    return separator, next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _is_table(path: Path, head: bytes) -> bool:
    return path.suffix in (".csv", ".tsv") or any(name in STEP or place(name) for name in _heading(head)[1])


def table(path: Path) -> Iterator[Rows]:
    """Text parted by comma, semicolon or tab; with semicolons `0,5` is a number, as spreadsheets have it.

    A chart that W&B has saved as CSV has a column `RUN - METRIC` a run: it is many runs.
    """
    with open_file(path) as file:
        separator, names = _heading(file.read(HEAD))
        file.seek(0)  # pandas would hold a line of a gigabyte
        if any(len(line) == LINE for line in iter(partial(file.readline, LINE), b"")):
            raise ValueError(f"it has a line of more than {LINE // MIB} MiB")
    if not any(names):
        raise ValueError("its first line, which should name the columns, is empty")
    panels = [found for name in names if (found := _PANEL.fullmatch(name))]
    curves = [found for found in panels if not found["end"]]
    charts = bool(curves) and all(place(found["metric"]) for found in panels)
    collected = {
        name: Rows(name) for name in ([found["run"] for found in curves] if charts else [_title(path)])
    }
    with opened(path) as text:
        chunks = pd.read_csv(
            text,
            sep=separator,
            chunksize=max(1, _CHUNK // (1 + len(names) // 100)),
            index_col=False,
            keep_default_na=False,
            na_values=[""],
            skipinitialspace=True,
        )
        for chunk in chunks:
            columns = {str(name): _cells(chunk[name], separator) for name in chunk.columns}
            keys = {name: columns[name] for name in STEP if name in columns}
            for run, rows in collected.items():
                own = {m["metric"]: columns[m[0]] for m in curves if m["run"] == run}
                rows.block(keys | own if charts else columns, len(chunk))
    yield from collected.values()


def _cells(cells: pd.Series, separator: str) -> Column:
    if cells.dtype != object and not isinstance(cells.dtype, pd.StringDtype):
        return column(cells.to_numpy(float), cells.isna().to_numpy())
    if separator == ";":
        cells = cells.astype(object).where(cells.isna(), cells.astype(str).str.replace(",", ".", regex=False))
    return numbers([None if value != value else value for value in cells])


def parquet(path: Path) -> Iterator[Rows]:
    """The columns of numbers; its rows are counted first, as a few bytes of a file can be more than memory
    holds.
    """
    import pyarrow.parquet as pq

    rows = Rows(_title(path))
    with open_file(path) as raw:
        found = pq.ParquetFile(raw)
        kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
        names = [field.name for field in found.schema_arrow if any(kind(field.type) for kind in kinds)]
        if found.metadata.num_rows * max(len(names), 1) > CELLS:
            raise InputError(f"'{path}' says it holds {found.metadata.num_rows:,} rows; give a part of it")
        for batch in found.iter_batches(_CHUNK, columns=names):
            columns = {}
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                values = array.cast(pa.float64(), safe=False)
                null = array.is_null().to_numpy(zero_copy_only=False)
                columns[name] = column(values.fill_null(0.0).to_numpy(), null)
            rows.block(columns, batch.num_rows)
    yield rows


def console(path: Path) -> Iterator[Rows]:
    """verl's console: lines `step:3 - actor/entropy:0.5 - ...` among anything else."""
    rows = Rows(_title(path))
    with opened(path) as file:
        rows.extend(_spoken(iter(partial(file.readline, LINE), "")))
    if not rows:
        raise InputError(f"'{path}' has no line 'step:N - metric:value' as verl prints, and is {_NONE}")
    yield rows


def _spoken(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if "step:" in line and (match := _CONSOLE.search(line)):
            pairs = (pair.strip().rpartition(":") for pair in match[2].split(" - "))
            yield {"step": match[1]} | {
                name: said[1] for name, _, value in pairs if (said := _SPOKEN.fullmatch(value))
            }


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
    Format("JSON lines", _is_lines, json_lines),
    Format("JSON", lambda path, head: text_of(head).lstrip().startswith(("{", "[")), json_document),
    Format("CSV", _is_table, table),
    Format("console log", lambda path, head: bool(text_of(head)), console),
]
FOLDERS: list[Format] = [
    Format("Aim", lambda path, head: (path / ".aim").is_dir(), trackers.aim),
    Format(
        "MLflow",
        lambda path, head: (path / "meta.yaml").is_file() and (path / "metrics").is_dir(),
        trackers.mlflow_folder,
    ),
    Format("TensorBoard", lambda path, head: any(path.glob("*tfevents*")), trackers.tensorboard),
    Format("TRL", lambda path, head: bool(_newest_state(path)), json_document),
]
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\3\4": "zip",
    b"(\xb5/\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
}
_NONE = f"in no other format that is known: {', '.join(dict.fromkeys(one.name for one in FORMATS))}"


def format_of(path: Path) -> Format | None:
    """Return the format of a file or folder; None for a folder without one. InputError for a file without
    one.
    """
    if path.is_dir():
        return next((one for one in FOLDERS if one.holds(path, b"")), None)
    with open_file(path) as file:
        head = file.read(HEAD)
    if packed := [name for magic, name in _COMPRESSED.items() if head.startswith(magic)]:
        raise InputError(f"'{path}' is compressed ({packed[0]}): decompress it first")
    if not head:
        raise InputError(f"'{path}' holds no rows: it is empty")
    if found := next((one for one in FORMATS if one.holds(path, head)), None):
        return found
    raise InputError(f"'{path}' is {_NONE}")


def runs_in(path: Path, found: Format) -> Iterator[Rows]:
    """Yield the runs of a source. Raises InputError, one line, for whatever is wrong with it."""
    try:
        yield from found.read(path)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"'{path}' is read with {error.name}: run `pip install 'sorl[logs]'`") from None
    except (
        OSError,
        ValueError,
        ArithmeticError,
        LookupError,
        TypeError,
        RecursionError,
        MemoryError,
        csv.Error,
        pa.ArrowException,
        sqlite3.Error,
        struct.error,
    ) as error:
        said = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"'{path}' cannot be read as {found.name}: {said}") from None

"""JSON lines, lists of rows and trainer_state.json; a broken line or row costs itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from sorl.importing.configs import flattened
from sorl.importing.json_shapes import runs_of
from sorl.importing.names import is_known, is_step, place, settings
from sorl.importing.rows import Rows
from sorl.importing.text import LINE, ZEROS, Line, UsualLength, first_line, numbered_lines, opened, text_of
from sorl.importing.title import title_of
from sorl.spec import InputError
from sorl.spec.files import MIB, from_json, open_file

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

DOCUMENT = 64 * MIB  # bytes of one JSON value
_LONG_ROW = 8192  # characters of a line of which the numbers alone are held
_SALVAGE = 4  # times the length of a damaged document that is read to find its rows
_JSON_START = re.compile(r'\s*(?:\[\s*)*\{\s*["}]|\s*(?:\[\s*)+["\d\]-]')  # Python prints no double quotes
_HELD_OUT = re.compile(r"(?i)(?:eval|evaluation|val|valid|validation|test|heldout|held_out)")
SETTINGS = ("config", "args", "hparams", "hyperparameters", "training_args", "params")  # objects in a row
_FIRST_ROWS = 3  # of which one may hold the settings
_AFTER = 1000  # characters behind an object that tell whether JSON goes on
_NESTED = 4  # objects inside each other in a row
_LEARNING_RATE = ("minibatch.lr", 0)  # a setting as well as a metric
_DECODER = json.JSONDecoder()


def is_json_lines(path: Path, head: bytes) -> bool:
    """Whether a file holds one JSON object a line."""
    if path.suffix in (".jsonl", ".ndjson"):
        return bool(text_of(head))
    with suppress(ValueError):
        record = from_json(first_line(head))
        return isinstance(record, dict) and "log_history" not in record
    return False


def is_json_document(path: Path, head: bytes) -> bool:
    """Whether a file may be one JSON value."""
    return _JSON_START.match(text_of(head)) is not None


def json_lines(path: Path) -> Iterator[Rows]:
    """One object a line. A line that is none is left out; without any the file may be one JSON value."""
    rows = Rows(title_of(path), place_unit="line")
    with opened(path) as file:
        rows.extend(_objects(file_lines=numbered_lines(file), rows=rows))
    if len(rows) == 1 and not rows.account.count("rows"):
        runs = _whole_document(path)
        if runs:
            yield from runs
            return
    if rows:
        yield rows
        return
    with open_file(path) as file:
        head = file.read(LINE)
    if is_json_document(path, head):
        with suppress(InputError, ValueError):
            yield from json_document(path)
            return
    if not text_of(head).strip("\0 \r\n\t"):
        raise InputError(f"'{path}' {rows.why_empty()}")
    yield from _as_text(path)


def _as_text(path: Path) -> Iterator[Rows]:
    """The runs of a file that holds no JSON after all."""
    from sorl.importing.text_records import text_log

    yield from text_log(path)


def _whole_document(path: Path) -> list[Rows]:
    """Return the runs of a file of one line that holds more than one record; none of another file."""
    if path.stat().st_size > DOCUMENT:
        return []
    with suppress(InputError):
        runs = list(json_document(path))
        return runs if any(len(rows) > 1 for rows in runs) else []
    return []


def _objects(file_lines: Iterator[Line], rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the objects of the lines; `rows` counts the lines that hold none."""
    usual = UsualLength()
    for line in file_lines:
        text = line.text.strip("\0 \t\r\n")
        if line.too_long:
            rows.account.leave_out(f"longer than {LINE // MIB} MiB", rows.place(line.number))
            continue
        if not text and "\0" not in line.text:
            continue
        rows.position = line.number
        records = _objects_of(text)
        if not records and "\0" in line.text:
            rows.account.leave_out(ZEROS, rows.place(line.number), usual.lines_in(line.text))
        elif not records:
            reason = "not a JSON object" if line.ended else "cut off in the last line"
            rows.account.leave_out(reason, rows.place(line.number))
        else:
            usual.add(text)
        for record in records:
            if line.number <= _FIRST_ROWS and _took_settings(record, rows):
                continue
            row = flat(record)
            yield row if len(text) < _LONG_ROW else _numbers_of(row)


def _objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a line: one, or several where two writers met; none where it is damaged."""
    try:
        row = _parsed(text)
    except ValueError:
        pass
    else:
        return [row] if isinstance(row, dict) else []
    objects: list[dict[str, Any]] = []
    position = 0
    with suppress(ValueError, RecursionError):
        while position < len(text):
            row, position = _DECODER.raw_decode(text, position)
            if not isinstance(row, dict):
                return []
            objects.append(row)
            position += len(text[position:]) - len(text[position:].lstrip())
        return objects
    return []


def _parsed(text: str) -> Any:
    if orjson is not None:  # it takes a fifth of the time, and knows no NaN
        try:
            return orjson.loads(text)
        except ValueError:
            pass
    return from_json(text)


def _numbers_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a long row: a block of rows is held at once."""
    return {key: value for key, value in row.items() if isinstance(value, int | float)}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return one flat row: metrics that are nested (`{"data": {...}, "step": 3}`) join the others.

    A nested metric keeps its own name where that is known, or where the row has one object alone; else the
    key before it belongs to its name (`{"reward": {"mean": 0.5}}` is reward/mean), as for an evaluation.
    """
    kinds = set(map(type, row.values()))
    if dict not in kinds and list not in kinds:
        return row
    plain = with_means_of_lists(row) if list in kinds else row
    tables = {key: value for key, value in plain.items() if isinstance(value, dict)}
    if not tables:
        return plain
    joined: dict[str, Any] = {}
    inner_keys = [key for key in tables if key not in SETTINGS and not _HELD_OUT.fullmatch(key)]
    for key, table in tables.items():
        if key in SETTINGS:
            continue
        for name, value in _nested(table, _NESTED):
            full_name = f"{key}/{name}"
            by_own_name = is_known(name) or (len(inner_keys) == 1 and place(full_name) is None)
            if _HELD_OUT.fullmatch(key) or not by_own_name or name in joined:
                joined[full_name] = value
            else:
                joined[name] = value
    return joined | {key: value for key, value in plain.items() if key not in tables}


def _nested(table: Mapping[str, Any], deep: int) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of an object and of those in it, their keys joined by `/`."""
    for key, value in table.items():
        if isinstance(value, dict):
            for name, inner in _nested(value, deep - 1) if deep and key not in SETTINGS else ():
                yield f"{key}/{name}", inner
        else:
            yield str(key), value


def with_means_of_lists(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which the rewards of its rollouts, a list, are their mean; their deviation is added."""
    means = dict(row)
    for name, values in row.items():
        known = place(name)
        if not isinstance(values, list) or known is None or known[0] not in ("step.reward", "step.success"):
            continue
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if numbers and len(numbers) == len(values):
            means[name] = fmean(numbers)
            if known[0] == "step.reward":
                means.setdefault("reward_std", pstdev(numbers))
    return means


def json_document(path: Path) -> Iterator[Rows]:
    """The runs of one JSON value (`json_shapes`); of a folder with checkpoints the newest trainer_state.json.

    Of a damaged document every row that is whole is read.
    """
    path = newest_state(path) or path
    text = _document_text(path)
    try:
        value = from_json(text)
    except ValueError:
        rows = Rows(title_of(path))
        if not _is_settings_before_text(text):
            rows.extend(map(flat, _whole_objects(text, rows)))
        if not rows:
            yield from _as_text(path)
        else:
            yield rows
        return
    shapes = runs_of(value)
    if not shapes.runs:
        raise InputError(
            f"'{path}' holds no records of numbers: no list of objects, no lists of one length, "
            "no objects by step"
        )
    for name, records in shapes.runs.items():
        rows = Rows(f"{title_of(path)}/{name}" if name else title_of(path))
        rows.config = flattened(shapes.config)
        rows.notes += shapes.notes
        yield rows.extend(_rows_of(records, rows))


def _is_settings_before_text(text: str) -> bool:
    """Whether a text begins with an object of settings, behind which no JSON follows."""
    bare = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(bare)
    except (ValueError, RecursionError):
        return False
    follows = bare[end : end + _AFTER].lstrip()
    goes_on = not follows or follows.startswith(",") or _JSON_START.match(follows) is not None
    return isinstance(value, dict) and not goes_on and _is_settings(value)


def _document_text(path: Path) -> str:
    with opened(path) as file:
        text = file.read(DOCUMENT + 1)
    if len(text) > DOCUMENT:
        raise InputError(
            f"'{path}' is larger than {DOCUMENT // MIB} MiB, the most that is read of such a file"
        )
    return text


def _rows_of(history: Sequence[Any], rows: Rows) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(history, start=1):
        rows.position = number
        if not isinstance(row, dict):
            rows.account.leave_out("not a JSON object", rows.place(number))
        elif number > _FIRST_ROWS or not _took_settings(row, rows):
            yield flat(row)


def _took_settings(record: dict[str, Any], rows: Rows) -> bool:
    """Take the settings in a record to the configuration; whether it holds nothing else."""
    if rows.config:
        return False
    tables = [value for key, value in record.items() if key in SETTINGS and isinstance(value, dict)]
    if tables:
        rows.config = flattened(tables[0])
    elif _is_settings(record):
        rows.config = flattened(record)
        return True
    return False


def _is_settings(record: dict[str, Any]) -> bool:
    """Whether a record holds settings and no metric."""
    options = flattened(record)
    is_metric = [is_step(name) or (place(name) or _LEARNING_RATE)[0] != _LEARNING_RATE[0] for name in options]
    return not any(is_metric) and len(settings(options)) > 1


def _whole_objects(text: str, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the innermost whole objects of a damaged JSON text; `rows` counts those that are damaged."""
    position = text.find("{")
    container = position if text.lstrip().startswith("{") else -1  # damaged as a whole, and no row
    budget = _SALVAGE * len(text)
    number = 0
    while position >= 0 and budget > 0:
        end = position + 1
        number += position != container
        rows.position = number
        try:
            record, end = _DECODER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            budget -= error.pos - position
            if position != container:
                reason = "cut off at the end" if error.pos >= len(text.rstrip()) else "damaged JSON"
                rows.account.leave_out(reason, rows.place(number))
        except RecursionError:
            return
        else:
            yield record
        position = text.find("{", end)


def newest_state(folder: Path) -> Path | None:
    """Return the trainer_state.json of a folder, or that of its last checkpoint, which has all rows before
    it.
    """
    own = folder / "trainer_state.json"
    if own.is_file():
        return own
    checkpoints = {
        int(re.sub(r"\D", "", file.parent.name) or 0): file
        for file in folder.glob("checkpoint-*/trainer_state.json")
    }
    return checkpoints[max(checkpoints)] if checkpoints else None

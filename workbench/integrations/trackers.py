"""Logs of trackers: TensorBoard, W&B, SwanLab, trackio, MLflow and Aim.

TensorBoard, W&B and SwanLab write frames of bytes around protobuf messages. Two framings and the wire format
of protobuf take some forty lines here; the libraries would take hundreds of megabytes and W&B's no longer has
a reader.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

from sorl.integrations.rows import Rows, of_events
from sorl.spec import InputError
from sorl.spec.files import MIB, from_json, from_toml, leaves, open_file, read_text

MESSAGE = 64 * MIB  # bytes of one record
EVENTS = 4_000_000  # of a log that is sorted by time
Event = tuple[float, Any, str, Any]  # time, step, metric, value
_BLOCK = 32768  # of LevelDB's log format
_CONFIGS = (
    "config.yaml",
    ".hydra/config.yaml",
    "files/config.yaml",
    "config.json",
    "hparams.yaml",
    "args.json",
    "training_args.json",
    "configs/trainer.json",
    "configs/orchestrator.json",
    "config.toml",
)
_KEYS = 5000  # of a configuration


def configs(path: Path) -> list[Path]:
    """Return the configurations next to a log."""
    folder = path if path.is_dir() else path.parent
    found = (folder / name for name in (f"{path.stem}.yaml", *_CONFIGS))
    return [file for file in found if file != path and file.is_file()]


def config_near(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return the settings in the configurations next to a log, by dotted key; `notes` names one that is not
    read.
    """
    found: dict[str, Any] = {}
    for file in configs(path):
        try:
            text = read_text(file, MIB)
            found = (
                flattened({".yaml": _yaml, ".json": from_json, ".toml": from_toml}[file.suffix](text)) | found
            )
        except ModuleNotFoundError as error:
            notes.append(f"{file.name} was not read: it needs {error.name}, `pip install 'sorl[logs]'`")
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"{file.name} was not read: {str(error).splitlines()[0][:200]}")
    return found


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({type(error).__name__})") from None


def flattened(table: Any) -> dict[str, Any]:
    """Return a configuration by dotted key; W&B and SwanLab wrap each value in {"value": ...}."""
    if not isinstance(table, dict):
        return {}
    plain = {str(k): v["value"] if isinstance(v, dict) and "value" in v else v for k, v in table.items()}
    return {key: value for key, value in islice(leaves(plain), _KEYS) if not isinstance(value, dict | list)}


# Frames and messages


def messages(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield (field, value) of a protobuf message: whole numbers as int, the rest as bytes. ValueError for
    none.
    """
    # of what is no bytes nothing
    at = 0
    end = len(data) if isinstance(data, bytes) else 0
    while at < end:
        key, at = _varint(data, at)
        size, at = _varint(data, at) if key & 7 in (0, 2) else ({1: 8, 5: 4}.get(key & 7, end), at)
        if key & 7 == 0:
            yield key >> 3, size
            continue
        if at + size > end:
            raise ValueError("a message is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at = at + 1
        shift = shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a message is cut off")


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def _double(value: Any) -> float:
    return float(struct.unpack("<d", value)[0])


def _inside(data: Any, *path: int) -> Any:
    """Return the fields of a message, of a repeated one the last; or what stands at a path of fields, None
    without.
    """
    for field in path:
        data = dict(messages(data)).get(field)
    return data if path else dict(messages(data))


def tf_records(file: BufferedReader, notes: list[str]) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: length (8 bytes), its checksum (4), data, theirs (4)."""
    while len(head := file.read(12)) == 12:
        size = int.from_bytes(head[:8], "little")
        if size > MESSAGE:
            raise ValueError(f"it has a record of {size:,} bytes")
        if len(data := file.read(size + 4)) < size + 4:
            break
        yield data[:size]
    else:
        if not head:
            return
    notes.append("the last record was cut off and left out")


def level_messages(file: BufferedReader, notes: list[str]) -> Iterator[tuple[int, Any]]:
    """Yield the messages in a LevelDB log behind 7 bytes: pieces (checksum, length, kind) in blocks of 32
    KiB.
    """
    file.read(7)
    record = bytearray()
    cut = False
    while block := file.read(_BLOCK - file.tell() % _BLOCK):
        at = 0
        while at + 7 <= len(block):
            size, kind = struct.unpack_from("<HB", block, at + 4)
            piece = block[at + 7 : at + 7 + size]
            at = at + 7 + size
            cut = at > len(block)
            if cut:
                break
            if kind in (1, 2):  # whole, or the first piece
                record.clear()
            record += piece
            if len(record) > MESSAGE:
                raise ValueError(f"it has a record of more than {MESSAGE // MIB} MiB")
            if kind in (1, 4):  # whole, or the last piece
                yield from messages(bytes(record))
                record.clear()
    if cut or record:
        notes.append("the last record was cut off and left out")


def tensorboard(path: Path) -> Iterator[Rows]:
    """Scalars of all event files of a folder, in the order of their names, which begin with the time."""
    rows = Rows(path.name if path.is_dir() else path.parent.name)
    for file in sorted(path.glob("*tfevents*")) or [path]:
        with open_file(file) as opened:
            rows.extend(of_events(_events(tf_records(opened, rows.notes), rows.config)))
    yield rows


def _events(records: Iterable[bytes], config: dict[str, Any]) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value); what is text or a hyperparameter goes to `config`."""
    for record in records:
        event = _inside(record)
        for value in (_inside(data) for field, data in messages(event.get(5)) if field == 1):
            tag = _text(value.get(1))
            step = event.get(2, 0)
            tensor = _inside(value.get(8))
            # A tensor of one number: its type (1), and the number in one of the fields for its type.
            data = tensor.get(4) or tensor.get(5) or tensor.get(6) or b""
            form = {1: "<f", 2: "<d"}.get(tensor.get(1))
            if 2 in value:
                yield step, tag, struct.unpack("<f", value[2])[0]
            elif tag.endswith("text_summary"):
                with suppress(ValueError):
                    config |= flattened(from_json(_text(tensor.get(8))))
            # a map from names to numbers (2), texts (3) and truths (4)
            elif tag == "_hparams_/session_start_info":
                for _, entry in messages(_inside(value.get(9), 1, 2, 3)):
                    kind, told = next(iter(_inside(_inside(entry, 2)).items()), (0, None))
                    said = _double(told) if kind == 2 else _text(told) if kind == 3 else bool(told)
                    config[_text(_inside(entry, 1))] = said
            elif form and len(data) == struct.calcsize(form):
                yield step, tag, struct.unpack(form, data)[0]


def wandb(path: Path) -> Iterator[Rows]:
    """The history and configuration in an offline run's .wandb file."""
    rows = Rows(path.stem.removeprefix("run-"))
    with open_file(path) as file:
        yield rows.extend(_history(level_messages(file, rows.notes), rows))


def _history(found: Iterable[tuple[int, Any]], run: Rows) -> Iterator[dict[str, Any]]:
    """Yield the rows of the history; name, configuration and how it ended go to `run`."""
    for field, data in found:
        if field == 2:  # history: items (1) and the step (2)
            items = dict(_item(item) for part, item in messages(data) if part == 1)
            yield {"_step": _inside(data, 2, 1) or 0, **dict(leaves(items))}
        elif field in (5, 17):  # config, run
            inner = data if field == 5 else _inside(data, 4)
            run.config |= flattened(dict(_item(item) for part, item in messages(inner) if part == 1))
            run.name = (field == 17 and _text(_inside(data, 8))) or run.name
        elif field == 18 and _inside(data, 1):  # exit
            run.status = "failed"


def _item(data: bytes) -> tuple[str, Any]:
    """Return (key, value) of an item: its value is JSON text, or, since 0.26, a field of its own type."""
    name = list[str]()
    value = None
    for field, told in messages(data):
        if field in (1, 2):
            name.append(_text(told))
        elif field in (8, 16):
            with suppress(ValueError):
                value = from_json(_text(told))
        elif field in _TYPES:
            value = _TYPES[field](told)
    return ".".join(name), value


_TYPES: dict[int, Callable[[Any], Any]] = {
    4: bool,
    5: lambda told: told - (1 << 64) if told >> 63 else told,
    6: _double,
    7: _text,
}


def swanlab(path: Path) -> Iterator[Rows]:
    """The scalars in an offline run's .swanlab file (version 2 of the format)."""
    rows = Rows(path.stem.removeprefix("run-"))
    with open_file(path) as file:
        if file.peek(7)[6:7] != b"\x02":
            raise InputError(f"'{path}' is of another version of SwanLab's format; read are those of 0.10")
        yield rows.extend(of_events(_swan_scalars(level_messages(file, rows.notes), rows)))


def _swan_scalars(found: Iterable[tuple[int, Any]], run: Rows) -> Iterator[tuple[int, str, float]]:
    for field, data in found:
        inner = _inside(data)
        if field == 10:  # start
            run.name = _text(inner.get(4)) or run.name
        elif field == 11 and inner.get(2):  # finish, with an error
            run.status = "failed"
        elif field == 13 and 5 in inner:
            yield inner.get(2, 0), _text(inner.get(1)), _double(_inside(inner[5]).get(1, bytes(8)))


def _connected(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True))


def has_tables(path: Path, head: bytes, *tables: str) -> bool:
    """Whether a file is a SQLite database with these tables."""
    with suppress(sqlite3.Error):
        if head.startswith(b"SQLite format 3\0"):
            with _connected(path) as base:
                return set(tables) <= {row[0] for row in base.execute("SELECT name FROM sqlite_master")}
    return False


def trackio(path: Path) -> Iterator[Rows]:
    """Every run of a project: a row a call of `log`, with its metrics as JSON."""
    with _connected(path) as base:
        columns = {row[1] for row in base.execute("PRAGMA table_info(metrics)")}
        key = "run_id" if "run_id" in columns else "run_name"
        named = f"SELECT {key}, min(run_name) FROM metrics GROUP BY 1 ORDER BY min(id)"
        logged = (
            f"SELECT step, metrics FROM metrics WHERE {key} = ? AND length(metrics) < {MESSAGE} ORDER BY id"
        )
        for run, name in base.execute(named).fetchall():
            rows = Rows(f"{path.stem}/{name}")
            for (text,) in base.execute(f"SELECT config FROM configs WHERE {key} = ?", [run]):
                rows.config = flattened(from_json(text))
            yield rows.extend({"_step": step} | from_json(text) for step, text in base.execute(logged, [run]))


def mlflow(path: Path) -> Iterator[Rows]:
    """Every run of a database that was not deleted."""
    with _connected(path) as base:
        asked = "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time"
        logged = (
            "SELECT step, key, CASE WHEN is_nan THEN 'nan' ELSE value END FROM metrics WHERE run_uuid = ?"
        )
        for run, name, status in base.execute(asked).fetchall():
            rows = Rows(str(name or run)).extend(
                of_events(base.execute(f"{logged} ORDER BY timestamp, step", [run]))
            )
            rows.config = dict(
                base.execute("SELECT key, value FROM params WHERE run_uuid = ?", [run]).fetchall()
            )
            rows.status = "failed" if status == "FAILED" else "finished"
            yield rows


def mlflow_folder(path: Path) -> Iterator[Rows]:
    """The run of a folder: a file a metric, and one a parameter."""
    title = path / "tags" / "mlflow.runName"
    rows = Rows(read_text(title, 1000).strip() if title.is_file() else path.name)
    params = filter(Path.is_file, path.glob("params/**/*"))
    rows.config = {file.relative_to(path / "params").as_posix(): read_text(file, MIB) for file in params}
    yield rows.extend(_in_time(path, _mlflow_events(path / "metrics")))


def _mlflow_events(folder: Path) -> Iterator[Event]:
    for file in sorted(filter(Path.is_file, folder.glob("**/*"))):
        with open_file(file) as lines:
            for time, value, step, *_ in (line.split() for line in iter(partial(lines.readline, 200), b"")):
                yield float(time), int(step), file.relative_to(folder).as_posix(), value.decode()


def aim(path: Path) -> Iterator[Rows]:
    """Every run of a repository, through Aim's own library, as nothing else reads its files; nothing is
    written.
    """
    from aim import Repo, Run

    repository = Repo.from_path(str(path))
    for key in repository.list_all_runs():
        run = Run(key, repo=repository, read_only=True)
        rows = Rows(str(run.name or run.hash)).extend(_in_time(path, _aim_events(run)))
        if not rows:
            raise InputError(
                f"Aim has not indexed run {key}: type `aim storage --repo '{path}' reindex`, then again"
            )
        rows.config = flattened(run.get("hparams"))
        yield rows


def _aim_events(run: Any) -> Iterator[Event]:
    for metric in run.metrics():
        steps, (values, _, times) = metric.data.items_list()
        name = "/".join([*map(str, metric.context.to_dict().values()), metric.name])
        yield from zip(times, steps, [name] * len(steps), values, strict=True)


def _in_time(path: Path, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Return rows of events that were kept by metric, in the order of their times."""
    held = list(islice(events, EVENTS + 1))
    if len(held) > EVENTS:
        raise InputError(f"'{path}' has more than {EVENTS:,} values in a run; give it as JSON lines")
    held.sort(key=lambda event: event[0])
    return of_events((step, metric, value) for _, step, metric, value in held)

"""Logs of a known run, damaged in known ways: what is left of it can be compared with what a command says."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sorl.importing.framing import masked_crc32c

STEPS = 40
# Success rises and then falls to nothing; no two values are equal, so a value tells its step.
REWARD = {step: (0.2 + step / 100 if step <= 25 else 0.01) + step / 10_000 for step in range(1, STEPS + 1)}
ROWS = [{"step": step, "reward": reward, "entropy": 1.0 + step} for step, reward in REWARD.items()]
LINES = [json.dumps(row) for row in ROWS]
PAGE = bytes(400)

Write = Callable[[Path], None]


@dataclass(frozen=True)
class DamagedLog:
    """A log: `write` puts it to a path of this name. `exact`: its losses are counted, else estimated."""

    title: str
    file: str
    write: Write
    exact: bool = True


def text(content: str | bytes) -> Write:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def replaced(lines: list[str], new: str, *numbers: int) -> list[str]:
    """The lines, with those of these numbers (from 0) replaced."""
    return [new if number in numbers else line for number, line in enumerate(lines)]


def line_damages(lines: list[str], first: int) -> Iterator[tuple[str, str | bytes]]:
    """Damages of a text with a row a line, of which the rows begin at line `first` (from 0)."""
    for count in (1, 3, 12):
        gone = [first + 20 + i for i in range(count)]
        yield f"{count} lines of noise", joined(replaced(lines, "%%% noise \x1b[31m %%%", *gone))
        zeros = ["\0" * len(line) if i in gone else line for i, line in enumerate(lines)]
        yield f"{count} lines of zeros", joined(zeros)
        halves = [line[: len(line) // 3] if i in gone else line for i, line in enumerate(lines)]
        yield f"{count} lines cut to a third", joined(halves)
    yield "the last line cut", joined(lines)[:-12]
    yield "a line of five megabytes", joined(replaced(lines, "x" * (5 * 2**20), first + 9))
    whole = joined(lines).encode()
    middle = len(whole) // 2
    yield "a page of zeros over some rows", whole[:middle] + PAGE + whole[middle + len(PAGE) :]
    yield (
        "bytes that are no text",
        joined(lines).encode().replace(lines[first + 5].encode(), b"\xff\xfe\x80" * 9),
    )
    random.Random(0).shuffle(shuffled := lines[first:])
    yield "rows in random order", joined([*lines[:first], *shuffled])


def is_exact(title: str) -> bool:
    """Whether the number of lost rows can be known: zeros hide how many rows they were."""
    return "zeros" not in title


# What becomes of the values of a step.
CHANGED_VALUES: dict[str, Callable[[int], dict[str, object]]] = {
    "steps with thousands separators": lambda step: {"step": f"{step * 100:,}"},
    "steps as text, some of them words": lambda step: {"step": "ten" if step % 8 == 0 else str(step)},
    "negative steps": lambda step: {"step": -step if step > 30 else step},
    "some steps that are fractions": lambda step: {"step": step + 0.5 * (step % 7 == 0)},
    "no step in some rows": lambda step: {"step": None if step % 9 == 0 else step},
    "steps beyond 64 bits": lambda step: {"step": 2**70 if step > 35 else step},
    "one step for all": lambda step: {"step": 7},
    "each step twice": lambda step: {"step": step // 2},
    "rewards as text": lambda step: {"reward": str(REWARD[step])},
    "some rewards that are words": lambda step: {"reward": "high" if step % 6 else REWARD[step]},
    "some rewards that are lists": lambda step: {"reward": [REWARD[step]] * (1 + step % 3)},
    "some rewards that are lists of words": lambda step: (
        {"reward": ["high"] if step % 6 == 0 else REWARD[step]}
    ),
}


def json_lines() -> Iterator[DamagedLog]:
    for title, content in line_damages(LINES, 0):
        yield DamagedLog(f"JSON lines: {title}", "log.jsonl", text(content), is_exact(title))
    for title, change in CHANGED_VALUES.items():
        lines = [json.dumps(row | change(step)) for step, row in zip(REWARD, ROWS, strict=True)]
        yield DamagedLog(f"JSON lines: {title}", "log.jsonl", text(joined(lines)))
    two = [LINES[i] + LINES[i + 1] for i in range(0, STEPS, 2)]
    yield DamagedLog("JSON lines: two objects a line", "log.jsonl", text(joined(two)))
    lists = replaced(LINES, "[1, 2, 3]", 5, 6, 7, 8, 9)
    yield DamagedLog("JSON lines: some lines are lists", "log.jsonl", text(joined(lists)))


def json_documents() -> Iterator[DamagedLog]:
    for name, before, after in (
        ("a list", "[\n", "\n]"),
        ("trainer_state", '{"max_steps": 40, "log_history": [\n', "\n]}"),
    ):
        whole = before + ",\n".join(LINES) + after
        yield DamagedLog(f"{name}: whole", "trainer_state.json", text(whole))
        yield DamagedLog(
            f"{name}: cut in the middle", "trainer_state.json", text(whole[: len(whole) // 2]), exact=False
        )
        yield DamagedLog(f"{name}: cut at its end", "trainer_state.json", text(whole[:-20]))
        for count in (1, 8):
            gone = [10 + i for i in range(count)]
            noisy = before + ",\n".join(replaced(LINES, '{"step": %%%', *gone)) + after
            yield DamagedLog(f"{name}: {count} rows of noise", "trainer_state.json", text(noisy))
        words = before + ",\n".join(replaced(LINES, '"a word"', *range(9))) + after
        yield DamagedLog(f"{name}: words among the rows", "trainer_state.json", text(words))


def tables() -> Iterator[DamagedLog]:
    separators = {"commas": ",", "tabs": "\t", "semicolons": ";", "bars": "|"}
    for name, separator in separators.items():
        rows = [separator.join(map(str, row.values())) for row in ROWS]
        heading = separator.join(ROWS[0])
        for title, content in line_damages([heading, *rows], 1):
            yield DamagedLog(f"table of {name}: {title}", "log.csv", text(content), is_exact(title))
        extra = replaced(rows, rows[30] + separator + "9" + separator + "9", 30, 31, 32)
        yield DamagedLog(f"table of {name}: rows with more cells", "log.csv", text(joined([heading, *extra])))
        again = [heading, *rows[:20], heading, *rows[20:]]
        yield DamagedLog(f"table of {name}: its heading again", "log.csv", text(joined(again)))
        quoted = replaced(rows, rows[12].replace(separator, separator + '"', 1), 12)
        yield DamagedLog(f"table of {name}: an open quote", "log.csv", text(joined([heading, *quoted])))
        percent = [f"{step}{separator}{100 * reward:.6f}%{separator}1" for step, reward in REWARD.items()]
        yield DamagedLog(f"table of {name}: percent", "log.csv", text(joined([heading, *percent])))
        comment = ["# of today", heading, "# learning", *rows]
        yield DamagedLog(f"table of {name}: comments", "log.csv", text(joined(comment)))


def parquet_files() -> Iterator[DamagedLog]:
    columns = pa.Table.from_pylist(ROWS).to_pydict()

    def grouped(path: Path) -> None:
        pq.write_table(pa.table(columns), path, row_group_size=10, compression="zstd")

    def damaged(path: Path) -> None:
        grouped(path)
        where = pq.ParquetFile(path).metadata.row_group(2).column(1)
        content = bytearray(path.read_bytes())
        content[where.data_page_offset : where.data_page_offset + where.total_compressed_size] = b"\xff" * (
            where.total_compressed_size
        )
        path.write_bytes(content)

    nested = pa.table({"step": columns["step"], "metrics": [{"reward": r} for r in columns["reward"]]})
    yield DamagedLog("Parquet: whole", "log.parquet", grouped)
    yield DamagedLog("Parquet: a damaged row group", "log.parquet", damaged)
    yield DamagedLog("Parquet: nested", "log.parquet", lambda path: pq.write_table(nested, path))
    words = columns | {"step": [str(s) if s % 5 else "five" for s in columns["step"]]}
    yield DamagedLog("Parquet: text", "log.parquet", lambda path: pq.write_table(pa.table(words), path))


# Frames


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def message(field: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(field << 3) + varint(content)
    return varint(field << 3 | 2) + varint(len(content)) + content


def tensorboard_records() -> list[bytes]:
    records = [message(3, b"brain.Event:2")]
    for step, reward in REWARD.items():
        value = message(1, b"reward") + varint(2 << 3 | 5) + struct.pack("<f", reward)
        records.append(message(2, step) + message(5, message(1, value)))
    return records


def tensorboard(records: list[bytes]) -> bytes:
    found = bytearray()
    for record in records:
        size = struct.pack("<Q", len(record))
        sums = (struct.pack("<I", masked_crc32c(size)), struct.pack("<I", masked_crc32c(record)))
        found += size + sums[0] + record + sums[1]
    return bytes(found)


def wandb_records() -> list[bytes]:
    records = []
    for step, reward in REWARD.items():
        items = b""
        for key, value in (("step", step), ("reward", reward)):
            items += message(1, message(1, key.encode()) + message(16, json.dumps(value).encode()))
        records.append(message(2, items + message(2, message(1, step))))
    return records


def swanlab_records() -> list[bytes]:
    records = []
    for step, reward in REWARD.items():
        scalar = varint(1 << 3 | 1) + struct.pack("<d", reward)
        inner = message(1, b"reward") + message(2, step) + message(5, scalar)
        records.append(message(13, inner))
    return records


def level_log(head: bytes, records: list[bytes]) -> bytes:
    found = bytearray(head)
    for record in records:
        checksum = zlib.crc32(record, zlib.crc32(b"\1"))
        found += struct.pack("<IHB", checksum, len(record), 1) + record
    return bytes(found)


def framed() -> Iterator[DamagedLog]:
    files = {
        "events.out.tfevents.1": tensorboard(tensorboard_records()),
        "run-x.wandb": level_log(b":W&B\xe1\xbe\x00", wandb_records()),
        "run-x.swanlab": level_log(b":SWL\xd6\xe1\x02", swanlab_records()),
    }
    for name, whole in files.items():
        size = len(whole)
        yield DamagedLog(f"{name}: whole", name, text(whole), exact=False)
        for share in (0.3, 0.6, 0.95):
            at = int(share * size)
            yield DamagedLog(f"{name}: cut at {share:.0%}", name, text(whole[:at]), exact=False)
            flipped = whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :]
            yield DamagedLog(f"{name}: a bit flipped at {share:.0%}", name, text(flipped), exact=False)
            zeroed = whole[:at] + PAGE[: size - at] + whole[at + len(PAGE) :]
            yield DamagedLog(f"{name}: zeros at {share:.0%}", name, text(zeroed), exact=False)
            noise = random.Random(1).randbytes(len(PAGE))
            noisy = whole[:at] + noise[: size - at] + whole[at + len(PAGE) :]
            yield DamagedLog(f"{name}: noise at {share:.0%}", name, text(noisy), exact=False)


def trackio(path: Path, damaged: tuple[int, ...]) -> None:
    """A database of trackio, in which the rows of some steps are no JSON."""
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        base.execute("CREATE TABLE configs (run_name TEXT, config TEXT)")
        for row in ROWS:
            content = "{broken" if row["step"] in damaged else json.dumps(row)
            base.execute("INSERT INTO metrics VALUES (NULL, 'r', ?, ?)", [row["step"], content])
        base.commit()


def mlflow(path: Path, damaged: bool) -> None:
    """A database of MLflow, perhaps with a damaged page."""
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA page_size = 512")
        base.execute("CREATE TABLE runs (run_uuid, name, status, lifecycle_stage, start_time)")
        base.execute("CREATE TABLE params (run_uuid, key, value)")
        base.execute("CREATE TABLE metrics (run_uuid, step, key, value, is_nan, timestamp)")
        base.execute("INSERT INTO runs VALUES ('a', 'r', 'FINISHED', 'active', 1)")
        for step, reward in REWARD.items():
            base.execute("INSERT INTO metrics VALUES ('a', ?, 'reward', ?, 0, ?)", [step, reward, step])
        base.commit()
    if damaged:
        content = bytearray(path.read_bytes())
        content[-700:-100] = b"\xff" * 600
        path.write_bytes(content)


def databases() -> Iterator[DamagedLog]:
    many = tuple(range(5, 25))
    yield DamagedLog("trackio: whole", "p.db", partial(trackio, damaged=()))
    yield DamagedLog("trackio: a bad row", "p.db", partial(trackio, damaged=(9,)))
    yield DamagedLog("trackio: many bad rows", "p.db", partial(trackio, damaged=many))
    yield DamagedLog("MLflow: whole", "mlflow.db", partial(mlflow, damaged=False))
    yield DamagedLog("MLflow: a damaged page", "mlflow.db", partial(mlflow, damaged=True), exact=False)


def packed() -> Iterator[DamagedLog]:
    content = joined(LINES).encode()
    streams = {
        "log.jsonl.gz": gzip.compress(content),
        "log.jsonl.bz2": bz2.compress(content),
        "log.jsonl.xz": lzma.compress(content),
        "log.jsonl.zst": pa.compress(content, "zstd", asbytes=True),
    }
    noisy = joined(replaced(LINES, "noise", *range(7))).encode()
    for name, whole in streams.items():
        yield DamagedLog(f"{name}: whole", name, text(whole))
        yield DamagedLog(f"{name}: cut", name, text(whole[: 2 * len(whole) // 3]), exact=False)
    yield DamagedLog("log.jsonl.gz: noise inside", "log.jsonl.gz", text(gzip.compress(noisy)))

    def zipped(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("../outside.jsonl", content)
            archive.writestr("/absolute.jsonl", content)
            archive.writestr("inside.jsonl", noisy)

    yield DamagedLog("log.zip: names that lead outside", "log.zip", zipped)


def damaged_logs() -> list[DamagedLog]:
    """All of them."""
    parts = (json_lines, json_documents, tables, parquet_files, framed, databases, packed)
    return list(chain.from_iterable(part() for part in parts))


def lost_steps(read: dict[int, float]) -> tuple[int, int]:
    """How many rows of the run are not among the (step, reward) that were read, and how many of those read
    are wrong.
    """
    true = np.array(list(REWARD.values()))
    values = np.array([value for value in read.values() if np.isfinite(value)])
    right = {int(np.argmin(np.abs(true - value))) for value in values if np.abs(true - value).min() < 1e-6}
    return STEPS - len(right), len(values) - len(right)

"""A file of questions, JSON lines or parquet, as items."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.agent.data.items import Item, NotARow, item_of
from workbench.spec import InputError
from workbench.spec.files import from_json, open_file

_ROWS = 1024  # of a parquet file that are in memory at a time


@dataclass(frozen=True)
class Data:
    """The items of a file in its order, and how many of its rows had no gold answer and were left out."""

    name: str
    items: list[Item]
    left_out: int = 0

    @property
    def multiple_choice(self) -> bool:
        """Whether the questions come with choices; a file is of one kind throughout."""
        return bool(self.items[0].choices)


def read(path: Path, name: str, limit: int | None = None) -> Data:
    """The first `limit` items of a `.parquet` file, or of JSON lines (or one JSON list) under any other name.

    Raises InputError that names file, row and what is wrong with it.
    """
    items: list[Item] = []
    left_out, number = 0, 0
    for number, row in enumerate(_rows(path), start=1):
        try:
            item = item_of(row, number - 1)
        except (NotARow, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"row {number} of '{path}': {error}") from None
        left_out += item is None
        items += [] if item is None else [item]
        if limit is not None and len(items) >= limit:
            break
    if not items:
        raise InputError(f"'{path}' has no question with a gold answer among its {number} rows")
    if len({bool(item.choices) for item in items}) > 1:
        raise InputError(f"'{path}' has questions with choices and questions without; split it into two files")
    return Data(name, items, left_out)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        with open_file(path) as opened, io.TextIOWrapper(opened, "utf-8-sig") as file:
            start = file.read(1)
            file.seek(0)
            if start == "[":
                yield from _objects(enumerate(from_json(file.read()), start=1), path)
            else:
                yield from _objects(
                    ((n, from_json(line)) for n, line in enumerate(file, start=1) if line.strip()), path
                )
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read '{path}': {error}") from None


def _objects(rows: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    for number, row in rows:
        if not isinstance(row, Mapping):
            raise InputError(f"row {number} of '{path}' is {type(row).__name__}, not an object with named fields")
        yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(_ROWS):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read '{path}': {error}") from None

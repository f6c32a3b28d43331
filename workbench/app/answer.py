"""An answer as a table on the screen, its columns with their definitions, and as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from workbench.app import download
from workbench.app.safe import markdown_text
from workbench.store.text import as_csv

if TYPE_CHECKING:
    import pyarrow as pa

Words = Callable[[str], tuple[str, str]]
_ROW, _TALLEST = 35, 420  # pixels
# Figures of a number that is not whole: the grid's own four decimals hide the small ones, six falsify the large ones.
_FEW, _ALL, _LARGE = "%.6g", "%.15g", 1e6


def show(table: pa.Table, words: Words) -> None:
    """The rows as a grid; `words` gives a column's unit and definition, which its header tells."""
    st.dataframe(
        table, placeholder="NULL", height=min(_TALLEST, _ROW * (max(table.num_rows, 1) + 1) + 3),
        column_config={name: _column(table.column(name), *words(name)) for name in table.column_names},
    )  # fmt: skip


def _column(values: pa.ChunkedArray, unit: str, definition: str) -> Any:
    import pyarrow.types as kinds

    told = " ".join(part for part in (definition, f"[{unit}]" if unit else "") if part)
    tip = markdown_text(told) if told else None
    if kinds.is_floating(values.type):
        return st.column_config.NumberColumn(help=tip, format=figures(values))
    return st.column_config.Column(help=tip)


def figures(values: pa.ChunkedArray) -> str:
    """How the grid writes the numbers of a column: in six figures, or in all where one has more before the point."""
    import pyarrow.compute as pc

    finite = pc.filter(values, pc.is_finite(values))
    largest = pc.max(pc.abs(finite)).as_py()
    return _ALL if largest is not None and largest >= _LARGE else _FEW


def files(table: Callable[[], pa.Table]) -> None:
    """Buttons that make a file of `table` when they are pressed."""
    kinds: Mapping[str, tuple[str, Callable[[pa.Table], bytes]]] = {
        "CSV": ("text/csv", csv_of), "Parquet": ("application/octet-stream", parquet_of),
    }  # fmt: skip

    def made(write: Callable[[pa.Table], bytes]) -> bytes:
        return write(table())

    with st.container(horizontal=True, horizontal_alignment="right", gap="small"):
        for name, (kind, write) in kinds.items():
            download.button(name, partial(made, write), f"sorl-answer.{name.lower()}", kind, key=f"answer-{name}")


def csv_of(table: pa.Table) -> bytes:
    """The table as CSV: NULL is empty, NaN is nan, lists are JSON."""
    rows = (row for batch in table.to_batches() for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
    return as_csv(table.column_names, rows).encode()


def parquet_of(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    import io

    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()

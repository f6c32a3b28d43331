"""`sorl sql`: a question to the database, or the list of what can be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import echo
from workbench.spec import TABLES

if TYPE_CHECKING:
    from workbench.store.reader import Answer, Reader

_FORMATS = ("table", "csv", "json", "parquet")
_LIMIT = 1000  # rows of a table on the terminal
_TABLES = """
    SELECT t.table_name AS name, 'table' AS kind, counted.rows, t.column_count AS columns, t.comment AS grain
    FROM duckdb_tables() t JOIN ({counts}) AS counted ON counted.name = t.table_name WHERE NOT t.internal
    UNION ALL
    SELECT view_name, 'view', NULL, column_count, comment FROM duckdb_views() WHERE NOT internal
    ORDER BY kind, name
""".format(
    counts=" UNION ALL ".join(
        f"SELECT '{name}' AS name, count(*) AS rows FROM \"{name}\"" for name in (t.name for t in TABLES)
    )
)
_COLUMNS = """
    SELECT column_name AS column, data_type AS type, comment AS description
    FROM duckdb_columns() WHERE table_name = ? AND NOT internal ORDER BY column_index
"""


def sql(
    ctx: typer.Context,
    query: Annotated[
        str | None, typer.Argument(metavar="[SELECT ... | TABLE]", help="One SELECT, or a table to describe.")
    ] = None,
    saved: Annotated[str | None, typer.Option(metavar="NAME", help="A saved query.", show_default=False)] = None,
    form: Annotated[str, typer.Option("--format", help="table, csv, json or parquet.")] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Rows at most; a table shows {_LIMIT}, files hold all.", show_default=False),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.001, help="Stop a question that runs longer.")] = 60.0,
) -> None:
    """Ask the database in SQL, read-only. Alone: the tables; with a table's name: its columns."""
    from workbench.cli.shared import current
    from workbench.spec import InputError, nearest
    from workbench.store.reader import saved_query

    if form not in _FORMATS:
        raise InputError(f"--format '{form}' is unknown{nearest(form, _FORMATS)}; allowed: {', '.join(_FORMATS)}")
    if form == "parquet" and output is None:
        raise InputError("--format parquet writes a binary file: add --output FILE.parquet")
    if query is not None and saved is not None:
        raise InputError("both a query and --saved were given; type one of them")
    text = saved_query(saved).sql if saved is not None else query
    reader = current(ctx.obj, seconds=seconds)
    parameters: list[Any] | None = None
    if text is None:
        text = _TABLES
    elif _is_name(text) and text.strip() in _names(reader):
        text, parameters = _COLUMNS, [text.strip()]
    elif _is_name(text):
        raise InputError(f"no table '{text.strip()}'{nearest(text.strip(), _names(reader))}; `sorl sql` lists them")
    if form == "parquet" and output is not None:
        _write_parquet(reader, text, parameters, output)
        return
    answer = reader.rows(text, parameters, limit=limit or (_LIMIT if form == "table" and output is None else None))
    _show(answer, form, output)
    if query is None and saved is None and form == "table" and output is None:
        _list_saved()


def _show(answer: Answer, form: str, output: Path | None) -> None:
    from workbench.cli.shared import note
    from workbench.cli.tables import print_table

    if form == "table" and output is None:
        print_table(answer.columns, answer.rows, null="NULL")
    else:
        text = {"csv": _as_csv, "json": _as_json, "table": _as_csv}[form](answer)
        write(text, output)
    if answer.cut:
        note(f"only the first {len(answer.rows):,} rows; --limit N asks for more, --output FILE --format csv for all")


def _as_csv(answer: Answer) -> str:
    from workbench.store.text import as_csv

    return as_csv(answer.columns, answer.rows)


def _as_json(answer: Answer) -> str:
    """One object per row; NULL is null, NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""
    from workbench.store.text import as_json

    rows = [{c: as_json(v) for c, v in zip(answer.columns, row, strict=True)} for row in answer.rows]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(text: str, output: Path | None) -> None:
    """Put a result on stdout, or into the file that was named; InputError where it cannot be written."""
    from workbench.cli.shared import note
    from workbench.spec import InputError

    if output is None:
        echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write --output '{output}': {error.strerror}") from None
    note(f"wrote {output}")


def _write_parquet(reader: Reader, text: str, parameters: list[Any] | None, output: Path) -> None:
    import pyarrow.parquet as pq

    from workbench.cli.shared import note
    from workbench.spec import InputError

    table = reader.arrow(text, parameters)
    try:
        pq.write_table(table, output)
    except OSError as error:
        raise InputError(f"cannot write --output '{output}': {error.strerror or error}") from None
    note(f"wrote {output}: {table.num_rows:,} rows")


def _is_name(text: str) -> bool:
    return text.strip().isidentifier()


def _names(reader: Reader) -> list[str]:
    return [row[0] for row in reader.rows(_TABLES).rows]


def _list_saved() -> None:
    from workbench.store.reader import saved

    echo("\nSaved queries (sorl sql --saved NAME)")
    width = max(len(query.name) for query in saved())
    for query in saved():
        echo(f"  {query.name.ljust(width)}  {query.title}")

"""`sorl sql`: query the database, or list its tables, columns and saved queries."""

from pathlib import Path
from typing import Any

from typer import Argument, Context, Option

from sorl.cli.shared import OUTPUT, current, number, one_of
from sorl.cli.tables import as_text, echo, note, print_table, save, save_parquet
from sorl.spec import TABLES, InputError, nearest
from sorl.store.reader import saved as saved_queries
from sorl.store.reader import saved_query

_LIMIT = 1000  # rows of a table on the terminal
_MOST = f"Most rows to return; default: {_LIMIT} for a table, all for a file."
_COUNTS = " UNION ALL ".join(f"SELECT '{t.name}' AS name, count(*) AS rows FROM \"{t.name}\"" for t in TABLES)
_TABLES = f"""
    SELECT t.table_name AS name, 'table' AS kind, counted.rows, t.column_count AS columns, t.comment AS grain
    FROM duckdb_tables() t JOIN ({_COUNTS}) AS counted ON counted.name = t.table_name WHERE NOT t.internal
    UNION ALL
    SELECT view_name, 'view', NULL, column_count, comment FROM duckdb_views() WHERE NOT internal
    ORDER BY kind, name
"""
_COLUMNS = """
    SELECT column_name AS column, data_type AS type, comment AS description
    FROM duckdb_columns() WHERE table_name = ? AND NOT internal ORDER BY column_index
"""


def sql(
    ctx: Context,
    query: str | None = Argument(
        None, metavar="[SELECT ... | TABLE]", help="A statement, or a table to describe."
    ),
    saved: str | None = Option(None, metavar="NAME", help="Run a saved query."),
    form: str = one_of("--format", "table", "csv", "json", "parquet", default="table"),
    output: Path | None = OUTPUT,
    limit: int | None = number(
        None, "--limit", least=1, most=10**9, why="--output FILE --format csv writes all rows", what=_MOST
    ),
    seconds: float = number(
        60.0,
        "--seconds",
        least=0.001,
        most=10**6,
        why="that is eleven days",
        what="Stop the query after this many seconds.",
    ),
) -> None:
    """Run a read-only SQL query. Without one, list the tables; with a table's name, list its columns."""
    if form == "parquet" and output is None:
        raise InputError("--format parquet writes a binary file: add --output FILE.parquet")
    if query is not None and saved is not None:
        raise InputError("both a query and --saved were given; give only one")
    text = saved_query(saved).sql if saved is not None else _TABLES if query is None else query
    parameters: list[Any] | None = None
    reader = current(ctx.obj, seconds=seconds)
    if query is not None and (name := query.strip()).isidentifier():
        names = [row[0] for row in reader.rows(_TABLES).rows]
        if name not in names:
            raise InputError(f"no table '{name}'{nearest(name, names)}; `sorl sql` lists them")
        text = _COLUMNS
        parameters = [name]
    if form == "parquet" and output is not None:
        save_parquet(reader.excerpt(text, parameters).table, output)
        return
    on_terminal = form == "table" and output is None
    answer = reader.rows(text, parameters, limit=limit or (_LIMIT if on_terminal else None))
    if on_terminal:
        print_table(answer.columns, answer.rows, null="NULL")
    else:
        save(as_text(answer.columns, answer.rows, "json" if form == "json" else "csv"), output)
    if answer.cut:
        note(
            f"only the first {len(answer.rows):,} rows; --limit N shows more, --output FILE --format csv"
            " writes all"
        )
    if query is None and saved is None and on_terminal:
        echo("\nSaved queries (sorl sql --saved NAME)")
        width = max(len(one.name) for one in saved_queries())
        for one in saved_queries():
            echo(f"  {one.name.ljust(width)}  {one.title}")

"""`sorl sql`: query the database, or list its tables, columns and saved queries."""

from pathlib import Path
from typing import Any, NamedTuple

from typer import Argument, Context, Option

from sorl.cli.shared import OUTPUT, current, number, one_of
from sorl.cli.tables import as_text, echo, note, print_table, save, save_parquet
from sorl.spec import TABLES, InputError, nearest
from sorl.store.reader import Reader, saved_query
from sorl.store.reader import saved as saved_queries

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
    saved_text = None if saved is None else saved_query(saved).sql
    reader = current(ctx.obj, seconds=seconds)
    statement = _Statement(saved_text) if saved_text is not None else _statement(reader, query)
    if form == "parquet" and output is not None:
        save_parquet(reader.excerpt(statement.text, statement.parameters).table, output)
        return
    on_terminal = form == "table" and output is None
    most = limit or (_LIMIT if on_terminal else None)
    answer = reader.rows(statement.text, statement.parameters, limit=most)
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
        _list_saved_queries()


class _Statement(NamedTuple):
    """A SQL statement and the values of its parameters."""

    text: str
    parameters: list[Any] | None = None


def _statement(reader: Reader, query: str | None) -> _Statement:
    """Return the statement of an argument: SQL, the columns of a table, or (None) the list of tables."""
    if query is None:
        return _Statement(_TABLES)
    table = query.strip()
    if not table.isidentifier():
        return _Statement(query)
    tables = [row[0] for row in reader.rows(_TABLES).rows]
    if table not in tables:
        raise InputError(f"no table '{table}'{nearest(table, tables)}; `sorl sql` lists them")
    return _Statement(_COLUMNS, [table])


def _list_saved_queries() -> None:
    echo("\nSaved queries (sorl sql --saved NAME)")
    width = max(len(query.name) for query in saved_queries())
    for query in saved_queries():
        echo(f"  {query.name.ljust(width)}  {query.title}")

"""The database schema from the declarations: tables, measured columns, comments, views."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sorl.measures import CATALOGUE
from sorl.measures.declare import dictionary as rows_of
from sorl.spec import TABLES, Diagnostic, Level

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

VIEWS = Path(__file__).parent / "views"
_SOURCES = re.compile(r"(?:FROM|JOIN)\s+(\w+)")


def quoted(name: str) -> str:
    """`name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as an SQL string; DDL takes no parameters."""
    return "'" + text.replace("'", "''") + "'"


def titled(folder: Path) -> dict[str, tuple[str, str]]:
    """Name -> (first line, which is a comment; the SQL below it) of every file of a folder, by name."""
    parts = {
        file.stem: file.read_text(encoding="utf-8").split("\n", 1) for file in sorted(folder.glob("*.sql"))
    }
    return {name: (first.removeprefix("--").strip(), body.strip()) for name, (first, body) in parts.items()}


def insert(connection: DuckDBPyConnection, table: str, columns: dict[str, list[Any]]) -> None:
    """Append rows, given as lists of one length by column."""
    lists = ", ".join(f"unnest(${name})" for name in columns)
    connection.execute(
        f"INSERT INTO {quoted(table)} ({', '.join(map(quoted, columns))}) SELECT {lists}", columns
    )


def views() -> dict[str, tuple[str, str]]:
    """Name -> (grain, SQL) of every view, one file each; a view that reads another comes after it."""
    found = titled(VIEWS)
    reads = {name: sorted(set(_SOURCES.findall(body)) & set(found)) for name, (_, body) in found.items()}
    return {name: found[name] for name in TopologicalSorter(reads).static_order()}


def table_ddl() -> list[str]:
    """Return the statements that give any database, empty or older, our tables and columns; each may run
    again.
    """
    statements = []
    for table in TABLES:
        name = quoted(table.name)
        columns = ", ".join(f"{quoted(c.name)} {c.type}" for c in table.columns)
        statements += [f"CREATE TABLE IF NOT EXISTS {name} ({columns})"]
        statements += [f"COMMENT ON TABLE {name} IS {literal(table.grain)}"]
        for c in table.columns:
            statements += [f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS {quoted(c.name)} {c.type}"]
            statements += [f"COMMENT ON COLUMN {name}.{quoted(c.name)} IS {literal(c.description)}"]
    return statements


def view_ddl() -> list[str]:
    """Return the statements that make the views; they read measured columns, which have to be there."""
    makes = "CREATE OR REPLACE VIEW {0} AS {1}", "COMMENT ON VIEW {0} IS {2}"
    statements = []
    for name, (grain, body) in views().items():
        statements += [statement.format(quoted(name), body, literal(grain)) for statement in makes]
    return statements


def is_current(connection: DuckDBPyConnection) -> bool:
    """Return True where the database has this schema and every declared diagnostic."""
    found = dict(connection.execute(_OBJECTS).fetchall())
    return _marked(connection) and set(_objects()) <= set(found) and not _undeclared(connection)


def refuse_strange(connection: DuckDBPyConnection) -> None:
    """Raise duckdb.CatalogException where a table of ours is another program's or gone: no segment is at
    fault.
    """
    import duckdb

    found = dict(connection.execute(_OBJECTS).fetchall())
    if strange := sorted(name for name, kind in _objects().items() if found.get(name, kind) != kind):
        raise duckdb.CatalogException(f"another program made {', '.join(strange)} in it")
    types: dict[tuple[str, str], str] = {}
    for table in TABLES:
        types |= {(table.name, column.name): column.type for column in table.columns}
    asked = "table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    for *column, kind in connection.execute(
        f"SELECT {asked} AND database_name = current_database()"
    ).fetchall():
        if types.get((column[0], column[1]), kind) != kind:
            raise duckdb.CatalogException(f"another program made {'.'.join(column)} in it ({kind})")
    if _marked(connection) and (gone := sorted(table.name for table in TABLES if table.name not in found)):
        raise duckdb.CatalogException(f"table {', '.join(gone)} was dropped from it")


def create(connection: DuckDBPyConnection) -> None:
    """Create or update tables, comments and views in one transaction; does nothing where the schema is
    current.
    """
    if is_current(connection):
        return
    refuse_strange(connection)
    connection.execute("BEGIN")
    for statement in table_ddl():
        connection.execute(statement)
    if new := _undeclared(connection):
        insert(connection, "diagnostic", rows_of(new))
    add_measured_columns(connection)
    for statement in view_ddl():
        connection.execute(statement)
    # The hash is kept in a macro: unlike a table of one row it stays out of the list of tables.
    connection.execute(f"CREATE OR REPLACE MACRO sorl_schema() AS {literal(_fingerprint())}")
    connection.execute("COMMIT")


def add_measured_columns(connection: DuckDBPyConnection) -> None:
    """Give every diagnostic of table `diagnostic` its column and its comment, where they are missing."""
    for name, table, level, unit, formula, description, kind in connection.execute(
        _MISSING, [_MEASURED]
    ).fetchall():
        full = f"{kind or 'DOUBLE'}[]" if level == Level.TOKEN.value else kind or "DOUBLE"
        connection.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN IF NOT EXISTS {quoted(name)} {full}")
        words = literal(
            (description or "") + (f" [{unit}]" if unit else "") + (f" = {formula}" if formula else "")
        )
        connection.execute(f"COMMENT ON COLUMN {quoted(table)}.{quoted(name)} IS {words}")


_MEASURED = [t.name for t in TABLES if t.name not in ("segment", "diagnostic", "experiment")]
# Diagnostics without a column, or whose column nobody described yet. A segment may name a table or a type
# that does not exist, or nothing: such a row is only a row.
_MISSING = """
    SELECT d.name, d.table_name, d.level, d.unit, d.formula, d.description, d.sql_type
    FROM diagnostic d
    JOIN duckdb_tables() t ON t.table_name = d.table_name AND NOT t.internal
    LEFT JOIN duckdb_columns() c ON c.table_name = d.table_name AND c.column_name = d.name
    WHERE d.name <> '' AND list_contains(?, d.table_name)
      AND coalesce(c.comment, '') = ''
      AND coalesce(d.sql_type, 'DOUBLE') IN ('DOUBLE', 'BIGINT', 'BOOLEAN', 'VARCHAR')
"""
_OBJECTS = """
    SELECT table_name, 'table' FROM duckdb_tables() WHERE NOT internal AND database_name = current_database()
    UNION ALL
    SELECT view_name, 'view' FROM duckdb_views() WHERE NOT internal AND database_name = current_database()
"""


def _objects() -> dict[str, str]:
    return dict.fromkeys((t.name for t in TABLES), "table") | dict.fromkeys(views(), "view")


def _marked(connection: DuckDBPyConnection) -> bool:
    """Return whether a sorl with this very schema made the database, or brought it up to date."""
    asked = "SELECT 1 FROM duckdb_functions() WHERE function_name = 'sorl_schema' AND macro_definition = ?"
    return connection.execute(asked, [literal(_fingerprint())]).fetchone() is not None


def _undeclared(connection: DuckDBPyConnection) -> list[Diagnostic]:
    known = set(connection.execute("SELECT name, table_name FROM diagnostic").fetchall())
    return [d for d in CATALOGUE if (d.name, d.table) not in known]


def _fingerprint() -> str:
    return sha256("\n".join(table_ddl() + view_ddl()).encode()).hexdigest()

"""The whole database as Python values, to compare two states of it, and whether it is open."""

from pathlib import Path
from typing import Any

import duckdb

from sorl.spec import TABLES
from sorl.store.reader import Reader


def contents(runs: Path) -> dict[str, list[str]]:
    """Rows of every table, as text in a fixed order (NaN equals NaN, NULL does not)."""
    reader = Reader(runs)
    found = {}
    for table in TABLES:
        answer = reader.rows(f'FROM "{table.name}"')
        order = sorted(range(len(answer.columns)), key=lambda i: answer.columns[i])
        names = [answer.columns[i] for i in order]
        found[table.name] = sorted(
            repr([*zip(names, (row[i] for i in order), strict=True)]) for row in answer.rows
        )
    return found


def rows(runs: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """The rows of a question."""
    return Reader(runs).rows(sql, list(parameters)).rows


def one(runs: Path, sql: str, *parameters: Any) -> Any:
    """The only value of a question."""
    return rows(runs, sql, *parameters)[0][0]


def is_open(runs: Path) -> bool:
    """Whether this process has the database open: DuckDB refuses to open it a second time with other
    settings.
    """
    try:
        duckdb.connect(str(runs / "sorl.duckdb"), read_only=True, config={"threads": 1}).close()
    except duckdb.ConnectionException:
        return True
    except duckdb.IOException:
        pass  # there is none
    return False

"""Laying the database out anew: what many runs did at the same steps side by side, as the app asks for it.

Rows arrive run by run, so those of a hundred steps of a thousand runs lie all over the file, and DuckDB reads a column
in pieces far larger than what each run has of them. Here they are sorted by tiles of steps, within which runs follow
each other, in a new file that then takes the place of the old one: a copy that is killed has changed nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.spec import ROLLUPS, InputError
from workbench.store import connect, rollup
from workbench.store.quoting import literal, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TILE = 512  # steps; a run of fewer stays in one piece
_ROWS = 2_500_000  # that are sorted at once: a tile of them fills a row group of DuckDB where runs have 10,000 steps
_PATIENCE = 30.0  # seconds for whoever has the database open
_CONFIG: dict[str, Any] = {"memory_limit": "4GiB"}  # what does not fit is sorted on the disk

# Table -> the step that a row begins with.
_BEGINS = {
    **dict.fromkeys(rollup.SOURCES, "step"),
    **{r.name: f"block * {r.width}" for r in ROLLUPS},
}


@dataclass(frozen=True)
class Compacted:
    """How many rows were laid out, and the size of the file before and after (bytes)."""

    rows: int
    before: int
    after: int


def compact(runs: Path, say: Callable[[str], None] = lambda _: None, *, seconds: float = _PATIENCE) -> Compacted:
    """Lay out `runs/sorl.duckdb` anew; whoever reads goes on reading, whoever writes waits or comes back.

    What another process writes between the copy and its taking the old one's place is read from the run folders by the
    next sync, as after a deleted database. Raises InputError where there is no database, no room for a second one or
    another compaction at work, and connect.Busy where the database is not free within `seconds`.
    """
    old = connect.database(runs)
    if not old.exists():
        raise InputError(f"no database '{old}' yet: `sorl sync` builds it from the run folders")
    before = old.stat().st_size
    free = shutil.disk_usage(runs).free
    if free < before:
        raise InputError(
            f"'{runs}' has {_size(free)} free, and a copy of '{old}' needs up to {_size(before)} until it takes the "
            f"old one's place: make room, then type `sorl sync --compact` again"
        )
    with _scratch(runs) as scratch:
        new = scratch / old.name
        rows = _copy(runs, new, say, seconds)
        after = new.stat().st_size
        with connect.writer(runs, seconds) as connection:
            connection.execute("CHECKPOINT")  # a log left beside the new file would be taken for its own
            os.replace(new, old)
    return Compacted(rows, before, after)


@contextmanager
def _scratch(runs: Path) -> Iterator[Path]:
    """A folder for the copy and for what does not fit into memory, on the disk of the database; gone in the end.

    Raises InputError while another compaction is at work. The lock goes with the process; its file stays, because a
    lock on a deleted file keeps nobody out.
    """
    scratch = runs / ".compacting"
    with (runs / ".compacting.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another `sorl sync --compact` is at work in '{runs}': let it finish") from None
        except OSError as error:
            raise InputError(
                f"'{runs}' lies on storage without file locks ({error.strerror}): mount it with flock, or copy the "
                "folder elsewhere"
            ) from None
        shutil.rmtree(scratch, ignore_errors=True)  # of a compaction that was killed
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _copy(runs: Path, new: Path, say: Callable[[str], None], seconds: float) -> int:
    """Write the new file and return its rows."""
    import duckdb

    rows = 0
    with connect.reader(runs, seconds, {**_CONFIG, "temp_directory": str(new.parent / "sorting")}) as connection:
        name = str(connection.execute("SELECT current_database()").fetchall()[0][0])
        try:
            connection.execute(f"ATTACH {literal(str(new))} AS compacted (READ_WRITE)")
            connection.execute(f"COPY FROM DATABASE {quoted(name)} TO compacted (SCHEMA)")
            tables = connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE database_name = ? ORDER BY table_oid", [name]
            ).fetchall()
            for (table,) in tables:
                copied = _lay_out(connection, table)
                if copied:
                    say(f"{table}: {copied:,} rows")
                rows += copied
            connection.execute("CHECKPOINT compacted")
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"'{connect.database(runs)}' is as it was, the copy failed: {reason}") from None
    return rows


def _lay_out(connection: DuckDBPyConnection, table: str) -> int:
    """Copy one table and return its rows."""
    target = f"compacted.{quoted(table)}"
    if table not in _BEGINS:
        connection.execute(f"INSERT INTO {target} FROM {quoted(table)}")
    else:
        order = f"({_BEGINS[table]}) // {TILE}, run_id, rowid"
        for condition, parameters in _groups(connection, table):
            connection.execute(
                f"INSERT INTO {target} FROM {quoted(table)} WHERE {condition} ORDER BY {order}", parameters
            )
    (before,), (after,) = (
        connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0] for name in (quoted(table), target)
    )
    if before != after:
        raise RuntimeError(f"table {table} has {before} rows and its copy {after}: the database was left as it was")
    return int(after)


def _groups(connection: DuckDBPyConnection, table: str) -> Iterator[tuple[str, list[str]]]:
    """Conditions that part a table into runs whose rows are sorted together."""
    counted = connection.execute(
        f"SELECT run_id, count(*) FROM {quoted(table)} GROUP BY run_id ORDER BY run_id NULLS FIRST"
    ).fetchall()
    if counted and counted[0][0] is None:
        yield "run_id IS NULL", []
        counted = counted[1:]
    group: list[str] = []
    rows = 0
    for run_id, count in counted:
        if group and rows + count > _ROWS:
            yield "run_id BETWEEN ? AND ?", [group[0], group[-1]]
            group, rows = [], 0
        group.append(run_id)
        rows += count
    if group:
        yield "run_id BETWEEN ? AND ?", [group[0], group[-1]]


def _size(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"

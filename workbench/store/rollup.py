"""Roll-ups: sums, extremes and counts of the measured columns over blocks of steps; a thousand curves are cheap.

A sync only notes which steps have come. A run is rolled up when it has ended, and on the way every few hundred steps;
one of fewer steps never is, because reading its rows costs no more. So a live run's rows wait for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.spec import ROLLUPS, SPAN, Rollup, Table, Unit
from workbench.store.quoting import literal, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SOURCES = tuple(dict.fromkeys(rollup.source for rollup in ROLLUPS))
_TYPE = "STRUCT(n BIGINT, broken BIGINT, total DOUBLE, low DOUBLE, high DOUBLE, log DOUBLE)"
_FLOOR = "exp(-20)"  # log-ratios are clamped there, as trainers do
_ENOUGH = 512  # steps that are rolled up at once
_RUNS = 50  # that are rolled up at once: the sums of a block of all columns take kilobytes
_FORMER = ("step_block", "minibatch_block", "turn_step_block", "turn_index_block")  # of one width each
_WIDEST = max(rollup.width for rollup in ROLLUPS)


def ddl() -> list[str]:
    """The statements that make the tables, without the measured columns; each may run again."""
    statements = [f"DROP TABLE IF EXISTS {name}" for name in _FORMER]
    tables: tuple[Table | Rollup, ...] = (SPAN, *ROLLUPS)
    for table in tables:
        name = quoted(table.name)
        columns = ", ".join(f"{quoted(c.name)} {c.type}" for c in table.columns)
        statements += [f"CREATE TABLE IF NOT EXISTS {name} ({columns})", *_comments(table)]
    return statements


def fit(connection: DuckDBPyConnection) -> None:
    """Give every declared number its column in the roll-ups of its table.

    What was recorded before a column was declared is rolled up anew by the next `roll`.
    """
    for rollup in ROLLUPS:
        missing = connection.execute(_MISSING, {"source": rollup.source, "rollup": rollup.name}).fetchall()
        names = [quoted(name) for (name,) in missing]
        if missing and connection.execute(f"SELECT 1 FROM {rollup.name} LIMIT 1").fetchone() is None:
            # One statement for all columns: each ALTER takes a millisecond, and a new database needs 160 of them.
            have = [f"{quoted(name)} {kind}" for name, kind in _described(connection, rollup)]
            columns = ", ".join([*have, *(f"{name} {_TYPE}" for name in names)])
            connection.execute(f"CREATE OR REPLACE TABLE {rollup.name} ({columns})")
            for statement in _comments(rollup):
                connection.execute(statement)
        else:
            for name in names:
                connection.execute(f"ALTER TABLE {rollup.name} ADD COLUMN IF NOT EXISTS {name} {_TYPE}")
        if missing and connection.execute(f"SELECT 1 FROM {rollup.source} LIMIT 1").fetchone():
            _begin_again(connection, rollup.source)


def note(connection: DuckDBPyConnection, source: str, files: Sequence[str], names: Sequence[str]) -> None:
    """Note the steps of the rows that `files` (with columns `names`) have brought to table `source`."""
    if source not in SOURCES or not {"run_id", "step"} <= set(names):
        return
    rows = connection.execute(
        "SELECT run_id, min(step), max(step) FROM read_parquet($files, union_by_name = true) "
        "WHERE step IS NOT NULL GROUP BY run_id",
        {"files": list(files)},
    ).fetchall()
    for run_id, first, last in rows:
        known = connection.execute(
            "SELECT first_step, last_step, rolled_to FROM span WHERE run_id IS NOT DISTINCT FROM ? AND table_name = ?",
            [run_id, source],
        ).fetchone()
        earliest, latest, rolled = known or (first, last, 0)
        if first < rolled:  # rows of a block that is rolled up already: make the run's blocks anew
            _forget_blocks(connection, source, [run_id])
            rolled = 0
        connection.execute("DELETE FROM span WHERE run_id IS NOT DISTINCT FROM ? AND table_name = ?", [run_id, source])
        connection.execute(
            "INSERT INTO span VALUES (?, ?, ?, ?, ?)", [run_id, source, min(first, earliest), max(last, latest), rolled]
        )


def roll(connection: DuckDBPyConnection) -> None:
    """Roll up what is due: all of a run that has ended, of a live one whole blocks once there are enough of them."""
    for source in SOURCES:
        due = connection.execute(_DUE, {"source": source, "enough": _ENOUGH, "width": _WIDEST}).fetchall()
        for first in range(0, len(due), _RUNS):
            _roll(connection, source, due[first : first + _RUNS])


def rebuild(connection: DuckDBPyConnection) -> None:
    """Make every roll-up anew from the rows of the database."""
    for source in SOURCES:
        _begin_again(connection, source)
    roll(connection)


def forget(connection: DuckDBPyConnection, source: str, run_ids: Sequence[str]) -> None:
    """Forget the runs whose rows of table `source` were deleted."""
    if source in SOURCES and run_ids:
        _forget_blocks(connection, source, run_ids)
        connection.execute(
            "DELETE FROM span WHERE table_name = $source AND list_contains($runs, run_id)",
            {"source": source, "runs": list(run_ids)},
        )


def _comments(table: Table | Rollup) -> list[str]:
    name = quoted(table.name)
    each = [f"COMMENT ON COLUMN {name}.{quoted(c.name)} IS {literal(c.description)}" for c in table.columns]
    return [f"COMMENT ON TABLE {name} IS {literal(table.grain)}", *each]


def _described(connection: DuckDBPyConnection, rollup: Rollup) -> list[tuple[str, str]]:
    """Name and type of the columns that a roll-up has."""
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [rollup.name]
    ).fetchall()
    return [(str(name), str(kind)) for name, kind in rows]


def _roll(connection: DuckDBPyConnection, source: str, due: list[tuple[Any, ...]]) -> None:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE due AS SELECT unnest($runs) AS run_id, unnest($begin) AS begin, "
        "unnest($until) AS until",
        dict(zip(("runs", "begin", "until"), map(list, zip(*due, strict=True)), strict=True)),
    )
    for rollup in ROLLUPS:
        if rollup.source == source:
            # A block that a run had begun before it went on is made anew, whole.
            connection.execute(
                f"DELETE FROM {rollup.name} USING due WHERE {rollup.name}.run_id = due.run_id "
                f"AND (block + 1) * {rollup.width} > begin"
            )
            finer = _finer(rollup)
            asked = _rolled(connection, rollup) if finer is None else _gathered(connection, rollup, finer)
            connection.execute(f"INSERT INTO {rollup.name} BY NAME {asked}")
    connection.execute(
        "UPDATE span SET rolled_to = due.until FROM due WHERE span.run_id = due.run_id AND table_name = $source",
        {"source": source},
    )
    connection.execute("DROP TABLE due")


def _begin_again(connection: DuckDBPyConnection, source: str) -> None:
    """Empty the roll-ups of a table and note anew what it holds."""
    for rollup in ROLLUPS:
        if rollup.source == source:
            connection.execute(f"DELETE FROM {rollup.name}")
    connection.execute("DELETE FROM span WHERE table_name = ?", [source])
    connection.execute(
        f"INSERT INTO span SELECT run_id, {literal(source)}, min(step), max(step), 0 FROM {source} "
        "WHERE step IS NOT NULL GROUP BY run_id"
    )


def _forget_blocks(connection: DuckDBPyConnection, source: str, run_ids: Sequence[str]) -> None:
    for rollup in ROLLUPS:
        if rollup.source == source:
            connection.execute(f"DELETE FROM {rollup.name} WHERE list_contains($runs, run_id)", {"runs": list(run_ids)})


_DUE = """
    SELECT run_id, rolled_to,
           CASE WHEN ended THEN last_step + 1 ELSE (last_step + 1) // $width * $width END AS until
    FROM span
    LEFT JOIN (SELECT run_id, true AS ended FROM run WHERE status IN ('finished', 'failed', 'interrupted'))
        USING (run_id)
    WHERE table_name = $source AND run_id IS NOT NULL AND last_step >= rolled_to
          AND last_step >= $enough AND (ended OR last_step - rolled_to >= $enough)
    ORDER BY run_id
"""

# Declared numbers of the source without a column in the roll-up, where the source has one.
_MISSING = """
    SELECT d.name
    FROM diagnostic d
    JOIN duckdb_columns() s ON s.table_name = $source AND s.column_name = d.name AND s.data_type IN ('DOUBLE', 'BIGINT')
    LEFT JOIN duckdb_columns() c ON c.table_name = $rollup AND c.column_name = d.name
    WHERE d.table_name = $source AND coalesce(d.sql_type, 'DOUBLE') IN ('DOUBLE', 'BIGINT') AND c.column_name IS NULL
    ORDER BY d.name
"""


def _columns(connection: DuckDBPyConnection, rollup: Rollup) -> list[tuple[str, bool]]:
    """The measured columns of a roll-up, each with whether it is a ratio."""
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT column_name, bool_or(coalesce(unit = $ratio, false)) FROM duckdb_columns() c "
        "LEFT JOIN diagnostic d ON d.name = c.column_name AND d.table_name = $source "
        "WHERE c.table_name = $rollup AND c.data_type LIKE 'STRUCT%' "
        "GROUP BY column_name, column_index ORDER BY column_index",
        {"ratio": Unit.RATIO.value, "source": rollup.source, "rollup": rollup.name},
    ).fetchall()
    return [(str(name), bool(is_ratio)) for name, is_ratio in rows]


def _rolled(connection: DuckDBPyConnection, rollup: Rollup) -> str:
    """The question that rolls up the rows that table `due` names, run by run."""
    keys = ", ".join(("run_id", *rollup.keys))
    columns = _columns(connection, rollup)
    measured = "".join(f", {_summed(name, is_ratio=is_ratio)}" for name, is_ratio in columns)
    # A FILTER on each aggregate would take seven times as long as one CASE a column.
    values = "".join(
        f", {x}::DOUBLE AS {x}, CASE WHEN isfinite({x}::DOUBLE) THEN {x}::DOUBLE END AS {_finite(name)}"
        for name, x in ((name, quoted(name)) for name, _ in columns)
    )
    return (
        f"SELECT {keys}, block{measured} FROM ("
        f"SELECT {keys}, step // {rollup.width} AS block{values} FROM {rollup.source} JOIN due USING (run_id) "
        f"WHERE step >= begin - begin % {rollup.width} AND step < until) GROUP BY {keys}, block ORDER BY run_id, block"
    )


def _finer(rollup: Rollup) -> Rollup | None:
    """The roll-up of the same rows that this one is made of; None for the narrowest, which is made of the rows."""
    mine = [r for r in ROLLUPS if (r.source, r.keys) == (rollup.source, rollup.keys) and r.width < rollup.width]
    return max(mine, key=lambda r: r.width, default=None)


def _gathered(connection: DuckDBPyConnection, rollup: Rollup, finer: Rollup) -> str:
    """The question that makes the blocks that table `due` touches of those of a finer roll-up."""
    keys = ", ".join(("run_id", *rollup.keys))
    within = f"block // {rollup.width // finer.width}"
    measured = "".join(
        f", {{'n': sum({x}.n)::BIGINT, 'broken': sum({x}.broken)::BIGINT, 'total': sum({x}.total), "
        f"'low': min({x}.low), 'high': max({x}.high), 'log': sum({x}.log)}} AS {x}"
        for x in (quoted(name) for name, _ in _columns(connection, rollup))
    )
    return (
        f"SELECT {keys}, {within} AS block{measured} FROM {finer.name} JOIN due USING (run_id) "
        f"WHERE ({within} + 1) * {rollup.width} > begin GROUP BY {keys}, {within} ORDER BY run_id, {within}"
    )


def _finite(name: str) -> str:
    return quoted(f"{name} finite")


def _summed(name: str, *, is_ratio: bool) -> str:
    x, finite = quoted(name), _finite(name)
    log = f"sum(ln(greatest({finite}, {_FLOOR})))" if is_ratio else "NULL::DOUBLE"
    return (
        f"{{'n': count({finite}), 'broken': count({x}) - count({finite}), 'total': sum({finite}), "
        f"'low': min({finite}), 'high': max({finite}), 'log': {log}}} AS {x}"
    )

"""From run folders to the database: every segment exactly once, in one transaction."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sorl.spec import TABLES, InputError, Table
from sorl.spec import table as spec_table
from sorl.store import connect
from sorl.store.schema import add_measured_columns, create, insert, is_current, quoted, refuse_strange
from sorl.store.segments import Segment, held, run_folders, run_of_rows, segments

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DIED = "the process died"
FOREIGN = "foreign"  # status of a segment with rows of another run
_NAMED = 5  # folders in one line
_PATIENCE = 4.0  # seconds: who waits longer for a database wants to know what holds it
# of a column of a segment, which holds a second of a run; equal values are a few bytes in a file
_MOST_VALUES = 10**7
Folders = dict[str, Path]  # of a runs folder, by run_id
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
# The dictionary first: it names the columns of the rest.
_ORDER = ("diagnostic", *(t.name for t in TABLES if t.name not in ("diagnostic", "segment")))


@dataclass
class SyncReport:
    """What one sync changed; all zero when the database was up to date."""

    segments: int = 0
    rows: int = 0
    corrupt: list[Path] = field(default_factory=list)
    # runs whose files went away or changed: rebuilt or gone
    forgotten: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # run folders left out, each with the reason


def sync(runs: Path, *, seconds: float = _PATIENCE) -> SyncReport:
    """Bring `runs/sorl.duckdb` up to date with the run folders, with a column for every declared diagnostic.

    Raises InputError for a folder that does not exist, connect.Busy when the database is not free within
    `seconds`.
    """
    if not runs.is_dir():
        raise InputError(f"no runs folder '{runs}': `sorl run FILE.toml` makes one, --runs DIR names another")
    report = SyncReport()
    folders: Folders = {}
    for folder in run_folders(runs):
        first = folders.setdefault(folder.name, folder)
        if first is not folder:
            twice = (
                f"'{folder.parent.name}/{folder.name}' left out: '{first.parent.name}' has a run of that name"
            )
            report.skipped.append(f"{twice}; rename one of the two")
    found = [s for s in segments(runs, report.skipped) if not s.run_id or _in_its_folder(s, folders)]
    # A read-only look first: the usual sync, with nothing new, takes no write lock at all.
    with suppress(connect.Busy):
        if connect.database(runs).exists():
            with connect.reader(runs, 0.0) as connection:
                current = is_current(connection) and not any(_plan(connection, found))
                if current and not _misjudged(connection, folders):
                    report.skipped += _strangers(connection, folders)
                    return report
    with connect.writer(runs, seconds) as connection:
        create(connection)
        # Looked up again under the lock: another process may have ingested the same files in the meantime.
        _apply(connection, found, folders, report)
        report.skipped += _strangers(connection, folders)
    return report


def _in_its_folder(segment: Segment, folders: Folders) -> bool:
    """Whether a segment is in the folder that counts for its run; a run that began since then waits for the
    next sync.
    """
    folder = folders.get(segment.run_id)
    return folder is not None and folder.parent.name == segment.experiment


def _strangers(connection: DuckDBPyConnection, folders: Folders) -> list[str]:
    """Return a line on the folders whose rows are of another run; none where there are none."""
    asked = (
        "SELECT run_id, min(table_name || '/' || parse_filename(file)) FROM segment WHERE status = $foreign"
    )
    rows = connection.execute(f"{asked} GROUP BY run_id ORDER BY run_id", {"foreign": FOREIGN}).fetchall()
    copies = [(folders[run_id], file) for run_id, file in rows if run_id in folders]
    if not copies:
        return []
    named = [
        f"'{folder.parent.name}/{folder.name}' (rows of '{run_of_rows(folder / 'segments' / file)}')"
        for folder, file in copies[:_NAMED]
    ]
    named += [f"{len(copies) - _NAMED} more"] if len(copies) > _NAMED else []
    whose = "1 run folder is" if len(copies) == 1 else f"{len(copies)} run folders are"
    way_out = "remove a copy, and give a renamed folder the name of its run back"
    return [f"{whose} left out, with rows that are those of another run: {', '.join(named)}; {way_out}"]


def _plan(connection: DuckDBPyConnection, found: Iterable[Segment]) -> tuple[list[Segment], list[str]]:
    """Return the segments not ingested yet, and the ids of runs with rows of files that vanished or were
    rewritten.
    """
    rows = connection.execute(
        "SELECT run_id, table_name, file, bytes, written_at, status FROM segment"
    ).fetchall()
    known = {(run, table, file): (size, at, status) for run, table, file, size, at, status in rows}
    here: dict[tuple[str, str, str], Segment] = {}
    for segment in found:
        if segment.key not in here or here[segment.key].aside:  # a repaired file wins over the one set aside
            here[segment.key] = segment
    stale = {key[0] for key in known if key not in here}
    for key in here.keys() & known.keys():
        segment = here[key]
        size, at, status = known[key]
        if (size, at) != (segment.bytes, segment.at) or (status == "ingested" and segment.aside):
            stale.add(segment.run_id)
    fresh = [s for key, s in here.items() if key not in known or key[0] in stale]
    return sorted(fresh, key=lambda s: (s.mtime, str(s.path))), sorted(stale)


def _apply(
    connection: DuckDBPyConnection, found: list[Segment], folders: Folders, report: SyncReport
) -> None:
    """Write everything in one transaction; a segment that breaks it is set aside and the rest is written
    without it.
    """
    import duckdb

    fresh, stale = _plan(connection, found)
    aside = [s for s in fresh if s.aside]
    good, broken = _readable(connection, [s for s in fresh if not s.aside])
    foreign = _foreign(connection, good)
    good = [s for s in good if s not in foreign]
    while True:
        moved = [s.set_aside() for s in broken]
        aside += moved
        report.corrupt += [s.path for s in moved]
        connection.execute("BEGIN")
        try:
            _ingest_all(connection, good, stale)
            _delete(connection, "segment", stale)
            _register(connection, good, aside, foreign)
            for run_id, status, reason in _misjudged(connection, folders):
                connection.execute(
                    "UPDATE run SET status = ?, reason = ? WHERE run_id = ?", [status, reason, run_id]
                )
            connection.execute("COMMIT")
            break
        except duckdb.Error as error:
            with suppress(duckdb.Error):  # a full disk has ended the transaction already
                connection.execute("ROLLBACK")
            if "No space left on device" in str(error):
                raise
            refuse_strange(connection)
            broken = _culprits(connection, good)
            if not broken:
                raise InputError(
                    f"cannot write the database: {str(error).strip().splitlines()[0]}"
                ) from error
            good = [s for s in good if s not in broken]
    report.segments += len(good)
    report.rows += sum(s.rows for s in good)
    report.forgotten += [run for run in stale if run]


def _readable(connection: DuckDBPyConnection, found: list[Segment]) -> tuple[list[Segment], list[Segment]]:
    """Segments with a whole footer and no more than _MOST_VALUES in a column, with their rows, and the
    others.
    """
    import duckdb

    def counts(files: list[Segment]) -> dict[str, int]:
        asked = "SELECT file_name, num_rows FROM parquet_file_metadata($files)"
        rows = connection.execute(asked, {"files": [str(s.path) for s in files]}).fetchall()
        if lists := [str(s.path) for s in files if s.table == "token"]:
            asked = (
                "SELECT file_name, sum(num_values) FROM parquet_metadata($files) GROUP BY file_name,"
                " column_id"
            )
            large = {
                file for file, n in connection.execute(asked, {"files": lists}).fetchall() if n > _MOST_VALUES
            }
            rows = [row for row in rows if row[0] not in large]
        return {file: n for file, n in rows if n <= _MOST_VALUES}

    known: dict[str, int] = {}
    try:
        known = counts(found) if found else {}
    except duckdb.Error:  # one torn file fails the whole question: ask for each alone
        for segment in found:
            with suppress(duckdb.Error):
                known |= counts([segment])
    good = [replace(s, rows=known[str(s.path)]) for s in found if str(s.path) in known]
    return good, [s for s in found if str(s.path) not in known]


def _foreign(connection: DuckDBPyConnection, found: list[Segment]) -> list[Segment]:
    """Return the segments of a run's folder that hold rows of another run: a folder that was copied within
    its experiment would count every row twice.
    """
    import duckdb

    whose = {str(s.path): s.run_id for s in found}
    strange: set[str] = set()
    for table in _ORDER:
        files = [str(s.path) for s in found if s.table == table and s.run_id]
        asked = "read_parquet($files, union_by_name = true, filename = '_file')"
        with suppress(duckdb.Error):  # rows without a run, or that cannot be read, which ingesting finds too
            distinct = f"SELECT DISTINCT _file, run_id FROM {asked}"
            rows = connection.execute(distinct, {"files": files}).fetchall() if files else []
            strange |= {file for file, run_id in rows if run_id is not None and str(run_id) != whose[file]}
    return [s for s in found if str(s.path) in strange]


def _culprits(connection: DuckDBPyConnection, good: list[Segment]) -> list[Segment]:
    """Return the first segment that cannot be written after those before it; none where all can."""
    import duckdb

    ordered = sorted(good, key=lambda s: (_ORDER.index(s.table), s.experiment, s.run_id))

    def fails(count: int) -> bool:
        connection.execute("BEGIN")
        try:
            _ingest_all(connection, ordered[:count], [])
        except duckdb.Error:
            return True
        finally:
            connection.execute("ROLLBACK")
        return False

    first = bisect_left(range(1, len(good) + 1), True, key=fails)
    return ordered[first : first + 1]


def _ingest_all(connection: DuckDBPyConnection, found: list[Segment], stale: Sequence[str]) -> None:
    for table in _ORDER:
        _ingest(connection, spec_table(table), [s for s in found if s.table == table], stale)


def _ingest(connection: DuckDBPyConnection, table: Table, files: list[Segment], stale: Sequence[str]) -> None:
    """Replace the rows of `stale` runs and append those of `files`; of equal keys the last by `written_at`
    wins.
    """
    # Columns come before rows: DuckDB refuses to alter a table that this transaction wrote to.
    names = _fit_columns(connection, table, files) if files else []
    # the dictionary has no runs; a description outlives the run that brought it
    if table.name != "diagnostic":
        _delete(connection, table.name, stale)
    target = quoted(table.name)
    columns = ", ".join(map(quoted, names))
    paths = {"files": [str(s.path) for s in files]}
    rows = f"SELECT {columns} FROM read_parquet($files, union_by_name = true"
    if names and not table.latest_wins:
        connection.execute(f"INSERT INTO {target} ({columns}) {rows})", paths)
    elif names:
        keys = ", ".join(map(quoted, table.key))
        same = " AND ".join(
            f"{target}.{quoted(k)} IS NOT DISTINCT FROM arrived.{quoted(k)}" for k in table.key
        )
        written = "written_at DESC NULLS LAST, " if "written_at" in names else ""
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE arrived AS {rows}, filename = '_file', file_row_number = true)"
            f" QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {written}list_position($files, _file)"
            " DESC, file_row_number DESC) = 1 ORDER BY list_position($files, _file), file_row_number",
            paths,
        )
        connection.execute(f"DELETE FROM {target} USING arrived WHERE {same}")
        connection.execute(f"INSERT INTO {target} ({columns}) SELECT {columns} FROM arrived")
        connection.execute("DROP TABLE arrived")
    # files never change: a later row without a severity withdraws an event
    if names and table.name == "event":
        connection.execute("DELETE FROM event WHERE severity IS NULL")
    if table.name == "diagnostic":
        add_measured_columns(connection)


def _fit_columns(connection: DuckDBPyConnection, table: Table, files: list[Segment]) -> list[str]:
    """Add the columns that `files` have and the table lacks; returns the columns to copy."""
    asked = "SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet($files, union_by_name = true))"
    found = connection.execute(asked, {"files": [str(s.path) for s in files]}).fetchall()
    asked = "FROM duckdb_columns() WHERE table_name = ? AND database_name = current_database()"
    have = dict(connection.execute(f"SELECT lower(column_name), data_type {asked}", [table.name]).fetchall())
    lists = {column.name for column in table.columns if column.type.endswith("[]")}
    names = []
    for name, kind in found:
        present = have.get(name.lower())
        if present is None and kind.strip('"') == "NULL":
            continue  # nothing was measured, so nobody knows the type yet
        is_nested = kind.endswith(("]", ")")) and not kind.startswith("DECIMAL")
        if is_nested and table.name != "token" and name not in lists:
            continue  # a list or a table in a cell, where one value belongs
        if present is None:
            connection.execute(f"ALTER TABLE {quoted(table.name)} ADD COLUMN {quoted(name)} {kind}")
        elif (
            present in _INTEGERS
            and kind in ("DOUBLE", "FLOAT")
            and name not in {c.name for c in table.columns}
        ):
            # The first segments happened to hold whole numbers; rounding the later ones would lose what was
            # measured.
            connection.execute(f"ALTER TABLE {quoted(table.name)} ALTER {quoted(name)} SET DATA TYPE DOUBLE")
        names.append(name)
    return names


def _delete(connection: DuckDBPyConnection, table: str, run_ids: Sequence[str]) -> None:
    run = "''" if table == "experiment" else "run_id"  # segments of experiments carry the empty run_id
    if run_ids:
        connection.execute(
            f"DELETE FROM {quoted(table)} WHERE list_contains($runs, {run})", {"runs": list(run_ids)}
        )


def _register(
    connection: DuckDBPyConnection, good: list[Segment], aside: list[Segment], foreign: list[Segment]
) -> None:
    columns = {
        "run_id": "run_id",
        "table_name": "table",
        "file": "file",
        "bytes": "bytes",
        "written_at": "at",
    }
    segments = good + aside + foreign
    stored: dict[str, list[Any]] = {}
    for name, own in columns.items():
        stored[name] = [getattr(segment, own) for segment in segments]
    stored["rows"] = [s.rows for s in good] + [None for _ in aside + foreign]
    stored["status"] = ["ingested" for _ in good] + ["corrupt" for _ in aside] + [FOREIGN for _ in foreign]
    insert(connection, "segment", stored)
    if runs := {"runs": sorted({s.run_id for s in aside if s.run_id})} if aside else {}:
        connection.execute(
            "DELETE FROM event WHERE kind = 'segment_corrupt' AND list_contains($runs, run_id)", runs
        )
        connection.execute(
            "INSERT INTO event (run_id, kind, severity, diagnostic, value, message, written_at) "
            "SELECT run_id, 'segment_corrupt', 'warning', '', count(*), "
            "'set aside, unreadable: ' || string_agg(file, ', ' ORDER BY file), max(written_at) "
            "FROM segment WHERE status = 'corrupt' AND list_contains($runs, run_id) GROUP BY run_id",
            runs,
        )


def _misjudged(connection: DuckDBPyConnection, folders: Folders) -> list[tuple[str, str, str | None]]:
    """Runs whose status the folder's lock refutes (a dead process cannot say so), with the right status and
    reason.
    """
    asked = (
        "SELECT run_id, status FROM run WHERE status = 'running' OR (status = 'interrupted' AND reason ="
        " $died)"
    )
    rows = connection.execute(asked, {"died": DIED}).fetchall()
    living = {run_id: run_id in folders and held(folders[run_id]) for run_id, _ in rows}
    wrong = [run_id for run_id, status in rows if living[run_id] != (status == "running")]
    return [
        (run_id, "running", None) if living[run_id] else (run_id, "interrupted", DIED) for run_id in wrong
    ]

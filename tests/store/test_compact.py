from __future__ import annotations

import errno
import fcntl
import shutil
import signal
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from tests.store.contents import contents, one
from tests.store.fixture import Shape, write_grid, write_run, write_segment
from tests.store.processes import python
from tests.store.test_rollup import blocks, write, written
from workbench.cli.main import app
from workbench.diagnostics import CATALOGUE
from workbench.spec import InputError
from workbench.store import compact as module
from workbench.store import connect
from workbench.store.compact import TILE, compact
from workbench.store.connect import Busy
from workbench.store.reader import Reader
from workbench.store.sync import SyncReport, sync

LONG = TILE + 90  # steps: two tiles
TURNS = Shape(trajectories=2, turns=2, epochs=1, steps_per_segment=30)

COMPACT = """
import os, signal, sys
from pathlib import Path
from workbench.store.compact import compact
compact(Path(sys.argv[1]), lambda line: os.kill(os.getpid(), signal.SIGKILL))
"""
READ = """
import sys
from pathlib import Path
from workbench.store.reader import Reader
print(Reader(Path(sys.argv[1])).rows("SELECT count(*) FROM step").rows[0][0])
"""
WRITE = """
import sys
from pathlib import Path
from workbench.diagnostics import CATALOGUE
from workbench.store.connect import Busy
from workbench.store.sync import sync
try:
    sync(Path(sys.argv[1]), CATALOGUE, seconds=0.2)
except Busy as busy:
    print(busy)
"""


@pytest.fixture(scope="module")
def two_tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two tiles, the second written first."""
    folder = tmp_path_factory.mktemp("two_tiles")
    for name in ("b", "a"):
        write(folder / "demo" / name, 0, LONG, status="finished")
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def long(two_tiles: Path, runs: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(two_tiles, runs, dirs_exist_ok=True))


def laid(runs: Path, table: str) -> list[str]:
    """Run and tile of the rows in the order in which they lie, each stretch once."""
    rows = Reader(runs).rows(f"SELECT run_id || step // {TILE} FROM {table} ORDER BY rowid").rows
    return [key for (key,), _ in groupby(rows)]


def words(runs: Path) -> list[tuple[Any, ...]]:
    reader = Reader(runs)
    asked = "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal ORDER BY ALL"
    views = "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
    tables = "SELECT table_name, comment FROM duckdb_tables() ORDER BY ALL"
    return [*reader.rows(asked).rows, *reader.rows(views).rows, *reader.rows(tables).rows]


def finished(code: str, runs: Path) -> str:
    process = python(code, runs)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.strip()


def left(runs: Path) -> list[str]:
    """What lies in the runs folder beside the experiments."""
    return sorted(p.name for p in runs.iterdir() if p.name not in ("demo", ".compacting.lock"))


def test_a_database_laid_out_anew_has_the_same_rows_columns_views_and_comments(runs: Path) -> None:
    write_grid(runs)
    write(runs / "demo" / "long", 0, LONG, status="finished")
    sync(runs, CATALOGUE)
    before = (contents(runs), repr(blocks(runs)), words(runs))
    done = compact(runs)
    assert (contents(runs), repr(blocks(runs)), words(runs)) == before
    assert done.rows > sum(map(len, before[0].values()))  # and the roll-ups
    assert done.after == (runs / "sorl.duckdb").stat().st_size
    assert str(sync(runs, CATALOGUE)) == str(SyncReport())  # nothing is missing, so nothing is read again
    assert left(runs) == ["sorl.duckdb"]


@pytest.mark.parametrize("table", ["step", "turn_step"])
def test_rows_lie_by_tiles_of_steps_and_in_a_tile_by_runs(long: Path, table: str) -> None:
    assert laid(long, table) != ["a0", "b0", "a1", "b1"]
    compact(long)
    assert laid(long, table) == ["a0", "b0", "a1", "b1"]
    steps = [s for (s,) in Reader(long).rows(f"SELECT step FROM {table} WHERE run_id = 'a' ORDER BY rowid").rows]
    assert steps == sorted(steps)


def test_blocks_lie_by_the_same_tiles(long: Path) -> None:
    compact(long)
    rows = Reader(long).rows("SELECT run_id || block * 4 // ? FROM step_block_4 ORDER BY rowid", [TILE]).rows
    assert [key for (key,), _ in groupby(rows)] == ["a0", "b0", "a1", "b1"]


def test_more_runs_than_are_sorted_at_once_lie_group_by_group(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(long)
    monkeypatch.setattr(module, "_ROWS", LONG + 1)
    compact(long)
    assert laid(long, "step") == ["a0", "a1", "b0", "b1"]
    assert contents(long) == before


def test_rows_without_a_run_or_a_step_are_kept(long: Path) -> None:
    with duckdb.connect(str(long / "sorl.duckdb")) as connection:
        connection.execute("INSERT INTO step (run_id, step) VALUES (NULL, 3), ('a', NULL), ('', 1)")
    before = contents(long)
    compact(long)
    assert contents(long) == before


def test_a_database_can_be_laid_out_twice(long: Path) -> None:
    before = contents(long)
    compact(long)
    compact(long)
    assert contents(long) == before
    assert laid(long, "step") == ["a0", "b0", "a1", "b1"]


def test_rows_that_come_later_are_rolled_up_as_without_it(runs: Path, tmp_path: Path) -> None:
    write(runs / "demo" / "a", 0, LONG, status="running")
    sync(runs, CATALOGUE)
    compact(runs)
    write(runs / "demo" / "a", LONG, LONG + 700, status="finished")
    sync(runs, CATALOGUE)
    plain = tmp_path / "plain"
    shutil.copytree(runs / "demo", plain / "demo")
    sync(plain, CATALOGUE)
    assert [*map(written, blocks(runs))] == [*map(written, blocks(plain))]


def test_meanwhile_the_app_reads_and_who_writes_hears_why_not(long: Path) -> None:
    heard: list[str] = []

    def others(_: str) -> None:
        if not heard:
            write(long / "demo" / "c", 0, 3)
            heard.extend([finished(READ, long), finished(WRITE, long)])

    compact(long, others)
    assert heard[0] == str(2 * LONG)
    assert "is held open by" in heard[1]
    assert "your runs are not affected" in heard[1]
    assert one(long, "SELECT count(*) FROM step") == 2 * LONG
    sync(long, CATALOGUE)
    assert one(long, "SELECT count(*) FROM step") == 2 * LONG + 3


def test_rows_written_between_the_copy_and_its_taking_over_come_back(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = connect.writer
    write(long / "demo" / "c", 0, 3)
    forgotten = long / "demo" / "b"

    @contextmanager
    def after_a_sync(runs: Path, seconds: float) -> Iterator[duckdb.DuckDBPyConnection]:
        monkeypatch.setattr(connect, "writer", taken)
        shutil.rmtree(forgotten)
        sync(runs, CATALOGUE)
        assert one(runs, "SELECT count(DISTINCT run_id) FROM step WHERE run_id IN ('a', 'b', 'c')") == 2
        with taken(runs, seconds) as connection:
            yield connection

    monkeypatch.setattr(connect, "writer", after_a_sync)
    compact(long)
    sync(long, CATALOGUE)
    found = contents(long)
    (long / "sorl.duckdb").unlink()
    sync(long, CATALOGUE)
    assert contents(long) == found


def test_a_compaction_that_is_killed_changes_nothing_and_the_next_one_clears_up(long: Path) -> None:
    before = contents(long)
    process = python(COMPACT, long)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert left(long) == [".compacting", "sorl.duckdb"]
    assert contents(long) == before
    sync(long, CATALOGUE)
    compact(long)
    assert contents(long) == before
    assert left(long) == ["sorl.duckdb"]


def test_a_log_that_a_killed_writer_left_is_part_of_the_database(long: Path) -> None:
    code = "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); c.execute(sys.argv[2]); os._exit(0)"
    insert = "INSERT INTO step (run_id, step) VALUES ('a', 9999)"
    python(code, long / "sorl.duckdb", insert).communicate(timeout=60)
    assert left(long) == ["sorl.duckdb", "sorl.duckdb.wal"]
    compact(long)
    assert one(long, "SELECT count(*) FROM step WHERE step = 9999") == 1
    assert left(long) == ["sorl.duckdb"]


def test_only_one_compaction_is_at_work(long: Path) -> None:
    (long / ".compacting").mkdir()
    (long / ".compacting" / "sorl.duckdb").touch()
    with (long / ".compacting.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another `sorl sync --compact` is at work"):
            compact(long)
    assert (long / ".compacting" / "sorl.duckdb").exists()
    compact(long)
    assert left(long) == ["sorl.duckdb"]


def test_storage_without_locks_is_named(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(handle: Any, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(InputError, match=r"without file locks \(No locks available\)"):
        compact(long)


def test_a_shell_that_holds_the_database_open_is_waited_for_and_then_named(long: Path) -> None:
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print('open', flush=True); input()"
    shell = python(hold, long / "sorl.duckdb")
    assert shell.stdout is not None
    assert shell.stdout.readline() == "open\n"
    before = contents(long)
    with pytest.raises(Busy, match=f"PID {shell.pid}"):
        compact(long, seconds=0.2)
    shell.communicate("\n", timeout=60)
    assert contents(long) == before
    assert left(long) == ["sorl.duckdb"]


def test_without_room_for_a_second_database_it_says_how_much_is_needed(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 4096, 4096))
    with pytest.raises(InputError, match=r"0 MiB free.*make room"):
        compact(long)


def test_a_disk_that_fills_up_on_the_way_leaves_the_database_as_it_was(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(long)

    def full(connection: Any, table: str) -> int:
        raise duckdb.IOException("Could not write file: No space left on device")

    monkeypatch.setattr(module, "_lay_out", full)
    with pytest.raises(InputError, match=r"is as it was, the copy failed: .*No space left"):
        compact(long)
    assert contents(long) == before
    assert left(long) == ["sorl.duckdb"]


def test_without_a_database_it_says_what_to_type(runs: Path) -> None:
    with pytest.raises(InputError, match="`sorl sync` builds it"):
        compact(runs)


def test_the_other_tables_keep_the_order_in_which_rows_came(runs: Path) -> None:
    for name in ("b", "a"):
        write_run(runs, "demo", name, shape=TURNS)
    sync(runs, CATALOGUE)
    asked = "SELECT run_id, step, trajectory, turn_index FROM turn ORDER BY rowid"
    before = Reader(runs).rows(asked).rows
    compact(runs)
    assert Reader(runs).rows(asked).rows == before


def test_a_corrupt_segment_is_remembered(long: Path) -> None:
    torn = write_segment(long / "demo" / "a", "step", {"run_id": ["a"], "step": [LONG]})
    torn.write_bytes(torn.read_bytes()[:-20])
    sync(long, CATALOGUE)
    before = contents(long)
    compact(long)
    sync(long, CATALOGUE)
    assert contents(long) == before


def test_the_command_says_what_it_did(long: Path) -> None:
    done = CliRunner().invoke(app, ["--runs", str(long), "sync", "--compact"], prog_name="sorl")
    assert done.exit_code == 0
    assert "laid out anew: " in done.stdout
    assert f"step: {2 * LONG:,} rows" in done.stderr
    assert laid(long, "step") == ["a0", "b0", "a1", "b1"]

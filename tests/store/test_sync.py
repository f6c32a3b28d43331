"""Every segment reaches the database exactly once, whatever happens to files, runs and the
database itself.
"""

import os
import shutil
import threading
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sorl.measures import CATALOGUE
from sorl.spec import TABLES, InputError
from sorl.spec.files import lock_file
from sorl.store.connect import Busy, writer
from sorl.store.part_notes import PartNote, append_note
from sorl.store.reader import Reader
from sorl.store.sync import DIED, sync
from tests.store.contents import contents, one, rows
from tests.store.fixture import (
    Shape,
    run_row,
    write_dictionary,
    write_grid,
    write_run,
    write_segment,
    write_status,
)


def execute(runs: Path, statement: str) -> None:
    with duckdb.connect(str(runs / "sorl.duckdb")) as connection:
        connection.execute(statement)


def test_a_second_sync_ingests_nothing_and_waits_for_nobody_and_new_segments_are_added(runs, small):
    folder = write_run(runs, "demo", "a", shape=small)
    first = sync(runs)
    before = contents(runs)
    changed = (runs / "sorl.duckdb").stat().st_mtime_ns
    assert first.rows > 100
    assert first.segments == one(runs, "SELECT count(*) FROM segment")
    second = sync(runs, seconds=0.0)
    assert (second.segments, second.rows) == (0, 0)
    assert contents(runs) == before
    assert (runs / "sorl.duckdb").stat().st_mtime_ns == changed
    write_segment(folder, "step", {"step": [12, 13], "success": [0.5, None]})
    assert sync(runs).rows == 2
    assert rows(runs, "SELECT step, success FROM step WHERE step >= 12 ORDER BY step") == [
        (12, 0.5),
        (13, None),
    ]
    assert one(runs, "SELECT count(*) FROM step") == small.steps + 2


def test_a_deleted_database_comes_back_row_for_row(runs, small):
    write_grid(runs, shape=small)
    sync(runs)
    folder = runs / "demo" / "ppo-s0-aaaa0000"
    (folder / "segments" / "step" / "000009.parquet").write_bytes(b"PAR1 torn")
    sync(runs)  # in several syncs, as it happens while runs go on
    write_segment(folder, "step", {"step": 12, "success": 0.1}, "000010.parquet")
    write_status(folder, status="interrupted", reason="stopped by SIGTERM")
    append_note(runs, "demo", folder.name, PartNote("torn here", step=9))
    sync(runs)
    before = contents(runs)
    assert all(before[t.name] for t in TABLES), "a table without rows compares nothing"
    (runs / "sorl.duckdb").unlink()
    sync(runs)
    assert contents(runs) == before


def test_the_latest_row_of_a_run_wins_whatever_order_the_files_are_listed_in(runs):
    folder = runs / "demo" / "a"
    early = write_segment(folder, "run", run_row(folder, status="queued"), "queue-000000.parquet")
    late = write_status(folder, status="finished")
    later = write_segment(folder, "run", run_row(folder, status="failed"), "000001.parquet")
    for age, file in enumerate((early, late, later)):
        os.utime(file, ns=(10**18 + age, 10**18 + age))
    sync(runs)
    assert rows(runs, "SELECT status FROM run") == [("failed",)]
    write_segment(folder, "run", run_row(folder), "queue-000001.parquet")
    sync(runs)
    assert rows(runs, "SELECT status FROM run") == [("finished",)]
    write_segment(folder, "run", run_row(folder, steps=[1, 2, 3]), "queue-000002.parquet")
    sync(runs)
    assert rows(runs, "SELECT steps FROM run") == [(3,)]


def test_an_event_without_a_severity_withdraws_the_one_before(runs):
    folder = runs / "demo" / "a"
    for severity in ("critical", None):
        events = {"step": [5, 6], "kind": "collapse", "severity": [severity, "info"]}
        write_segment(folder, "event", events)
    sync(runs)
    assert rows(runs, "SELECT step FROM event") == [(6,)]


@pytest.mark.parametrize(
    ("first", "second", "values", "kind"),
    [
        (1.5, 2.5, [1.5, 2.5], "DOUBLE"),  # added with its type
        (1, 1.5, [1.0, 1.5], "DOUBLE"),  # began with whole numbers: widened, not rounded
        (None, "word", [None, "word"], "VARCHAR"),  # nothing but NULL waits for its type
    ],
)
def test_a_column_nobody_declared_is_added_by_name(runs, first, second, values, kind):
    folder = runs / "demo" / "a"
    write_segment(folder, "step", {"invented": first, "success": 0.25, "step": 7})
    sync(runs)
    write_segment(folder, "step", {"step": 8, "invented": second})
    sync(runs)
    found = rows(runs, "SELECT run_id, step, success, invented FROM step ORDER BY step")
    assert found == [("a", 7, 0.25, values[0]), ("a", 8, None, values[1])]
    assert one(runs, "SELECT data_type FROM duckdb_columns() WHERE column_name = 'invented'") == kind


def test_every_table_and_column_has_a_comment_also_those_of_a_dictionary_that_travels_with_a_run(runs):
    sync(runs)
    bare = (
        "SELECT table_name, column_name FROM duckdb_columns() WHERE coalesce(comment, '') = '' AND"
        " table_name IN "
    )
    assert rows(runs, f"{bare} {tuple(t.name for t in TABLES)}") == []
    assert (
        rows(runs, "SELECT view_name FROM duckdb_views() WHERE NOT internal AND coalesce(comment, '') = ''")
        == []
    )
    (runs / "sorl.duckdb").unlink()
    write_dictionary(runs / "demo" / "a")
    sync(runs)  # without a dictionary of our own
    comments = dict(rows(runs, "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 'turn'"))
    assert {d.name for d in CATALOGUE if d.table == "turn"} <= set(comments)
    assert "[ratio]" in comments["ratio_geo"]


@pytest.mark.parametrize("damage", ["empty", "torn", "noise", "wrong type"])
def test_a_corrupt_segment_is_set_aside_with_an_event_and_blocks_nothing(runs, small, damage):
    folder = write_run(runs, "demo", "a", shape=small)
    other = write_run(runs, "demo", "b", shape=small)
    victim = folder / "segments" / "turn" / "000001.parquet"
    whole = victim.read_bytes()
    if damage == "wrong type":
        pq.write_table(pa.table({"run_id": ["a"], "step": ["not a number"]}), victim)
    else:
        middle = len(whole) // 4
        noise = whole[:middle] + b"\x00" * middle + whole[2 * middle :]
        victim.write_bytes({"empty": b"", "torn": whole[:-100], "noise": noise}[damage])
    report = sync(runs)
    assert [path.name for path in report.corrupt] == ["000001.parquet.corrupt"]
    assert not victim.exists()
    assert victim.with_name("000001.parquet.corrupt").exists()
    corrupt = rows(runs, "SELECT file, rows FROM segment WHERE status = 'corrupt'")
    assert corrupt == [("segments/turn/000001.parquet", None)]
    events = rows(runs, "SELECT run_id, severity, message FROM event WHERE kind = 'segment_corrupt'")
    assert events == [("a", "warning", "set aside, unreadable: segments/turn/000001.parquet")]
    per_run = small.steps * small.trajectories * small.turns * small.epochs
    assert one(runs, "SELECT count(*) FROM turn WHERE run_id = 'a'") == per_run * 2 // 3
    assert one(runs, "SELECT count(*) FROM turn WHERE run_id = ?", other.name) == per_run
    again = sync(runs)
    assert (again.corrupt, again.segments) == ([], 0)
    victim.with_name("000001.parquet.corrupt").unlink()
    victim.write_bytes(whole)
    sync(runs)
    assert one(runs, "SELECT count(*) FROM turn WHERE run_id = 'a'") == per_run
    assert one(runs, "SELECT count(*) FROM event WHERE kind = 'segment_corrupt'") == 0


def test_a_deleted_run_leaves_the_database_and_a_replaced_one_is_read_anew(runs, small):
    folder = write_run(runs, "demo", "a", shape=small)
    write_run(runs, "demo", "b", shape=small)
    sync(runs)
    shutil.rmtree(folder)
    write_run(runs, "demo", "a", shape=Shape(steps=4, trajectories=2, turns=2, epochs=1))
    assert sync(runs).forgotten == ["a"]
    counts = "SELECT run_id, count(*) FROM step GROUP BY ALL ORDER BY ALL"
    assert rows(runs, counts) == [("a", 4), ("b", small.steps)]
    shutil.rmtree(folder)
    assert sync(runs).forgotten == ["a"]
    assert rows(runs, counts) == [("b", small.steps)]
    assert rows(runs, "SELECT run_id FROM run") == [("b",)]


def test_two_runs_of_one_name_in_two_experiments_do_not_mix(runs, small):
    write_run(runs, "one", "a", shape=small)
    sync(runs)
    write_run(runs, "two", "a", shape=small)
    report = sync(runs)
    assert len(report.skipped) == 1
    assert "'two/a'" in report.skipped[0]
    assert one(runs, "SELECT count(*) FROM step") == small.steps


def test_a_running_run_that_nobody_holds_is_shown_as_interrupted_until_it_is_back(runs):
    folder = runs / "demo" / "a"
    status = "SELECT status, reason FROM run"
    write_status(folder, status="queued")
    sync(runs)
    assert rows(runs, status) == [("queued", None)], "it waits, and is not dead"
    write_status(folder, status="running")
    with lock_file(folder / "lock"):
        sync(runs)
        assert rows(runs, status) == [("running", None)]
    sync(runs)
    assert rows(runs, status) == [("interrupted", DIED)]
    with lock_file(folder / "lock"):
        sync(runs)  # resumed, but it has not written a row yet
        assert rows(runs, status) == [("running", None)]
        write_status(folder, status="finished")
    sync(runs)
    assert rows(runs, status) == [("finished", None)]


def test_another_thread_that_writes_is_waited_for_and_then_named_as_is_a_missing_folder(runs):
    sync(runs)
    with pytest.raises(InputError, match=r"no runs folder '.*nowhere'.*--runs"):
        sync(runs / "nowhere")
    with writer(runs, 1.0), pytest.raises(Busy, match="another thread"), writer(runs, 0.05):
        pass


def test_a_copied_runs_folder_gives_the_same_rows_although_its_files_have_new_times(runs, tmp_path):
    folder = runs / "demo" / "ppo-s0"
    for number, status in enumerate(("queued", "running", "finished")):
        at = datetime(2026, 1, 1, 0, number)
        write_segment(folder, "run", {"experiment": "demo", "status": status, "written_at": at})
    os.utime(folder / "segments" / "run" / "000001.parquet", ns=(0, 1_500_000_000_123_456_789))
    sync(runs)
    times = rows(runs, "SELECT written_at FROM segment WHERE file LIKE '%000001.parquet'")
    assert times == [(datetime(2017, 7, 14, 2, 40, 0, 123456),)], "the time of a segment is that of its file"
    copied = tmp_path / "copied"
    shutil.copytree(
        runs, copied, ignore=shutil.ignore_patterns("sorl.duckdb*"), copy_function=shutil.copyfile
    )
    # the oldest row in the newest file
    (copied / "demo" / "ppo-s0" / "segments" / "run" / "000000.parquet").touch()
    sync(copied)
    assert [one(folder, "SELECT status FROM run") for folder in (runs, copied)] == ["finished", "finished"]


def test_a_segment_that_only_another_run_makes_unreadable_is_set_aside_alone(runs, small):
    write_run(runs, "demo", "good", shape=small)
    declares = runs / "demo" / "declares"
    fills = runs / "demo" / "fills"
    told = {"name": "mine", "table_name": "turn", "level": "turn", "sql_type": "DOUBLE"}
    write_segment(declares, "diagnostic", told)
    turn = {"step": 0, "epoch": 0, "trajectory": 0, "turn_index": 1}
    write_segment(declares, "turn", turn | {"mine": 1.5})
    write_segment(fills, "turn", turn | {"mine": "much"})
    write_segment(fills, "step", {"step": 0, "success": 0.5})
    assert sync(runs).corrupt == [fills / "segments" / "turn" / "000000.parquet.corrupt"]
    assert one(runs, "SELECT mine FROM turn WHERE run_id = 'declares'") == 1.5
    assert one(runs, "SELECT count(*) FROM step WHERE run_id = 'fills'") == 1
    assert one(runs, "SELECT count(*) FROM step WHERE run_id = 'good'") == small.steps
    assert sync(runs).segments == 0


def test_what_is_no_segment_is_left_as_it_is_and_named_where_it_stands_in_the_place_of_one(runs, small):
    good = write_run(runs, "demo", "good", shape=small)
    step = good / "segments" / "step"
    unfinished = good / "segments" / "turn" / ".000009.parquet.writing"
    unfinished.write_bytes(b"half a")
    (step / "notes.txt").write_text("mine")
    loops = [runs / "loop", runs / "demo" / "loop", step / "loop.parquet"]
    for loop in loops:
        loop.symlink_to(loop.name)
    os.mkfifo(step / "pipe.parquet")
    os.mkfifo(good / "lock")
    report = sync(runs)
    assert {reason.split("'")[1] for reason in report.skipped} == {
        str(p) for p in (*loops, step / "pipe.parquet")
    }
    assert one(runs, "SELECT count(*) FROM step") == small.steps
    assert (report.corrupt, unfinished.read_bytes()) == ([], b"half a")


def test_a_segment_of_more_rows_than_a_second_of_a_run_has_is_set_aside_unread(runs):
    folder = runs / "demo" / "bomb" / "segments" / "step"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"step": np.zeros(10_000_001, np.int8)}), folder / "000000.parquet")
    assert (folder / "000000.parquet").stat().st_size < 50_000
    assert [p.name for p in sync(runs).corrupt] == ["000000.parquet.corrupt"]
    assert one(runs, "SELECT count(*) FROM step") == 0


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE run (run_id INTEGER, status DATE)", "another program made run.run_id"),
        ("CREATE TABLE segment (file INTEGER[])", "another program made segment.file"),
        ("CREATE VIEW run AS SELECT 1 AS run_id", "another program made run in it"),
        ("CREATE TABLE cell (a INTEGER)", "another program made cell in it"),
        ("DROP TABLE run", "table run was dropped"),
        ("DROP TABLE segment", "table segment was dropped"),
        ("", "cannot open database"),  # not a database at all
    ],
)
def test_a_database_that_is_not_ours_is_refused_with_the_way_out_and_no_segment_is_blamed(
    runs, small, statement, says
):
    write_run(runs, "demo", "good", shape=small)
    if "DROP" in statement:
        sync(runs)
    if not statement:
        (runs / "sorl.duckdb").write_bytes(b"x" * 10_000)
    else:
        execute(runs, statement)
    with pytest.raises(InputError, match=f"(?s){says}.*delete it and run `sorl sync`"):
        sync(runs)
    assert not list(runs.rglob("*.corrupt"))


def test_a_dropped_view_comes_back_and_a_database_that_was_cut_says_so(runs, small):
    write_run(runs, "demo", "good", shape=small)
    sync(runs)
    execute(runs, "DROP VIEW cell")
    sync(runs)
    assert one(runs, "SELECT count(*) FROM cell") == 1
    os.truncate(runs / "sorl.duckdb", (runs / "sorl.duckdb").stat().st_size // 2)
    with pytest.raises(InputError, match="delete it and run `sorl sync`"):
        Reader(runs).rows("SELECT avg(ratio_geo), max(entropy) FROM turn")


def test_a_run_that_begins_while_the_folders_are_listed_waits_for_the_next_sync(runs, small, monkeypatch):
    write_run(runs, "demo", "a", shape=small)
    with monkeypatch.context() as patch:
        patch.setattr("sorl.store.sync.run_folders", lambda runs: iter(()))
        assert sync(runs).segments == 0
    assert sync(runs).segments > 0


def test_a_database_that_another_process_is_just_making_is_waited_for_and_an_empty_file_is_not(runs, small):
    write_run(runs, "demo", "a", shape=small)
    made = runs.parent / "made.duckdb"
    with duckdb.connect(str(made)):
        pass
    index = runs / "sorl.duckdb"
    index.write_bytes(b"\0" * 100)  # as it is for a moment, where several processes sync for the first time
    finish = threading.Timer(0.4, lambda: os.replace(made, index))
    finish.start()
    assert sync(runs, seconds=0.0).segments > 0
    finish.join()
    index.write_bytes(b"\0" * 100)
    with pytest.raises(InputError, match="delete it and run `sorl sync`"):
        sync(runs, seconds=0.0)

"""Segments survive kills, full disks, hangs and restarts; types are stable."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sorl.recording.segments import SegmentWriter, append, schema_of
from sorl.spec import TABLES, InputError
from tests.recording.local import table_of as read
from tests.recording.local import wait_until


def steps(folder, table="step"):
    return read(folder, table)["step"].to_pylist()


def write(folder, *rows, seconds=2.0):
    """A session that writes rows of (table, columns), each with the run's id, and ends."""
    writer = SegmentWriter(folder, seconds)
    for table, columns in rows:
        writer.append(table, {"run_id": "r", **columns})
    writer.close()
    return writer


@pytest.fixture
def writer(tmp_path):
    made = SegmentWriter(tmp_path, flush_seconds=2.0)
    yield made
    made.close()


@pytest.mark.parametrize("period", [0.1, 600.0])
def test_rows_are_on_the_disk_as_soon_as_they_come_also_while_training_hangs(tmp_path, period):
    writer = SegmentWriter(tmp_path, period)
    writer.append("step", {"run_id": "r", "step": 0})
    assert wait_until(lambda: writer.files("step"))
    writer.append("step", {"run_id": "r", "step": 1})
    writer.close()
    assert steps(tmp_path) == [0, 1]


def test_a_writer_that_is_closed_just_as_its_thread_wakes_up_still_ends(tmp_path):
    writer = SegmentWriter(tmp_path, flush_seconds=0.01)
    clear = writer._come.clear

    def closed_meanwhile():
        writer._stop.set()
        writer._come.set()
        clear()

    writer._come.clear = closed_meanwhile
    writer.append("step", {"run_id": "r", "step": 0})
    writer._thread.join(30)
    assert not writer._thread.is_alive()


def test_values_come_back_as_they_went_in_and_null_and_nan_are_different(tmp_path):
    masked = np.ma.array([float("nan"), 7.0, 1.0], mask=[False, True, False])
    updates = {"update": [0, 1, 2], "tokens": np.array([3.0, 4.0, 5.0])}
    write(
        tmp_path,
        ("minibatch", {"step": 0, **updates, "grad_norm": masked, "lr": None}),
        ("minibatch", {"step": 1, **updates, "grad_norm": [float("nan"), None, 1.0], "lr": float("inf")}),
    )
    rows = read(tmp_path, "minibatch")
    assert [rows[name].null_count for name in ("grad_norm", "lr", "clip_frac")] == [2, 3, 6]
    np.testing.assert_array_equal(rows["grad_norm"].drop_null().to_numpy(), [np.nan, 1.0, np.nan, 1.0])
    assert rows["lr"].to_pylist()[3:] == [float("inf")] * 3
    assert (set(rows["run_id"].to_pylist()), rows["step"].to_pylist()) == ({"r"}, [0, 0, 0, 1, 1, 1])
    assert rows["tokens"].to_pylist() == [3, 4, 5] * 2, (
        "whole numbers measured as floats are stored as whole numbers"
    )


@pytest.mark.parametrize("name", [t.name for t in TABLES])
def test_types_do_not_depend_on_the_values(tmp_path, name, writer):
    schema = schema_of(name)
    keys = {"run_id", "step", schema.names[0]} & set(schema.names)
    writer.append(name, {key: 0 if key == "step" else "r" for key in keys})
    writer.flush()
    assert read(tmp_path, name).schema.equals(schema)


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"update": 0, "clip_fraction": 0.1}, KeyError, "clip_fraction"),
        ({"update": [0, 1], "lr": [0.1]}, ValueError, "different lengths"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_once(writer, columns, error, says):
    with pytest.raises(error, match=says):
        writer.append("minibatch", {"step": 0, **columns})


def test_no_half_written_file_ever_has_a_segment_name(tmp_path, writer, monkeypatch):
    seen = []
    monkeypatch.setattr(
        os, "replace", lambda a, b: seen.append((a.name, a.stat().st_size, b.name)) or os.rename(a, b)
    )
    writer.append("step", {"run_id": "r", "step": 0})
    writer.flush()
    ((before, size, after),) = seen
    assert (before[0], size > 0, after) == (".", True, "000000.parquet")


def test_a_restart_continues_the_numbering_and_writes_no_step_twice(tmp_path):
    def session(begun, turns):
        turn = {"epoch": 0, "trajectory": [0, 1], "turn_index": 1}
        rows = [("step", {"step": step, "success": step / 10}) for step in begun]
        return write(tmp_path, *rows, *(("turn", {"step": step, **turn}) for step in turns))

    session(range(6), range(4))
    again = session(range(3, 8), range(3, 8))  # from a checkpoint at step 3; the turns of 4 and 5 were lost
    assert steps(tmp_path) == list(range(8))
    assert steps(tmp_path, "turn") == [s for s in range(8) for _ in range(2)]
    assert [f.name for f in again.files("step")] == ["000000.parquet", "000001.parquet"]


def test_a_restart_drops_the_old_rows_of_a_chunk_that_spans_steps(tmp_path):
    write(tmp_path, ("step", {"step": [0, 1]}))
    values = np.ma.array([0.1, 0.2, 0.3], mask=[True, False, True])
    write(tmp_path, ("step", {"step": np.array([1, 2, 3]), "success": values, "reward": [1.0, 2.0, None]}))
    rows = read(tmp_path, "step")
    assert rows["step"].to_pylist() == [0, 1, 2, 3]
    assert rows["success"].to_pylist() == [None, None, 0.2, None]
    assert rows["reward"].to_pylist() == [None, None, 2.0, None]


def test_a_number_is_never_used_again(tmp_path):
    for step in range(3):
        writer = write(tmp_path, ("step", {"step": step}))
    writer.files("step")[0].unlink()  # a gap must not make a later number come twice
    again = write(tmp_path, ("step", {"step": 3}))
    assert [f.name for f in again.files("step")] == ["000001.parquet", "000002.parquet", "000003.parquet"]


def test_rows_that_replace_earlier_ones_are_never_dropped(tmp_path):
    for status in ("running", "finished"):
        write(
            tmp_path, ("run", {"status": status}), ("event", {"step": 5, "kind": "alarm", "diagnostic": "x"})
        )
    assert read(tmp_path, "run")["status"].to_pylist() == ["running", "finished"]
    assert read(tmp_path, "event").num_rows == 2


def test_a_torn_segment_is_written_again_under_a_new_number(tmp_path):
    for step in range(2):
        first = write(tmp_path, ("step", {"step": step}))
    torn = first.files("step")[1]
    torn.write_bytes(torn.read_bytes()[:100])
    assert SegmentWriter(tmp_path, 2.0).last_step("step") == 0
    again = write(tmp_path, ("step", {"step": 1}))
    torn.rename(torn.with_suffix(".parquet.corrupt"))
    assert steps(tmp_path) == [0, 1]
    assert [f.name for f in again.files("step")] == ["000000.parquet", "000002.parquet"]


def test_a_full_disk_keeps_the_rows_until_there_is_room(tmp_path):
    writer = SegmentWriter(tmp_path, 2.0)
    writer.append("turn_step", {"run_id": "r", "step": 0, "turn_index": 1})
    assert writer.flush()
    full = tmp_path / "segments" / "step" / ".000000.parquet.writing"
    full.parent.mkdir()
    full.symlink_to("/dev/full")  # a device that answers "no space left" to every write
    writer.append("step", {"run_id": "r", "step": [0, 1]})
    writer.append("turn_step", {"run_id": "r", "step": 1, "turn_index": 1})
    assert not writer.flush()
    assert read(tmp_path, "turn_step").num_rows == 2  # other tables are written all the same
    writer.append("step", {"run_id": "r", "step": 2})
    full.unlink()
    assert writer.flush()
    writer.close()
    assert steps(tmp_path) == [0, 1, 2]


def test_a_folder_or_a_disk_that_cannot_be_written_is_said_at_the_end_and_what_was_written_stays(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "segments").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="1 rows could not be written"):
        write(tmp_path / "other", ("step", {"step": 0}))
    writer = SegmentWriter(tmp_path, 0.05)
    writer.append("step", {"run_id": "r", "step": 0})
    writer.flush()
    (tmp_path / "segments" / "step" / ".000001.parquet.writing").symlink_to("/dev/full")
    writer.append("step", {"run_id": "r", "step": [1, 2]})
    time.sleep(0.2)  # the thread tries, and keeps the rows
    with pytest.raises(InputError, match=r"2 rows .* the disk is full"):
        writer.close()
    assert steps(tmp_path) == [0]


def test_appends_from_one_thread_and_flushes_from_another_lose_nothing(tmp_path):
    writer = SegmentWriter(tmp_path, 0.001)
    stop = threading.Event()
    other = threading.Thread(target=lambda: [writer.flush() for _ in iter(stop.is_set, True)])
    other.start()
    for step in range(300):
        writer.append("step", {"run_id": "r", "step": step})
    stop.set()
    other.join()
    writer.close()
    assert steps(tmp_path) == list(range(300))


CHILD = """
import sys, time
from pathlib import Path
from sorl.recording.segments import SegmentWriter
from sorl.spec import RecordSettings
writer = SegmentWriter(Path(sys.argv[1]), RecordSettings().flush_seconds)
for step in range(10_000):
    writer.append("step", {"run_id": "r", "step": step})
    print(time.monotonic(), flush=True)
    time.sleep(0.02)
"""


def test_kill_9_loses_two_seconds_at_most_and_the_restart_doubles_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    segment = tmp_path / "segments" / "step"
    assert wait_until(lambda: segment.is_dir() and len(list(segment.glob("[0-9]*"))) >= 2)
    time.sleep(0.7)
    killed = time.monotonic()
    child.send_signal(signal.SIGKILL)
    appended = [float(line) for line in child.communicate()[0].split()]
    kept = steps(tmp_path)
    assert kept == list(range(len(kept)))
    assert len(kept) < len(appended)  # killed between two flushes, or the test shows nothing
    assert killed - appended[len(kept)] < 2.0  # the oldest lost row was younger than that
    write(tmp_path, *(("step", {"step": step}) for step in range(len(appended) + 5)))
    assert steps(tmp_path) == list(range(len(appended) + 5))


def test_a_segment_that_is_added_may_have_columns_of_floats_that_no_table_declares(tmp_path: Path) -> None:
    more = {"mine": np.ma.MaskedArray([1.0, 2.0, np.nan], [False, True, False])}
    file = append(tmp_path, "r", "step", {"step": np.arange(3), "entropy": 0.5}, more)
    found = pq.read_table(file, columns=["run_id", "step", "entropy", "mine"]).to_pylist()
    assert [str(row["mine"]) for row in found] == ["1.0", "None", "nan"]
    assert found[0] | {"mine": 0} == {"run_id": "r", "step": 0, "entropy": 0.5, "mine": 0}
    with pytest.raises(KeyError):
        append(tmp_path, "r", "step", {"step": np.arange(3), "mine": 0.5})

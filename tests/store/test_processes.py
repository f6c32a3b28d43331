import os
import signal
import subprocess
import threading
import time

import pytest

from sorl.store.connect import Busy
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.store.contents import contents, one
from tests.store.fixture import Shape, write_run
from tests.store.processes import HOLD, SYNC, python


def started(code: str, *args: object) -> subprocess.Popen[str]:
    """A process that has said its first line."""
    process = python(code, *args)
    assert process.stdout.readline()
    return process


def test_four_processes_ingest_each_segment_exactly_once(runs, small):
    for seed in range(6):
        write_run(runs, "demo", f"r{seed}", shape=small, seed=seed)
    files = len(list(runs.glob("*/*/segments/*/*.parquet")))
    workers = [python(SYNC, runs) for _ in range(4)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate(timeout=280) for worker in workers]
    assert [w.returncode for w in workers] == [0] * 4, answers
    assert (
        sum(int(out.split()[0]) for out, _ in answers) == files == one(runs, "SELECT count(*) FROM segment")
    )
    assert one(runs, "SELECT count(*) FROM step") == 6 * small.steps
    keys = "run_id, step, epoch, trajectory, turn_index"
    assert one(runs, f"SELECT max(n) FROM (SELECT count(*) AS n FROM turn GROUP BY {keys})") == 1


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_database_held_by_another_process_is_named_with_its_pid_and_nothing_is_lost(runs, small, mode):
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    write_run(runs, "demo", "b", shape=small)
    holder = started(HOLD, runs / "sorl.duckdb", *(["read"] if mode == "read" else []))
    try:
        began = time.monotonic()
        with pytest.raises(
            Busy, match=rf"held open by PID {holder.pid} \(python.*your runs are not affected"
        ):
            sync(runs, seconds=0.5)
        assert 0.4 < time.monotonic() - began < 60
        if mode == "read":  # readers do not keep readers out
            assert one(runs, "SELECT count(*) FROM run") == 1
        else:
            with pytest.raises(Busy, match=f"PID {holder.pid}"):
                Reader(runs, wait=0.2).rows("SELECT 1")
    finally:
        threading.Timer(0.7, lambda: holder.communicate(timeout=120)).start()
    assert sync(runs, seconds=60).rows > 0, "a lock that is let go in time is waited for"
    assert one(runs, "SELECT count(*) FROM step") == 2 * small.steps


def test_a_sync_killed_at_any_moment_loses_and_doubles_nothing(runs):
    shape = Shape(steps=20, trajectories=16, turns=4, epochs=2, steps_per_segment=2)
    for seed in range(3):
        write_run(runs, "demo", f"r{seed}", shape=shape, seed=seed)
    killed = 0
    for delay in (0.0, 0.05, 0.1, 0.2, 0.4):
        (runs / "sorl.duckdb").unlink(missing_ok=True) if delay in (0.0, 0.2) else None
        victim = started("import sorl.store.sync, duckdb\nprint('up', flush=True)\n" + SYNC, runs)
        victim.stdin.write("go\n")
        victim.stdin.flush()
        time.sleep(delay)
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate(timeout=120)
        killed += victim.returncode == -signal.SIGKILL
    assert killed >= 3, "too slow a start: the test killed nothing at work"
    sync(runs)
    interrupted = contents(runs)
    for name in ("sorl.duckdb", "sorl.duckdb.wal"):
        (runs / name).unlink(missing_ok=True)
    sync(runs)
    assert contents(runs) == interrupted
    assert one(runs, "SELECT count(*) FROM turn") == 3 * 20 * 16 * 4 * 2


def test_what_a_killed_sync_left_behind_can_be_read(runs, small):
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    code = """
import os, sys
from pathlib import Path
from sorl.store.connect import writer
with writer(Path(sys.argv[1]), 5) as connection:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO step (run_id, step) SELECT 'ghost', * FROM range(100000)")
    if len(sys.argv) > 2:
        connection.execute("COMMIT")
    os.kill(os.getpid(), 9)
"""
    python(code, runs).communicate(timeout=120)
    assert one(runs, "SELECT count(*) FROM step WHERE run_id = 'ghost'") == 0
    python(code, runs, "commit").communicate(timeout=120)  # committed, but not yet in the file itself
    assert one(runs, "SELECT count(*) FROM step WHERE run_id = 'ghost'") == 100_000
    sync(runs)

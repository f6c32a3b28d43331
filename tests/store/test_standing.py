from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import duckdb
import pytest

from tests.store.contents import is_open
from tests.store.fixture import Shape, write_run
from tests.store.processes import SYNC, python
from workbench.spec import InputError
from workbench.store.connect import Busy, wanted, writer
from workbench.store.reader import HARDENED, Reader
from workbench.store.sync import sync

COUNT = "SELECT count(*) FROM run"
LONG = 600.0  # seconds; longer than any test


@pytest.fixture
def asked(runs: Path, small: Shape) -> Iterator[Reader]:
    """A reader that has just asked about the one run of `runs`, and keeps the database open."""
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    reader = Reader(runs, standing=LONG)
    assert count(reader) == 1
    yield reader
    reader.standing.let_go()


def count(reader: Reader) -> int:
    return int(reader.rows(COUNT).rows[0][0])


def soon(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_reader_lets_go_at_once_unless_it_is_told_to_keep_the_database_open(runs: Path, small: Shape) -> None:
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    assert count(Reader(runs)) == 1
    assert not is_open(runs)
    reader = Reader(runs, standing=LONG)
    assert count(reader) == 1
    assert is_open(runs)
    reader.standing.let_go()
    assert not is_open(runs)


def test_the_database_is_closed_some_time_after_the_last_question(runs: Path, small: Shape) -> None:
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    reader = Reader(runs, standing=0.3)
    for _ in range(4):
        assert count(reader) == 1
        time.sleep(0.1)
    assert soon(lambda: not is_open(runs))
    assert count(reader) == 1


def test_a_sync_of_this_process_gets_the_database_from_who_keeps_it_open(
    runs: Path, small: Shape, asked: Reader
) -> None:
    write_run(runs, "demo", "b", shape=small)
    assert sync(runs, seconds=60).rows > 0
    assert count(asked) == 2


def test_a_sync_of_another_process_gets_the_database_from_who_keeps_it_open(
    runs: Path, small: Shape, asked: Reader
) -> None:
    write_run(runs, "demo", "b", shape=small)
    out, errors = python(SYNC, runs).communicate("go\n", timeout=200)
    assert int(out.split()[1]) > 0, errors
    assert count(asked) == 2


def test_writers_get_their_turn_while_two_screens_ask_again_and_again(runs: Path, small: Shape, asked: Reader) -> None:
    over = Event()
    answers: list[list[int]] = [[], []]

    def ask(seen: list[int]) -> None:
        while not over.is_set():
            seen.append(count(asked))
            time.sleep(0.01)

    threads = [Thread(target=ask, args=(seen,)) for seen in answers]
    for thread in threads:
        thread.start()
    try:
        for seed in range(5):
            write_run(runs, "demo", f"more{seed}", shape=small, seed=seed)
            sync(runs, seconds=60)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert count(asked) == 6
    assert all(seen and seen == sorted(seen) for seen in answers)


def test_nothing_is_left_behind_by_a_writer_that_got_it_or_gave_up(runs: Path, asked: Reader) -> None:
    with writer(runs, 60.0):
        pass
    assert not wanted(runs).exists()
    with duckdb.connect(str(runs / "sorl.duckdb"), read_only=True, config={"threads": 1}):
        with pytest.raises(Busy), writer(runs, 0.1):
            pass
        assert not wanted(runs).exists()


def test_a_writer_killed_while_it_waited_only_keeps_the_database_from_staying_open(
    runs: Path, small: Shape, asked: Reader
) -> None:
    write_run(runs, "demo", "b", shape=small)
    with duckdb.connect(str(runs / "sorl.duckdb"), read_only=True, config=HARDENED):
        waiting = python(SYNC, runs)
        assert waiting.stdin is not None
        waiting.stdin.write("go\n")
        waiting.stdin.flush()
        assert soon(wanted(runs).exists)
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.communicate()
    assert wanted(runs).exists()
    assert soon(lambda: not is_open(runs))
    assert count(asked) == 1
    assert not is_open(runs)
    sync(runs, seconds=60)
    assert count(asked) == 2
    assert is_open(runs)


@pytest.mark.parametrize("how", ["deleted and built again", "replaced"])
def test_another_database_in_its_place_is_what_is_asked_next(
    runs: Path, small: Shape, asked: Reader, tmp_path: Path, how: str
) -> None:
    file = runs / "sorl.duckdb"
    if how == "replaced":
        other = tmp_path / "other"
        write_run(other, "demo", "x", shape=small)
        write_run(other, "demo", "y", shape=small)
        sync(other)
        shutil.copy(other / file.name, tmp_path / "copy")
        (tmp_path / "copy").replace(file)
    else:
        file.unlink()
        write_run(runs, "demo", "b", shape=small)
        sync(runs)
    assert count(asked) == 2


def test_a_deleted_database_is_missed_at_once(runs: Path, asked: Reader) -> None:
    (runs / "sorl.duckdb").unlink()
    with pytest.raises(InputError, match="no database"):
        count(asked)
    assert soon(lambda: not is_open(runs))


def test_questions_while_a_sync_closes_the_database_wait_for_it(runs: Path, small: Shape) -> None:
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    over = Event()
    failed: list[Exception] = []

    def ask() -> None:
        while not over.is_set():
            try:
                count(Reader(runs))
            except InputError as error:
                failed.append(error)

    thread = Thread(target=ask)
    thread.start()
    try:
        for number in range(10):
            with writer(runs, 60.0) as connection:
                connection.execute(f"CREATE OR REPLACE TABLE aside AS SELECT {number} AS n FROM range(200000)")
    finally:
        over.set()
        thread.join(60)
    assert failed == []


def test_a_program_that_ends_with_the_database_open_ends_quietly(runs: Path, asked: Reader) -> None:
    ask = """
import sys
from pathlib import Path
from workbench.store.reader import Reader
reader = Reader(Path(sys.argv[1]), standing=600.0)
print(reader.rows("SELECT count(*) FROM run").rows)
"""
    assert python(ask, runs).communicate(timeout=100) == ("[(1,)]\n", "")

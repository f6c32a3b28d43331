"""Notes of a run: kept beside it, whole or not at all, and no trouble to the store."""

import os
from pathlib import Path

import pytest

from sorl.spec import InputError
from sorl.store.notes import FILE, LONGEST, TAGS, Notes, every, read, write
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.store.fixture import Shape, write_run

SAID = Notes("It fell.\n<script>alert(1)</script> \u202e ü", ("keep", "a b"), True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shape = Shape(steps=2, trajectories=1, turns=1, epochs=1, steps_per_segment=2)
    return write_run(tmp_path, "demo", "r1", shape=shape)


def test_notes_survive_a_sync_and_a_new_database_and_bring_no_row(run, tmp_path):
    assert read(tmp_path, "demo", "r1") == Notes()
    write(tmp_path, "demo", "r1", SAID)
    for _ in range(2):
        report = sync(tmp_path)
        assert (report.corrupt, report.skipped) == ([], [])
        assert every(tmp_path, "demo") == {"r1": read(tmp_path, "demo", "r1")} == {"r1": SAID}
        assert Reader(tmp_path).rows("SELECT count(*) FROM run").rows == [(1,)]
        (tmp_path / "sorl.duckdb").unlink()
    write(tmp_path, "demo", "r1", Notes())
    assert read(tmp_path, "demo", "r1") == Notes()
    assert not list(run.glob(f".{FILE}*")), "nothing unfinished is left"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"note": 1, "tags": "x", "hidden": "yes"}', "\x00", "[" * 9999]
)
def test_what_is_no_notes_is_none(run, tmp_path, text):
    (run / FILE).write_text(text)
    assert read(tmp_path, "demo", "r1") == Notes()
    (run / FILE).unlink()
    os.mkfifo(run / FILE)  # a pipe is not waited for
    assert read(tmp_path, "demo", "r1") == Notes()


def test_long_ones_are_cut_where_they_are_read(run, tmp_path):
    write(tmp_path, "demo", "r1", Notes("x" * 2 * LONGEST, ("t",) * 2 * TAGS))
    found = read(tmp_path, "demo", "r1")
    assert (len(found.note), len(found.tags)) == (LONGEST, TAGS)


def test_what_cannot_be_written_is_a_sentence_and_changes_nothing(run, tmp_path, monkeypatch):
    write(tmp_path, "demo", "r1", SAID)
    for place in ("nowhere", "..", "../demo/r1", "r1\x00"):
        with pytest.raises(InputError, match="cannot keep notes of"):
            write(tmp_path, "demo", place, Notes())
        assert read(tmp_path, "demo", place) == Notes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"cannot keep notes of 'r1' in '.*': no space left on device"):
        write(tmp_path, "demo", "r1", Notes())
    assert read(tmp_path, "demo", "r1") == SAID

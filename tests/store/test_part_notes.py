"""Notes on parts of a run: rows that only grow, kept in its folder and found by SQL."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.spec import InputError
from sorl.store.notes import LONGEST
from sorl.store.part_notes import LONGEST_TAG, PartNote, append_note, withdraw_note
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.store.fixture import Shape, write_run

HOSTILE = "<script>alert(1)</script> \u202e' OR 1=1 --"
SMALL = Shape(steps=2, trajectories=1, turns=1, epochs=1, steps_per_segment=2)


def test_a_note_is_a_row_of_its_run_with_its_place_and_its_words_as_they_were_written(tmp_path: Path) -> None:
    write_run(tmp_path, "demo", "r1", shape=SMALL)
    identity = append_note(tmp_path, "demo", "r1", PartNote(f" {HOSTILE}\n", "odd", 1, 0, 2, 4))
    sync(tmp_path)
    asked = "SELECT run_id, note, step, trajectory, first_token, last_token, tag, text, withdraws FROM note"
    assert Reader(tmp_path).rows(asked).rows == [("r1", identity, 1, 0, 2, 4, "odd", HOSTILE, None)]


def test_what_is_taken_back_stays_in_the_table_and_a_new_database_has_the_same_rows(tmp_path: Path) -> None:
    write_run(tmp_path, "demo", "r1", shape=SMALL)
    first = append_note(tmp_path, "demo", "r1", PartNote("one"))
    append_note(tmp_path, "demo", "r1", PartNote("two", step=0))
    withdraw_note(tmp_path, "demo", "r1", first)
    asked = "SELECT note, text, withdraws FROM note ORDER BY written_at, note"
    found = []
    for _ in range(2):
        report = sync(tmp_path)
        assert (report.corrupt, report.skipped) == ([], [])
        found.append(Reader(tmp_path).rows(asked).rows)
        (tmp_path / "sorl.duckdb").unlink()
    assert found[0] == found[1]
    assert [(text, withdraws) for _, text, withdraws in found[0]] == [
        ("one", None),
        ("two", None),
        (None, first),
    ]


def test_the_view_of_notes_leaves_out_what_was_taken_back(tmp_path: Path) -> None:
    write_run(tmp_path, "demo", "r1", shape=SMALL)
    first = append_note(tmp_path, "demo", "r1", PartNote("one"))
    second = append_note(tmp_path, "demo", "r1", PartNote("two", step=0))
    withdraw_note(tmp_path, "demo", "r1", first)
    sync(tmp_path)
    assert Reader(tmp_path).rows("SELECT note, text FROM current_note").rows == [(second, "two")]


@pytest.mark.parametrize(
    ("note", "why"),
    [
        (PartNote(" \n"), "needs a text"),
        (PartNote("x" * (LONGEST + 1)), "at most 4,000 characters"),
        (PartNote("x", "t" * (LONGEST_TAG + 1)), "the tag"),
        (PartNote("x", trajectory=1), "needs its step"),
        (PartNote("x", step=1, first_token=0, last_token=0), "needs their trajectory"),
        (PartNote("x", step=1, trajectory=1, first_token=3), "the first and the last"),
        (
            PartNote("x", step=1, trajectory=1, first_token=3, last_token=2),
            r"\(2\) is before the first \(3\)",
        ),
        (PartNote("x", step=-1), "counted from 0"),
    ],
)
def test_a_note_that_says_nothing_or_has_no_place_is_refused_and_leaves_no_file(
    note: PartNote, why: str, tmp_path: Path
) -> None:
    write_run(tmp_path, "demo", "r1", shape=SMALL)
    with pytest.raises(InputError, match=why):
        append_note(tmp_path, "demo", "r1", note)
    assert not (tmp_path / "demo" / "r1" / "segments" / "note").exists()


@pytest.mark.parametrize("run_id", ["gone", "..", "../demo/r1", "r1\x00"])
def test_no_name_leads_out_of_the_runs_folder(run_id: str, tmp_path: Path) -> None:
    write_run(tmp_path, "demo", "r1", shape=SMALL)
    with pytest.raises(InputError, match="cannot keep a note on"):
        append_note(tmp_path, "demo", run_id, PartNote("x"))


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "demo", "r1", shape=SMALL)
    (folder / "segments" / "note").write_text("a file in its place")
    with pytest.raises(InputError, match=r"cannot keep a note on 'r1' in .*: file exists"):
        append_note(tmp_path, "demo", "r1", PartNote("x"))


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_range_of_tokens_goes_forward(first: int, last: int) -> None:
    note = PartNote("x", step=0, trajectory=0, first_token=first, last_token=last)
    if last < first:
        with pytest.raises(InputError):
            note.check()
    else:
        note.check()

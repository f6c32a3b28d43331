"""Notes on parts of a run stand on Run and Episode, on tokens too, and can be written and taken back."""

import re
from pathlib import Path

import pytest

from sorl.app.part_notes import note_events, place_in_words, token_notes
from sorl.store.part_notes import PartNote, append_note
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.app.conftest import HOSTILE, Open, Read, assert_literal
from tests.store.fixture import Shape, write_run


def row(**place: int | None) -> dict[str, object]:
    none = dict.fromkeys(("step", "trajectory", "first_token", "last_token"))
    return {**none, "note": "n", "tag": "", "text": "words", **place}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path, "demo", "r1", shape=Shape(steps=6, tokens=1))
    return tmp_path


def test_a_place_is_named_as_far_as_it_is_given() -> None:
    assert place_in_words(row()) == "the run"
    assert place_in_words(row(step=1200)) == "step 1,200"
    assert place_in_words(row(step=1, trajectory=2)) == "step 1, trajectory 2"
    tokens = {"step": 1, "trajectory": 2, "first_token": 3}
    assert place_in_words(row(**tokens, last_token=3)) == "step 1, trajectory 2, token 3"
    assert place_in_words(row(**tokens, last_token=5)) == "step 1, trajectory 2, tokens 3 to 5"


def test_tokens_carry_the_notes_of_their_own_trajectory_alone() -> None:
    tokens = {"first_token": 3, "last_token": 4}
    notes = [
        row(step=1, trajectory=2, **tokens),
        row(step=1, trajectory=0, **tokens),
        row(step=1, trajectory=2),
    ]
    notes += [row(step=1, trajectory=2, first_token=4, last_token=4) | {"tag": "odd"}]
    assert token_notes(notes, 1, 2) == {3: "words", 4: "words\nodd: words"}
    assert token_notes(notes, 2, 2) == {}


def test_only_notes_on_a_step_stand_on_the_curve() -> None:
    events = note_events([row(), row(step=4, trajectory=1)])
    assert events[["step", "kind", "message"]].to_numpy().tolist() == [
        [4, "note", "step 4, trajectory 1: words"]
    ]


def test_notes_stand_on_run_and_episode_and_on_their_tokens_and_hostile_ones_as_text(
    runs: Path, open_screen: Open
) -> None:
    append_note(runs, "demo", "r1", PartNote("".join(HOSTILE), "odd", step=2))
    append_note(runs, "demo", "r1", PartNote("look here", step=2, trajectory=0, first_token=1, last_token=2))
    append_note(runs, "demo", "r1", PartNote("of the run"))
    shown = open_screen("run", runs, run="r1")
    text = assert_literal(shown)
    assert "of the run" in text
    assert "step 2, trajectory 0, tokens 1 to 2" in text
    episode = open_screen("episode", runs, run="r1", step="2", trajectory="0")
    text = assert_literal(episode)
    assert "look here" in text
    assert "of the run" not in text
    assert len(re.findall(r'class="sorl-token[^"]*sorl-noted', episode.source)) == 2
    other = open_screen("episode", runs, run="r1", step="2", trajectory="1")
    assert "look here" not in Read(other.source).text


def test_a_note_is_written_and_taken_back_on_the_screen(runs: Path, open_screen: Open) -> None:
    screen = open_screen("run", runs, run="r1")
    screen.text_input[0].set_value("seen by hand")
    next(button for button in screen.button if button.label == "Add the note").click().run()
    sync(runs)
    asked = "SELECT text, step, withdraws IS NOT NULL FROM note ORDER BY written_at"
    assert Reader(runs).rows(asked).rows == [("seen by hand", None, False)]
    screen = open_screen("run", runs, run="r1")
    next(button for button in screen.button if button.label == "Take back").click().run()
    sync(runs)
    assert Reader(runs).rows(asked).rows == [("seen by hand", None, False), (None, None, True)]
    assert "seen by hand" not in Read(open_screen("run", runs, run="r1").source).text

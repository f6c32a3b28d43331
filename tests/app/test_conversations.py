import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.app.conversation_search import Hits, _snippet, pattern_of
from sorl.app.sentences.conversations import describe_hits, describe_kept
from sorl.app.text import html_text
from tests.app.conftest import HOSTILE, Open
from tests.store.fixture import Shape, write_run, write_segment, write_status

PPO = "ppo-s0-aaaa0000"
SMALL = Shape(steps=4, trajectories=4, turns=2, epochs=1, steps_per_segment=4)


def test_every_text_that_was_kept_is_listed_and_its_share_is_said(open_screen: Open) -> None:
    source = open_screen("conversations", run=PPO).source
    assert "180 conversations: search for words, or narrow them by conditions." in source
    assert "The text of 180 of 240 rollouts (75 %) is kept" in source


def test_words_are_found_in_any_case_with_what_stands_around_them(open_screen: Open) -> None:
    app = open_screen("conversations", run=PPO, words="HOP 3 OF E5 AT 7 ")
    assert "1 of 180 conversations fit (1 %), all at step 7." in app.source
    assert '<mark class="sorl-hit">hop 3 of e5 at 7 </mark>' in app.source
    assert "step=7&amp;trajectory=5" in app.source


def test_words_are_no_expression_unless_they_are_read_as_one(open_screen: Open) -> None:
    assert "None of 180 conversations fits." in open_screen("conversations", run=PPO, words="e[45]").source
    found = open_screen("conversations", run=PPO, words="of e[45] at 7 ", kind="regex").source
    assert "2 of 180 conversations fit (1 %), all at step 7." in found


def test_a_broken_expression_is_named(open_screen: Open) -> None:
    source = open_screen("conversations", run=PPO, words="(", kind="regex").source
    assert html_text("'(' is no regular expression") in source


def test_conditions_narrow_by_what_was_measured(open_screen: Open) -> None:
    source = open_screen("conversations", run=PPO, fits="step < 2, trajectory = 5").source
    assert "2 of 180 conversations fit (1 %), from step 0 to step 1." in source
    unknown = open_screen("conversations", run=PPO, fits="lenght > 2").source
    assert html_text("No column or setting is called 'lenght'") in unknown


def test_a_run_without_text_says_what_records_it(open_screen: Open, tmp_path) -> None:
    import shutil

    folder = write_run(tmp_path, "demo", "a", shape=SMALL)
    shutil.rmtree(folder / "segments" / "transcript")
    assert "No text of this run is recorded" in open_screen("conversations", tmp_path, run="a").source


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_literally(open_screen: Open, tmp_path, text: str) -> None:
    folder = write_run(tmp_path, "demo", "a", shape=SMALL)
    row = {"step": 9, "trajectory": 0, "text": f"{text} needle {text}", "part_start": [0], "part_turn": [1]}
    write_segment(folder, "transcript", {name: [value] for name, value in row.items()})
    write_segment(
        folder, "trajectory", {"step": [9], "trajectory": [0], "question": [text], "answer": [text]}
    )
    write_status(folder)
    source = open_screen("conversations", tmp_path, run="a", words="needle").source
    assert '<mark class="sorl-hit">needle</mark>' in source
    assert html_text(text) in source


@given(st.text(min_size=1, max_size=30))
def test_plain_words_match_themselves(words: str) -> None:
    import duckdb

    pattern = pattern_of(words, is_regular_expression=False)
    asked = "SELECT regexp_matches(?, ?)"
    assert duckdb.execute(asked, [f"before {words} behind", pattern]).fetchall() == [(True,)]


@given(st.text(max_size=20), st.text(min_size=1, max_size=5), st.text(max_size=20))
def test_a_snippet_is_the_text_around_its_match(before: str, match: str, behind: str) -> None:
    found = _snippet(before + match + behind, match)
    assert found.before + found.match + found.behind == before + match + behind
    assert found.match == match


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=60),
    st.integers(0, 10**9),
)
def test_the_sentences_say_what_the_curve_shows(rows: list[tuple[int, bool, bool]], size: int) -> None:
    rollouts = pd.DataFrame(rows, columns=["step", "has_text", "fits"])
    with_text = rollouts[rollouts["has_text"]]
    hits = Hits(rollouts, with_text, with_text[with_text["fits"]], [])
    said = describe_hits(hits, is_narrowed=True)
    curve = hits.by_step
    drawn = curve[curve["share"] > 0]
    if drawn.empty:
        assert said.startswith("None of ")
    else:
        assert said.startswith(f"{curve['found'].sum():,} of {curve['conversations'].sum():,} conversation")
        assert f"step {drawn['step'].min()}" in said
        assert f"step {drawn['step'].max()}" in said
    if "most at step" in said:
        named = int(said.split("most at step ")[1].split(" ")[0])
        others = curve.loc[curve["step"] != named, "share"]
        assert curve.loc[curve["step"] == named, "share"].item() > others.max()
    kept = describe_kept(hits, size)
    assert kept.startswith("The text of all") == (len(with_text) == len(rollouts))
    assert f"in {with_text['step'].nunique()} step" in kept

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sorl.app.group import MOST, choose_rows, common_length, describe_group, group_html
from tests.app.conftest import Open, Read

PPO = "ppo-s0-aaaa0000"
PLACE = {"experiment": "demo", "run": "a", "step": "3"}


def rollout(trajectory: int, *parts: str, **changes: Any) -> dict[str, Any]:
    """A rollout whose parts are in turn read and written."""
    text = "".join(parts)
    starts = [len("".join(parts[:place])) for place in range(len(parts))]
    turns = [(place + 1) // 2 if place % 2 else 0 for place in range(len(parts))]
    row = {"trajectory": trajectory, "text": text, "part_start": starts, "part_turn": turns}
    about = {"reward": 0.0, "advantage": 0.0, "success": False, "answer": "x", "gradient_share": 0.1}
    return row | about | changes


def test_a_group_begins_with_what_its_rollouts_share_and_parts_where_they_differ(open_screen: Open) -> None:
    source = open_screen("episode", run=PPO, step="7", trajectory="5", view="group").source
    assert "2 rollouts of this prompt" in source
    assert "They first differ in turn 2." in source
    shared, *columns = Read(source.split("All begin with")[1]).text.split("trajectory ")
    assert "aunt of e2" in shared
    assert shared.endswith("hop 2 of")
    assert [re.search(r"search(e\d) at 7", column)[1] for column in columns[:2]] == ["e5", "e4"]


def test_the_chosen_rollout_stands_first_then_those_with_most_of_the_gradient_up_to_eight() -> None:
    rows = [rollout(n, "q ", "a", gradient_share=n / 100) for n in range(12)]
    assert [row["trajectory"] for row in choose_rows(rows, 3)] == [3, 11, 10, 9, 8, 7, 6, 5]
    without_text = [*rows, rollout(99, text=None)]
    assert choose_rows(without_text, 99)[0]["trajectory"] == 11
    said = describe_group(rows, choose_rows(rows, 3))
    assert "12 rollouts of this prompt" in said
    assert f"{MOST} are shown: the chosen one and those with most of the gradient." in said


def test_equal_rewards_are_said_to_teach_a_group_nothing() -> None:
    alike = [rollout(n, "q ", "a") for n in range(3)]
    assert "with reward 0: all alike, so a group-relative advantage is 0" in describe_group(alike, alike)
    assert "All wrote the same." in describe_group(alike, alike)
    apart = [rollout(0, "q ", "a"), rollout(1, "q ", "b", reward=1.0)]
    assert "with reward 0 to 1. They first differ in turn 1." in describe_group(apart, apart)


def test_a_missing_text_is_counted() -> None:
    rows = [rollout(0, "q ", "a"), rollout(1, "q ", "b"), rollout(2, text=None)]
    said = describe_group(rows, choose_rows(rows, 0))
    assert "the text of 1 was not kept" in said


words = st.lists(st.sampled_from(["a ", "b ", "cc ", "\n", "d"]), max_size=8).map("".join)


@given(st.lists(words, min_size=2, max_size=5))
def test_what_is_shared_is_the_beginning_of_all_and_ends_behind_a_word(texts: list[str]) -> None:
    length = common_length(texts)
    assert len({text[:length] for text in texts}) == 1
    if len(set(texts)) > 1 and length:
        assert texts[0][length - 1].isspace()
    first = min(texts)
    following = next((place for place in range(length, len(first)) if first[place].isspace()), None)
    if following is not None and len(set(texts)) > 1:
        assert len({text[: following + 1] for text in texts}) > 1, "a longer whole word was shared"


@given(st.lists(st.lists(words, min_size=1, max_size=5), min_size=2, max_size=5))
def test_nothing_that_was_said_is_lost_side_by_side(parts: list[list[str]]) -> None:
    rows = [rollout(n, *map("{} ".format, texts)) for n, texts in enumerate(parts)]
    rows = [row for row in rows if row["text"]]
    if not rows:
        return
    page = "".join(Read(group_html(rows, 0, PLACE)).text.split())
    for row in rows:
        shared = common_length([one["text"] for one in rows]) if len(rows) > 1 else 0
        rest = row["text"][shared:].split()
        assert all(word in page for word in rest)

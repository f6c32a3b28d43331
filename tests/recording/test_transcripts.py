from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.measures.evidence import Rollouts, number_turns
from sorl.recording.transcripts import choose_rollouts, transcript_rows

BYTE_LEVEL = {1: "Ġwho", 2: "?", 3: "Ġ<search>", 4: "ĠÃ", 5: "¼", 6: "Ġ</search>", 7: "Ċfound"}
WORDS = {1: "who", 2: "?", 3: "<search>", 4: "x", 5: "y", 6: "</search>", 7: "found"}


def decode(vocabulary):
    return lambda ids: [vocabulary[one] for one in ids]


def rollouts(*tokens, written=(), group=None):
    turns = [number_turns(np.array(one, dtype=bool)) for one in written] or None
    size = len(tokens)
    group = np.arange(size) if group is None else np.array(group)
    return Rollouts(None, group, np.zeros(size, dtype=int), tokens=list(tokens), token_turn=turns)


def test_a_rollout_is_written_down_in_parts_by_writer_and_turn():
    told = rollouts([1, 2, 3, 6, 7, 3], written=[[0, 0, 1, 1, 0, 1]])
    rows = transcript_rows(0, told, decode(BYTE_LEVEL), 100)
    (text,) = rows["text"]
    assert text == " who? <search> </search>\nfound <search>"
    assert rows["part_turn"] == [[0, 1, 0, 2]]
    starts = [*rows["part_start"][0], len(text)]
    assert [text[a:b] for a, b in pairwise(starts)] == [
        " who?",
        " <search> </search>",
        "\nfound",
        " <search>",
    ]


def test_a_character_that_is_spread_over_two_tokens_is_whole():
    rows = transcript_rows(0, rollouts([3, 4, 5, 6], written=[[1] * 4]), decode(BYTE_LEVEL), 100)
    assert rows["text"] == [" <search> ü </search>"]


def test_whole_words_have_a_space_between_them_also_where_the_writer_changes():
    rows = transcript_rows(0, rollouts([1, 2, 3, 4], written=[[0, 0, 1, 1]]), decode(WORDS), 100)
    assert rows["text"] == ["who ? <search> x"]
    assert rows["part_start"] == [[0, 5]]


def test_of_a_rollout_whose_writer_is_not_known_the_text_is_whole():
    rows = transcript_rows(0, rollouts([1, 2]), decode(WORDS), 100)
    assert (rows["text"], rows["part_start"], rows["part_turn"]) == (["who ?"], [None], [None])


@pytest.mark.parametrize(
    ("sampled", "words", "most"),
    [
        (rollouts([1]), None, 100),
        (rollouts([1]), decode(WORDS), 0),
        (rollouts([]), decode(WORDS), 100),
        (Rollouts(None, np.zeros(1, dtype=int), np.zeros(1, dtype=int)), decode(WORDS), 100),
    ],
    ids=["no tokenizer", "switched off", "nothing was written", "no tokens"],
)
def test_without_texts_there_are_no_rows(sampled, words, most):
    assert transcript_rows(0, sampled, words, most) == {}


def test_a_trajectory_whose_tokens_are_kept_has_its_text_too():
    told = rollouts(*[[1] * 10] * 20)
    rows = transcript_rows(0, told, decode(WORDS), 50, also=[19])
    assert 19 in rows["trajectory"]
    assert len(rows["trajectory"]) < 20


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 400), st.integers(0, 50), st.data()
)
def test_whole_groups_are_kept_as_far_as_the_tokens_go(group, most, step, data):
    lengths = np.array(data.draw(st.lists(st.integers(1, 30), min_size=len(group), max_size=len(group))))
    group = np.array(group)
    kept = choose_rollouts(step, group, lengths, most)
    assert len(kept) == len(set(kept)) > 0
    chosen = set(group[kept].tolist())
    assert sorted(kept) == [i for i in range(len(group)) if group[i] in chosen]
    if lengths.sum() <= most:
        assert len(kept) == len(group)
    assert lengths[kept].sum() <= most or len(chosen) == 1


def test_every_group_is_kept_at_some_step():
    group = np.repeat(np.arange(10), 4)
    lengths = np.full(40, 5)
    chosen = [choose_rollouts(step, group, lengths, 60) for step in range(10)]
    assert set(group[np.concatenate(chosen)].tolist()) == set(range(10))


def test_turns_are_counted_where_the_policy_begins_to_write():
    assert number_turns(np.array([False, True, True, False, True])).tolist() == [0, 1, 1, 0, 2]
    assert number_turns(np.array([True, False])).tolist() == [1, 0]
    assert number_turns(np.zeros(0, dtype=bool)).tolist() == []

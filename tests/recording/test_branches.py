"""Several training rows of one rollout: which branches off which, and what a rollout counts once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sorl.measures.evidence import Rollouts
from sorl.recording.branches import Branches, common_prefix, find_branches, merge_rows

TOKENS = st.lists(st.integers(0, 2), max_size=6).map(np.array)


def rows_of(reward: list[float], turns: list[int], written: list[int]) -> Rollouts:
    count = len(reward)
    return Rollouts(
        reward=np.array(reward),
        group=np.zeros(count, np.int64),
        rollout_step=np.zeros(count, np.int64),
        success=np.array(reward) > 0.5,
        turns=np.ma.array(turns),
        response_tokens=np.ma.array(written),
        observation_tokens=np.ma.array([0] * count),
    )


def test_a_row_branches_off_the_row_of_its_rollout_that_begins_like_it_for_longest():
    tokens = [np.array(ids) for ids in ([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 3, 7])]
    branches = find_branches(np.array([0, 1, 0, 0]), tokens)
    assert branches.parent.tolist() == [-1, -1, 0, 0]
    assert branches.shared_tokens.tolist() == [0, 0, 2, 3]
    assert branches.first_rows.tolist() == [0, 1]
    assert branches.has_several_rows


def test_rows_of_other_rollouts_are_no_parents():
    branches = find_branches(np.array([4, 7]), [np.array([1, 2]), np.array([1, 2])])
    assert branches.parent.tolist() == [-1, -1]
    assert not branches.has_several_rows


@given(TOKENS, TOKENS)
def test_the_common_prefix_is_as_long_as_the_sequences_are_alike(tokens, other):
    length = common_prefix(tokens, other)
    assert tokens[:length].tolist() == other[:length].tolist()
    assert length == min(len(tokens), len(other)) or tokens[length] != other[length]


def test_a_rollout_counts_its_reward_once_and_shared_turns_once():
    # Row 0: prompt of 2, two turns of 2 and 1 tokens. Row 1 goes another way after the first turn: 3 tokens.
    masks = [np.array([1, 1, 0, 1], bool), np.array([1, 1, 0, 1, 1, 1], bool), np.array([1], bool)]
    branches = Branches(np.array([0, 0, 1]), np.array([-1, 0, -1]), np.array([0, 5, 0]))
    rows = rows_of([1.0, 1.0, 0.0], [2, 2, 1], [3, 5, 1])
    merged = merge_rows(rows, branches, masks, np.array([2, 2, 2]))
    assert merged.reward.tolist() == [1.0, 0.0]
    assert merged.success.tolist() == [True, False]
    assert merged.turns.tolist() == [3, 1]
    assert merged.response_tokens.tolist() == [6, 1]
    assert merged.observation_tokens.tolist() == [1, 0]


def test_rollouts_keep_the_order_of_their_first_rows():
    masks = [np.array([1], bool)] * 3
    branches = find_branches(np.array([5, 2, 5]), [np.array([1, 8]), np.array([1, 7]), np.array([1, 9])])
    merged = merge_rows(rows_of([0.2, 0.4, 0.2], [1, 1, 1], [1, 1, 1]), branches, masks, np.ones(3, int))
    assert merged.reward.tolist() == [0.2, 0.4]
    assert merged.turns.tolist() == [2, 1]


def test_what_was_not_measured_of_a_rollout_stays_unknown():
    rows = rows_of([1.0, 0.0], [1, 0], [1, 0])
    unknown = np.array([False, True])
    rows = Rollouts(**{**vars(rows), "turns": np.ma.array([1, 0], mask=unknown), "response_tokens": None})
    branches = Branches(np.array([0, 1]), np.array([-1, -1]), np.zeros(2, int))
    merged = merge_rows(rows, branches, [np.array([1], bool), np.zeros(0, bool)], np.zeros(2, int))
    assert merged.turns.tolist() == [1, None]
    assert merged.response_tokens is None

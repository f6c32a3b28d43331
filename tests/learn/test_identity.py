"""Token identity: what was sampled is what is trained, at every turn boundary, or the check says where not."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.agent.demonstrations import demonstrations
from workbench.agent.episode import Episode, collate
from workbench.agent.worlds.facts import Facts
from workbench.batch import Batch, turn_ids
from workbench.learn.checks import fingerprint, mismatches
from workbench.spec import WorldSettings


def episode(*sizes: int, first: int = 10) -> Episode:
    """An episode whose stretches have these sizes and whose tokens count up, so that no two are the same."""
    tokens = list(range(first, first + sum(sizes)))
    written = [i % 2 == 1 for i, n in enumerate(sizes) for _ in range(n)]
    return Episode(
        question_id=0, group=0, tokens=tokens, written=written, log_prob=[0.0] * len(tokens), prompt_length=sizes[0],
        question="", gold="", answer=None, reward=0.0, success=False, ended="answer", turns=len(sizes) // 2,
        searches=0, valid_turns=0, stretches=[tokens[sum(sizes[:i]) :][:n] for i, n in enumerate(sizes)],
    )  # fmt: skip


EPISODES = [episode(2, 3, 2, 1), episode(3, 2), episode(1, 1, 1, 2, 3, 4, first=50)]
BATCH = collate(EPISODES, pad_id=0)
SWAPPED = BATCH.rows(torch.tensor([1, 0, 2]))


def changed(name: str, *place: int, to: int) -> Batch:
    tensor = getattr(BATCH, name).clone()
    tensor[place] = to
    made = replace(BATCH, **{name: tensor})
    return replace(made, turn_id=turn_ids(made.mask)) if name == "mask" else made


@given(st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=9), min_size=1, max_size=5))
def test_whatever_episodes_are_collated_their_batch_is_what_was_sampled(sizes: list[list[int]]) -> None:
    episodes = [episode(*each) for each in sizes]
    assert mismatches(collate(episodes, pad_id=0), episodes) == []


def test_the_dialogues_of_the_embedded_world_keep_their_stretches() -> None:
    episodes = demonstrations(Facts(WorldSettings()), 32, 0.5, seed=0)
    assert mismatches(collate(episodes, pad_id=0), episodes) == []
    for one in episodes:
        assert [t for stretch in one.stretches for t in stretch] == one.tokens
        assert len(one.stretches[0]) == one.prompt_length
        assert len(one.stretches[1::2]) == one.turns


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        (BATCH, []),
        (changed("tokens", 0, 0, to=99), [(0, 0)]),  # the prompt
        (changed("tokens", 0, 3, to=99), [(0, 1)]),  # the first turn
        (changed("tokens", 0, 5, to=99), [(0, 1)]),  # the observation after it
        (changed("tokens", 2, 4, to=99), [(2, 2)]),
        (changed("tokens", 2, 11, to=99), [(2, 3)]),  # the last token
        (changed("mask", 1, 2, to=1), [(1, 0)]),  # a prompt token in the loss
        (changed("mask", 0, 5, to=1), [(0, 1)]),  # an observation token in the loss
        (changed("mask", 2, 1, to=0), [(2, 1)]),  # a turn of one token left out: the turns after it move up
        (changed("mask", 1, 9, to=1), [(1, 1)]),  # padding in the loss
        (changed("length", 1, to=4), [(1, 1)]),  # cut short
        (SWAPPED, [(0, 1), (1, 0)]),  # rows are exchanged
    ],
)
def test_a_batch_that_is_not_what_was_sampled_is_named_by_trajectory_and_turn(broken: Batch, where: list[int]) -> None:
    assert mismatches(broken, EPISODES) == where


def test_a_sequence_that_the_selection_dropped_has_tokens_to_compare_and_no_turns() -> None:
    dropped = changed("mask", 2, to=0)
    assert mismatches(dropped, EPISODES) == []
    tokens = dropped.tokens.clone()
    tokens[2, 3] = 99
    assert mismatches(replace(dropped, tokens=tokens), EPISODES) == [(2, 2)]


def test_an_episode_without_its_stretches_cannot_be_checked() -> None:
    assert mismatches(BATCH, [*EPISODES[:2], replace(EPISODES[2], stretches=[])]) is None


def test_the_fingerprint_is_that_of_tokens_and_mask_and_of_nothing_else() -> None:
    same = replace(BATCH, score=BATCH.score + 1, log_prob_old=BATCH.log_prob_old - 1)
    padded = replace(BATCH, tokens=torch.where(BATCH.tokens == 0, 7, BATCH.tokens))
    assert fingerprint(BATCH) == fingerprint(same) == fingerprint(padded)
    others = [changed("tokens", 1, 0, to=99), changed("mask", 1, 0, to=1), SWAPPED]
    assert len({fingerprint(BATCH), *map(fingerprint, others)}) == 4
    assert 0 <= fingerprint(BATCH) < 2**48

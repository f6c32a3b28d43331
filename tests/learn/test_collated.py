"""What the trainer's batch says of the turns of its episodes."""

from dataclasses import replace

import torch

from sorl.agent.episode import Episode, collate

EPISODE = Episode(
    question_id=0,
    group=0,
    tokens=[5, 6, 7, 8, 9, 6],
    written=[False, True, True, False, True, False],
    log_prob=[0.0, -1.0, -1.0, 0.0, -2.0, 0.0],
    prompt_length=1,
    question="q",
    gold="g",
    answer=None,
    reward=0.0,
    success=False,
    ended="max_turns",
    turns=2,
    searches=1,
    valid_turns=1,
    turn_status=["search", "invalid"],
)


def test_a_turn_with_neither_a_search_nor_an_answer_is_void_at_its_tokens_alone():
    batch = collate([EPISODE, replace(EPISODE, turn_status=["invalid", "answer"])], pad_id=0)
    expected = [[0, 0, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0]]
    assert batch.need("void").tolist() == torch.tensor(expected, dtype=torch.bool).tolist()


def test_without_a_status_for_each_turn_nothing_is_said_of_void_turns():
    assert collate([replace(EPISODE, turn_status=["search"])], pad_id=0).void is None

from __future__ import annotations

import torch

from workbench.agent.demonstrations import demonstrations
from workbench.agent.episode import Episode, collate
from workbench.agent.worlds.facts import Facts


def episode(tokens: list[int], written: list[int], prompt_length: int, reward: float, group: int) -> Episode:
    return Episode(
        question_id=0, group=group, tokens=tokens, written=[bool(w) for w in written],
        log_prob=[-0.5 * w for w in written], prompt_length=prompt_length, question="", gold="", answer=None,
        reward=reward, success=False, ended="answer", turns=0, searches=0, valid_turns=0,
    )  # fmt: skip


def test_collate_pads_on_the_right_and_aligns_everything_with_the_tokens() -> None:
    batch = collate(
        [episode([5, 6, 7, 8, 9], [0, 0, 1, 0, 1], 2, 1.0, 7), episode([5, 4, 3], [0, 1, 1], 1, 0.25, 8)], pad_id=2
    )
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 9], [5, 4, 3, 2, 2]]
    assert batch.mask.int().tolist() == [[0, 0, 1, 0, 1], [0, 1, 1, 0, 0]]
    assert batch.response.int().tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]]
    assert batch.turn.tolist() == [[0, 0, 1, 0, 2], [0, 1, 1, 0, 0]]
    assert batch.log_prob_behaviour.tolist() == [[0, 0, -0.5, 0, -0.5], [0, -0.5, -0.5, 0, 0]]
    assert batch.log_prob_old.tolist() == batch.log_prob_behaviour.tolist()
    assert batch.log_prob_old.data_ptr() != batch.log_prob_behaviour.data_ptr()
    assert (batch.length.tolist(), batch.group.tolist(), batch.trajectory.tolist()) == ([5, 3], [7, 8], [0, 1])
    assert batch.score.tolist() == [1.0, 0.25]
    assert (batch.tokens.dtype, batch.mask.dtype, batch.score.dtype) == (torch.int64, torch.bool, torch.float32)


def test_turn_ids_of_the_batch_count_the_turns_of_the_episodes(world: Facts) -> None:
    episodes = demonstrations(world, 64, 0.5, seed=0)
    batch = collate(episodes, pad_id=0)
    assert batch.turn.amax(1).tolist() == [e.turns for e in episodes]
    assert batch.length.tolist() == [len(e.tokens) for e in episodes]
    last = batch.length - 1
    assert batch.mask.gather(1, last[:, None]).all()

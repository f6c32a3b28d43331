"""Advantages of turns: worked numbers, and what the two baselines of MT-GRPO differ by."""

from dataclasses import replace

import pytest
import torch

from sorl.algorithms import ALGORITHMS
from sorl.batch import Batch
from sorl.objective import prepare
from sorl.objective.credit import GiGpo, IgPo, MtGrpo
from tests.objective.batches import F64, close, plain

# Three rollouts of one prompt: turns of one token, one token read between them, the last turn at the end.
MASK = torch.tensor([[0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]], dtype=torch.bool)
TOKENS = torch.tensor([[9, 1, 5, 1, 6, 1], [9, 1, 5, 1, 0, 0], [9, 1, 0, 0, 0, 0]])
TURN_REWARD = torch.tensor([[0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=F64)
BATCH = plain(
    torch.zeros(3, 6, dtype=F64),
    MASK,
    tokens=TOKENS,
    score=torch.tensor([1.0, 0.0, 0.0], dtype=F64),
    group=torch.zeros(3, dtype=torch.long),
    turn_reward=TURN_REWARD,
    advantages=None,
)


def of_turns(advantage, batch: Batch = BATCH) -> list[list[float]]:
    made = prepare(replace(ALGORITHMS["grpo"], advantage=advantage), batch).need("advantages")
    return [row[mask].tolist() for row, mask in zip(made, MASK, strict=True)]


def test_gigpo_compares_turns_that_have_read_the_same():
    # Returns: 0.81, 0.9, 1 of the first rollout, else 0. All have read the prompt; two have read token 5.
    first, second, third = of_turns(GiGpo(gamma=0.9))
    assert first == close([2 / 3 + 0.81 - 0.27, 2 / 3 + 0.45, 2 / 3])
    assert second == close([-1 / 3 - 0.27, -1 / 3 - 0.45])
    assert third == close([-1 / 3 - 0.27])


def test_what_a_turn_has_read_decides_its_state_and_not_its_index():
    other = TOKENS.clone()
    other[1, 2] = 7
    first, second, _ = of_turns(GiGpo(gamma=0.9), replace(BATCH, tokens=other))
    assert first[1] == close(2 / 3)
    assert second[1] == close(-1 / 3)


def test_with_a_reward_for_the_first_of_two_turns_both_baselines_of_mt_grpo_are_the_paper():
    paid = torch.where(torch.arange(6) == 1, TURN_REWARD, 0)
    two = replace(BATCH, turn_reward=paid)
    assert of_turns(MtGrpo(), two) == [close(row) for row in of_turns(MtGrpo(baseline="return"), two)]
    outcome = (1 - 1 / 3) / (3**-0.5 + 1e-4)
    turn = (1 - 2 / 3) / (3**-0.5 + 1e-4)
    assert of_turns(MtGrpo(), two)[0] == close([outcome + turn, outcome, outcome])


def test_a_mean_for_each_turn_that_is_left_pays_for_stopping_and_one_mean_does_not():
    """All process rewards are 1: a rollout that goes on earns what one that stops does, on average 0."""
    ones = replace(BATCH, turn_reward=MASK.to(F64), score=torch.zeros(3, dtype=F64))
    assert of_turns(MtGrpo(), ones) == [[0, 0, 0], [0, 0], [0]]
    first, _, third = of_turns(MtGrpo(baseline="return"), ones)
    assert first[0] > 0 > third[0], "with one baseline a turn, three rewards are more than one"


def test_igpo_gives_the_last_turn_the_outcome_in_place_of_its_process_reward():
    process = torch.where(MASK, 100.0, 0).to(F64)
    process[0, [1, 3]] = 1.0
    process[1, 1] = 0.0
    found = of_turns(IgPo(), replace(BATCH, turn_reward=process))
    rewards = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=F64)
    z = ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist()
    assert found[0] == close([z[0] + z[1] + z[2], z[1] + z[2], z[2]])
    assert found[1] == close([z[3] + z[4], z[4]])
    assert found[2] == close([z[5]])


@pytest.mark.parametrize("advantage", [MtGrpo(), IgPo()])
def test_without_process_rewards_there_is_no_advantage_to_make(advantage):
    with pytest.raises(ValueError, match="turn_reward is missing"):
        of_turns(advantage, replace(BATCH, turn_reward=None))

"""Turns updated one after the other, the last first."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.algorithms.ragged import ragged
from tests.objective.worked_example import plain
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch
from workbench.objective import policy_loss, prepare
from workbench.objective.aggregate import TurnMean, TurnMeanGlobal
from workbench.objective.schedule import ReverseTurns, Together


def prepared() -> tuple[Batch, Tensor]:
    batch, new = ragged(3)
    return prepare(ALGORITHMS["seeupo"], batch), new


def test_together_is_the_whole_batch_at_once():
    batch, _ = prepared()
    assert list(Together().parts(batch, lambda part: part.log_prob_old)) == [batch]


def test_every_turn_is_trained_once_and_the_last_comes_first():
    batch, _ = prepared()
    parts = list(ReverseTurns().parts(batch, lambda part: part.log_prob_old))
    indices = [int(part.turn.max()) for part in parts]
    assert indices == list(range(int(batch.turn.max()), 0, -1))
    assert len(indices) > 2
    trained = torch.zeros_like(batch.turn)
    for h, part in zip(indices, parts, strict=True):
        assert set(part.turn.unique().tolist()) <= {0, h}
        assert part.mask.any(1).all(), "sequences without that turn are left out"
        trained[part.trajectory] += part.mask.long() * h
    assert torch.equal(trained, batch.turn)


def test_an_earlier_turn_is_weighed_by_how_far_the_later_ones_moved():
    """The policy of each turn's update is the proximal one of the next, so M is the move of that update alone."""
    batch, _ = prepared()
    jumps = [0.1, -5.0, 9.0, 9.0, 9.0, 9.0]
    policy = [batch.log_prob_old + 0.3]  # it has left the one that sampled before the first turn is trained
    weight = torch.ones(len(batch.mask), dtype=torch.float64)
    seen = 0
    for part in ReverseTurns(epsilon=0.2).parts(batch, lambda whole: policy[-1]):
        rows = part.trajectory
        assert torch.equal(part.log_prob_old, policy[-1][rows]), "the ratio of a turn's first update is 1"
        wanted = torch.where(part.mask, weight[rows, None] * batch.need("advantages")[rows], 0)
        assert torch.allclose(part.need("advantages"), wanted)
        policy.append(
            policy[-1] + jumps[seen]
        )  # the update moves every turn of every sequence, that of the part as well
        ratio = torch.tensor(jumps[seen], dtype=torch.float64).exp().clamp(0.8, 1.2)
        weight[rows] = (weight[rows] * ratio).clamp(0.8, 1.2)
        seen += 1
    assert seen > 2
    assert weight.unique().numel() > 1


def test_the_mean_of_a_group_and_the_whitening_are_those_of_the_sequences_that_have_the_turn():
    """Two groups of three; rewards 1, 0, 0 and 1, 1, 0; turn 2 exists in the first two sequences of each group.

    Turn 1: 2/3, -1/3, -1/3, 1/3, 1/3, -2/3 over their std sqrt(4/15). Turn 2: 1/2, -1/2, 0, 0 over sqrt(1/6).
    Turn 3 exists once: it is its own mean.
    """
    three, two, one = [1, 0, 1, 0, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]
    mask = torch.tensor([three, two, one, two, two, one]).bool()
    made = plain(torch.zeros(6, 5, dtype=torch.float64), mask, group=torch.tensor([0, 0, 0, 1, 1, 1]),
                 score=torch.tensor([1.0, 0, 0, 1, 1, 0]))  # fmt: skip
    found = prepare(ALGORITHMS["seeupo"], made).advantages
    assert found is not None
    thirds = torch.tensor([2, -1, -1, 1, 1, -2]) / 3 / (4 / 15) ** 0.5
    assert found[:, 0].tolist() == pytest.approx(thirds.tolist())
    assert found[:, 2].tolist() == pytest.approx([0.5 * 6**0.5, -0.5 * 6**0.5, 0, 0, 0, 0])
    assert found[:, 4].tolist() == [0] * 6


@pytest.mark.parametrize("aggregate", [TurnMean(), TurnMeanGlobal()])
def test_a_part_counts_the_turns_that_it_has_and_not_their_index(aggregate):
    batch, new = prepared()
    part = next(ReverseTurns().parts(batch, lambda part: part.log_prob_old))
    algorithm = replace(ALGORITHMS["turn-ppo"], aggregate=aggregate)
    renumbered = replace(part, turn_id=part.mask.long())
    a, b = (policy_loss(algorithm, x, new[part.trajectory]).loss for x in (part, renumbered))
    assert torch.allclose(a, b)

"""Turns updated one after the other, the last first."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.algorithms.ragged import ragged
from workbench.algorithms import ALGORITHMS, resolve
from workbench.batch import Batch
from workbench.objective import policy_loss, prepare
from workbench.objective.aggregate import TurnMean, TurnMeanGlobal
from workbench.objective.schedule import ReverseTurns, Together


def prepared() -> tuple[Batch, Tensor]:
    batch, new = ragged(3)
    return prepare(ALGORITHMS["seeupo"], batch), new


def test_together_is_one_update_on_the_minibatch():
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
    batch, _ = prepared()
    assert batch.advantages is not None
    moves = iter([0.1, -5.0, 9.0, 9.0, 9.0, 9.0])
    seen: list[Batch] = []

    def now(part: Batch) -> Tensor:
        return part.log_prob_old + torch.where(part.mask, next(moves), 99.0)

    weight = torch.ones(len(batch.mask), dtype=torch.float64)
    expected = iter([0.1, -5.0, 9.0, 9.0, 9.0, 9.0])
    for part in ReverseTurns(epsilon=0.2).parts(batch, now):
        seen.append(part)
        rows = part.trajectory
        wanted = torch.where(part.mask, weight[rows, None] * batch.advantages[rows], 0)
        assert part.advantages is not None
        assert torch.allclose(part.advantages, wanted)
        ratio = torch.tensor(next(expected), dtype=torch.float64).exp().clamp(0.8, 1.2)
        weight[rows] = (weight[rows] * ratio).clamp(0.8, 1.2)
    assert len(seen) > 2
    assert weight.unique().numel() > 1


def test_the_caller_trains_before_the_weights_are_asked_for():
    batch, _ = prepared()
    order: list[str] = []

    def now(part: Batch) -> Tensor:
        order.append("asked")
        return part.log_prob_old

    for _ in ReverseTurns().parts(batch, now):
        order.append("trained")  # noqa: PERF401  `now` appends to it in between
    assert order[:4] == ["trained", "asked", "trained", "asked"]


@pytest.mark.parametrize("aggregate", [TurnMean(), TurnMeanGlobal()])
def test_a_part_counts_the_turns_that_it_has_and_not_their_index(aggregate):
    batch, new = prepared()
    part = next(ReverseTurns().parts(batch, lambda part: part.log_prob_old))
    algorithm = replace(ALGORITHMS["turn-ppo"], aggregate=aggregate)
    renumbered = replace(part, turn_id=part.mask.long())
    a, b = (policy_loss(algorithm, x, new[part.trajectory]).loss for x in (part, renumbered))
    assert torch.allclose(a, b)


def test_a_schedule_can_be_set_from_a_grid_file():
    assert resolve("grpo", {"schedule": "reverse_turns"}).schedule == ReverseTurns()

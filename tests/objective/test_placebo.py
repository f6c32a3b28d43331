"""Placebo turns have the lengths of the real turns, stay inside their trajectory, and depend on nothing but a
seed.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sorl.batch import pool, turn_ids
from sorl.objective import Pool, prepare
from sorl.objective.ratio import placebo_turns
from sorl.objective.select import ZeroVariance
from tests.objective.batches import PPO, batches, plain

SEEDS = st.integers(0, 2**31)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lengths(segments: Tensor) -> list[list[int]]:
    counts = pool(torch.ones(segments.shape), segments).count[:, 1:]
    return [sorted(int(n) for n in row if n) for row in counts]


@given(batches(rows=(1, 6), width=(1, 30)), SEEDS)
def test_segments_are_stretches_of_policy_tokens_with_the_lengths_of_the_turns_and_from_the_seed_alone(
    drawn, seed
):
    mask = drawn[0].mask
    placebo = placebo_turns(mask, stream(seed))
    assert lengths(placebo) == lengths(turn_ids(mask))
    assert torch.equal(placebo > 0, mask)
    for ids, written in zip(placebo, mask, strict=True):
        own = ids[written]  # one stretch each, around the end
        assert int((own != own.roll(1)).sum()) in (0, len(own.unique()))
    assert torch.equal(placebo, placebo_turns(mask, stream(seed)))


def test_they_seldom_are_the_turns():
    mask = torch.tensor([[False, *[True] * 5, False, *[True] * 5, False, *[True] * 2]]).expand(400, -1)
    drawn = placebo_turns(mask, stream(0))
    real = turn_ids(mask)
    # 12 starts x 3! orders of (5, 5, 2); the turns are found at the starts at which the segments come to lie
    # on them.
    boundaries = [
        ((a != a.roll(1)) == (b != b.roll(1)))[m].all() for a, b, m in zip(drawn, real, mask, strict=True)
    ]
    assert 0 < sum(map(int, boundaries)) < 100
    assert len({tuple(row.tolist()) for row in drawn}) > 20


def test_prepare_draws_them_after_the_selection_and_from_the_stream_that_it_is_given():
    mask = torch.tensor([[1, 1, 1, 0, 1, 1, 1, 1, 0, 1]] * 8).bool()
    score = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 1])
    zeros = torch.zeros(mask.shape)
    batch = plain(zeros, mask, group=torch.arange(8) // 4, score=score, values=zeros, advantages=None)
    algorithm = replace(PPO, ratio=Pool("placebo"), select=ZeroVariance())
    made = prepare(algorithm, batch, stream(3))
    assert made.placebo is not None
    assert torch.equal(made.placebo > 0, made.mask)
    assert not made.mask[4:].any(), "a group without variance is dropped"
    assert torch.equal(made.placebo, prepare(algorithm, batch, stream(3)).placebo)
    assert not torch.equal(made.placebo, prepare(algorithm, batch, stream(4)).placebo)
    assert prepare(PPO, batch, stream(3)).placebo is None, "nobody else draws"
    with pytest.raises(ValueError, match="prepare"):  # without segments the ratio is refused
        Pool("placebo").units(batch)

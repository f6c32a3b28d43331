"""Placebo turns: segments that have the lengths of the real turns and begin somewhere else.

A control for turn-level ratios: whatever pooling over stretches of such lengths does, they do as well; what only
pooling over what the agent did in one turn can do, they cannot.
"""

from __future__ import annotations

from workbench.batch import pool, turn_ids
from workbench.tensors import Tensor, torch


def placebo_turns(mask: Tensor, stream: torch.Generator) -> Tensor:
    """Placebo segment of each policy token, (B, T) bool -> (B, T) int64 from 1; 0 where the mask is not set.

    The turn lengths of each trajectory are put in random order and laid over its policy tokens from a random one of
    them on, around the end to its first: the multiset of lengths is that of its turns, and no segment leaves it. A
    trajectory of one turn has one segment, the turn itself. `stream` decides everything that is random.
    """
    turn, present = turn_ids(mask), mask.sum(1, keepdim=True)
    lengths = pool(mask.double(), turn).count[:, 1:]  # (B, K)
    order = torch.rand(lengths.shape, generator=stream, dtype=torch.float64).argsort(1)
    ends = lengths.gather(1, order).cumsum(1)
    start = (torch.rand((len(mask), 1), generator=stream, dtype=torch.float64) * present).floor()
    place = (mask.cumsum(1) - 1 + start) % present.clamp(min=1)  # of the token, counted from the start of segment 1
    segment = torch.searchsorted(ends, place, right=True) + 1
    return torch.where(mask, segment, 0)

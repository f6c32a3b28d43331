"""The critic's loss."""

from __future__ import annotations

from workbench.batch import Batch
from workbench.objective.advantage import Positions, first_tokens
from workbench.tensors import Tensor, torch


def positions(batch: Batch, mask: Positions) -> Tensor:
    """Where the critic is trained, (B, T) bool: m policy tokens, a the response, turn the first token of each turn."""
    if mask == "turn":
        return first_tokens(batch.turn)
    return batch.mask if mask == "m" else batch.response | batch.mask


def value_loss(
    values: Tensor, batch: Batch, clip: float | None = 0.5, mask: Positions = "m", count: Tensor | None = None
) -> Tensor:
    """1/2 <max((V - G)^2, (V_c - G)^2)>, V_c = V_old + clamp(V - V_old, +-clip), a scalar; clip None = <(V - G)^2> / 2.

    `values` (B, T) with gradient, V_old and G from the batch. The mean is over `mask` (m in verl, a in Search-R1), or
    the sum is divided by `count`, the positions of the whole minibatch, so that micro-batches add up. 1707.06347, verl
    `compute_value_loss`.
    """
    where = positions(batch, mask)  # masked before the squares: the gradient of a masked Inf or NaN would be NaN
    value, target = torch.where(where, values, 0), torch.where(where, batch.need("returns"), 0)
    error = (value - target).square()
    if clip is not None:
        old = torch.where(where, batch.need("values"), 0)
        error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target).square())
    return 0.5 * error.sum() / (where.sum() if count is None else count).clamp(min=1)

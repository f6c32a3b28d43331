"""Optimizers and the global gradient norm, measured before and after clipping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from workbench.spec import OptimizerSettings


def build(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer that `settings` names, over `parameters`."""
    if settings.kind == "sgd":
        return torch.optim.SGD(
            parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, foreach=True
        )
    return torch.optim.AdamW(
        parameters,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )


def norm(gradients: Sequence[Tensor]) -> float:
    """Global L2 norm over all tensors; NaN or Inf when a gradient is not finite."""
    return float(torch.nn.utils.get_total_norm(gradients, foreach=True))


def clip(gradients: Sequence[Tensor], total: float, limit: float | None) -> float:
    """Scale the gradients in place so that their norm is at most `limit`; returns the norm afterwards."""
    if limit is None or not total > limit:
        return total
    torch._foreach_mul_(list(gradients), limit / total)
    return limit

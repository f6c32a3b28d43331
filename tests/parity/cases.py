"""The random batches on which the references were recorded, and how a tensor becomes a few numbers."""

from dataclasses import replace

import torch
from torch import Tensor

from sorl.batch import Batch
from tests.objective.batches import F64, ragged

SEEDS = range(50)
SCALE = 0.4  # std of the log-ratios: every clip acts in every batch, none always

# TRL and verl count a sequence without a policy token differently; no batch has one.


def case(seed: int) -> tuple[Batch, Tensor]:
    """Batch `seed` with token advantages, returns and new values, and the new log-probs, (B, T) each."""
    batch, new = ragged(seed, scale=SCALE)
    g = torch.Generator().manual_seed(10_000 + seed)
    advantages, returns = (
        torch.where(batch.mask, torch.randn(new.shape, generator=g, dtype=F64), 0) for _ in range(2)
    )
    return replace(batch, advantages=advantages, returns=returns), new


def new_values(batch: Batch, seed: int) -> Tensor:
    """Values of a critic that has moved, (B, T)."""
    g = torch.Generator().manual_seed(20_000 + seed)
    return torch.where(batch.mask, 0.5 * torch.randn(batch.mask.shape, generator=g, dtype=F64), 0)


def sequence_advantages(batch: Batch) -> Tensor:
    """One advantage a sequence, (B,): the token advantage of its first policy token."""
    first = batch.mask & (batch.mask.cumsum(1) == 1)
    return torch.where(first, batch.need("advantages"), 0).sum(1)


def token_rewards(batch: Batch) -> Tensor:
    """The score at the last policy token, (B, T)."""
    rank = batch.mask.cumsum(1)
    return torch.where(batch.mask & (rank == rank[:, -1:]), batch.score[:, None], 0)


def sketch(x: Tensor) -> list[float]:
    """Three random projections and the norm of a tensor: two tensors that share them to 1e-9 are one."""
    g = torch.Generator().manual_seed(x.numel())
    directions = torch.randn(3, x.numel(), generator=g, dtype=F64)
    flat = x.detach().double().reshape(-1)
    return [*(directions @ flat).tolist(), float(flat.norm())]

"""Random ragged batches of several turns and prompt groups, in float64, the same for the same seed."""

import torch
from torch import Tensor

from workbench.batch import Batch

F64 = torch.float64


def ragged(seed: int, groups: int = 3, size: int = 4, width: int = 14, scale: float = 0.4) -> tuple[Batch, Tensor]:
    """(batch, new log-probs): every sequence has its own length, turns of 1 to 4 tokens and observations between."""
    g = torch.Generator().manual_seed(seed)
    b = groups * size

    def normal() -> Tensor:
        return torch.randn(b, width, generator=g, dtype=F64)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    mask, length = torch.zeros(b, width, dtype=torch.bool), []
    for i in range(b):
        t, end, writes = whole(0, 2), whole(4, width), True
        while t < end:
            n = whole(1, 4)
            mask[i, t : min(t + n, end)] = writes
            t, writes = t + n, not writes
        length.append(end)
    inside = torch.arange(width) < torch.tensor(length)[:, None]
    old = torch.where(mask, -normal().abs() - 0.01, 0)
    batch = Batch(
        tokens=torch.randint(0, 9, (b, width), generator=g),
        response=inside,
        mask=mask,
        length=torch.tensor(length),
        group=torch.arange(b) // size,
        trajectory=torch.arange(b),
        score=torch.randint(0, 3, (b,), generator=g).to(F64) / 2,
        log_prob_behaviour=torch.where(mask, old + 0.5 * normal(), 0),
        log_prob_old=old,
        log_prob_ref=torch.where(mask, old + 0.3 * normal(), 0),
        values=torch.where(mask, 0.5 * normal(), 0),
        sentence=torch.where(mask, torch.randint(1, 4, (b, width), generator=g).cummax(1).values, 0),
    )
    new = torch.where(mask, (old + scale * normal()).clamp(max=-1e-3), 0)
    return batch, new

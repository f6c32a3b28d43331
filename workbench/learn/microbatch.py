"""A batch in passes of bounded size: rows of like length together, so that little of a pass is padding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.batch import Batch


def by_tokens(length: Tensor, budget: int) -> list[Tensor]:
    """Rows of each pass, longest first: rows x longest <= budget, or a single row that is longer.

    `length` (B,) counts a row's tokens, padding left out; each row is in one pass.
    """
    order = length.argsort(descending=True, stable=True)
    found, start = [], 0
    while start < len(order):
        size = max(1, budget // max(1, int(length[order[start]])))
        found.append(order[start : start + size])
        start += size
    return found


def passes(batch: Batch, budget: int | None) -> Iterator[tuple[Tensor, int]]:
    """(rows, tokens of the longest) of each pass over `batch`; one pass over all of it without a budget."""
    if budget is None:
        yield torch.arange(len(batch.tokens)), batch.tokens.shape[1]
        return
    for rows in by_tokens(batch.length, budget):
        yield rows, int(batch.length[rows].max())

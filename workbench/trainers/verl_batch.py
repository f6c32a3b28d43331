"""verl: the fields of its batch as dense tensors and lists, by our names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROW = "sorl_row"
FIELDS = {
    "mask": "response_mask",
    "advantages": "advantages",
    "log_prob_old": "old_log_probs",
    "log_prob_behaviour": "rollout_log_probs",
    "log_prob_ref": "ref_log_prob",
}


def dense(data: Any, name: str, width: int | None = None) -> Tensor | None:
    """Return a field of verl's batch as (B, width), 0 where padded; None where it has none."""
    found = data.get(name, None)
    if not isinstance(found, Tensor):
        return None
    x = found.to_padded_tensor(0) if found.is_nested else found
    return x if width is None or x.shape[1] == width else torch.nn.functional.pad(x, (0, width - x.shape[1]))


def fields(data: Any, log_prob: Tensor | None = None) -> dict[str, Any]:
    """Return the fields of verl's batch by our names, (B, T), T that of `log_prob`."""
    width = None if log_prob is None else log_prob.shape[1]
    return {ours: dense(data, theirs, width) for ours, theirs in FIELDS.items()}


def dense_responses(values: Any, data: Any) -> Tensor:
    """Return values of whole sequences as those of the responses, (B, T)."""
    from verl.workers.utils.padding import no_padding_2_padding

    return no_padding_2_padding(values, data)


def list_of(data: Any, name: str) -> list[Any] | None:
    """Return a field of verl's batch that is no tensor, an entry per row."""
    found = data.get(name, None)
    found = found.tolist() if hasattr(found, "tolist") else found
    return list(found) if isinstance(found, list | tuple) and len(found) == len(data) else None


def token_lists(data: Any) -> list[list[list[int]]]:
    """Return the token ids of prompts and responses, a list a row, without padding."""
    parts = (data["prompts"], data["responses"])
    attention = dense(data, "attention_mask")
    if parts[0].is_nested or attention is None:
        return [_rows_of(part) for part in parts]
    masks = attention.bool().split([part.shape[1] for part in parts], dim=1)
    return [_masked_rows(part, mask) for part, mask in zip(parts, masks, strict=True)]


def _rows_of(part: Tensor) -> list[list[int]]:
    return [row.tolist() for row in part]


def _masked_rows(part: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[kept].tolist() for row, kept in zip(part, mask, strict=True)]

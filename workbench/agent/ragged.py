"""Rows of different lengths through transformers' own layers without padding: packed into one long row.

Everything but attention works token by token, so a pass over N tokens of R rows costs N tokens, not R times
the longest row. Attention alone must know where rows begin. Transformers lets one replace it by a function,
which gets what is passed to the model: here a `Layout`, which says which tokens may see which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sorl.agent.routing import routers

NAME = "sorl_ragged"  # of the attention function, in transformers' list
COLUMNS = 128  # of keys and values that are allocated at first
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_TRIED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class Layout(Protocol):
    """Which tokens of a packed pass attend to which."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attention of queries (H, N, D) over keys and values (G, N, D), as (N, H, D)."""


class Rows:
    """Rows that see themselves and nothing else: `counts` tokens each, one row behind the other."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = list(counts)

    def positions(self) -> Tensor:
        """The place of each token in its row, (N,)."""
        return torch.cat([torch.arange(count) for count in self._counts])

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Causal attention within each row."""
        del layer
        split = [x.split(self._counts, 1) for x in (query, key, value)]
        done = [_causal(q, k, v, scale, window) for q, k, v in zip(*split, strict=True)]
        return torch.cat(done, 1).transpose(0, 1)


class Cache:
    """Keys and values of rows that grow by turns: every row may add another number of tokens in a pass."""

    def __init__(self, rows: int) -> None:
        self.length = np.zeros(rows, dtype=np.int64)  # tokens of each row so far
        self._kept: dict[int, Tensor] = {}  # of each layer: keys and values, (2, R, columns, G, D)
        self._counts = self.length

    def extend(self, counts: np.ndarray) -> Tensor:
        """Make room for `counts` (R,) more tokens; returns the place of each token in its row, (N,)."""
        self._counts = counts
        before = self.length
        self.length = before + counts
        row = np.repeat(np.arange(len(counts)), counts)
        first = np.cumsum(counts) - counts
        place = np.arange(len(row)) - first[row] + before[row]
        self._row = torch.from_numpy(row)
        self._place = torch.from_numpy(place)
        self._first = first
        self._single = np.flatnonzero(counts == 1)
        self._several = np.flatnonzero(counts > 1)
        longest = int(self.length[self._single].max()) if len(self._single) else 0
        reach = torch.arange(longest) < torch.from_numpy(self.length[self._single])[:, None]
        self._reach = reach[:, None, None]  # (singles, 1, 1, longest)
        return self._place

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attention of new tokens over all that their rows have had, which `key` and `value` extend."""
        kept = self._extended(layer, key, value)
        attended = query.new_empty(query.shape[1], query.shape[0], query.shape[2])
        if len(self._single):
            at = torch.from_numpy(self._first[self._single]).to(key.device)
            attended[at] = self._attend_singles(kept, query[:, at], scale, window)
        for several in self._several.tolist():
            start = int(self._first[several])
            new = slice(start, start + int(self._counts[several]))
            keys, values = kept[:, several, : self.length[several]].transpose(1, 2)
            attended[new] = _causal(query[:, new], keys, values, scale, window).transpose(0, 1)
        return attended

    def keep(self, rows: Tensor) -> None:
        """Go on with `rows`, in this order; a row may be there several times."""
        self.length = self.length[rows.numpy()]
        for layer, kept in self._kept.items():
            self._kept[layer] = kept.index_select(1, rows.to(kept.device))

    def _extended(self, layer: int, key: Tensor, value: Tensor) -> Tensor:
        """The keys and values of a layer, (2, R, columns, G, D), with the new ones in their places."""
        kept = self._grown(layer, key)
        row = self._row.to(key.device)
        place = self._place.to(key.device)
        kept[0, row, place] = key.transpose(0, 1)
        kept[1, row, place] = value.transpose(0, 1)
        return kept

    def _grown(self, layer: int, key: Tensor) -> Tensor:
        """The keys and values of a layer, with columns for the longest row."""
        needed = int(self.length.max())
        kept = self._kept.get(layer)
        if kept is None:
            groups, _, width = key.shape
            kept = key.new_zeros(2, len(self.length), max(COLUMNS, needed), groups, width)
        elif needed > kept.shape[2]:
            kept = F.pad(kept, (0, 0, 0, 0, 0, max(needed, 2 * kept.shape[2]) - kept.shape[2]))
        self._kept[layer] = kept
        return kept

    def _attend_singles(self, kept: Tensor, query: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of rows with one new token each, (d, H, D) from queries (H, d, D).

        The heads that share a key are its queries, so that no key is repeated.
        """
        heads, count, width = query.shape
        reach = self._reach_within(window).to(query.device)
        # all rows: a view; some: a copy
        if count < kept.shape[1]:
            kept = kept[:, torch.from_numpy(self._single).to(query.device)]
        keys, values = kept[:, :, : reach.shape[-1]].transpose(2, 3)
        groups = keys.shape[1]
        asked = query.transpose(0, 1).reshape(count, groups, heads // groups, width)
        done = F.scaled_dot_product_attention(asked, keys, values, attn_mask=reach, scale=scale)
        return done.reshape(count, heads, width)

    def _reach_within(self, window: int | None) -> Tensor:
        """Which of its tokens each row with one new token sees, (d, 1, 1, longest)."""
        longest = self._reach.shape[-1]
        if window is None or longest <= window:
            return self._reach
        last = self._reach.sum(-1, keepdim=True) - 1
        return self._reach & (torch.arange(longest) > last - window)


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """Attention of the last n of L tokens, (H, n, D), over keys and values (G, L, D) and no later ones."""
    n = query.shape[1]
    length = key.shape[1]
    mask = None
    if n < length or (window is not None and length > window):
        place = torch.arange(length, device=query.device)
        ahead = place - place[length - n :, None]
        mask = ahead <= 0
        if window is not None:
            mask = mask & (ahead > -window)
    shared = query.shape[0] != key.shape[0]
    return F.scaled_dot_product_attention(
        query[None], key[None], value[None], mask, is_causal=mask is None, scale=scale, enable_gqa=shared
    )[0]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: (1, H, N, D) to (1, N, H, D).

    Without a layout it is transformers' own on padded rows.
    """
    layout: Layout | None = more.pop("layout", None)
    if layout is None:
        plain: Any = sdpa_attention_forward
        return plain(module, query, key, value, attention_mask, **more)
    attended = layout.attend(
        module.layer_idx, query[0], key[0], value[0], more["scaling"], more.get("sliding_window")
    )
    return attended[None], None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def run(model: Any, tokens: Tensor, positions: Tensor, layout: Layout, **more: Any) -> Any:
    """What a model or its backbone returns for packed tokens (N,) at `positions` (N,) in their rows."""
    on = next(model.parameters()).device
    return model(
        input_ids=tokens[None].to(on),
        position_ids=positions[None].to(on),
        # With four axes it counts as a finished mask, so that none is made; nothing reads it.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=on),
        layout=layout,
        use_cache=False,
        **more,
    )


def hidden_states(backbone: Any, tokens: Tensor, counts: Sequence[int]) -> Tensor:
    """The last hidden states (N, H) of rows of `counts` tokens, packed into `tokens` (N,)."""
    rows = Rows(counts)
    found: Tensor = run(backbone, tokens, rows.positions(), rows).last_hidden_state[0]
    return found


def supports(backbone: Any) -> bool:
    """Whether packed rows give what padded ones give: a plain decoder whose attention can be replaced.

    Mixtures of experts are left out, as the routes of their tokens are recorded by place. Tried out once a
    model on a few tokens, for what a configuration does not say. The attention function stays replaced, since
    layers that are computed again in the backward pass look it up then.
    """
    if not isinstance(backbone, PreTrainedModel):
        return False
    if backbone not in _TRIED:
        _TRIED[backbone] = _may_support(backbone) and _agrees(backbone)
    return _TRIED[backbone]


def _may_support(backbone: Any) -> bool:
    config: Any = backbone.config
    return (
        bool(getattr(backbone, "_supports_attention_backend", False))
        and config._attn_implementation in ("sdpa", NAME)
        and set(getattr(config, "layer_types", None) or ()) <= _KNOWN_LAYERS
        and not getattr(config, "attn_logit_softcapping", None)
        and not getattr(config, "use_bidirectional_attention", False)
        and not getattr(config, "attention_dropout", 0)
        and not getattr(backbone, "_hf_peft_config_loaded", False)
        and not routers(backbone)
    )


@torch.no_grad()
def _agrees(backbone: Any) -> bool:
    """Whether two rows of different lengths are what each of them is alone."""
    vocabulary = backbone.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(11) % vocabulary
    counts = [7, 4]
    config: Any = backbone.config
    config._attn_implementation = NAME
    try:
        packed = hidden_states(backbone, tokens, counts).float()
        alone = [
            backbone(input_ids=row[None].to(packed.device), use_cache=False).last_hidden_state[0]
            for row in tokens.split(counts)
        ]
    # a model that does not pass on what it does not know
    except (TypeError, KeyError, AttributeError, RuntimeError, ValueError):
        config._attn_implementation = "sdpa"
        return False
    apart = (packed - torch.cat(alone).float()).abs().max()
    if apart <= 1e-3 * packed.abs().max().clamp(min=1.0):
        return True
    config._attn_implementation = "sdpa"
    return False

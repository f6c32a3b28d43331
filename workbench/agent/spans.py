"""What a token belongs to: its sentence, and whether it thinks, searches or answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from workbench.batch import Batch

SPANS = ("think", "search", "answer")  # span i + 1


class Spans:
    """Tells the spans of a turn apart where the tags are single tokens of the vocabulary.

    A span begins with its opening tag and ends with the next closing tag, whichever, or with the turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        known = tokenizer.get_vocab()
        self._opens = {known[f"<{name}>"]: i for i, name in enumerate(SPANS, 1) if f"<{name}>" in known}
        self._closes = torch.tensor([known[f"</{name}>"] for name in SPANS if f"</{name}>" in known])

    def of(self, tokens: Tensor, mask: Tensor) -> Tensor | None:
        """Span of each token, (B, T) int64: 1 think, 2 search, 3 answer, 0 none of them; None without such tags."""
        if not self._opens:
            return None
        kind = torch.zeros_like(tokens)
        for token, span in self._opens.items():
            kind[tokens == token] = span
        before = pad(mask, (1, 0))[:, :-1]
        closed = pad(torch.isin(tokens, self._closes.to(tokens.device)) & mask, (1, 0))[:, :-1]
        changes = ((kind > 0) & mask) | (mask & ~before) | closed
        place = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.where(changes, place, 0).cummax(1).values
        return torch.where(mask, kind, 0).gather(1, last) * mask


_ENDS = (".", "?", "!", "\n", "Ċ", "。", "？", "！")  # Ċ: the line feed in byte-level vocabularies


class Sentences:
    """Splits turns after every token whose text ends with a full stop, a question or exclamation mark or a line feed.

    A turn without one is one sentence, and no sentence reaches across an observation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._ends = torch.tensor(sorted(i for word, i in tokenizer.get_vocab().items() if word.endswith(_ENDS)))

    def of(self, batch: Batch) -> Tensor:
        """Sentence of each token from 1, (B, T) int64; 0 where the policy wrote nothing."""
        mask = batch.mask
        before = pad(mask, (1, 0))[:, :-1]
        ended = pad(torch.isin(batch.tokens, self._ends), (1, 0))[:, :-1] & before
        return (mask & (~before | ended)).long().cumsum(1) * mask

"""Sentences of what the policy wrote: where a ratio that is shared by a sentence begins and ends."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from workbench.batch import Batch

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

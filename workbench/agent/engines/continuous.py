"""Sampling of ragged multi-turn episodes in which no row waits for another and nothing is read twice.

Every pass reads one new token of a row that writes, and a whole observation of a row that has just searched,
packed into one row. So an episode costs as many passes as it has written tokens, whatever the others read.
The prompt of a group is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from transformers import PreTrainedModel

from sorl.agent import ragged
from sorl.agent.engines import Report, unheard
from sorl.agent.protocol import Dialogue, closes, search_ahead
from sorl.agent.tokenizer import Codec

# Tokens (B,) and their log-probs (B,) from logits (B, V), a generator, whether greedily, and the place
Sample = Callable[[Tensor, float, Generator, bool, int], tuple[Tensor, Tensor]]


class ContinuousDecoder:
    """A causal language model of transformers over rows that each read as many tokens as they have."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        self._model = model
        self._cache = ragged.Cache(rows)

    def feed(self, unread: Sequence[Sequence[int]]) -> Tensor:
        """Read the tokens of every row, and return the logits after the last of each, (B, V)."""
        counts = np.array([len(tokens) for tokens in unread])
        tokens = torch.from_numpy(np.concatenate([np.asarray(row, dtype=np.int64) for row in unread]))
        last = torch.from_numpy(np.cumsum(counts) - 1).to(self._model.device)
        places = self._cache.extend(counts)
        out: Any = ragged.run(self._model, tokens, places, self._cache, logits_to_keep=last)
        logits: Tensor = out.logits[0]
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with `rows`, in this order; a row may be there several times."""
        self._cache.keep(torch.tensor(rows))


class _Turn:
    """What a row has written of its present turn."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.log_probs: list[float] = []


class ContinuousRows:
    """The dialogues in decoding, and what each of them writes and has still to read."""

    def __init__(self, dialogues: list[Dialogue], codec: Codec, turn_tokens: int, limit: int) -> None:
        self._rows = dialogues
        self._codec = codec
        self._turn_tokens = turn_tokens
        self._limit = limit
        self._turns = [_Turn() for _ in dialogues]
        self._unread = [list(dialogue.tokens) for dialogue in dialogues]
        self.report: Report = unheard

    def play(
        self, model: PreTrainedModel, sample: Sample, temperature: float, generator: Generator, greedy: bool
    ) -> None:
        """Decode until every dialogue has ended."""
        episodes = len(self._rows)
        logits, decoder = self._read_prompts(model)
        passes = 0
        written = 0
        while True:
            token, log_prob = sample(logits, temperature, generator, greedy, passes)
            self._write(token.tolist(), log_prob.tolist())
            written += len(token)
            alive = [row for row, dialogue in enumerate(self._rows) if dialogue.ended is None]
            self.report(written, episodes - len(alive), self._earliest_turn())
            if not alive:
                return
            if len(alive) < len(self._rows):
                self._rows = [self._rows[row] for row in alive]
                self._turns = [self._turns[row] for row in alive]
                self._unread = [self._unread[row] for row in alive]
                decoder.keep(alive)
            logits = decoder.feed(self._unread)
            passes += 1

    def _read_prompts(self, model: PreTrainedModel) -> tuple[Tensor, ContinuousDecoder]:
        """Read each different prompt once; returns the logits after the prompt of every row."""
        prompts = [tuple(tokens) for tokens in self._unread]
        distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        decoder = ContinuousDecoder(model, len(distinct))
        logits = decoder.feed(list(distinct))
        row_of = [distinct[prompt] for prompt in prompts]
        decoder.keep(row_of)
        return logits[torch.tensor(row_of, device=logits.device)], decoder

    def _earliest_turn(self) -> int:
        """The turn that the slowest row is in, from 1; 1 where all have ended."""
        turns = [len(dialogue.status) for dialogue in self._rows if dialogue.ended is None]
        return 1 + min(turns, default=0)

    def _write(self, tokens: list[int], log_probs: list[float]) -> None:
        """Give every row its sampled token, and close the turns that end with it."""
        ending: list[int] = []
        for row, token in enumerate(tokens):
            turn = self._turns[row]
            turn.tokens.append(token)
            turn.log_probs.append(log_probs[row])
            self._unread[row] = [token]
            if self._ends(row):
                ending.append(row)
        written = [self._turns[row].tokens for row in ending]
        search_ahead([self._rows[row] for row in ending], written)
        for row in ending:
            self._close(row)

    def _ends(self, row: int) -> bool:
        """Whether the turn of a row is over: by its last token, its length, or the end of the context."""
        written = self._turns[row].tokens
        room = self._limit - len(self._rows[row].tokens)
        return len(written) >= min(self._turn_tokens, room) or closes(self._codec, written)

    def _close(self, row: int) -> None:
        """Hand the turn of a row to its dialogue, and queue the observation behind the last token."""
        dialogue = self._rows[row]
        turn = self._turns[row]
        observation = dialogue.turn(turn.tokens, turn.log_probs)
        if dialogue.ended is None and len(dialogue.tokens) >= self._limit:
            dialogue.stop()
        self._unread[row] = [turn.tokens[-1], *observation]
        self._turns[row] = _Turn()

"""Lock-step sampling of ragged multi-turn episodes from a transformers decoder, with a key-value cache and no padding.

Every row is at the same position: a row with prompt or observation tokens left is fed those, another what was sampled.
So there are no position ids, attention masks or padding. Finished rows are dropped from the cache.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from workbench.agent.engines import NonFinite
from workbench.agent.engines.decode import FusedDecoder, supports
from workbench.agent.episode import Episode
from workbench.agent.protocol import Dialogue, begin, closes, search_ahead
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question, World
from workbench.spec import EngineSettings

_KEEP = 0.85  # rows are dropped from the cache once this share or less is alive: a copy costs about one decoding step
_SMALL = 20_000_000  # parameters up to which the written-out decoder pays: beyond, copying the weights costs more
_COLUMNS = 128


class TransformersDecoder:
    """Any causal language model in the calling convention of transformers."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)

    def feed(self, tokens: Tensor) -> Tensor:
        """Append `tokens` (B, n) to the cache and return the logits after the last, (B, V)."""
        tokens = tokens.to(self._model.device)
        out: Any = self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Forget every row but `rows`, in this order."""
        self._cache.batch_select_indices(rows.to(self._model.device))


def sample(
    logits: Tensor, temperature: float, generator: Generator, greedy: bool, position: int
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) drawn from softmax(logits / temperature), (B, V), and their log-probs (B,) in float32 nats.

    The draw inverts the distribution function with one uniform number a row: the first i with F(i) > u. Greedy takes
    the most likely token and reports the same log-prob. Raises NonFinite when a row has no distribution.
    """
    log_prob = torch.log_softmax(logits.float() / temperature, dim=-1)
    if greedy:
        token = log_prob.argmax(dim=-1)
    else:
        below = log_prob.exp().cumsum(dim=-1, dtype=torch.float64)
        u = torch.rand(len(below), 1, generator=generator, dtype=torch.float64).to(below.device)
        token = torch.searchsorted(below, u * below[:, -1:], right=True)[:, 0].clamp_(max=below.shape[1] - 1)
    chosen = log_prob.gather(1, token[:, None])[:, 0]
    if not bool(torch.isfinite(chosen.sum())):
        raise NonFinite.of(logits, position)
    return token, chosen


class HFEngine:
    """Samples from `model` as it is at the time of the call."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EngineSettings,
        wording: str = "plain",
    ) -> None:
        self._model, self._settings, self._codec = model, settings, Codec(tokenizer, wording)
        self._limit = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30)

    @torch.inference_mode()
    def rollout(
        self, world: World, questions: list[Question], groups: list[int], generator: Generator, greedy: bool = False
    ) -> list[Episode]:
        """Return one episode for each question; the same generator state gives the same episodes."""
        dialogues = begin(world, self._codec, questions, groups, self._limit)
        if not dialogues:
            return []
        training = self._model.training
        self._model.train(False)
        rows = _Rows(dialogues, self._codec, world.max_turn_tokens, self._limit)
        try:
            rows.play(self._decoder(), self._settings.temperature, generator, greedy)
        finally:
            self._model.train(training)
        return [dialogue.episode() for dialogue in dialogues]

    def _decoder(self) -> FusedDecoder | TransformersDecoder:
        dtype = getattr(torch, self._settings.dtype)
        small = self._model.device.type == "cpu" and self._model.num_parameters() <= _SMALL
        if small and supports(self._model):
            return FusedDecoder(self._model, dtype)
        return TransformersDecoder(in_dtype(self._model, dtype))


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model itself when it already computes in `dtype`, else a copy that does."""
    copied: Any = model if model.dtype == dtype else deepcopy(model)
    return copied.to(dtype)


class _Rows:
    """The rows that are being decoded.

    tokens (B, T) holds what is written or waits to be read, then padding; known (B,) counts a row's tokens; start (B,)
    is where its present turn began. Tensors share memory with the arrays, so bookkeeping costs microseconds a step.
    """

    def __init__(self, dialogues: list[Dialogue], codec: Codec, turn_tokens: int, limit: int) -> None:
        self._codec, self._turn_tokens, self._limit = codec, turn_tokens, limit
        self._closers = list(codec.closers)
        self._rows = dialogues
        self._known = np.array([len(d.tokens) for d in dialogues])
        self._start = self._known.copy()
        shape = len(dialogues), max(_COLUMNS, int(self._known.max()))
        self._tokens = np.full(shape, codec.pad_id, dtype=np.int64)
        self._log_prob = np.zeros(shape, dtype=np.float32)
        for row, dialogue in enumerate(dialogues):
            self._tokens[row, : len(dialogue.tokens)] = dialogue.tokens

    def play(
        self, decoder: FusedDecoder | TransformersDecoder, temperature: float, generator: Generator, greedy: bool
    ) -> None:
        """Decode until every dialogue has ended."""
        fed = 0
        while alive := sum(dialogue.ended is None for dialogue in self._rows):
            if alive <= _KEEP * len(self._rows):
                rows = np.flatnonzero([dialogue.ended is None for dialogue in self._rows])
                self._rows = [self._rows[i] for i in rows]
                self._tokens, self._log_prob = self._tokens[rows], self._log_prob[rows]
                self._known, self._start = self._known[rows], self._start[rows]
                if fed:
                    decoder.keep(torch.from_numpy(rows))
            ready = int(self._known.min())
            logits = decoder.feed(torch.from_numpy(self._tokens[:, fed:ready]))
            fed = ready
            token, log_prob = sample(logits, temperature, generator, greedy, position=fed)
            self._write(fed, token.cpu().numpy(), log_prob.cpu().numpy())

    def _write(self, at: int, token: np.ndarray, log_prob: np.ndarray) -> None:
        """Put the sampled tokens where a row is written and not read, and close the turns that they end."""
        self._reserve(at + 1)
        writes = self._known == at
        np.copyto(self._tokens[:, at], token, where=writes)
        np.copyto(self._log_prob[:, at], log_prob, where=writes)
        self._known[writes] += 1
        long = (at + 1 - self._start >= self._turn_tokens) | (at + 1 >= self._limit)
        ending: dict[int, list[int]] = {}
        for row in np.flatnonzero(writes & (long | np.isin(token, self._closers))).tolist():
            turn = self._tokens[row, self._start[row] : at + 1].tolist()
            if long[row] or closes(self._codec, turn):
                ending[row] = turn
        search_ahead([self._rows[row] for row in ending], list(ending.values()))
        for row, turn in ending.items():
            dialogue, end = self._rows[row], at + 1
            observation = dialogue.turn(turn, self._log_prob[row, self._start[row] : end].tolist())
            known = end + len(observation)
            if dialogue.ended is None and known >= self._limit:
                dialogue.stop()
            if dialogue.ended is None:
                self._reserve(known)
                self._tokens[row, end:known] = observation
                self._known[row] = self._start[row] = known
            else:
                self._known[row] = np.iinfo(np.int64).max  # reads padding until it is dropped, and holds nobody up

    def _reserve(self, columns: int) -> None:
        missing = columns - self._tokens.shape[1]
        if missing > 0:
            grow = ((0, 0), (0, max(missing, self._tokens.shape[1])))
            self._tokens = np.pad(self._tokens, grow, constant_values=self._codec.pad_id)
            self._log_prob = np.pad(self._log_prob, grow)

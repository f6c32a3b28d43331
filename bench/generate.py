"""The baseline: one `model.generate()` call a turn, with left padding and the whole context read again each
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sorl.agent.engines import NonFinite
from sorl.agent.engines.hf import in_dtype
from sorl.agent.episode import Episode
from sorl.agent.protocol import Dialogue, begin, search_ahead, turn_length
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import Question, World
from sorl.spec import EngineSettings


class GenerateEngine:
    """Samples turn by turn through the public API of transformers; the same episodes in distribution as
    HFEngine's.

    A batch ends its turn when its last row has; closing tags stop a row (as eos ids, or as stop strings where
    a tag is several tokens). The sampler's log-probs come from the processed scores, so the temperature is in
    them.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._codec = Codec(tokenizer)
        self._limit = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30)

    @torch.inference_mode()
    def rollout(
        self,
        world: World,
        questions: Sequence[Question],
        groups: Sequence[int],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """One episode for each question; the same generator state gives the same episodes."""
        dialogues = begin(world, self._codec, questions, groups, self._limit)
        model = in_dtype(self._model, getattr(torch, self._settings.dtype))
        training = model.training
        model.train(False)
        # generate() draws from the global generator only; ours seeds it and it is put back afterwards.
        seed = int(torch.randint(1 << 62, (), generator=generator))
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                while waiting := [d for d in dialogues if d.ended is None]:
                    self._turn(model, waiting, world.max_turn_tokens, greedy)
        finally:
            model.train(training)
        return [dialogue.episode() for dialogue in dialogues]

    def _turn(
        self, model: PreTrainedModel, dialogues: list[Dialogue], turn_tokens: int, greedy: bool
    ) -> None:
        width = max(len(d.tokens) for d in dialogues)
        pad = self._codec.pad_id
        ids = torch.tensor(
            [[pad] * (width - len(d.tokens)) + d.tokens for d in dialogues], device=model.device
        )
        length = torch.tensor([len(d.tokens) for d in dialogues], device=model.device)
        attended = torch.arange(width, device=model.device) >= width - length[:, None]
        stops: dict[str, Any] = {} if self._codec.exact else {"tokenizer": self._tokenizer}
        generate: Any = model.generate
        out = generate(
            ids,
            attention_mask=attended.long(),
            generation_config=self._config(turn_tokens, greedy),
            logits_processor=LogitsProcessorList([_Finite()]),
            **stops,
        )
        written = out.sequences[:, width:]
        scores = torch.stack(out.scores, dim=1).float()  # (B, n, V), temperature applied
        log_prob = torch.log_softmax(scores, -1).gather(2, written[..., None])[..., 0]
        room = [self._limit - len(dialogue.tokens) for dialogue in dialogues]
        turns = [
            row[: min(turn_length(self._codec, row), n)]
            for row, n in zip(written.tolist(), room, strict=True)
        ]
        search_ahead(dialogues, turns)  # one request for all of them, not one each
        for dialogue, turn, values in zip(dialogues, turns, log_prob.tolist(), strict=True):
            dialogue.turn(turn, values[: len(turn)])
            if dialogue.ended is None and len(dialogue.tokens) >= self._limit:
                dialogue.stop()

    def _config(self, turn_tokens: int, greedy: bool) -> GenerationConfig:
        ends = sorted(self._codec.closers) if self._codec.exact else self._codec.eos_id
        warm = {} if greedy else {"temperature": self._settings.temperature, "top_k": 0, "top_p": 1.0}
        config: Any = GenerationConfig
        built: GenerationConfig = config(
            max_new_tokens=turn_tokens,
            do_sample=not greedy,
            eos_token_id=ends,
            pad_token_id=self._codec.pad_id,
            stop_strings=None if self._codec.exact else ["</search>", "</answer>"],
            return_dict_in_generate=True,
            output_scores=True,
            **warm,
        )
        return built


class _Finite(LogitsProcessor):
    """Stops at the first row without a distribution, before the sampler fails on it."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not bool(torch.isfinite(scores).all()):
            broken = int((~scores.isfinite().all(dim=-1)).sum())
            raise NonFinite(broken, len(scores), input_ids.shape[1])
        return scores

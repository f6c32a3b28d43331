"""Engines that sample episodes: hf in the trainer's process, vllm from a synced copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from workbench.agent.episode import Episode
    from workbench.agent.wording import Wording
    from workbench.agent.worlds import Question, World
    from workbench.spec import EngineSettings


class NonFinite(ArithmeticError):
    """A number that must be finite is NaN or Inf; the message names it, how many rows have it and at which token."""


class StaleWeights(RuntimeError):
    """A sampler in another engine does not compute with the trainer's weights; the message says which are stale."""

    def __init__(self, message: str, error: float, tolerance: float) -> None:
        super().__init__(message)
        self.error, self.tolerance = error, tolerance  # nats, over the probes


class Engine(Protocol):
    """The one call that learning makes of a sampler."""

    def rollout(
        self,
        world: World,
        questions: Sequence[Question],
        groups: Sequence[int],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """Return one episode for each question, in order; `groups` are their prompt groups."""


def engine_for(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings, wording: Wording | None = None
) -> Engine:
    """Sampler of `model` as it is at the time of each call. Raises InputError when vLLM is asked for and not there."""
    from workbench.agent.wording import PLAIN

    wording = wording or PLAIN
    if settings.kind == "hf":
        from workbench.agent.engines.hf import HFEngine

        return HFEngine(model, tokenizer, settings, wording=wording)
    from workbench.agent.engines.vllm import VLLMEngine  # heavy, and an extra of its own

    return VLLMEngine(model, tokenizer, settings, wording=wording)

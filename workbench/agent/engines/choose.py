"""The engine that the settings ask for."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench.agent.engines import Engine
from workbench.agent.engines.hf import HFEngine
from workbench.agent.wording import PLAIN, Wording
from workbench.spec import EngineSettings


def engine_for(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings, wording: Wording = PLAIN
) -> Engine:
    """Sampler of `model` as it is at the time of each call. Raises InputError when vLLM is asked for and not there."""
    if settings.kind == "hf":
        return HFEngine(model, tokenizer, settings, wording=wording)
    from workbench.agent.engines.vllm import VLLMEngine  # heavy, and an extra of its own

    return VLLMEngine(model, tokenizer, settings, wording=wording)

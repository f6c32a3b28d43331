"""Sampling by vLLM in the trainer's process: continuous batching, prefix caching, weights pushed before each rollout.

Every turn is a request that carries the whole context as tokens; what the turns before it wrote and read is in the
prefix cache. As soon as a turn ends its dialogue answers and the next request goes in, so no row waits for another.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench.agent.draws import draw
from workbench.agent.engines import NonFinite
from workbench.agent.engines.vllm_weights import Weights
from workbench.agent.episode import Episode
from workbench.agent.protocol import Dialogue, begin, search_ahead, turn_length
from workbench.agent.tokenizer import Codec
from workbench.agent.wording import PLAIN, Wording
from workbench.agent.worlds import Question, World
from workbench.spec import EngineSettings, InputError

_SEED = 1 << 62
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: weights are handed over, and it dies with the trainer
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # cells that run side by side would be bound to the same cores
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anyone
}


class VLLMEngine:
    """Samples from `model` as it is at the time of the call.

    Each rollout begins with a push of the weights and a check that vLLM computes with them; the check raises
    StaleWeights. Log-probs are those of the sampler, at its temperature; a greedy turn reports them at temperature 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EngineSettings,
        wording: Wording = PLAIN,
    ) -> None:
        self._settings, self._codec = settings, Codec(tokenizer, wording)
        self._limit = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 20)
        self._llm = _start(model, tokenizer, settings, self._limit, text=not self._codec.exact)
        self._engine: Any = self._llm.llm_engine
        self.weights = Weights(self._llm, model, settings)

    def rollout(
        self,
        world: World,
        questions: Sequence[Question],
        groups: Sequence[int],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """Return one episode for each question; the same generator state gives the same episodes."""
        dialogues = begin(world, self._codec, questions, groups, self._limit)
        if not dialogues:
            return []
        seed = int(torch.randint(_SEED, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            self.weights.push()
            self.weights.check([dialogue.tokens for dialogue in dialogues])
            self._play(dialogues, world.max_turn_tokens, seed, greedy)
        return [dialogue.episode() for dialogue in dialogues]

    def _play(self, dialogues: list[Dialogue], turn_tokens: int, seed: int, greedy: bool) -> None:
        broken: list[int] = []  # position of the first token without a distribution, a row each
        try:
            for i, dialogue in enumerate(dialogues):
                self._ask(i, dialogue, turn_tokens, seed, greedy)
            while self._engine.has_unfinished_requests():
                ended: dict[int, tuple[list[int], list[float]]] = {}
                for answer in self._engine.step():
                    if answer.finished:
                        row = int(answer.request_id.split("-")[0])
                        ended[row] = self._turn(answer.outputs[0])
                broken += [len(dialogues[row].tokens) for row in ended if not all(map(math.isfinite, ended[row][1]))]
                if broken:  # the others finish their turn and are counted; nobody begins another one
                    continue
                search_ahead([dialogues[row] for row in ended], [tokens for tokens, _ in ended.values()])
                for row, (tokens, log_prob) in ended.items():
                    dialogue = dialogues[row]
                    dialogue.turn(tokens, log_prob)
                    if dialogue.ended is None and len(dialogue.tokens) >= self._limit:
                        dialogue.stop()
                    if dialogue.ended is None:
                        self._ask(row, dialogue, turn_tokens, seed, greedy)
        finally:
            self._engine.abort_request([f"{i}-{len(d.status)}" for i, d in enumerate(dialogues)])
        if broken:
            raise NonFinite(
                f"logits are not finite in {len(broken)} of {len(dialogues)} rows at token {min(broken)}: the policy "
                f"has diverged (its weights hold NaN or Inf, or its activations overflow)"
            )

    def _turn(self, output: Any) -> tuple[list[int], list[float]]:
        """Tokens of a turn and their log-probs; what vLLM sampled beyond the token that ends it is left out."""
        n = turn_length(self._codec, output.token_ids)
        tokens = list(output.token_ids[:n])
        return tokens, [chances[token].logprob for token, chances in zip(tokens, output.logprobs[:n], strict=True)]

    def _ask(self, i: int, dialogue: Dialogue, turn_tokens: int, seed: int, greedy: bool) -> None:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        codec = self._codec
        ends = [token for token in sorted(codec.closers) if codec.exact or token == codec.eos_id]
        params = SamplingParams(
            temperature=0.0 if greedy else self._settings.temperature,
            # A seed for each turn of each row: neither company nor the order of arrival changes what is drawn.
            seed=draw(seed, i, len(dialogue.status)) >> 2,
            max_tokens=min(turn_tokens, self._limit - len(dialogue.tokens)),
            logprobs=0,
            ignore_eos=True,  # <eos> is among the stops where the tokenizer has one
            stop_token_ids=ends,
            stop=None if codec.exact else ["</search>", "</answer>"],
            include_stop_str_in_output=True,
            detokenize=not codec.exact,
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(f"{i}-{len(dialogue.status)}", tokens_input(list(dialogue.tokens)), params)


def _start(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings, limit: int, text: bool
) -> Any:
    """A vLLM with the architecture of `model` and weights that mean nothing: a weight that no push reaches shows.

    Raises InputError when vLLM is not installed, or refuses the architecture.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
    except ImportError as error:
        raise InputError(
            f"engine.kind = \"vllm\" needs vLLM, which cannot be imported here ({error}): pip install 'sorl[vllm]' "
            f'with a GPU, `make test-vllm` for its CPU build, or engine.kind = "hf"'
        ) from error
    cpu = model.device.type == "cpu"
    if cpu:
        _check_heads(model.config)
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    with tempfile.TemporaryDirectory(prefix="sorl-vllm-") as folder, torch.random.fork_rng():
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        llm = LLM(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=not text,
            load_format="dummy",
            dtype=settings.dtype,
            max_model_len=limit,
            kv_cache_memory_bytes=int(settings.cache_gib * 2**30),
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # after the temperature
            generation_config="vllm",  # no sampling default of the checkpoint
            enforce_eager=cpu,
            async_scheduling=False,
            disable_log_stats=True,
            seed=0,
        )
    torch.set_num_threads = set_threads  # its CPU worker puts a no-op there, for threads that it has bound
    torch.set_num_threads(threads)
    return llm


def _check_heads(config: Any) -> None:
    """Raise InputError for heads of a width that vLLM's attention on a CPU does not know."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    known = CPUAttentionBackend.get_supported_head_sizes()
    if width not in known:
        raise InputError(
            f"vLLM on a CPU knows attention heads of width {', '.join(map(str, known))}; this policy's are {width} "
            f'wide (policy.hidden / policy.heads): set policy.heads so that they fit, or engine.kind = "hf"'
        )

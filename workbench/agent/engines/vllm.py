"""Sampling by vLLM in the trainer's process: a turn is a request, most of its context in the cache; no row
waits.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sorl.agent.draws import draw
from sorl.agent.engines import NonFinite, Report, StaleWeights, unheard
from sorl.agent.episode import Episode
from sorl.agent.protocol import Dialogue, begin, search_ahead, turn_length
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import Question, World
from sorl.spec import EngineSettings, InputError

_SEED = 1 << 62
# probes, and tokens of each at most
_PROBES = 4
_LENGTH = 128
# Nats. float32 differs by 3e-6 at most on the embedded policy, more where kernels and depth do; an update of
# any use moves log-probs by more than 1e-3. bfloat16 rounds log-probs by up to some tenths.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.5}
_NAMED = 6  # weights that a message lists

_ENVIRONMENT = {
    # one process: weights are handed over, and it dies with the trainer
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # cells that run side by side would be bound to the same cores
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anyone
}


class VLLMEngine:
    """Samples from `model` as it is at the time of the call: pushes the weights; StaleWeights if vLLM has
    others.

    Log-probs are those of the sampler, at its temperature; a greedy turn reports them at temperature 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EngineSettings,
        wording: str,
    ) -> None:
        self._settings = settings
        self._codec = Codec(tokenizer, wording)
        self._limit = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 20)
        llm = _start(model, tokenizer, settings, self._limit, text=not self._codec.exact)
        self._engine: Any = llm.llm_engine
        self.weights = Weights(llm, model, settings)
        self.report: Report = unheard

    def held(self) -> list[tuple[str, Tensor]]:
        """The weights that it samples from, by the trainer's names, as far as they can be read."""
        return self.weights.held()

    def rollout(
        self,
        world: World,
        questions: list[Question],
        groups: list[int],
        generator: Generator,
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
        written = 0  # tokens of turns that have ended
        try:
            for i, dialogue in enumerate(dialogues):
                self._ask(i, dialogue, turn_tokens, seed, greedy)
            while self._engine.has_unfinished_requests():
                answers = [answer for answer in self._engine.step() if answer.finished]
                ended = {
                    int(answer.request_id.split("-")[0]): self._turn(answer.outputs[0]) for answer in answers
                }
                broken += [
                    len(dialogues[row].tokens) for row in ended if not all(map(math.isfinite, ended[row][1]))
                ]
                if broken:  # the others finish their turn and are counted; nobody begins another one
                    continue
                search_ahead([dialogues[row] for row in ended], [tokens for tokens, _ in ended.values()])
                for row, (tokens, log_prob) in ended.items():
                    dialogue = dialogues[row]
                    dialogue.turn(tokens, log_prob)
                    if dialogue.ended is None and len(dialogue.tokens) >= self._limit:
                        dialogue.stop()
                    written += len(tokens)
                    if dialogue.ended is None:
                        self._ask(row, dialogue, turn_tokens, seed, greedy)
                turns = [len(dialogue.status) for dialogue in dialogues if dialogue.ended is None]
                self.report(written, len(dialogues) - len(turns), 1 + min(turns, default=0))
        finally:
            self._engine.abort_request([f"{i}-{len(d.status)}" for i, d in enumerate(dialogues)])
        if broken:
            raise NonFinite(len(broken), len(dialogues), min(broken))

    def _turn(self, output: Any) -> tuple[list[int], list[float]]:
        """Tokens of a turn and their log-probs, without what vLLM sampled beyond the token that ends it."""
        n = turn_length(self._codec, output.token_ids)
        tokens = list(output.token_ids[:n])
        return tokens, [
            chances[token].logprob for token, chances in zip(tokens, output.logprobs[:n], strict=True)
        ]

    def _ask(self, i: int, dialogue: Dialogue, turn_tokens: int, seed: int, greedy: bool) -> None:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        codec = self._codec
        params = SamplingParams(
            temperature=0.0 if greedy else self._settings.temperature,
            # A seed for each turn of each row: neither company nor the order of arrival changes what is
            # drawn.
            seed=draw(seed, i, len(dialogue.status)) >> 2,
            max_tokens=min(turn_tokens, self._limit - len(dialogue.tokens)),
            ignore_eos=True,  # <eos> is among the stops where the tokenizer has one
            stop_token_ids=[token for token in sorted(codec.closers) if codec.exact or token == codec.eos_id],
            stop=None if codec.exact else ["</search>", "</answer>"],
            include_stop_str_in_output=True,
            detokenize=not codec.exact,
            skip_special_tokens=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(f"{i}-{len(dialogue.status)}", tokens_input(list(dialogue.tokens)), params)


def _start(
    model: Any, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings, limit: int, text: bool
) -> Any:
    """Start a vLLM with the architecture of `model` and dummy weights; InputError where it cannot."""
    engine_class = _import_vllm()
    is_on_cpu = model.device.type == "cpu"
    if is_on_cpu:
        _refuse_unknown_head_width(model.config)
    threads = torch.get_num_threads()
    set_threads = torch.set_num_threads
    with tempfile.TemporaryDirectory(prefix="sorl-vllm-") as folder, torch.random.fork_rng():
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        llm = engine_class(
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
            enforce_eager=is_on_cpu,
            async_scheduling=False,
            disable_log_stats=True,
            seed=0,
        )
    torch.set_num_threads = set_threads  # its CPU worker puts a no-op there, for threads that it has bound
    torch.set_num_threads(threads)
    return llm


def _import_vllm() -> Any:
    """Return vLLM's class LLM, with the environment that it reads when it is imported; InputError without
    vLLM.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
    except ImportError as error:
        raise InputError(
            f'engine.kind = "vllm" needs vLLM, which cannot be imported here ({error}): pip install'
            " 'sorl[vllm]' with a GPU, `make test-vllm` for its CPU build, or engine.kind = \"hf\""
        ) from error
    return LLM


def _refuse_unknown_head_width(config: Any) -> None:
    """Raise InputError where vLLM's attention on a CPU does not know the width of the policy's heads."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    known = CPUAttentionBackend.get_supported_head_sizes()
    if width not in known:
        raise InputError(
            f"vLLM on a CPU knows attention heads of width {', '.join(map(str, known))}; this policy's"
            f" are {width} wide (policy.hidden / policy.heads): set policy.heads so that they fit, or"
            ' engine.kind = "hf"'
        )


class Weights:
    """Keeps a vLLM at the weights of `model`; `error` is what the last check measured (nats)."""

    def __init__(self, llm: Any, model: PreTrainedModel, settings: EngineSettings) -> None:
        self._llm = llm
        self._model = model
        self._dtype = getattr(torch, settings.dtype)
        self.tolerance = settings.sync_tolerance or _TOLERANCE[settings.dtype]
        self._probes: list[list[int]] = []
        self.error: float | None = None

    def push(self) -> None:
        """Hand every weight over once, a tied head as its embedding; forget what was cached under the old
        ones.
        """
        tied = set(getattr(self._model, "all_tied_weights_keys", None) or ())
        weights = ((name, tensor) for name, tensor in self._model.state_dict().items() if name not in tied)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._llm.apply_model(_pack_embeddings)
        self._llm.reset_prefix_cache()

    def check(self, contexts: Sequence[Sequence[int]]) -> None:
        """Compare log-probs on probes, fixed from the first call's `contexts` on; StaleWeights beyond the
        tolerance.
        """
        if not self._probes:
            self._probes = [list(tokens[:_LENGTH]) for tokens in contexts if len(tokens) > 1][:_PROBES]
        self.error = max(
            (self._apart(*both) for both in zip(self._probes, self._by_vllm(), strict=True)), default=0.0
        )
        # In bfloat16 rounding hides a small update from log-probs, so there every weight is compared as well.
        stale = self.stale() if self.error > self.tolerance or self._dtype != torch.float32 else []
        if self.error > self.tolerance or stale:
            named = ", ".join(stale[:_NAMED]) + (
                f" and {len(stale) - _NAMED} more" if len(stale) > _NAMED else ""
            )
            message = (
                f"after the weight sync vLLM's log-probs are {self.error:.3g} nats off the trainer's"
                f" (tolerance {self.tolerance:g}); stale in vLLM:"
                f" {named or 'none of those that can be compared one by one'}"
            )
            raise StaleWeights(message, self.error, self.tolerance)

    def stale(self) -> list[str]:
        """Return the trainer's names of the weights that vLLM does not compute with."""
        trained = dict(self._model.state_dict())
        found: list[list[str]] = self._llm.apply_model(lambda engine: _stale(engine, trained, self._dtype))
        return found[0]

    def held(self) -> list[tuple[str, Tensor]]:
        """Return the weights that vLLM has, by the trainer's names; those that it packed away are left out.

        A tied head is its embedding, and has no name of its own.
        """
        tied = set(getattr(self._model, "all_tied_weights_keys", None) or ())
        trained = {name: x for name, x in self._model.named_parameters() if name not in tied}
        found: list[list[tuple[str, Tensor]]] = self._llm.apply_model(lambda engine: _held(engine, trained))
        return found[0]

    def _by_vllm(self) -> list[Tensor]:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        asked = [tokens_input(list(probe)) for probe in self._probes]
        answers = self._llm.generate(asked, params, use_tqdm=False)
        log_probs = []
        for probe, answer in zip(self._probes, answers, strict=True):
            pairs = zip(probe[1:], answer.prompt_logprobs[1:], strict=True)
            log_probs.append(torch.tensor([chances[token].logprob for token, chances in pairs]))
        return log_probs

    @torch.no_grad()
    def _apart(self, probe: list[int], theirs: Tensor) -> float:
        """Return the largest distance from the trainer's log-probs of a probe; NaN agrees with NaN alone."""
        model: Any = self._model
        tokens = torch.tensor([probe], device=model.device)
        log_prob = torch.log_softmax(model(input_ids=tokens[:, :-1], use_cache=False).logits.float(), -1)
        ours = log_prob.gather(2, tokens[:, 1:, None])[0, :, 0].cpu()
        apart = (theirs - ours).abs().where(~(theirs.isnan() & ours.isnan()), 0.0)
        return float(apart.nan_to_num(nan=math.inf).max())


def _pack_embeddings(engine: Any) -> None:
    """Pack embeddings and heads again: vLLM's CPU build packs only loaded weights, and a tied
    head gets none.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in engine.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


class Fused(NamedTuple):
    """A tensor of vLLM and the names of the trainer's tensors whose rows it holds, one after the other."""

    module: Any
    kind: str  # weight or bias
    present: Tensor
    sources: list[str]


def _fused(engine: Any, trained: Mapping[str, Tensor]) -> Iterator[Fused]:
    """Yield the tensors of `engine` that are made of `trained` ones."""
    fused: dict[str, list[str]] = getattr(engine, "packed_modules_mapping", None) or {}
    for name, module in engine.named_modules():
        above, _, leaf = name.rpartition(".")
        parts = [f"{above}.{part}" if above else part for part in fused.get(leaf, [leaf])]
        for kind, present in module.named_parameters(recurse=False):
            sources = [f"{part}.{kind}" for part in parts]
            if set(sources) <= set(trained):
                yield Fused(module, kind, present, sources)


def _held(engine: Any, trained: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The tensors of `engine` that have the names and shapes of `trained`; fused ones are split."""
    found: list[tuple[str, Tensor]] = []
    for _, _, present, sources in _fused(engine, trained):
        rows = [trained[source] for source in sources]
        if present.shape[1:] == rows[0].shape[1:] and len(present) >= sum(map(len, rows)):
            found += zip(sources, _split(present.detach(), rows), strict=True)
    return found


@torch.no_grad()
def _stale(engine: Any, trained: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
    """Names in `trained` whose values the modules of `engine` do not have, or do not compute with."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    found = []
    for module, kind, present, sources in _fused(engine, trained):
        rows = [trained[source].to(present.device, dtype) for source in sources]
        if kind == "weight" and isinstance(module, (LinearBase, ParallelLMHead)):
            same = _computes(module, rows, dtype)
        else:
            # vLLM keeps a bias in float32 for its kernels on processors with AMX: the rounded values are
            # compared.
            parted = zip(_split(present.to(dtype), rows), rows, strict=True)
            same = [torch.equal(part, row) for part, row in parted]
        found += [source for source, equal in zip(sources, same, strict=True) if not equal]
    return found


def _split(present: Tensor, rows: Sequence[Tensor]) -> Sequence[Tensor]:
    return present[: sum(map(len, rows))].split([len(row) for row in rows])


def _computes(module: Any, rows: Sequence[Tensor], dtype: torch.dtype) -> list[bool]:
    """Return whether a linear layer, whose weight may be packed away, multiplies by these rows."""
    x = torch.randn(16, rows[0].shape[1], generator=torch.Generator().manual_seed(0)).to(
        rows[0].device, dtype
    )
    out = module.quant_method.apply(module, x, None).float()
    rounding = 1e-4 if dtype == torch.float32 else 3e-2
    same = []
    for part, row in zip(_split(out.t(), rows), rows, strict=True):
        wanted = (x.float() @ row.float().t()).t()
        same.append(bool((part - wanted).abs().max() <= rounding * wanted.abs().max().clamp(min=1e-6)))
    return same

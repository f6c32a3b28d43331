"""The trainer's weights in vLLM: pushed through vLLM's own reload, and checked by what it then computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.agent.engines import StaleWeights
from workbench.spec import EngineSettings

_PROBES, _LENGTH = 4, 128  # probes, and tokens of each at most
# Nats. float32 differs by 3e-6 at most on the embedded policy, more where kernels and depth do; an update of any use
# moves log-probs by more than 1e-3. bfloat16 rounds log-probs by up to some tenths.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.5}
_NAMED = 6  # weights that a message lists


class Weights:
    """Keeps a vLLM at the weights of `model`; `error` is what the last check measured (nats)."""

    def __init__(self, llm: Any, model: PreTrainedModel, settings: EngineSettings) -> None:
        self._llm, self._model = llm, model
        self._dtype = getattr(torch, settings.dtype)
        self.tolerance = settings.sync_tolerance or _TOLERANCE[settings.dtype]
        self._probes: list[list[int]] = []
        self.error: float | None = None

    def push(self) -> None:
        """Hand every weight over, and forget what was cached under the old ones."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights()})
        self._llm.apply_model(_pack_embeddings)
        self._llm.reset_prefix_cache()

    def check(self, contexts: Sequence[Sequence[int]]) -> None:
        """Compare log-probs on probes, fixed from the first call's `contexts` on; raises StaleWeights beyond tolerance.

        In bfloat16 rounding hides a small update from log-probs, so there every weight is compared as well.
        """
        if not self._probes:
            self._probes = [list(tokens[:_LENGTH]) for tokens in contexts if len(tokens) > 1][:_PROBES]
        theirs, ours = self._by_vllm(), self._by_trainer()
        self.error = max((_distance(a, b) for a, b in zip(theirs, ours, strict=True)), default=0.0)
        stale = self.stale() if self.error > self.tolerance or self._dtype != torch.float32 else []
        if self.error > self.tolerance or stale:
            named = ", ".join(stale[:_NAMED]) + (f" and {len(stale) - _NAMED} more" if len(stale) > _NAMED else "")
            raise StaleWeights(
                f"after the weight sync vLLM's log-probs are {self.error:.3g} nats off the trainer's (tolerance "
                f"{self.tolerance:g}); stale in vLLM: {named or 'none of those that can be compared one by one'}",
                self.error,
                self.tolerance,
            )

    def stale(self) -> list[str]:
        """Return the trainer's names of the weights that vLLM does not compute with."""
        trained = dict(self._model.state_dict())
        found: list[list[str]] = self._llm.apply_model(lambda engine: _stale(engine, trained, self._dtype))
        return found[0]

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Return each weight once: a tied head goes in as the embedding that it is."""
        tied = set(getattr(self._model, "all_tied_weights_keys", None) or ())
        return ((name, tensor) for name, tensor in self._model.state_dict().items() if name not in tied)

    def _by_vllm(self) -> list[Tensor]:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        asked = [tokens_input(list(probe)) for probe in self._probes]
        answers = self._llm.generate(asked, params, use_tqdm=False)
        return [
            torch.tensor([chances[token].logprob for token, chances in zip(p[1:], a.prompt_logprobs[1:], strict=True)])
            for p, a in zip(self._probes, answers, strict=True)
        ]

    @torch.no_grad()
    def _by_trainer(self) -> list[Tensor]:
        model: Any = self._model
        found = []
        for probe in self._probes:
            tokens = torch.tensor([probe], device=model.device)
            log_p = torch.log_softmax(model(input_ids=tokens[:, :-1], use_cache=False).logits.float(), -1)
            found.append(log_p.gather(2, tokens[:, 1:, None])[0, :, 0].cpu())
        return found


def _distance(a: Tensor, b: Tensor) -> float:
    """max |a - b|; where both are NaN, as with a policy that has diverged, they agree."""
    return float(torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs()).nan_to_num(nan=float("inf")).max())


def _pack_embeddings(engine: Any) -> None:
    """Pack embeddings and heads again: vLLM's CPU build computes logits from a packed copy of the head's weight.

    Its reload packs only layers that a weight was loaded into, and a tied head gets none of its own.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in engine.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


@torch.no_grad()
def _stale(engine: Any, trained: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
    """Names in `trained` whose values the modules of `engine` do not have, or do not compute with."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    fused: dict[str, list[str]] = getattr(engine, "packed_modules_mapping", None) or {}
    found = []
    for name, module in engine.named_modules():
        above, _, leaf = name.rpartition(".")
        parts = [f"{above}.{part}" if above else part for part in fused.get(leaf, [leaf])]
        for kind, present in module.named_parameters(recurse=False):
            sources = {f"{part}.{kind}": trained.get(f"{part}.{kind}") for part in parts}
            if any(tensor is None for tensor in sources.values()):
                continue
            rows = [tensor.to(present.device, dtype) for tensor in sources.values() if tensor is not None]
            if kind == "weight" and isinstance(module, (LinearBase, ParallelLMHead)):
                same = _computes(module, rows, dtype)
            else:
                same = [torch.equal(part, row) for part, row in zip(_split(present, rows), rows, strict=True)]
            found += [source for source, equal in zip(sources, same, strict=True) if not equal]
    return found


def _split(present: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
    starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0).tolist()
    return [present[a:b] for a, b in pairwise(starts)]


def _computes(module: Any, rows: Sequence[Tensor], dtype: torch.dtype) -> list[bool]:
    """Return whether a linear layer, whose weight may be packed away, multiplies by these rows."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(16, rows[0].shape[1], generator=stream).to(rows[0].device, dtype)
    out = module.quant_method.apply(module, x, None).float()
    rounding = 1e-4 if dtype == torch.float32 else 3e-2
    same = []
    for part, row in zip(_split(out.t(), rows), rows, strict=True):
        wanted = (x.float() @ row.float().t()).t()
        same.append(bool((part - wanted).abs().max() <= rounding * wanted.abs().max().clamp(min=1e-6)))
    return same

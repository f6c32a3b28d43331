"""The probe: what a minibatch's gradient is made of, measured beside the update and without touching it.

Every `learn.probe_every` updates the minibatch is split into four parts, each with a forward and a backward of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench.batch import Batch
from workbench.objective.aggregate import Normaliser
from workbench.objective.algorithm import Algorithm
from workbench.objective.pipeline import policy_loss

PARTS = 4
TAGS = ("<search>", "</search>", "<answer>", "</answer>")


def controls(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of the tags of the protocol that are single tokens of the vocabulary."""
    known = tokenizer.get_vocab()
    return tuple(known[tag] for tag in TAGS if tag in known)


@dataclass
class Probe:
    """Remembers the gradient of the last measurement; `control` are the ids of the protocol's tags."""

    algorithm: Algorithm
    temperature: float = 1.0
    control: tuple[int, ...] = ()
    before: Tensor | None = field(default=None, repr=False)

    def measure(self, model: PreTrainedModel, parameters: Sequence[Tensor], batch: Batch) -> dict[str, float | None]:
        """Scalars of this minibatch, None where they are undefined."""
        rows = torch.arange(len(batch.tokens)).chunk(PARTS)
        whole = Normaliser.of(batch, len(rows), self.algorithm.correction)
        gradients, power, on, off = [], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        for part in (batch.rows(index) for index in rows):
            log_p = self._log_softmax(model, part)  # (b, T - 1, V)
            chosen = log_p.gather(-1, part.tokens[:, 1:].to(log_p.device).unsqueeze(-1)).squeeze(-1)
            log_prob = torch.nn.functional.pad(chosen, (1, 0)).to(part.tokens.device)
            loss = policy_loss(self.algorithm, part, log_prob, normaliser=whole).loss
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            gradients.append(torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1).double().cpu()
                                        for g, p in zip(found, parameters, strict=True)]))  # fmt: skip
            with torch.no_grad():
                probability = log_p.exp().to(part.tokens.device)
                _add(power, self._power(part, log_prob, probability))
                where = part.mask[:, 1:]
                if self.control:
                    ids = torch.tensor(self.control)
                    written = torch.isin(part.tokens[:, 1:], ids) & where
                    _add(on, (float(log_prob[:, 1:][written].exp().sum()), int(written.sum())))
                    other = where & ~written
                    _add(off, (float(probability[..., ids].sum(-1)[other].sum()), int(other.sum())))
        total = torch.stack(gradients).sum(0)
        told = self._noise([len(index) for index in rows], gradients, total)
        told["gradient_cosine_previous"] = None if self.before is None else _cosine(total, self.before)
        self.before = total
        signal, sequences = float(total.square().sum()), int(power[1])
        told |= {"proxy_signal": signal, "proxy_power": power[0] / sequences if sequences else None}
        told["proxy_noise"] = (power[0] / sequences - signal) / (sequences - 1) if sequences > 1 else None
        told["control_on_prob"] = on[0] / on[1] if on[1] else None
        told["control_off_prob"] = off[0] / off[1] if off[1] and self.control else None
        return told

    def _log_softmax(self, model: PreTrainedModel, part: Batch) -> Tensor:
        tokens = part.tokens[:, :-1].to(model.device)
        return torch.log_softmax(model(input_ids=tokens, use_cache=False).logits.float() / self.temperature, -1)

    def _power(self, part: Batch, log_prob: Tensor, probability: Tensor) -> tuple[float, int]:
        """Sum over sequences of sum_t omega^2 A^2 Q_t, Q_t = 1 - 2 p_t + sum_v p_v^2; and how many there are."""
        assert part.advantages is not None
        score = 1 - 2 * log_prob[:, 1:].exp() + probability.square().sum(-1)
        weight = self.algorithm.correction.weights(part)
        signal = part.advantages if weight is None else part.advantages * weight
        squares = torch.where(part.mask[:, 1:], signal[:, 1:].square() * score, 0)
        return float(squares.double().sum()), int(part.mask.any(1).sum())

    def _noise(self, sizes: list[int], gradients: list[Tensor], total: Tensor) -> dict[str, float | None]:
        """McCandlish et al. 2018, appendix A.1, from gradients of b = B / 4 sequences and of all B."""
        names = ("gradient_cosine", "noise_trace", "noise_signal", "noise_scale")
        told: dict[str, float | None] = dict.fromkeys(names)
        if len(sizes) < 2:
            return told
        n = len(sizes)
        cosines = [_cosine(gradients[i], gradients[j]) for i in range(n) for j in range(i)]
        known = [c for c in cosines if c is not None]
        told["gradient_cosine"] = sum(known) / len(known) if known else None
        big, small = float(sum(sizes)), sum(sizes) / n
        # A part's loss carries the minibatch's divisor: B / b times it is an estimate of the whole gradient.
        pairs = zip(gradients, sizes, strict=True)
        parts = sum(float((g * (big / size)).square().sum()) for g, size in pairs) / n
        whole = float(total.square().sum())
        trace = (parts - whole) / (1 / small - 1 / big)
        signal = (big * whole - small * parts) / (big - small)
        told |= {"noise_trace": trace, "noise_signal": signal}
        told["noise_scale"] = trace / signal if signal > 0 else None
        return told


def _cosine(a: Tensor, b: Tensor) -> float | None:
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length and math.isfinite(length) else None


def _add(total: list[float], more: Iterable[float]) -> None:
    for i, x in enumerate(more):
        total[i] += x

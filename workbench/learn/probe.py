"""The gradient probe: the gradient noise of a minibatch from the gradients of four parts; the update stays as
it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sorl.agent.routing import routed
from sorl.batch import Batch
from sorl.learn.networks import widened
from sorl.objective import Algorithm, policy_loss

PARTS = 4
TAGS = {"search": "<search>", "search_end": "</search>", "answer": "<answer>", "answer_end": "</answer>"}
Scalars = dict[str, float | None]


def controls(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Ids of the tags of the protocol that are single tokens of the vocabulary, by their names in `TAGS`."""
    known = tokenizer.get_vocab()
    return {name: known[tag] for name, tag in TAGS.items() if tag in known}


@dataclass
class _Tally:
    """Sums over the parts of a minibatch."""

    power: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, name: str, values: Tensor, where: Tensor) -> None:
        """Add the values at `where` to those called `name`."""
        self.sums[name] += float(values[where].double().sum())
        self.counts[name] += int(where.sum())

    def means(self) -> Scalars:
        """The mean of the values of each name, None without any."""
        return {name: self.sums[name] / count if count else None for name, count in self.counts.items()}


@dataclass
class Probe:
    """Remembers the gradient of the last measurement; `control` are the ids of the protocol's tags."""

    algorithm: Algorithm
    temperature: float = 1.0
    control: Mapping[str, int] = field(default_factory=dict)
    before: Tensor | None = field(default=None, repr=False)

    def measure(self, model: PreTrainedModel, parameters: Sequence[Tensor], batch: Batch) -> Scalars:
        """Scalars of this minibatch, None where they are undefined; sequences without a trained token have no
        part.
        """
        trained = batch.mask.any(1).nonzero().squeeze(1)
        if not len(trained):
            return {}
        now = self._log_probs(model, batch)
        signals = self._weighted_advantages(batch, now)
        parts = [index for index in trained.tensor_split(PARTS) if len(index)]
        pull = self._pull(batch, now)
        gradients: list[Tensor] = []
        tally = _Tally()
        for index in parts:
            part = batch.rows(index)
            log_prob, log_p = self._forward(model, part)
            gradients.append(_gradient((pull[index] * log_prob).sum(), parameters))
            with torch.no_grad():
                probability = log_p.exp().to(part.tokens.device)
                tally.power += power(signals[index], part, probability)
                self._count_tags(tally, part, probability)
        total = torch.stack(gradients).sum(0)
        scalars = noise([len(index) for index in parts], gradients)
        scalars["gradient_cosine_previous"] = None if self.before is None else cosine(total, self.before)
        scalars |= _proxies(float(total.square().sum()), tally.power / len(trained), len(trained))
        self.before = total
        return scalars | tally.means()

    def _weighted_advantages(self, batch: Batch, log_prob: Tensor) -> Tensor:
        """Advantages (B, T) times the weights of the algorithm's correction."""
        advantages = batch.need("advantages")
        weight = self.algorithm.correction.weights(self.algorithm.anchored(batch, log_prob))
        return advantages if weight is None else advantages * weight

    @torch.no_grad()
    def _log_probs(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """Log-probs of the whole minibatch, (B, T), without a graph."""
        rows = torch.arange(len(batch.tokens)).tensor_split(PARTS)
        parts = [batch.rows(index) for index in rows if len(index)]
        return torch.cat([self._forward(model, part)[0] for part in parts])

    def _pull(self, batch: Batch, log_prob: Tensor) -> Tensor:
        """d loss / d log_prob of the whole minibatch, (B, T): what it is divided by and compared with is its
        own.
        """
        loss = policy_loss(self.algorithm, batch, log_prob.requires_grad_()).loss
        return torch.where(batch.mask, torch.autograd.grad(loss, log_prob)[0], 0)

    def _forward(self, model: PreTrainedModel, part: Batch) -> tuple[Tensor, Tensor]:
        """Log-probs of the tokens, (B, T), and of the whole vocabulary at each of them but the first, (B, T -
        1, V).
        """
        tokens = part.tokens.to(model.device)
        replay = self.algorithm.routing.replayed(part)
        with routed(model, None if replay is None else replay[:, 1:]):
            logits = widened(model(input_ids=tokens[:, :-1], use_cache=False).logits)
        log_p = torch.log_softmax(logits / self.temperature, -1)
        chosen = log_p.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
        return torch.nn.functional.pad(chosen, (1, 0)).to(part.tokens.device), log_p

    def _count_tags(self, tally: _Tally, part: Batch, probability: Tensor) -> None:
        """Add up the probability of each tag, and of all (`control`), over where it was written and where
        not.
        """
        written = part.tokens[:, 1:]
        where = part.mask[:, 1:]
        if not self.control:
            return
        tags = {"control": list(self.control.values())}
        tags |= {name: [token] for name, token in self.control.items() if name != "answer_end"}
        chosen = probability.gather(-1, written.unsqueeze(-1)).squeeze(-1)
        for name, ids in tags.items():
            on = torch.isin(written, torch.tensor(ids, device=written.device)) & where
            tally.add(f"{name}_on_prob", chosen, on)
            tally.add(f"{name}_off_prob", probability[..., ids].sum(-1), where & ~on)


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """d loss / d parameters as one vector (P,), float64."""
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return torch.cat([gradient.reshape(-1).double().cpu() for gradient in gradients])


def _proxies(signal: float, mean_power: float, n: int) -> Scalars:
    """The noise of a gradient from its square norm and the mean power of `n` sequences."""
    return {
        "proxy_signal": signal,
        "proxy_power": mean_power,
        "proxy_noise": (mean_power - signal) / (n - 1) if n > 1 else None,
    }


def power(signal: Tensor, part: Batch, probability: Tensor) -> float:
    """sum_it s_it^2 Q_it over policy tokens, Q_it = 1 - 2 p_it + sum_v p_v^2, from s (B, T) and p_v (B, T -
    1, V).
    """
    chosen = probability.gather(-1, part.tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    score = 1 - 2 * chosen + probability.square().sum(-1)
    return float(torch.where(part.mask[:, 1:], signal[:, 1:].square() * score, 0).double().sum())


def noise(sizes: Sequence[int], gradients: Sequence[Tensor]) -> Scalars:
    """McCandlish et al. 2018, appendix A.1, from the gradients (P,) of parts of b sequences; they add up to
    the whole.

    B / b times a part's estimates the whole's. 1 / b is its mean over the parts. None with fewer than two
    parts.
    """
    n = len(sizes)
    if n < 2:
        return dict.fromkeys(("gradient_cosine", "noise_trace", "noise_signal", "noise_scale"))
    known = _cosines(gradients)
    big = float(sum(sizes))
    inverse = sum(1 / size for size in sizes) / n
    parts = sum(float((g * (big / b)).square().sum()) for g, b in zip(gradients, sizes, strict=True)) / n
    whole = float(torch.stack(list(gradients)).sum(0).square().sum())
    trace = (parts - whole) / (inverse - 1 / big)
    signal = whole - trace / big
    return {
        "gradient_cosine": sum(known) / len(known) if known else None,
        "noise_trace": trace,
        "noise_signal": signal,
        "noise_scale": trace / signal if signal > 0 else None,
    }


def _cosines(gradients: Sequence[Tensor]) -> list[float]:
    """The cosine of each pair that has one."""
    known = []
    for i, gradient in enumerate(gradients):
        for other in gradients[:i]:
            angle = cosine(gradient, other)
            if angle is not None:
                known.append(angle)
    return known


def cosine(a: Tensor, b: Tensor) -> float | None:
    """cos(a, b); None where one of them is 0 or not finite."""
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length and math.isfinite(length) else None

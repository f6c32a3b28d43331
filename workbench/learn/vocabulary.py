"""Log-probs over a large vocabulary without holding the logits of a whole batch: in parts, computed again backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ELEMENTS = 1 << 24  # logits of a part: 64 MiB in float32, twice that while they become probabilities
_SAME = 1e-4  # difference, in units of the largest logit, up to which two ways of computing logits are one
_LINEAR: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def linear_head(model: Any) -> nn.Linear | None:
    """The layer that makes the logits, if they are that layer of the last hidden state and nothing else; else None.

    Tried out on a few tokens, once a model: soft-capped or scaled logits (Gemma 2, Cohere, Granite) show themselves.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, nn.Linear):
        return None
    if model not in _LINEAR:
        tokens = torch.arange(min(8, head.out_features), device=model.device)[None]
        with torch.no_grad():
            whole = model(input_ids=tokens, use_cache=False).logits.float()
            parts = head(model.base_model(input_ids=tokens, use_cache=False).last_hidden_state).float()
        _LINEAR[model] = bool((whole - parts).abs().max() <= _SAME * whole.abs().max().clamp(min=1.0))
    return head if _LINEAR[model] else None


def token_log_probs(
    hidden: Tensor, head: nn.Linear, targets: Tensor, temperature: float = 1.0, elements: int = ELEMENTS
) -> tuple[Tensor, Tensor]:
    """Log-prob of targets (N,) and entropy, each (N,) in nats, from hidden states (N, H); at most `elements` at once.

    Under autocast the matrix product is in its dtype, as the head itself would compute it; the rest is float32.
    """
    if not len(hidden):  # nothing was asked for; the graph stays whole
        nothing = hidden.sum(1).float()
        return nothing, nothing
    weight: Tensor = head.weight
    bias: Tensor | None = head.bias
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    rows = max(1, elements // head.out_features)
    found: tuple[Tensor, Tensor] = _TokenLogProbs.apply(hidden, weight, bias, targets, temperature, rows)
    return found


class _TokenLogProbs(torch.autograd.Function):
    """(hidden (N, H), weight (V, H), bias (V,) or None, targets (N,), temperature, rows) -> log-prob, entropy, (N,).

    z = (hidden weight' + bias) / temperature; log p = z - logsumexp z; entropy S = -sum p log p; `rows` tokens at a
    time. d log p[target] / dz = onehot - p and dS / dz = -p (log p + S), from logits that backward computes again.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        log_prob, entropy = [], []
        for part in _parts(len(hidden), rows):
            log_p = _log_softmax(hidden[part], weight, bias, temperature)
            log_prob.append(log_p.gather(1, targets[part, None])[:, 0])
            entropy.append(-log_p.exp().mul_(log_p).sum(1))
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        made = torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, bias, targets, made)
        return torch.cat(log_prob), made

    @staticmethod
    def backward(ctx: Any, by_log_prob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        wide = entropy.dtype
        to_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias, dtype=wide) if ctx.needs_input_grad[2] else None
        for part in _parts(len(hidden), ctx.rows):
            gradient = _log_softmax(hidden[part], weight, bias, ctx.temperature)
            p = gradient.exp()
            # In place, because each of these is the largest tensor of the whole update.
            if by_entropy is None:
                gradient.zero_()
            else:
                gradient.add_(entropy[part, None]).mul_(p).mul_(-by_entropy[part, None])
            if by_log_prob is not None:
                gradient.addcmul_(p, by_log_prob[part, None], value=-1.0)
                gradient.scatter_add_(1, targets[part, None], by_log_prob[part, None])
            gradient.div_(ctx.temperature)
            del p
            if to_bias is not None:
                to_bias += gradient.sum(0)
            gradient = gradient.to(weight.dtype)
            if to_hidden is not None:
                to_hidden[part] = gradient @ weight
            if to_weight is not None and to_weight.dtype == weight.dtype:
                to_weight.addmm_(gradient.t(), hidden[part])
            elif to_weight is not None:
                to_weight += gradient.t() @ hidden[part]
        whole = (to_hidden, to_weight, to_bias)
        inputs = (hidden, weight, bias)
        cast = [None if g is None else g.to(x.dtype) for g, x in zip(whole, inputs, strict=True)]
        return (*cast, None, None, None)


def _parts(n: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, n, rows))


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits.div_(temperature)
    return logits.sub_(torch.logsumexp(logits, 1, keepdim=True))

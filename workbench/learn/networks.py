"""Policy and critic, their log-probs and values in chunks of bounded memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from workbench.batch import Batch
from workbench.spec import ComputeSettings, InputError, PolicySettings

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
    if not len(hidden):  # no token is wanted; the graph stays whole
        return hidden.sum(1).float(), hidden.sum(1).float()
    weight: Tensor = head.weight
    bias: Tensor | None = head.bias
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    rows = max(1, elements // head.out_features)
    return _TokenLogProbs.apply(hidden, weight, bias, targets, temperature, rows)


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


disable_progress_bar()  # bars for a second of loading or saving are noise in a log that people read after a death


def create(settings: PolicySettings, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Return a freshly initialised decoder of the size in `settings` for this tokenizer's vocabulary (float32)."""
    config = AutoConfig.for_model(
        settings.family,
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.mlp,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=1024,
        # 0.02, the default of the families, is meant for hidden sizes of thousands: a narrow network that starts there
        # learns late and stays badly conditioned.
        initializer_range=settings.hidden**-0.5,
        tie_word_embeddings=settings.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def device_of(settings: ComputeSettings) -> torch.device:
    """Return where the networks are trained: "auto" is the first GPU that torch may use, else the CPU.

    Raises InputError for a GPU that was asked for and is not there.
    """
    present = torch.cuda.is_available()
    if settings.device == "cuda" and not present:
        raise InputError('compute.device = "cuda", but torch sees no GPU here; set compute.device = "cpu" or "auto"')
    return torch.device("cuda" if present and settings.device != "cpu" else "cpu")


def load(path: Path | str, compute: ComputeSettings = ComputeSettings()) -> PreTrainedModel:
    """Return the checkpoint at `path`, weights in float32, on the device of `compute`, without dropout.

    Safetensors only, because other weight formats can run code when read. Raises InputError when the folder is missing
    or holds no safetensors weights. Dropout is off because old and new log-probs must be of one policy; that is also
    why training mode, which gradient checkpointing needs, changes nothing else.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"no model at '{folder}': a model is a folder with config.json and *.safetensors, as save_pretrained writes"
        )
    if not list(folder.glob("*.safetensors")):
        raise InputError(
            f"no safetensors weights in '{folder}': other formats are not read because they can execute code; "
            f"convert with model.save_pretrained('{folder}')"
        )
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    if compute.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    return model.to(device_of(compute))


def autocast(device: torch.device, compute: ComputeSettings) -> AbstractContextManager[Any]:
    """The precision of a training pass: matrix products in bfloat16 where `compute` says so; weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=compute.dtype == "bfloat16")


def widened(x: Tensor) -> Tensor:
    """`x` in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def log_probs(
    model: nn.Module, tokens: Tensor, temperature: float = 1.0, grad_entropy: bool = False,
    where: Tensor | None = None, elements: int = ELEMENTS,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Log-prob of every token given those before it, and the entropy of its distribution, both (B, T) in nats.

    log p_t = log_softmax(z_{t-1} / temperature)[token_t]; position 0 has no prediction and is 0. No attention mask is
    needed: rows are padded on the right only and attention is causal, so no real token ever sees padding. The entropy
    carries a gradient only with `grad_entropy`. Results are on the device of `tokens`, wherever the model is.

    Beyond `elements` logits they are never held at once, and are made only at the tokens of `where` (B, T), elsewhere
    the results are 0; a model whose logits are not a linear layer of the last hidden state holds them all.
    """
    device = next(model.parameters()).device
    on = tokens.to(device)
    targets = on[:, 1:]
    vocabulary = int(getattr(getattr(model, "config", None), "vocab_size", 0) or 0)
    head = linear_head(model) if targets.numel() * vocabulary > elements else None
    if head is None:
        chosen, entropy = _from_logits(model, on, temperature, grad_entropy)
    else:
        assert isinstance(model, PreTrainedModel)
        hidden = model.base_model(input_ids=on[:, :-1], use_cache=False).last_hidden_state
        wanted = torch.ones_like(targets, dtype=torch.bool) if where is None else where[:, 1:].to(device)
        found = token_log_probs(hidden[wanted], head, targets[wanted], temperature, elements)
        chosen, entropy = (torch.zeros_like(targets, dtype=x.dtype).masked_scatter(wanted, x) for x in found)
        entropy = entropy if grad_entropy else entropy.detach()
    return tuple(nn.functional.pad(x, (1, 0)).to(tokens.device) for x in (chosen, entropy))  # type: ignore[return-value]


def _from_logits(model: nn.Module, tokens: Tensor, temperature: float, grad_entropy: bool) -> tuple[Tensor, Tensor]:
    logits = widened(model(input_ids=tokens[:, :-1], use_cache=False).logits)
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, dim=-1)  # (B, T-1, V)
    chosen = log_p.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(grad_entropy and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy


class Critic(nn.Module):
    """V(s_t) for every token position: the policy's backbone (a copy) and a linear head that starts at zero."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.base_model)
        # A zero head says "no idea" (V = 0) instead of noise of the backbone's scale.
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.head.to(policy.device)

    def forward(self, tokens: Tensor) -> Tensor:
        """Values (B, T), float32; entry t is V of the state before token t is written, so it never sees token t.

        Position 0 has no state before it and is 0. Padding on the right is never seen by a real token. Values are on
        the device of `tokens`, wherever the critic is.
        """
        on = tokens.to(self.head.weight.device)
        hidden = self.backbone(input_ids=on[:, :-1], use_cache=False).last_hidden_state
        return torch.nn.functional.pad(self.head(hidden).squeeze(-1).float(), (1, 0)).to(tokens.device)


def by_tokens(length: Tensor, budget: int) -> list[Tensor]:
    """Rows of each pass, longest first: rows x longest <= budget, or a single row that is longer.

    `length` (B,) counts a row's tokens, padding left out; each row is in one pass.
    """
    order = length.argsort(descending=True, stable=True)
    found, start = [], 0
    while start < len(order):
        size = max(1, budget // max(1, int(length[order[start]])))
        found.append(order[start : start + size])
        start += size
    return found


def passes(batch: Batch, budget: int | None) -> Iterator[tuple[Tensor, int]]:
    """(rows, tokens of the longest) of each pass over `batch`; one pass over all of it without a budget."""
    if budget is None:
        yield torch.arange(len(batch.tokens)), batch.tokens.shape[1]
        return
    for rows in by_tokens(batch.length, budget):
        yield rows, int(batch.length[rows].max())

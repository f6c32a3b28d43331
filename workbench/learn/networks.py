"""Policy and critic, their log-probs and values in chunks of bounded memory."""

from __future__ import annotations

import copy
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from sorl.agent import ragged
from sorl.agent.routing import experts_of, routed
from sorl.batch import Batch
from sorl.learn import packed
from sorl.spec import ComputeSettings, InputError, PolicySettings, RunSettings

ELEMENTS = 1 << 24  # logits of a part: 64 MiB in float32, a few times that while its gradient is computed
PAYS = 1.2  # times faster that bfloat16 must be: it rounds
_LINEAR: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
# told before each pass over rows: its number, and how many there are
Report = Callable[[int, int], None]
_LAST: list[Any] = []  # tokens, where, and their packing: the critic reads what the policy has just read


def linear_head(model: Any) -> nn.Linear | None:
    """The layer that makes the logits, if they are that layer of the last hidden state and nothing else; else
    None.

    Tried out on a few tokens, once a model, because some soft-cap or scale their logits (Gemma 2, Cohere,
    Granite).
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, nn.Linear):
        return None
    if model not in _LINEAR:
        tokens = torch.arange(min(8, head.out_features), device=model.device)[None]
        with torch.no_grad():
            whole = model(input_ids=tokens, use_cache=False).logits.float()
            parts = head(model.base_model(input_ids=tokens, use_cache=False).last_hidden_state).float()
        _LINEAR[model] = bool((whole - parts).abs().max() <= 1e-4 * whole.abs().max().clamp(min=1.0))
    return head if _LINEAR[model] else None


def token_log_probs(
    hidden: Tensor, head: nn.Linear, targets: Tensor, temperature: float = 1.0, elements: int = ELEMENTS
) -> tuple[Tensor, Tensor]:
    """Log-prob of targets (N,) and entropy, (N,) in nats, from hidden states (N, H), `elements` logits at a
    time.
    """

    def part(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # A view: autocast would share one cast of the weight itself, and sum the gradients of the parts in
        # bfloat16.
        logits = F.linear(hidden, head.weight.view_as(head.weight), head.bias)
        return _of_logits(logits, targets, temperature, grad_entropy=True)

    rows = max(1, elements // head.out_features)
    pairs = zip(hidden.split(rows), targets.split(rows), strict=True)
    found = [checkpoint(part, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs]
    log_prob, entropy = (torch.cat(x) for x in zip(*found, strict=True))
    return log_prob, entropy


def _of_logits(
    logits: Tensor, targets: Tensor, temperature: float, grad_entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-prob of `targets` and entropy, from logits with the vocabulary as their last axis."""
    logits = widened(logits)
    log_p = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
    chosen = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(grad_entropy and torch.is_grad_enabled()):
        return chosen, -(log_p.exp() * log_p).sum(-1)


# bars for a second of loading or saving are noise in a log that people read after a death
disable_progress_bar()


def create(settings: PolicySettings, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Return a freshly initialised decoder of the size in `settings` for this tokenizer's vocabulary
    (float32).
    """
    # 0.02, the initial range of these families, is meant for hidden sizes of thousands: a narrow network that
    # starts there learns late and stays badly conditioned.
    mlp = settings.mlp
    k = settings.experts_per_token
    shared = settings.family == "qwen2_moe"
    mixture: dict[str, Any] = {}
    if settings.mixture:  # kernels want rows of 16 bytes, in bfloat16 as well
        mlp = -(-mlp // (8 * (k + shared))) * 8
        mixture = {"num_experts": settings.experts, "num_experts_per_tok": k, "moe_intermediate_size": mlp}
        mixture |= {"num_local_experts": settings.experts} if settings.family == "mixtral" else {}
        mixture |= {"shared_expert_intermediate_size": mlp} if shared else {"norm_topk_prob": True}
    config = AutoConfig.for_model(
        settings.family,
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=mlp,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=1024,
        initializer_range=settings.hidden**-0.5,
        tie_word_embeddings=settings.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **mixture,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def device_of(settings: ComputeSettings) -> torch.device:
    """Return where the networks are trained; "auto" prefers a GPU. Raises InputError for "cuda" without a
    GPU.
    """
    present = torch.cuda.is_available()
    if settings.device == "cuda" and not present:
        raise InputError(
            'compute.device = "cuda", but torch sees no GPU here; set compute.device = "cpu" or "auto"'
        )
    return torch.device("cuda" if present and settings.device != "cpu" else "cpu")


def with_measured_precision(settings: RunSettings) -> RunSettings:
    """The settings with what "auto" stands for on this machine as compute.dtype and engine.dtype."""
    compute = settings.compute
    engine = settings.engine
    if "auto" not in (compute.dtype, engine.dtype):
        return settings
    device = device_of(compute)
    pays = torch.cuda.is_bf16_supported() if device.type == "cuda" else bfloat16_speed_up() >= PAYS
    chosen = {"dtype": "bfloat16" if pays else "float32"}
    changes: dict[str, Any] = {}
    if compute.dtype == "auto":
        changes["compute"] = compute.model_copy(update=chosen)
    if engine.dtype == "auto":
        changes["engine"] = engine.model_copy(update=chosen)
    return settings.model_copy(update=changes)


@cache
def bfloat16_speed_up(rows: int = 512, width: int = 640, inner: int = 2048) -> float:
    """How many times faster than in float32 a matrix product of training is in bfloat16, on the CPU."""
    x = torch.randn(rows, width)
    weight = torch.randn(inner, width)
    narrow = x.bfloat16(), weight.bfloat16()
    return _seconds_of_product(x, weight) / _seconds_of_product(*narrow)


def _seconds_of_product(x: Tensor, weight: Tensor) -> float:
    """The least of five times, after one that warms up."""
    F.linear(x, weight)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        F.linear(x, weight)
        taken.append(time.perf_counter() - began)
    return min(taken)


def weights_folder(path: Path | str) -> Path:
    """The folder at `path`. Raises InputError without safetensors weights: other formats can run code when
    read.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"no model at '{folder}': save_pretrained writes one, with config.json and *.safetensors"
        )
    if not list(folder.glob("*.safetensors")):
        hint = f"other formats can run code and are not read; convert with model.save_pretrained('{folder}')"
        raise InputError(f"no safetensors weights in '{folder}': {hint}")
    return folder


def load(path: Path | str, compute: ComputeSettings = ComputeSettings()) -> PreTrainedModel:
    """Return the checkpoint at `path`, weights in float32, on the device of `compute`.

    Raises InputError as `weights_folder` does. Dropout is off, because old and new log-probs must be of one
    policy; so training mode, which gradient checkpointing needs, changes nothing else.
    """
    folder = weights_folder(path)
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


def memory_peak(device: torch.device) -> int:
    """Bytes since the process started: on a GPU the most that torch allocated, on the CPU the largest
    resident set.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def autocast(device: torch.device, compute: ComputeSettings) -> AbstractContextManager[Any]:
    """The precision of a training pass: matrix products in bfloat16 where `compute` says so; weights stay
    float32.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=compute.dtype == "bfloat16")


def widened(x: Tensor) -> Tensor:
    """`x` in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def packing_of(backbone: Any, tokens: Tensor, where: Tensor) -> packed.Packing | None:
    """Return what `packed` computes of these tokens; None where transformers' own layers do, or nothing is
    wanted.
    """
    if backbone is None or not packed.supports(backbone, tokens) or not bool(where[:, 1:].any()):
        return None
    if not (_LAST and torch.equal(tokens, _LAST[0]) and torch.equal(where, _LAST[1])):
        _LAST[:] = tokens.clone(), where.clone(), packed.Packing(tokens, where)
    found: packed.Packing = _LAST[2]
    return found


class RaggedRows:
    """Rows without what nobody asks for: no padding, and nothing after the last token that is wanted.

    `read` (N,): the tokens, row behind row, `counts` of each row. `asked` (M,): the places of those whose
    next token is wanted. `targets` (M,): these next tokens.
    """

    def __init__(self, tokens: Tensor, where: Tensor) -> None:
        self._wanted = where[:, 1:]
        place = torch.arange(self._wanted.shape[1], device=tokens.device)
        length = torch.where(self._wanted, place + 1, 0).amax(1)
        inside = place < length[:, None]
        self.read = tokens[:, :-1][inside]
        self.counts = length[length > 0].tolist()
        self.asked = self._wanted[inside].nonzero().squeeze(1)
        self.targets = tokens[:, 1:][self._wanted]

    def spread(self, x: Tensor) -> Tensor:
        """Put answers (M,) where they belong, (B, T); 0 elsewhere."""
        found = torch.zeros(self._wanted.shape, dtype=x.dtype, device=self._wanted.device)
        return F.pad(found.masked_scatter(self._wanted, x.to(self._wanted.device)), (1, 0))


def ragged_rows(backbone: Any, tokens: Tensor, where: Tensor) -> RaggedRows | None:
    """Return the rows to be read without padding; None where the model cannot, or nothing is wanted."""
    if not bool(where[:, 1:].any()) or not ragged.supports(backbone):
        return None
    return RaggedRows(tokens, where)


def _ragged_log_probs(
    model: Any,
    head: nn.Linear,
    rows: RaggedRows,
    temperature: float,
    grad_entropy: bool,
    elements: int,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the wanted tokens, (B, T), from a pass without padding."""
    hidden = ragged.hidden_states(model.base_model, rows.read, rows.counts)
    hidden = hidden.index_select(0, rows.asked.to(hidden.device))
    targets = rows.targets.to(hidden.device)
    if hidden.shape[0] * head.out_features > elements:
        log_prob, entropy = token_log_probs(hidden, head, targets, temperature, elements)
    else:
        log_prob, entropy = _of_logits(head(hidden), targets, temperature, grad_entropy)
    return rows.spread(log_prob), rows.spread(entropy if grad_entropy else entropy.detach())


def log_probs(
    model: nn.Module,
    tokens: Tensor,
    temperature: float = 1.0,
    grad_entropy: bool = False,
    where: Tensor | None = None,
    elements: int = ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-prob of every token given those before it, and the entropy of its distribution, both (B, T) in
    nats.

    log p_t = log_softmax(z_{t-1} / temperature)[token_t]; position 0 has no prediction and is 0. No attention
    mask is needed: rows are padded on the right only and attention is causal, so no real token ever sees
    padding. The entropy carries a gradient only with `grad_entropy`. Results are on the device of `tokens`,
    wherever the model is.

    Beyond `elements` logits they are never held at once, and are made only at the tokens of `where` (B, T),
    with 0 elsewhere; a model whose logits are not a linear layer of the last hidden state holds them all.
    With `where`, rows may be read without padding and computed there alone: 0 elsewhere then, too.
    """
    if where is None:
        return _padded_log_probs(model, tokens, temperature, grad_entropy, None, elements)
    if (packing := packing_of(getattr(model, "model", None), tokens, where)) is not None:
        return _packed_log_probs(model, packing, tokens, temperature, grad_entropy)
    rows = ragged_rows(getattr(model, "base_model", None), tokens, where)
    head = None if rows is None else linear_head(model)
    if rows is not None and head is not None:
        return _ragged_log_probs(model, head, rows, temperature, grad_entropy, elements)
    return _padded_log_probs(model, tokens, temperature, grad_entropy, where, elements)


def _packed_log_probs(
    model: Any, packing: packed.Packing, tokens: Tensor, temperature: float, grad_entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the wanted tokens, (B, T), by the small model that is written out."""
    logits = model.lm_head(packed.hidden(model.model, packing))
    asked = tokens[:, 1:].reshape(-1)[packing.to]
    log_prob, entropy = _of_logits(logits, asked, temperature, grad_entropy)
    return packing.spread(log_prob), packing.spread(entropy)


def _padded_log_probs(
    model: Any, tokens: Tensor, temperature: float, grad_entropy: bool, where: Tensor | None, elements: int
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies, (B, T), from a pass over whole rows."""
    on = tokens.to(next(model.parameters()).device)
    vocabulary = int(getattr(getattr(model, "config", None), "vocab_size", 0) or 0)
    head = linear_head(model) if on[:, 1:].numel() * vocabulary > elements else None
    if head is None:
        logits = model(input_ids=on[:, :-1], use_cache=False).logits
        log_prob, entropy = _of_logits(logits, on[:, 1:], temperature, grad_entropy)
    else:
        log_prob, entropy = _padded_by_parts(model, head, on, temperature, where, elements)
        entropy = entropy if grad_entropy else entropy.detach()
    return F.pad(log_prob, (1, 0)).to(tokens.device), F.pad(entropy, (1, 0)).to(tokens.device)


def _padded_by_parts(
    model: Any, head: nn.Linear, tokens: Tensor, temperature: float, where: Tensor | None, elements: int
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (B, T - 1) of `tokens` (B, T), `elements` logits at a time; 0 where not
    wanted.
    """
    targets = tokens[:, 1:]
    hidden = model.base_model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    wanted = torch.ones_like(targets, dtype=torch.bool)
    if where is not None:
        wanted = where[:, 1:].to(tokens.device)
    log_prob, entropy = token_log_probs(hidden[wanted], head, targets[wanted], temperature, elements)
    zeros = torch.zeros_like(targets, dtype=log_prob.dtype)
    return zeros.masked_scatter(wanted, log_prob), zeros.masked_scatter(wanted, entropy)


class Critic(nn.Module):
    """V(s_t) for every token position: the policy's backbone (a copy) and a linear head that
    starts at zero.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.base_model)
        # A zero head says "no idea" (V = 0) instead of noise of the backbone's scale.
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.head.to(policy.device)

    def forward(self, tokens: Tensor, where: Tensor | None = None) -> Tensor:
        """Values (B, T), float32; entry t is V of the state before token t is written, so it never sees token
        t.

        Position 0 has no state before it and is 0. Values are on the device of `tokens`, wherever the critic
        is. With `where` (B, T), it may be computed there alone, and is 0 elsewhere.
        """
        if where is not None and (packing := packing_of(self.backbone, tokens, where)) is not None:
            return packing.spread(self.head(packed.hidden(self.backbone, packing)).squeeze(-1))
        if where is not None and (rows := ragged_rows(self.backbone, tokens, where)):
            found = ragged.hidden_states(self.backbone, rows.read, rows.counts)
            asked = found.index_select(0, rows.asked.to(found.device))
            return rows.spread(self.head(asked).squeeze(-1).float())
        on = tokens.to(self.head.weight.device)
        hidden = self.backbone(input_ids=on[:, :-1], use_cache=False).last_hidden_state
        return F.pad(self.head(hidden).squeeze(-1).float(), (1, 0)).to(tokens.device)


def unheard(number: int, of: int) -> None:
    """The report of passes that nobody listens to."""


def passes(length: Tensor, tokens: int | None, rows: int | None = None) -> list[Tensor]:
    """Rows of each pass over a batch whose sequences have `length` (B,) tokens: `rows` at a time, all by
    default.

    With a budget of `tokens` the longest come first, and rows x longest <= tokens, or one row that is longer.
    """
    if tokens is None:
        return list(torch.arange(len(length)).split(rows or len(length)))
    found = []
    rest = length.argsort(descending=True, stable=True)
    while len(rest):
        size = max(1, tokens // max(1, int(length[rest[0]])))
        found.append(rest[:size])
        rest = rest[size:]
    return found


def scored(
    model: torch.nn.Module,
    batch: Batch,
    temperature: float,
    compute: ComputeSettings = ComputeSettings(),
    replay: Tensor | None = None,
    report: Report = unheard,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (B, T) by the training forward, 0 where nothing was written, and the experts (B, T, L k) it
    took.
    """
    parts: list[Tensor] = []

    def forward(index: Tensor, n: int) -> Tensor:
        with routed(model, None if replay is None else replay[index, 1:n]) as seen:
            found = log_probs(model, batch.tokens[index, :n], temperature, where=batch.mask[index, :n])[0]
        if (routes := seen.routes) is not None:
            before = 1
            after = batch.tokens.shape[1] - n
            unknown = experts_of(seen.routers[0])
            parts.append(F.pad(routes.to(batch.tokens.device), (0, 0, before, after), value=unknown))
        return found

    found, order = _by_passes(forward, batch, compute, report)
    return torch.where(batch.mask, found, 0), torch.cat(parts)[order] if parts else None


def squared_probs(
    model: PreTrainedModel,
    batch: Batch,
    temperature: float,
    compute: ComputeSettings = ComputeSettings(),
    report: Report = unheard,
) -> Tensor:
    """Sum over the vocabulary of the squared probabilities at each written token, (B, T); 0 elsewhere."""

    def forward(index: Tensor, n: int) -> Tensor:
        tokens = batch.tokens[index, :n].to(model.device)
        logits = widened(model(input_ids=tokens[:, :-1], use_cache=False).logits) / temperature
        total = (2 * logits).logsumexp(-1) - 2 * logits.logsumexp(-1)
        return F.pad(total.exp(), (1, 0)).to(batch.tokens.device)

    found, _ = _by_passes(forward, batch, compute, report)
    return torch.where(batch.mask, found, 0)


def critic_values(
    critic: Critic,
    batch: Batch,
    compute: ComputeSettings = ComputeSettings(),
    report: Report = unheard,
) -> Tensor:
    """Values of the batch under `critic`, (B, T), of the response; 0 beyond a row's tokens."""
    where = batch.response | batch.mask

    def forward(index: Tensor, n: int) -> Tensor:
        return critic(batch.tokens[index, :n], where[index, :n])

    return _by_passes(forward, batch, compute, report)[0]


@torch.no_grad()
def _by_passes(
    forward: Callable[[Tensor, int], Tensor], batch: Batch, compute: ComputeSettings, report: Report
) -> tuple[Tensor, Tensor]:
    """Return `forward` of the first n columns of some rows, (B, T), 0 in those it leaves out; and the rows'
    order.
    """
    budget = compute.micro_batch_tokens
    width = batch.tokens.shape[1]
    parts = []
    rows = passes(batch.length, budget)
    with autocast(device_of(compute), compute):
        for number, index in enumerate(rows):
            report(number + 1, len(rows))
            n = width if budget is None else int(batch.length[index].max())
            parts.append(F.pad(forward(index, n), (0, width - n)))
    order = torch.cat(rows).argsort()
    return torch.cat(parts)[order], order

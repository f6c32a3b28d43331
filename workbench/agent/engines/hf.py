"""Lock-step sampling of ragged multi-turn episodes from a transformers decoder, with a key-value cache and no
padding.

Every row is at the same position: a row with prompt or observation tokens left is fed those, another what was
sampled. So there are no position ids, attention masks or padding. Finished rows are dropped from the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.llama import LlamaForCausalLM
from transformers.models.mixtral import MixtralForCausalLM
from transformers.models.qwen2 import Qwen2ForCausalLM

from sorl.agent import ragged
from sorl.agent.engines import NonFinite, Report, unheard
from sorl.agent.engines.continuous import ContinuousRows
from sorl.agent.episode import Episode
from sorl.agent.protocol import Dialogue, begin, closes, search_ahead
from sorl.agent.routing import experts_of, routed, routers, width_of
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import Question, World
from sorl.spec import EngineSettings

# rows are dropped from the cache once this share or less is alive: a copy costs about one decoding step
_KEEP = 0.85
# parameters up to which the written-out decoder pays: beyond, copying the weights costs more
_SMALL = 20_000_000
# columns of tokens, and of keys and values, that are allocated at first
_COLUMNS = 128
_CACHED = 64
# multiplications a matrix below which torch.bmm takes a plain loop, two to three times slower than MKL
_PLAIN = 400


class TransformersDecoder:
    """Any causal language model in the calling convention of transformers."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self.routes: Tensor | None = None  # (B, n, L k) experts of the tokens fed last; None of a dense model

    def feed(self, tokens: Tensor) -> Tensor:
        """Append `tokens` (B, n) to the cache and return the logits after the last, (B, V)."""
        tokens = tokens.to(self._model.device)
        with routed(self._model) as seen:
            out: Any = self._model(
                input_ids=tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        self.routes = seen.routes
        return out.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Forget every row but `rows`, in this order."""
        self._cache.batch_select_indices(rows.to(self._model.device))


def sample(
    logits: Tensor, temperature: float, generator: Generator, greedy: bool, position: int
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) drawn from softmax(logits / temperature), (B, V), and their log-probs (B,) in float32 nats.

    The draw inverts the distribution function with one uniform number a row: the first i with F(i) > u.
    Greedy takes the most likely token and reports the same log-prob. Raises NonFinite when a row has no
    distribution.
    """
    log_prob = torch.log_softmax(logits.float() / temperature, dim=-1)
    if greedy:
        token = log_prob.argmax(dim=-1)
    else:
        below = log_prob.exp().cumsum(dim=-1, dtype=torch.float64)
        u = torch.rand(len(below), 1, generator=generator, dtype=torch.float64).to(below.device)
        token = torch.searchsorted(below, u * below[:, -1:], right=True)[:, 0].clamp_(max=below.shape[1] - 1)
    chosen = log_prob.gather(1, token[:, None])[:, 0]
    if not bool(torch.isfinite(chosen.sum())):
        raise NonFinite(int((~logits.isfinite().all(dim=-1)).sum()), len(logits), position)
    return token, chosen


class HFEngine:
    """Samples from `model` as it is at the time of the call."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EngineSettings,
        wording: str = "plain",
    ) -> None:
        self._model = model
        self._settings = settings
        self._codec = Codec(tokenizer, wording)
        self._limit = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30)
        self.report: Report = unheard

    def held(self) -> Iterator[tuple[str, Tensor]]:
        """The weights that it samples from, by the trainer's names."""
        yield from self._model.named_parameters()

    @torch.inference_mode()
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
        training = self._model.training
        self._model.train(False)
        try:
            self._play(dialogues, world.max_turn_tokens, generator, greedy)
        finally:
            self._model.train(training)
        return [dialogue.episode() for dialogue in dialogues]

    def _play(self, dialogues: list[Dialogue], turn_tokens: int, generator: Generator, greedy: bool) -> None:
        """Let the policy write until every dialogue has ended."""
        temperature = self._settings.temperature
        if not _is_fused(self._model) and ragged.supports(self._model.base_model):
            model = in_dtype(self._model, getattr(torch, self._settings.dtype))
            together = ContinuousRows(dialogues, self._codec, turn_tokens, self._limit)
            together.report = self.report
            together.play(model, sample, temperature, generator, greedy)
            return
        mixture = routers(self._model)
        unknown = experts_of(mixture[0]) if mixture else 0
        rows = _Rows(dialogues, self._codec, turn_tokens, self._limit, unknown)
        rows.report = self.report
        rows.play(decoder_of(self._model, self._settings), temperature, generator, greedy)


def _is_fused(model: PreTrainedModel) -> bool:
    """Whether the decoding step written out below pays for this model."""
    small = model.device.type == "cpu" and model.num_parameters() <= _SMALL
    return small and supports(model)


def decoder_of(model: PreTrainedModel, settings: EngineSettings) -> FusedDecoder | TransformersDecoder:
    """Return what decodes `model` in the precision of `settings`, with an empty cache."""
    dtype = getattr(torch, settings.dtype)
    if _is_fused(model):
        return FusedDecoder(model, dtype)
    return TransformersDecoder(in_dtype(model, dtype))


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model itself when it already computes in `dtype`, else a copy that does."""
    if model.dtype == dtype:
        return model
    copied: Any = deepcopy(model)
    copied.to(dtype)
    # float32, as in every pass of the trainer: rounded logits choose other experts
    for router in routers(copied):
        router.float()
    return copied


class _Rows:
    """The rows in decoding: tokens (B, T) written or to be read, known (B,) of them, start (B,) of the
    present turn.
    """

    def __init__(
        self, dialogues: list[Dialogue], codec: Codec, turn_tokens: int, limit: int, unknown: int
    ) -> None:
        self._codec = codec
        self._turn_tokens = turn_tokens
        self._limit = limit
        self._unknown = unknown
        # Experts (B, T, L k) of the token before each, which fill up as the tokens are fed; None of a dense
        # model.
        self._routes: Tensor | None = None
        self._closers = list(codec.closers)
        self._rows = dialogues
        self._known = np.array([len(d.tokens) for d in dialogues])
        self._start = self._known.copy()
        shape = len(dialogues), max(_COLUMNS, int(self._known.max()))
        self._tokens = np.full(shape, codec.pad_id, dtype=np.int64)
        self._log_prob = np.zeros(shape, dtype=np.float32)
        self.report: Report = unheard
        self._written = 0  # tokens
        for row, dialogue in enumerate(dialogues):
            self._tokens[row, : len(dialogue.tokens)] = dialogue.tokens

    def play(
        self,
        decoder: FusedDecoder | TransformersDecoder,
        temperature: float,
        generator: Generator,
        greedy: bool,
    ) -> None:
        """Decode until every dialogue has ended."""
        fed = 0
        episodes = len(self._rows)
        while alive := sum(dialogue.ended is None for dialogue in self._rows):
            if alive <= _KEEP * len(self._rows):
                rows = np.flatnonzero([dialogue.ended is None for dialogue in self._rows])
                self._rows = [self._rows[i] for i in rows]
                self._tokens = self._tokens[rows]
                self._log_prob = self._log_prob[rows]
                self._routes = None if self._routes is None else self._routes[torch.from_numpy(rows)]
                self._known = self._known[rows]
                self._start = self._start[rows]
                if fed:
                    decoder.keep(torch.from_numpy(rows))
            ready = int(self._known.min())
            logits = decoder.feed(torch.from_numpy(self._tokens[:, fed:ready]))
            if decoder.routes is not None:
                self._record(decoder.routes.cpu(), fed + 1, ready + 1)
            fed = ready
            token, log_prob = sample(logits, temperature, generator, greedy, position=fed)
            self._write(fed, token.cpu().numpy(), log_prob.cpu().numpy())
            turns = [len(dialogue.status) for dialogue in self._rows if dialogue.ended is None]
            self.report(self._written, episodes - len(turns), 1 + min(turns, default=0))

    def _write(self, at: int, token: np.ndarray, log_prob: np.ndarray) -> None:
        """Put the sampled tokens where a row is written and not read, and close the turns that they end."""
        self._reserve(at + 1)
        writes = self._known == at
        np.copyto(self._tokens[:, at], token, where=writes)
        np.copyto(self._log_prob[:, at], log_prob, where=writes)
        self._known[writes] += 1
        self._written += int(writes.sum())
        long = (at + 1 - self._start >= self._turn_tokens) | (at + 1 >= self._limit)
        ending: dict[int, list[int]] = {}
        for row in np.flatnonzero(writes & (long | np.isin(token, self._closers))).tolist():
            turn = self._tokens[row, self._start[row] : at + 1].tolist()
            if long[row] or closes(self._codec, turn):
                ending[row] = turn
        search_ahead([self._rows[row] for row in ending], list(ending.values()))
        for row, turn in ending.items():
            dialogue = self._rows[row]
            end = at + 1
            if self._routes is not None:
                dialogue.routes = self._routes[row, :end].clone()
            observation = dialogue.turn(turn, self._log_prob[row, self._start[row] : end].tolist())
            known = end + len(observation)
            if dialogue.ended is None and known >= self._limit:
                dialogue.stop()
            if dialogue.ended is None:
                self._reserve(known)
                self._tokens[row, end:known] = observation
                self._known[row] = self._start[row] = known
            else:
                # reads padding until it is dropped; no other row waits
                self._known[row] = np.iinfo(np.int64).max

    def _reserve(self, columns: int) -> None:
        missing = columns - self._tokens.shape[1]
        if missing > 0:
            grow = ((0, 0), (0, max(missing, self._tokens.shape[1])))
            self._tokens = np.pad(self._tokens, grow, constant_values=self._codec.pad_id)
            self._log_prob = np.pad(self._log_prob, grow)

    def _record(self, routes: Tensor, start: int, end: int) -> None:
        known = routes.new_empty(len(routes), 0, routes.shape[2]) if self._routes is None else self._routes
        if (missing := end - known.shape[1]) > 0:
            known = F.pad(known, (0, 0, 0, max(missing, known.shape[1], _COLUMNS)), value=self._unknown)
        known[:, start:end] = routes
        self._routes = known


# ----------------------------------------------------------------------------------------------------
# The decoding step written out

Linear = tuple[Tensor, Tensor | None]  # weight and bias


def supports(model: PreTrainedModel) -> bool:
    """Return True for a plain Qwen2, Llama or Mixtral: SiLU, full attention, a RoPE of fixed angles."""
    config: Any = model.config
    return (
        type(model) in (Qwen2ForCausalLM, LlamaForCausalLM, MixtralForCausalLM)
        and config.hidden_act == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not (type(model) is MixtralForCausalLM and config.sliding_window)
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
        and not getattr(model, "hf_quantizer", None)
        and not getattr(model, "_hf_peft_config_loaded", False)
    )


class _FusedLayer(NamedTuple):
    """A layer as four products."""

    mixer: Linear  # q, k, R q, R k and v together
    out: Linear
    gate_up: Linear
    down: Linear


class _Fed(NamedTuple):
    """The tokens of one pass: places `start` to `end` of each of `batch` rows."""

    batch: int
    start: int
    end: int
    cos: Tensor  # a row a token
    sin: Tensor
    ahead: Tensor | None  # True (n, end) at what a token must not see; None for one token, which sees all


class FusedDecoder:
    """The Qwen2, Llama and Mixtral decoding step written out: the same weights and numbers at half the cost
    on a CPU.

    The cache is preallocated and the matrices are fused and folded once a rollout: the norms' gains and
    sqrt(hidden) into the matrix that follows, 1 / sqrt(D) into the queries, and RoPE's rotate_half into extra
    rows, so that rotating is one multiply-add: q' = q * cos + (R q) * sin. Of a mixture every expert reads
    every token, and the gates of those that were not chosen are 0: for few small experts one product costs
    less than taking their weights together.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        config: Any = model.config
        inner: Any = model.model
        self._heads: int = config.num_key_value_heads
        self._groups: int = config.num_attention_heads // self._heads
        self._width: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self._floor = torch.tensor(math.sqrt(config.rms_norm_eps * config.hidden_size), dtype=dtype)
        self._rotary = inner.rotary_emb
        self._dtype = dtype
        self._embedding = inner.embed_tokens.weight.detach().to(dtype)
        self._head = _linear(model.lm_head, dtype, inner.norm.weight)
        self._layers = [self._fuse(layer) for layer in inner.layers[: config.num_hidden_layers]]
        found = routers(model)
        self._routers = [
            _linear(router, torch.float32, layer.post_attention_layernorm.weight)[0]
            for router, layer in zip(found, inner.layers, strict=False)
        ]
        self._top_k: int = found[0].top_k if found else 0
        self._kind = width_of(found) if found else torch.uint8
        self.routes: Tensor | None = None  # (B, n, L k) experts of the tokens fed last; None of a dense model
        self._cache: list[Tensor] = []  # keys and values of each layer, (2, B, Hkv, columns, D)
        self._length = 0
        self._cos, self._sin = self._angles(_CACHED)

    def feed(self, tokens: Tensor) -> Tensor:
        """Append `tokens` (B, n) to the cache and return the logits after the last, (B, V)."""
        batch, n = tokens.shape
        start = self._length
        end = start + n
        self._reserve(batch, end)
        self._length = end
        x = F.embedding(tokens, self._embedding).view(batch * n, -1)
        ahead = None if n == 1 else torch.ones(n, end, dtype=torch.bool).triu_(start + 1)
        fed = _Fed(batch, start, end, *self._angles_of(start, end, batch), ahead)
        chosen: list[Tensor] = []
        for i, layer in enumerate(self._layers):
            x = _add(x, self._attention(i, layer, x, fed), *layer.out)
            unit = self._unit(x)
            if self._routers:
                x = x + self._mixture(i, unit, layer.gate_up[0], layer.down[0], chosen)
                continue
            gate, up = F.linear(unit, *layer.gate_up).chunk(2, -1)
            x = _add(x, F.silu(gate).mul_(up), *layer.down)
        if chosen:
            self.routes = torch.cat(chosen, -1).to(self._kind).view(batch, n, -1)
        last = x if n == 1 else x.view(batch, n, -1)[:, -1]
        return F.linear(self._unit(last), *self._head)

    def keep(self, rows: Tensor) -> None:
        """Forget every row but `rows`, in this order."""
        for i, old in enumerate(self._cache):
            self._cache[i] = old.new_zeros(2, len(rows), *old.shape[2:])
            self._cache[i][..., : self._length, :] = old[..., : self._length, :].index_select(1, rows)

    def _attention(self, i: int, layer: _FusedLayer, x: Tensor, fed: _Fed) -> Tensor:
        """What layer i attends to (N, H D), before its output matrix; keys and values go to the cache."""
        query = self._heads * self._groups * self._width
        both = query + self._heads * self._width  # queries and keys, which RoPE turns
        mixed = F.linear(self._unit(x), *layer.mixer)
        turned = torch.addcmul(mixed[:, :both] * fed.cos, mixed[:, both : 2 * both], fed.sin)
        self._cache[i][0, :, :, fed.start : fed.end] = self._by_head(turned[:, query:], fed.batch)
        self._cache[i][1, :, :, fed.start : fed.end] = self._by_head(mixed[:, 2 * both :], fed.batch)
        return self._attend(i, turned[:, :query], fed.batch, fed.end, fed.ahead)

    def _angles_of(self, start: int, end: int, batch: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the new positions, a row a token that is fed."""
        cos = self._cos[start:end]
        sin = self._sin[start:end]
        if end - start > 1:
            cos = cos.repeat(batch, 1)
            sin = sin.repeat(batch, 1)
        return cos, sin

    def _attend(self, i: int, query: Tensor, batch: int, end: int, ahead: Tensor | None) -> Tensor:
        keys, values = self._cache[i].view(2, batch * self._heads, -1, self._width)
        if ahead is None:
            # Columns beyond `end` are zeros: they are read for speed while the cache is short, and masked.
            reach = max(end, -(-_PLAIN // (self._groups * self._width)))
            q = query.reshape(batch * self._heads, self._groups, self._width)
            scores = torch.bmm(q, keys[:, :reach].mT)
            if reach > end:
                scores[:, :, end:] = float("-inf")
            return torch.bmm(torch.softmax(scores, -1), values[:, :reach]).view(batch, -1)
        keys = keys[:, :end]
        values = values[:, :end]
        n = len(ahead)
        q = query.view(batch, n, self._heads, self._groups, self._width).permute(0, 2, 3, 1, 4)
        q = q.reshape(batch * self._heads, self._groups * n, self._width)
        scores = torch.bmm(q, keys.mT).view(-1, self._groups, n, end).masked_fill_(ahead, float("-inf"))
        mixed = torch.bmm(torch.softmax(scores, -1).view(-1, self._groups * n, end), values)
        mixed = mixed.view(batch, self._heads, self._groups, n, self._width).permute(0, 3, 1, 2, 4)
        return mixed.reshape(batch * n, -1)

    def _unit(self, x: Tensor) -> Tensor:
        """x / sqrt(sum x^2 + hidden eps): RMSNorm without sqrt(hidden) and gain, which the next
        matrix has.
        """
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)

    def _mixture(self, i: int, x: Tensor, gate_up: Tensor, down: Tensor, chosen: list[Tensor]) -> Tensor:
        """Sum of the experts (N, H) of layer i on x (N, H), weighted by the gates of the top k
        of its router.
        """
        probability = torch.softmax(F.linear(x.float(), self._routers[i]), -1)
        value, index = torch.topk(probability, self._top_k, -1)
        chosen.append(index)
        gates = (
            torch.zeros_like(probability).scatter_(1, index, value / value.sum(-1, keepdim=True)).to(x.dtype)
        )
        gate, up = F.linear(x, gate_up).view(len(x), gates.shape[1], -1).chunk(2, -1)
        inner = F.silu(gate).mul_(up).mul_(gates[:, :, None])
        return F.linear(inner.flatten(1), down)

    def _by_head(self, x: Tensor, batch: int) -> Tensor:
        return x.reshape(batch, -1, self._heads, self._width).transpose(1, 2)

    def _reserve(self, batch: int, columns: int) -> None:
        if not self._cache:
            shape = (2, batch, self._heads, max(columns, _CACHED), self._width)
            self._cache = [torch.zeros(shape, dtype=self._dtype) for _ in self._layers]
        room = self._cache[0].shape[3]
        if columns > room:
            self._cache = [F.pad(one, (0, 0, 0, max(columns - room, room))) for one in self._cache]
        if columns > len(self._cos):
            self._cos, self._sin = self._angles(self._cache[0].shape[3])

    def _angles(self, columns: int) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, repeated for each query and key head, (columns, (H + Hkv) D)."""
        cos, sin = self._rotary(self._embedding.new_empty(1), torch.arange(columns)[None])
        heads = self._heads * (self._groups + 1)
        return cos[0].repeat(1, heads), sin[0].repeat(1, heads)

    def _fuse(self, layer: Any) -> _FusedLayer:
        """The layer of transformers as four products."""
        dtype = self._dtype
        out = _linear(layer.self_attn.o_proj, dtype)
        mlp = layer.mlp
        gain = layer.post_attention_layernorm.weight
        if hasattr(mlp, "experts"):
            return _FusedLayer(self._fuse_mixer(layer), out, *self._fuse_experts(mlp.experts, gain))
        gate_up = _stacked(_linear(mlp.gate_proj, dtype, gain), _linear(mlp.up_proj, dtype, gain))
        return _FusedLayer(self._fuse_mixer(layer), out, gate_up, _linear(mlp.down_proj, dtype))

    def _fuse_mixer(self, layer: Any) -> Linear:
        """q, k, R q, R k and v as one product, with the gain of the norm before it."""
        attention = layer.self_attn
        gain = layer.input_layernorm.weight
        q = _linear(attention.q_proj, torch.float32, gain, self._width**-0.5)
        k = _linear(attention.k_proj, torch.float32, gain)
        v = _linear(attention.v_proj, torch.float32, gain)
        weight, bias = _stacked(q, k, self._rotate(q), self._rotate(k), v)
        return weight.to(self._dtype), None if bias is None else bias.to(self._dtype)

    def _fuse_experts(self, experts: Any, gain: Tensor) -> tuple[Linear, Linear]:
        """All experts as one matrix in, from (E, 2 I, H), and one matrix out, from (E, H, I)."""
        scale = gain.detach().float() * math.sqrt(len(gain))
        gate_up = (experts.gate_up_proj.detach().float() * scale).flatten(0, 1).to(self._dtype)
        down = experts.down_proj.detach().permute(1, 0, 2).flatten(1).to(self._dtype)
        return (gate_up, None), (down, None)

    def _rotate(self, linear: Linear) -> Linear:
        """rotate_half of transformers, applied to the output rows of a projection: (-second half, first
        half).
        """
        halves = [
            None if x is None else x.view(-1, 2, self._width // 2, *x.shape[1:]).unbind(1) for x in linear
        ]
        weight, bias = (None if x is None else torch.stack([-x[1], x[0]], 1).flatten(0, 2) for x in halves)
        assert weight is not None
        return weight, bias


def _linear(module: Any, dtype: torch.dtype, gain: Tensor | None = None, scale: float = 1.0) -> Linear:
    weight = module.weight.detach().float() * scale
    if gain is not None:
        weight = weight * (gain.detach().float() * math.sqrt(len(gain)))
    bias = getattr(module, "bias", None)
    return weight.to(dtype), None if bias is None else (bias.detach().float() * scale).to(dtype)


def _stacked(*parts: Linear) -> Linear:
    biases = [bias for _, bias in parts if bias is not None]
    return torch.cat([weight for weight, _ in parts]), (
        torch.cat(biases) if len(biases) == len(parts) else None
    )


def _add(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + y W' + b."""
    out = torch.addmm(x, y, weight.t())
    return out if bias is None else out + bias

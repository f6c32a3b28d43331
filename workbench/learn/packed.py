"""The backbone of a small Llama or Mixtral written out, forward and backward: no padding, nothing that nobody
asks for.

A minibatch of ragged episodes is a third padding, and half of the real tokens are the world's: they are
attended to and never predicted. So the rows are packed one after another, end at the last token that is
wanted, and the last layer has queries only where one is. The first layer's projections are made once for each
word of the vocabulary that occurs. Rows of like length attend together, padded among themselves. Equal to the
layers of transformers but for rounding; the experts of a mixture are its own module.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaModel, MixtralModel

from sorl.agent.routing import placed

_ROWS = 8  # that attend together: fewer are less padding, and more calls
# hidden size and tokens up to which it pays: it holds all scores of attention
_WIDEST = 256
_LONGEST = 512

# What depends on the number of heads, their width, and the norm's epsilon
Shape = tuple[int, int, float]


def supports(backbone: Any, tokens: Tensor) -> bool:
    """Return True for a plain, small Llama or Mixtral in float32 on the CPU and rows of moderate length."""
    if (
        type(backbone) not in (LlamaModel, MixtralModel)
        or tokens.shape[1] > _LONGEST
        or tokens.device.type != "cpu"
    ):
        return False
    config: Any = backbone.config
    heads: int = config.num_attention_heads
    layer: Any = backbone.layers[0]
    plain = [layer.self_attn.q_proj, layer.self_attn.v_proj]
    if type(backbone) is LlamaModel:
        plain += [layer.mlp.up_proj]
    return (
        config.hidden_size <= _WIDEST
        and config.num_key_value_heads == heads
        and layer.self_attn.head_dim * heads == config.hidden_size
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] == "default"
        and getattr(config, "sliding_window", None) is None
        and not backbone.gradient_checkpointing
        and all(type(one) is nn.Linear and one.bias is None for one in plain)
        and backbone.embed_tokens.weight.dtype == torch.float32
        and backbone.embed_tokens.weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


class Padded:
    """`count` (b,) rows of a packed tensor, padded to the longest of them: which entry each slot holds, and
    back.
    """

    def __init__(self, start: Tensor, count: Tensor, total: int) -> None:
        self.width = int(count.max())
        place = torch.arange(self.width)
        inside = place < count[:, None]
        slots = start[:, None] + place
        # padding holds some other entry, which nothing looks at
        self.read = slots.clamp(max=total - 1).view(-1)
        # padding has none: a zero that stands last
        self.gradient = torch.where(inside, slots, total).view(-1)
        self.back = inside.view(-1).nonzero().squeeze(1)


class Chunk(NamedTuple):
    """Rows that attend together: their tokens, those that ask in the last layer, and -inf where these look
    ahead.
    """

    tokens: Padded
    asking: Padded
    ahead: Tensor  # (L, L)
    ahead_asking: Tensor  # (b, 1, Q, L)


def _chunks(length: Tensor, count: Tensor, column: Tensor) -> list[Chunk]:
    """Rows of `length` (B,) tokens, of which `count` (B,) ask, at the places `column` (M,) of their rows."""
    first_token = length.cumsum(0) - length
    first_asking = count.cumsum(0) - count
    chunks = []
    for rows in torch.arange(int((length > 0).sum())).split(_ROWS):
        tokens = Padded(first_token[rows], length[rows], int(length.sum()))
        asking = Padded(first_asking[rows], count[rows], len(column))
        key = torch.arange(tokens.width)
        last = column[asking.read].view(len(rows), 1, -1, 1)
        ahead = torch.where(key > key[:, None], -math.inf, 0.0)
        ahead_asking = torch.where(key > last, -math.inf, 0.0)
        chunks.append(Chunk(tokens, asking, ahead, ahead_asking))
    return chunks


class Packing:
    """Which N tokens are read and which M ask, to predict what `where` (B, T) says; longest rows first."""

    def __init__(self, tokens: Tensor, where: Tensor) -> None:
        wanted = where[:, 1:]
        self.rows, self.columns = wanted.shape
        place = torch.arange(self.columns)
        length = torch.where(wanted, place + 1, 0).amax(1)
        order = length.argsort(descending=True, stable=True)
        length = length[order]
        wanted = wanted[order]
        inside = place < length[:, None]
        row, column = wanted.nonzero(as_tuple=True)
        self.position = place.expand_as(inside)[inside]  # (N,)
        self.read = order.repeat_interleave(length) * self.columns + self.position  # (N,) of B (T - 1)
        # (U,), and (N,) of these
        self.words, self.word = tokens[order, :-1][inside].unique(return_inverse=True)
        self.to = order[row] * self.columns + column  # (M,) of B (T - 1): where the answers belong
        start = length.cumsum(0) - length
        self.asking = start[row] + column  # (M,) of N
        self.chunks = _chunks(length, wanted.sum(1), column)

    def spread(self, x: Tensor) -> Tensor:
        """Put answers (M,) where they belong, (B, T); 0 elsewhere."""
        flat = x.new_zeros(self.rows * self.columns).index_copy(0, self.to, x)
        return F.pad(flat.view(self.rows, self.columns), (1, 0))


def hidden(backbone: Any, packing: Packing) -> Tensor:
    """Hidden states (M, H) after the last norm, of the tokens before those that are wanted; `supports` must
    hold.
    """
    config = backbone.config
    angle = torch.arange(packing.columns)[:, None] * backbone.rotary_emb.inv_freq
    rotation = torch.polar(torch.ones_like(angle), angle).repeat(1, 2 * config.num_attention_heads)
    turn = rotation[packing.position]
    shape = config.num_attention_heads, backbone.layers[0].self_attn.head_dim, config.rms_norm_eps
    x: Any = backbone.embed_tokens(packing.words)  # the module itself: what is hooked to it sees every pass
    for i, layer in enumerate(backbone.layers):
        attention = layer.self_attn
        mlp = layer.mlp
        after = layer.post_attention_layernorm.weight
        asks = i == len(backbone.layers) - 1
        modules = (
            layer.input_layernorm,
            attention.q_proj,
            attention.k_proj,
            attention.v_proj,
            attention.o_proj,
        )
        x = _Attention.apply(packing, turn, shape, i == 0, asks, x, *(module.weight for module in modules))
        if isinstance(backbone, LlamaModel):
            x = _Mlp.apply(shape, x, after, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
        else:
            with placed(mlp.gate, packing.to if asks else packing.read, (packing.rows, packing.columns)):
                x = x + mlp((_Unit.apply(x, config.rms_norm_eps) * after)[None])[0]
    return _Unit.apply(x, config.rms_norm_eps) * backbone.norm.weight


def _queries_keys_values(
    chunk: Chunk, mixed: Tensor, asked: Tensor | None, heads: int, width: int
) -> tuple[Tensor, ...]:
    """Queries, keys and values of a chunk by head, (b Hd, L, D) each, and -inf where a query must not look.

    `mixed` (N, 3 Hd D) has all three of every token. `asked` (M, Hd D): the queries of the last layer, where
    only tokens ask whose next one is wanted; None elsewhere.
    """
    read = chunk.tokens
    if asked is None:
        q, k, v = _by_head(mixed, read.read, read.width, heads, width)
        return q, k, v, chunk.ahead
    (q,) = _by_head(asked, chunk.asking.read, chunk.asking.width, heads, width)
    k, v = _by_head(mixed[:, heads * width :], read.read, read.width, heads, width)
    return q, k, v, chunk.ahead_asking


class _Attention(torch.autograd.Function):
    """x + attention of norm(x): (N, H), of the first layer from (U, H) by word, of the last (M, H) where it
    `asks`.

    The norm's gain and 1 / sqrt(D) are folded into the matrix that follows; the halves that RoPE turns are
    put next to each other, so that turning is one product of complex numbers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        packing: Packing,
        turn: Tensor,
        shape: Shape,
        first: bool,
        asks: bool,
        x: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        heads, width, eps = shape
        gain, wq, wk, wv, wo = weights
        size = heads * width
        plain = torch.cat([_paired(wq, heads) * width**-0.5, _paired(wk, heads), wv])
        mixer = plain * gain
        h, scale = _unit(x, eps)
        mixed = h @ mixer.t()
        if first:
            x = x.index_select(0, packing.word)
            mixed = mixed.index_select(0, packing.word)
        _turn(mixed[:, : 2 * size], turn)
        asked = None
        if asks:
            x = x.index_select(0, packing.asking)
            asked = mixed[:, :size].index_select(0, packing.asking)
        attended = []
        pieces = []
        for chunk in packing.chunks:
            q, k, v, ahead = _queries_keys_values(chunk, mixed, asked, heads, width)
            scores = torch.bmm(q, k.mT)
            scores.view(-1, heads, *scores.shape[1:]).add_(ahead)
            p = torch.softmax(scores, -1)
            back = chunk.asking.back if asks else chunk.tokens.back
            attended.append(_packed(torch.bmm(p, v)[None], back, heads))
            pieces.append((q, k, v, p))
        a = torch.cat(attended)
        ctx.save_for_backward(*weights)
        ctx.given = (packing, turn, shape, first, asks)
        ctx.kept = (h, scale, plain, mixer, pieces, a)
        return torch.addmm(x, a, wo.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = gradients
        (gain, *_, wo) = ctx.saved_tensors
        (packing, turn, (heads, width, _), first, asks) = ctx.given
        h, scale, plain, mixer, pieces, a = ctx.kept
        size = heads * width
        d_out = dx.t() @ a
        da = F.pad(dx @ wo, (0, 0, 0, 1))
        asked = []
        others = []
        for chunk, (q, k, v, p) in zip(packing.chunks, pieces, strict=True):
            own = chunk.asking if asks else chunk.tokens
            read = chunk.tokens.back
            (d,) = _by_head(da, own.gradient, own.width, heads, width)
            ds = torch._softmax_backward_data(torch.bmm(d, v.mT), p, -1, p.dtype)
            made = q.new_empty(2 if asks else 3, *k.shape)
            torch.bmm(ds.mT, q, out=made[-2])
            torch.bmm(p.mT, d, out=made[-1])
            if asks:
                asked.append(_packed(torch.bmm(ds, k)[None], own.back, heads))
            else:
                torch.bmm(ds, k, out=made[0])
            others.append(_packed(made, read, heads))
        d_mixed = torch.cat(others)
        if asks:
            dq, dx = (
                x.new_zeros(len(d_mixed), size).index_copy_(0, packing.asking, x)
                for x in (torch.cat(asked), dx)
            )
            d_mixed = torch.cat([dq, d_mixed], 1)
        _turn(d_mixed[:, : 2 * size], turn.conj())
        if first:
            d_mixed, dx = (
                x.new_zeros(len(h), x.shape[1]).index_add_(0, packing.word, x) for x in (d_mixed, dx)
            )
        d_weight = d_mixed.t() @ h
        dx = dx + _unit_back(d_mixed @ mixer, h, scale)
        d_gain = (d_weight * plain).sum(0)
        d_query, d_key, d_value = (d_weight * gain).split(size)
        d_query, d_key = (_paired(d, heads, -1, 2) for d in (d_query * width**-0.5, d_key))
        return None, None, None, None, None, dx, d_gain, d_query, d_key, d_value, d_out


class _Mlp(torch.autograd.Function):
    """x + down(silu(gate(h)) * up(h)) of h = norm(x), (N, H)."""

    @staticmethod
    def forward(ctx: Any, shape: Shape, x: Tensor, *weights: Tensor) -> Tensor:
        gain, gate, up, down = weights
        h, scale = _unit(x, shape[2])
        plain = torch.cat([gate, up])
        gate_up = plain * gain
        g, u = (h @ gate_up.t()).chunk(2, 1)
        sigmoid = torch.sigmoid(g)
        act = g * sigmoid
        inner = act * u
        ctx.save_for_backward(*weights)
        ctx.kept = h, scale, plain, gate_up, u, sigmoid, act, inner
        return torch.addmm(x, inner, down.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = gradients
        (gain, *_, down) = ctx.saved_tensors
        h, scale, plain, gate_up, u, sigmoid, act, inner = ctx.kept
        d_down = dx.t() @ inner
        d_inner = dx @ down
        slope = torch.addcmul(sigmoid, act, 1 - sigmoid)  # of g sigmoid(g)
        d_gate_up = act.new_empty(len(act), 2 * act.shape[1])
        torch.mul(slope.mul_(u), d_inner, out=d_gate_up[:, : act.shape[1]])
        torch.mul(act, d_inner, out=d_gate_up[:, act.shape[1] :])
        d_weight = d_gate_up.t() @ h
        d_gain = (d_weight * plain).sum(0)
        d_gate, d_up = (d_weight * gain).chunk(2)
        return None, dx + _unit_back(d_gate_up @ gate_up, h, scale), d_gain, d_gate, d_up, d_down


class _Unit(torch.autograd.Function):
    """RMSNorm without its gain, (N, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        ctx.kept = _unit(x, eps)
        h: Tensor = ctx.kept[0]
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _unit_back(gradients[0], *ctx.kept), None


def _unit(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm without its gain, and what it multiplied by, (N, 1)."""
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return x * scale, scale


def _unit_back(d: Tensor, h: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(d, h, (d * h).mean(-1, keepdim=True), value=-1).mul_(scale)


def _paired(weight: Tensor, heads: int, halves: int = 2, pairs: int = -1) -> Tensor:
    """Put row j + D / 2 of each head behind row j: RoPE turns these two as one complex number; -1, 2 puts
    them back.
    """
    return weight.view(heads, halves, pairs, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _turn(x: Tensor, turn: Tensor) -> None:
    """Turn pairs of `x` (N, 2 n) by unit numbers (N, n), in place."""
    torch.view_as_complex(x.view(len(x), -1, 2)).mul_(turn)


def _by_head(x: Tensor, slots: Tensor, rows: int, heads: int, width: int) -> Tensor:
    """Entries of `x` (N, n H) in padded rows, head by head: (n, b heads, rows, D)."""
    parts = x.index_select(0, slots).view(len(slots) // rows, rows, -1, heads, width)
    return parts.permute(2, 0, 3, 1, 4).reshape(parts.shape[2], -1, rows, width)


def _packed(x: Tensor, back: Tensor, heads: int) -> Tensor:
    """The reverse: (n, b heads, rows, D) without padding, (N, n H)."""
    n, _, rows, width = x.shape
    parts = x.view(n, -1, heads, rows, width).permute(1, 3, 0, 2, 4)
    return parts.reshape(-1, n * heads * width).index_select(0, back)

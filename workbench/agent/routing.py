"""The experts of a mixture-of-experts model in a forward pass: record which its routers choose, replay given
ones.

A route is what the routers chose where a token was read: the numbers of the top-k experts of each layer, L k
of them in a row. Entry t is that of the pass that predicts token t, so of the position before it, as a batch
is aligned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sorl.spec import InputError

_ROUTER = re.compile(r"top_?k_?router$", re.IGNORECASE)
# of the routers that read packed positions just now
_PLACES: dict[nn.Module, tuple[Tensor, tuple[int, int]]] = {}


def routers(model: nn.Module) -> list[Any]:
    """Return the routers of the model's layers, in order; none of a dense model."""
    return [
        m
        for m in model.modules()
        if _ROUTER.search(type(m).__name__) and isinstance(getattr(m, "top_k", None), int)
    ]


@dataclass
class Seen:
    """What the routers of a pass did, by layer: logits (N, E) with their graph, the experts (N, k) that they
    chose.
    """

    routers: list[Any]
    shape: tuple[int, int] = (0, 0)  # rows and positions of the pass, N of them together
    logits: dict[int, Tensor] = field(default_factory=dict)
    # under a replay what they would have taken by themselves
    chosen: dict[int, Tensor] = field(default_factory=dict)

    @property
    def routes(self) -> Tensor | None:
        """The chosen experts (B, n, L k); None of a dense model, or where a router chooses by other means
        than topk.
        """
        if not self.routers or len(self.chosen) < len(self.routers):
            return None
        kind = width_of(self.routers)
        return torch.cat([self.chosen[i].to(kind) for i in sorted(self.chosen)], -1).view(*self.shape, -1)

    @property
    def entropy(self) -> Tensor | None:
        """Entropy (B, n) of the routers' softmax over all experts, mean over layers, in nats; None of a dense
        model.
        """
        if not self.logits:
            return None
        log_p = [torch.log_softmax(x.detach().float(), -1) for x in self.logits.values()]
        return -torch.stack([(x.exp() * x).sum(-1) for x in log_p]).mean(0).view(self.shape)

    def balance(self, inside: Tensor) -> Tensor:
        """Load-balancing loss over the positions `inside` (B, n): E sum_e f_e p_e of transformers (Switch,
        eq. 4).
        """
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

        logits: Any = tuple(self.logits[i] for i in sorted(self.logits))
        loss: Any = load_balancing_loss_func(
            logits, logits[0].shape[-1], self.routers[0].top_k, inside.long()
        )
        return loss


def width_of(found: list[Any]) -> torch.dtype:
    """One byte an expert, two from 256 experts on; the number of experts itself stands for "not recorded"."""
    return torch.uint8 if max(experts_of(router) for router in found) < 256 else torch.int16


def experts_of(router: Any) -> int:
    """Return how many experts a router chooses from."""
    return int(router.weight.shape[0])


class _Given(TorchFunctionMode):
    """Inside a router's forward pass: its one torch.topk takes the experts `given` (N, k), if there are any.

    All that the architecture makes of the values, such as a softmax before or after and a normalisation,
    stays its own; so the gates are those of the present router, and the gradient reaches it through them.
    """

    def __init__(self, given: Tensor | None, experts: int) -> None:
        super().__init__()
        self.given = given
        self.experts = experts
        self.chosen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return out
        self.chosen.append(out.indices)
        if self.given is None or args[0].shape[-1] != self.experts:
            return out
        taken = torch.where(self.given == self.experts, out.indices, self.given.to(out.indices))
        return torch.return_types.topk((args[0].gather(-1, taken), taken))


@contextmanager
def placed(router: Any, places: Tensor, shape: tuple[int, int]) -> Iterator[None]:
    """Inside, this router reads the positions `places` (N,) of a pass of `shape` (B, n), packed one after
    another.
    """
    _PLACES[router] = places, shape
    try:
        yield
    finally:
        del _PLACES[router]


@contextmanager
def routed(model: nn.Module, replay: Tensor | None = None) -> Iterator[Seen]:
    """Record what the routers choose in the one forward pass inside; with `replay` (B, n, L k) the experts
    are those.

    Routers compute in float32 whatever the rest does. A dense model is left alone. Positions that a packed
    pass leaves unread have no route (the number of experts stands there), and logits of 0. Raises InputError
    where a router chooses its experts in several steps (groups of experts), which cannot be replayed as one.
    """
    seen = Seen(routers(model))
    split = (
        None if replay is None else replay.flatten(0, 1).split([router.top_k for router in seen.routers], -1)
    )

    def forward(i: int, router: Any, hidden: Tensor) -> Any:
        places, shape = _PLACES.get(router, (None, seen.shape))
        seen.shape = (hidden.shape[0], hidden.shape[1]) if hidden.dim() == 3 else shape

        def whole(x: Tensor, unread: int) -> Tensor:
            return (
                x
                if places is None
                else x.new_full((math.prod(shape), x.shape[1]), unread).index_copy(0, places, x)
            )

        given = None if split is None else split[i] if places is None else split[i].index_select(0, places)
        mode = _Given(None if given is None else given.to(hidden.device), experts_of(router))
        with torch.autocast(hidden.device.type, enabled=False), mode:
            out = type(router).forward(router, hidden.float())
        if replay is not None and len(mode.chosen) != 1:
            raise InputError(
                f"routing replay: {type(router).__name__} chooses its experts in {len(mode.chosen)} steps,"
                ' and only a single top-k can be replayed; set slots.routing = "none"'
            )
        logits = out[0] if isinstance(out, tuple) else out
        if mode.chosen:
            seen.chosen[i] = whole(mode.chosen[-1], experts_of(router))
        seen.logits[i] = whole(logits, 0)
        return out

    def shaped(_: nn.Module, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is not None:
            seen.shape = (ids.shape[0], ids.shape[1])

    for i, router in enumerate(seen.routers):
        router.forward = partial(forward, i, router)
    handle = model.register_forward_pre_hook(shaped, with_kwargs=True) if seen.routers else None
    try:
        yield seen
    finally:
        for router in seen.routers:
            del router.forward
        if handle is not None:
            handle.remove()


def differing(one: Tensor, other: Tensor, layers: int) -> Tensor:
    """Share of the layers whose sets of experts differ between two routes (..., L k), (...), float32."""
    a, b = (x.unflatten(-1, (layers, -1)).sort(-1).values for x in (one, other))
    return (a != b).any(-1).float().mean(-1)


def load(routes: Tensor, layers: int, experts: int) -> Tensor:
    """Assignments of each expert of each layer (L, E) in routes (N, L k)."""
    by_layer = routes.unflatten(-1, (layers, -1)).permute(1, 0, 2).flatten(1).long()
    counts = torch.zeros(layers, experts + 1, device=routes.device)
    return counts.scatter_add_(1, by_layer, torch.ones_like(by_layer, dtype=counts.dtype))[:, :experts]

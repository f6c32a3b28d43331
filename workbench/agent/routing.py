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


def width_of(model_routers: list[Any]) -> torch.dtype:
    """One byte an expert, two from 256 experts on; the number of experts itself stands for "not recorded"."""
    return torch.uint8 if max(experts_of(router) for router in model_routers) < 256 else torch.int16


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


class _Recording:
    """The forward passes of a model's routers: what they choose goes to `seen`, and with `replay`
    (B, n, L k) they take those experts.
    """

    def __init__(self, seen: Seen, replay: Tensor | None) -> None:
        self._seen = seen
        self._replayed: list[Tensor] | None = None  # of each router, (B n, k)
        if replay is not None:
            widths = [router.top_k for router in seen.routers]
            self._replayed = list(replay.flatten(0, 1).split(widths, -1))

    def forward(self, number: int, router: Any, hidden: Tensor) -> Any:
        """What router `number` returns for `hidden`, in float32."""
        places, shape = _PLACES.get(router, (None, self._seen.shape))
        self._seen.shape = (hidden.shape[0], hidden.shape[1]) if hidden.dim() == 3 else shape
        experts = experts_of(router)
        mode = _Given(self._experts_to_take(number, places, hidden.device), experts)
        with torch.autocast(hidden.device.type, enabled=False), mode:
            out = type(router).forward(router, hidden.float())
        if self._replayed is not None and len(mode.chosen) != 1:
            raise InputError(
                f"routing replay: {type(router).__name__} chooses its experts in {len(mode.chosen)} steps,"
                ' and only a single top-k can be replayed; set slots.routing = "none"'
            )
        if mode.chosen:
            self._seen.chosen[number] = _unpacked(mode.chosen[-1], places, shape, experts)
        logits = out[0] if isinstance(out, tuple) else out
        self._seen.logits[number] = _unpacked(logits, places, shape, 0)
        return out

    def _experts_to_take(self, number: int, places: Tensor | None, device: torch.device) -> Tensor | None:
        """The experts (N, k) that router `number` has to take; None where it chooses by itself."""
        if self._replayed is None:
            return None
        experts = self._replayed[number]
        if places is not None:
            experts = experts.index_select(0, places)
        return experts.to(device)

    def note_shape(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        """Before a pass of the model: remember the shape (B, n) of its tokens."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is not None:
            self._seen.shape = (ids.shape[0], ids.shape[1])


def _unpacked(x: Tensor, places: Tensor | None, shape: tuple[int, int], unread: int) -> Tensor:
    """Rows (N, ...) of a packed pass in their places of a pass of `shape` (B, n), with `unread` elsewhere."""
    if places is None:
        return x
    return x.new_full((math.prod(shape), x.shape[1]), unread).index_copy(0, places, x)


@contextmanager
def routed(model: nn.Module, replay: Tensor | None = None) -> Iterator[Seen]:
    """Record what the routers choose in the one forward pass inside; with `replay` (B, n, L k) the experts
    are those.

    Routers compute in float32 whatever the rest does. A dense model is left alone. Positions that a packed
    pass leaves unread have no route (the number of experts stands there), and logits of 0. Raises InputError
    where a router chooses its experts in several steps (groups of experts), which cannot be replayed as one.
    """
    seen = Seen(routers(model))
    recording = _Recording(seen, replay)
    for number, router in enumerate(seen.routers):
        router.forward = partial(recording.forward, number, router)
    hook = None
    if seen.routers:
        hook = model.register_forward_pre_hook(recording.note_shape, with_kwargs=True)
    try:
        yield seen
    finally:
        for router in seen.routers:
            del router.forward
        if hook is not None:
            hook.remove()


def differing(routes: Tensor, other_routes: Tensor, layers: int) -> Tensor:
    """Share of the layers whose sets of experts differ between two routes (..., L k), (...), float32."""
    a, b = (x.unflatten(-1, (layers, -1)).sort(-1).values for x in (routes, other_routes))
    return (a != b).any(-1).float().mean(-1)


def load(routes: Tensor, layers: int, experts: int) -> Tensor:
    """Assignments of each expert of each layer (L, E) in routes (N, L k)."""
    by_layer = routes.unflatten(-1, (layers, -1)).permute(1, 0, 2).flatten(1).long()
    counts = torch.zeros(layers, experts + 1, device=routes.device)
    return counts.scatter_add_(1, by_layer, torch.ones_like(by_layer, dtype=counts.dtype))[:, :experts]

"""Witnesses of weights that are too large to store: a few numbers a layer, from fixed entries of its tensors.

A fingerprint is the sum of up to 65,536 entries of each tensor, with random signs. Places and signs follow
from the tensor's name and size alone, so every machine, rank and precision looks at the same entries. Two
fingerprints are equal if the weights are, and by chance almost never otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_ENTRIES = 65_536  # of a tensor
CHECKSUM_BITS = 48  # a DOUBLE holds them exactly

Named = Iterable[tuple[str, Any]]

# What wrappers put into the names of parameters.
_WRAPPERS = re.compile(r"^(?:module\.)+|_orig_mod\.|_checkpoint_wrapped_module\.")
_BLOCK = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|h)\.(\d+)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|v_head|value_head|score|embed_out|output_layer)(?:\.|$)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:\w*embed\w*|wte|wpe)(?:\.|$)")
_FSDP = ("_fsdp_wrapped_module", "_flat_param")


class Sharded(ValueError):
    """The weights are spread over ranks, and no rank has a whole tensor at hand."""


def plain_name(name: str) -> str:
    """The name of a parameter without what wrappers (DDP, torch.compile, checkpointing) put into it."""
    return _WRAPPERS.sub("", name)


def layer_of(name: str) -> str:
    """The layer group of a parameter: `layer 3`, `embedding`, `head` or `rest`."""
    block = _BLOCK.search(name)
    if block is not None:
        return f"layer {int(block[1])}"
    if _HEAD.search(name):
        return "head"
    return "embedding" if _EMBEDDING.search(name) else "rest"


def random_bits(name: str, size: int, count: int) -> np.ndarray:
    """`count` random numbers of 64 bits that depend on a tensor's name and size alone (SplitMix64)."""
    digest = blake2b(f"{name} {size}".encode(), digest_size=8).digest()
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += np.frombuffer(digest, dtype="<u8")
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


@dataclass(frozen=True)
class Marks:
    """Which entries of a tensor are looked at, in row-major order, and their signs; `places` None: all."""

    places: Tensor | None  # (n,)
    signs: Tensor  # (n,) int8

    @classmethod
    def of(cls, name: str, size: int, device: torch.device) -> Marks:
        """Return the marks of a tensor of this name and size.

        One place in each of n stretches of equal length: n / size of any part of the tensor is looked at on
        average, and size / n times a sum over the places estimates the sum over the tensor without bias.
        """
        import torch

        count = min(size, MOST_ENTRIES)
        bits = random_bits(name, size, count)
        signs = torch.from_numpy(np.where(bits & np.uint64(1), 1, -1).astype(np.int8)).to(device)
        if count == size:
            return cls(None, signs)
        fraction = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        places = np.floor((np.arange(count) + fraction) * (size / count)).astype(np.int64)
        kind = np.int32 if size < 2**31 else np.int64
        return cls(torch.from_numpy(np.minimum(places, size - 1).astype(kind)).to(device), signs)


@dataclass
class Layer:
    """The tensors of a layer group, by their plain names."""

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def sampled(self) -> int:
        """How many of them are looked at."""
        return sum(min(tensor.numel(), MOST_ENTRIES) for tensor in self.tensors.values())

    @property
    def trainable(self) -> bool:
        """Whether any of them is to be trained."""
        return any(tensor.requires_grad for tensor in self.tensors.values())

    @property
    def dtype(self) -> str:
        """The coarsest number format among its tensors."""
        import torch

        kinds = {tensor.dtype for tensor in self.tensors.values()}
        coarsest = max(kinds, key=lambda kind: torch.finfo(kind).eps if kind.is_floating_point else 1.0)
        return str(coarsest).removeprefix("torch.")


def layers_of(named: Named) -> dict[str, Layer]:
    """Return the layer groups of a network, by name; a tensor with two names (a tied head) counts once.

    Raises Sharded where a tensor is not whole.
    """
    layers: dict[str, Layer] = {}
    known = set[tuple[int, int]]()
    for name, tensor in named:
        refuse_sharded(name, tensor)
        identity = (tensor.data_ptr(), tensor.numel())
        if tensor.numel() == 0 or identity in known:
            continue
        known.add(identity)
        plain = plain_name(name)
        layer = layer_of(plain)
        layers.setdefault(layer, Layer(layer)).tensors[plain] = tensor
    return layers


def refuse_sharded(name: str, tensor: Any) -> None:
    """Raise Sharded for a tensor of which this process has a part at most."""
    spread = hasattr(tensor, "placements") or hasattr(tensor, "ds_id") or tensor.is_meta
    if spread or any(mark in name for mark in _FSDP):
        raise Sharded(f"'{name}' is spread over ranks (FSDP, ZeRO-3), so its network is not witnessed")


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norms of tensors of one device, summed in float32 or wider, (n,) float64."""
    import torch

    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        found = list(torch._foreach_norm(list(tensors)))
    else:
        found = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return torch.stack([_wide(one) for one in found])


def _wide(values: Tensor) -> Tensor:
    """`values` in float64, which a GPU of Apple does not know."""
    return values.cpu().double() if values.device.type == "mps" else values.double()


def describe(optimizer: Any) -> str | None:
    """What decides how far an optimizer of torch goes, as JSON; None where its groups differ in that."""
    described: dict[str, Any] = {"kind": type(optimizer).__name__}
    groups = optimizer.param_groups
    for name in ("betas", "momentum"):
        values = {json.dumps(group[name]) for group in groups if name in group}
        if len(values) > 1:
            return None
        if values:
            described[name] = json.loads(values.pop())
    decays = [float(group["weight_decay"]) for group in groups if "weight_decay" in group]
    return json.dumps(described | {"weight_decay": max(decays, default=0.0)})


@dataclass
class Look:
    """A layer at one moment: the entries looked at, and sums of them that wait on the device."""

    layer: Layer
    entries: Tensor  # (n,) of all its tensors, one after another
    sums: Tensor  # float64: fingerprint, the same in bfloat16, norm of the entries, norm of all weights


class Witness:
    """Takes the numbers of one network at the start and at the end of each step.

    `start` and `finish` leave their sums on the device; `rows` fetches all of them at once. `watch` counts
    the steps of its optimizer, and how far its gradients and learning rates can carry each layer.
    """

    def __init__(self, network: str) -> None:
        self.network = network
        self.of_step: int | None = None  # the step whose weights a sampler claims to have
        self.trainable: bool | None = None  # whether the network is meant to move; None: as its tensors say
        self.optimizer: Any = None
        self._marks: dict[tuple[str, int, Any], Marks] = {}
        self._places: dict[int, int] = {}  # of each parameter: the number of its layer
        self.forget()

    def forget(self) -> None:
        """Begin a step of which nothing is known."""
        self.looks: dict[str, Look] = {}
        self._ends: dict[str, Tensor] = {}  # fingerprint, moved, moved_least
        self._steps = 0
        self._paths: Tensor | None = None
        self._rates: list[float] = []

    def watch(self, optimizer: Any) -> None:
        """Look at each step of this optimizer from now on; nothing is known of one that is not torch's."""
        if optimizer is not self.optimizer and hasattr(optimizer, "register_step_pre_hook"):
            self.optimizer = optimizer
            optimizer.register_step_pre_hook(self._before_step)

    def start(self, named: Named, of_step: int | None = None, trainable: bool | None = None) -> None:
        """Look at the weights at the start of a step; `trainable` None: as the tensors say."""
        self.forget()
        self.of_step = of_step
        self.trainable = trainable
        layers = layers_of(named)
        self.looks = {name: self._look(layer) for name, layer in layers.items()}
        self._rates = [0.0] * len(layers)
        self._places = {}
        for number, layer in enumerate(layers.values()):
            for tensor in layer.tensors.values():
                self._places[id(tensor)] = number

    def finish(self, named: Named) -> None:
        """Look at the same weights at the end of the step."""
        import torch

        with torch.no_grad():
            for name, layer in layers_of(named).items():
                if name in self.looks:
                    self._ends[name] = self._moved(self.looks[name], layer)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the step, one a layer; None is what was not looked at."""
        starts = dict(zip(self.looks, _fetched([look.sums for look in self.looks.values()]), strict=True))
        ends = dict(zip(self._ends, _fetched(list(self._ends.values())), strict=True))
        paths = _fetched([] if self._paths is None else [self._paths])
        rows = []
        for number, (name, look) in enumerate(self.looks.items()):
            row = self._row(look, starts[name], ends.get(name))
            if self._steers() and name in ends:
                row |= {
                    "optimizer": describe(self.optimizer),
                    "optimizer_steps": self._steps,
                    "lr_sum": self._rates[number],
                    "gradient_path": paths[0][number] if paths else 0.0,
                }
            rows.append(row)
        return rows

    def _steers(self) -> bool:
        """Whether the optimizer that is watched has these very tensors, and no copies of them."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        parameters = chain.from_iterable(group["params"] for group in groups)
        return any(id(parameter) in self._places for parameter in parameters)

    def _row(self, look: Look, start: Sequence[float], end: Sequence[float] | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "network": self.network,
            "layer": look.layer.name,
            "parameters": look.layer.parameters,
            "sampled": look.layer.sampled,
            "trainable": look.layer.trainable if self.trainable is None else self.trainable,
            "dtype": look.layer.dtype,
            "of_step": self.of_step,
        }
        names = ("fingerprint_start", "fingerprint_bfloat16", "fingerprint_norm", "weight_norm")
        row |= dict(zip(names, start, strict=True))
        ending = ("fingerprint_end", "moved", "moved_least")
        return row | dict(zip(ending, end or (None, None, None), strict=True))

    def _mark(self, name: str, tensor: Tensor) -> Marks:
        key = (name, tensor.numel(), tensor.device)
        if key not in self._marks:
            self._marks[key] = Marks.of(name, tensor.numel(), tensor.device)
        return self._marks[key]

    def _look(self, layer: Layer) -> Look:
        import torch

        with torch.no_grad():
            entries = self._entries(layer)
            signed = self._signs(layer)
            wide = _wide(entries)
            rounded = _wide(entries.to(torch.bfloat16))
            all_norms = norms([tensor.detach() for tensor in layer.tensors.values()])
            sums = [(signed * wide).sum(), (signed * rounded).sum()]
            sums += [torch.linalg.vector_norm(wide), torch.linalg.vector_norm(all_norms)]
            return Look(layer, entries, torch.stack(sums))

    def _entries(self, layer: Layer) -> Tensor:
        """The entries that are looked at, (n,), a copy."""
        import torch

        parts = []
        for name, tensor in layer.tensors.items():
            flat = tensor.detach().reshape(-1)
            places = self._mark(name, tensor).places
            parts.append(flat if places is None else flat.index_select(0, places))
        device = parts[0].device
        return torch.cat([part.to(device) for part in parts])

    def _signs(self, layer: Layer) -> Tensor:
        import torch

        signs = [self._mark(name, tensor).signs for name, tensor in layer.tensors.items()]
        return _wide(torch.cat([one.to(signs[0].device) for one in signs]))

    def _moved(self, look: Look, layer: Layer) -> Tensor:
        """Fingerprint at the end, estimated norm of the step, norm of the step of the entries alone."""
        import torch

        entries = self._entries(layer)
        after = _wide(entries)
        sizes = [min(tensor.numel(), MOST_ENTRIES) for tensor in layer.tensors.values()]
        squares = (after - _wide(look.entries)).square()
        if layer.sampled == layer.parameters:
            total = squares.sum()
        else:
            shares = [tensor.numel() / n for tensor, n in zip(layer.tensors.values(), sizes, strict=True)]
            parts = [part.sum() * share for part, share in zip(squares.split(sizes), shares, strict=True)]
            total = torch.stack(parts).sum()
        return torch.stack([(self._signs(layer) * after).sum(), total.sqrt(), squares.sum().sqrt()])

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        """Add up what a step of the optimizer is made of; a gradient of another kind is left out."""
        import torch

        if not self.looks:
            return
        self._steps += 1
        gradients: list[Tensor] = []
        places: list[int] = []
        rates: list[float] = []
        highest = [0.0] * len(self.looks)
        for group in optimizer.param_groups:
            rate = float(group["lr"])
            for parameter in group["params"]:
                place = self._places.get(id(parameter))
                if place is None:
                    continue
                highest[place] = max(highest[place], rate)
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    gradients.append(parameter.grad.detach())
                    places.append(place)
                    rates.append(rate)
        self._rates = [total + rate for total, rate in zip(self._rates, highest, strict=True)]
        if not gradients:
            return
        with torch.no_grad():
            moves = norms(gradients)
            moves = moves * torch.tensor(rates, dtype=moves.dtype, device=moves.device)
            squares = moves.new_zeros(len(self.looks))
            squares.index_add_(0, torch.tensor(places, device=moves.device), moves.square())
            self._paths = squares.sqrt() if self._paths is None else self._paths + squares.sqrt()


def _fetched(sums: Sequence[Tensor]) -> list[list[float]]:
    """Return sums of one length as lists: one transfer from the device."""
    import torch

    if not sums:
        return []
    rows: list[list[float]] = torch.stack([one.to(sums[0].device) for one in sums]).tolist()
    return rows


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows with the same or fewer names as columns; what a row lacks is None."""
    columns: dict[str, list[Any]] = {name: [] for name in chain.from_iterable(rows)}
    for name, values in columns.items():
        values += [row.get(name) for row in rows]
    return columns


# ---- tokens ----


def row_checksum(tokens: np.ndarray, mask: np.ndarray) -> int:
    """Checksum of the tokens of a row and its loss mask, up to the last token that is trained on."""
    from sorl.diagnostics.evidence import fingerprint  # not needed in another trainer's process

    end = int(np.flatnonzero(mask).max(initial=-1)) + 1
    ids = np.ascontiguousarray(tokens[:end], dtype=np.int64)
    return fingerprint(ids.tobytes(), np.ascontiguousarray(mask[:end], dtype=bool).tobytes())


def total_checksum(checksums: Iterable[int]) -> int:
    """One checksum of rows in any order."""
    return sum(checksums) % 2**CHECKSUM_BITS


def trained_rows(checksums: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the checksums of the rows that were trained on, each (trajectory, checksum) once: a row that
    differs between two updates counts twice.
    """
    for _, checksum in sorted(set(checksums)):
        yield checksum

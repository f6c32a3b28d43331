"""Witnesses of weights that are too large to store: a few numbers a layer, from fixed entries of its tensors.

A fingerprint is the sum of up to 16,384 entries of each tensor, with random signs. Places and signs follow
from the tensor's name and size alone, so every machine, rank and precision looks at the same entries. Two
fingerprints are equal if the weights are, and by chance almost never otherwise.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_ENTRIES = 16_384  # of a tensor
MOST_TOGETHER = 4_000_000  # entries of the layers that are looked at together
CHECKSUM_BITS = 48  # a DOUBLE holds them exactly

log = logging.getLogger("sorl.recording")

Named = Iterable[tuple[str, Any]]
Rows = list[list[float]]

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


def scrambled(state: np.ndarray) -> np.ndarray:
    """Numbers of 64 bits as random ones, each from its own alone (the last part of SplitMix64)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def counted(count: int) -> np.ndarray:
    """The first numbers of SplitMix64 before they are scrambled, (count,)."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def random_bits(name: str, size: int, count: int) -> np.ndarray:
    """`count` random numbers of 64 bits that depend on a tensor's name and size alone (SplitMix64)."""
    digest = blake2b(f"{name} {size}".encode(), digest_size=8).digest()
    return scrambled(counted(count) + np.frombuffer(digest, dtype="<u8"))


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

    @cached_property
    def parameters(self) -> int:
        """How many numbers it has."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @cached_property
    def sampled(self) -> int:
        """How many of them are looked at."""
        return sum(min(tensor.numel(), MOST_ENTRIES) for tensor in self.tensors.values())

    @property
    def device(self) -> Any:
        """Where it is; of one that is spread over devices its first part."""
        return next(iter(self.tensors.values())).device

    def by_device(self) -> list[Layer]:
        """Its parts, one a device."""
        parts: dict[Any, Layer] = {}
        for name, tensor in self.tensors.items():
            parts.setdefault(tensor.device, Layer(self.name)).tensors[name] = tensor
        return list(parts.values())

    @property
    def trainable(self) -> bool:
        """Whether any of them is to be trained."""
        return any(tensor.requires_grad for tensor in self.tensors.values())

    @cached_property
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

    return _wide(torch.stack(norms_apart(tensors)))


def norms_apart(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """L2 norms of tensors of one device, summed in float32 or wider, each a tensor without axes."""
    import torch

    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        return torch._foreach_norm(list(tensors))
    return tuple(torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors)


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


class Chunk:
    """Layers of one device that are looked at together: their entries in one vector, tensor after tensor."""

    def __init__(self, layers: Sequence[Layer], marks: Callable[[str, Tensor], Marks]) -> None:
        import torch

        self.layers = layers
        self.tensors: list[Tensor] = []
        self.marks: list[Marks] = []
        numbers: list[int] = []  # of the layer of each tensor
        for number, layer in enumerate(layers):
            for name, tensor in layer.tensors.items():
                self.tensors.append(tensor)
                self.marks.append(marks(name, tensor))
                numbers.append(number)
        device = _wide(self.tensors[0].detach().reshape(-1)[:0]).device
        lengths = torch.tensor([len(one.signs) for one in self.marks])
        sizes = torch.tensor([tensor.numel() for tensor in self.tensors])
        self.is_whole = bool((lengths == sizes).all())
        if self.is_whole:  # a layer is summed at once
            lengths = torch.tensor([layer.sampled for layer in layers])
            sizes = lengths
            numbers = list(range(len(layers)))
        self.lengths: list[int] = lengths.tolist()
        self.shares = (sizes / lengths).double().to(device)  # numbers that an entry stands for
        self.numbers = torch.tensor(numbers, device=device)
        self.signs = _wide(torch.cat([one.signs for one in self.marks]))
        # Used again in each step: fresh memory costs more than the sums.
        kind = reduce(torch.promote_types, [tensor.dtype for tensor in self.tensors])
        self._first, self._last = (
            torch.empty(len(self.signs), dtype=kind, device=self.tensors[0].device) for _ in range(2)
        )
        self._flat = [tensor.detach().reshape(-1) for tensor in self.tensors]
        self._wide = torch.empty_like(self.signs)
        self._signs_apart = self.signs.split(self.lengths)
        self._wide_apart = self._wide.split(self.lengths)

    def _read(self, into: Tensor) -> Tensor:
        """Put the entries as they are now, (n,), into a buffer."""
        import torch

        for number, tensor in enumerate(self.tensors):
            # The numbers were moved, or the tensor is not contiguous and this is a copy of them.
            if self._flat[number].data_ptr() != tensor.data_ptr():
                self._flat[number] = tensor.detach().reshape(-1)
        parts = [
            flat if one.places is None else flat.index_select(0, one.places)
            for flat, one in zip(self._flat, self.marks, strict=True)
        ]
        return torch.cat(parts, out=into)

    def _fingerprints(self) -> list[Tensor]:
        """Sums of the wide entries with their signs: of each tensor, or of each layer that is whole."""
        import torch

        return [torch.dot(*pair) for pair in zip(self._signs_apart, self._wide_apart, strict=True)]

    def _squares(self) -> list[Tensor]:
        """Sums of the squares of the wide entries: of each tensor, or of each layer that is whole."""
        import torch

        return [torch.dot(part, part) for part in self._wide_apart]

    def by_layer(self, stacked: Tensor) -> Tensor:
        """Several such sums, (k, tensors or layers), as those of each layer, (k, layers)."""
        if self.is_whole:
            return stacked
        total = stacked.new_zeros(len(stacked), len(self.layers))
        return total.index_add_(1, self.numbers, stacked)

    def start(self, rounded: bool) -> Tensor:
        """Fingerprints, squares of the entries and of all weights, (3 or 4, layers)."""
        import torch

        entries = self._read(self._first)
        self._wide.copy_(entries)
        sums = self._fingerprints() + self._squares()
        if rounded:
            self._wide.copy_(entries.to(torch.bfloat16))
            sums += self._fingerprints()
        stacked = torch.stack(sums).reshape(-1, len(self.lengths))
        whole = stacked[1]
        if not self.is_whole:
            whole = norms([tensor.detach() for tensor in self.tensors]).square()
        return self.by_layer(torch.cat([stacked[:2], whole[None], stacked[2:]]))

    def end(self) -> Tensor:
        """Fingerprints, and squares of how far all weights (estimated) and the entries moved, (3, layers)."""
        import torch

        self._wide.copy_(self._read(self._last))
        fingerprints = self._fingerprints()
        self._wide.sub_(self._first.to(self._wide.device))
        stacked = torch.stack(fingerprints + self._squares()).reshape(2, len(self.lengths))
        return self.by_layer(torch.stack([stacked[0], stacked[1] * self.shares, stacked[1]]))


class Plan:
    """What is looked at in a network: its layers, in chunks of bounded size."""

    def __init__(self, named: Sequence[tuple[str, Any]], marks: Callable[[str, Tensor], Marks]) -> None:
        self.tensors = [tensor for _, tensor in named]
        self.layers = list(layers_of(named).values())
        parts: list[list[Layer]] = []
        size = 0
        for layer in chain.from_iterable(layer.by_device() for layer in self.layers):
            size += layer.sampled
            is_full = size > MOST_TOGETHER or not parts or parts[-1][0].device != layer.device
            if is_full:
                parts.append([])
                size = layer.sampled
            parts[-1].append(layer)
        self.chunks = [Chunk(part, marks) for part in parts]

    def fits(self, named: Sequence[tuple[str, Any]]) -> bool:
        """Whether these are the very tensors of the plan, or views of them."""
        pairs = zip(self.tensors, (tensor for _, tensor in named), strict=False)
        return len(named) == len(self.tensors) and all(is_same(*pair) for pair in pairs)


def is_same(first: Tensor, other: Tensor) -> bool:
    """Whether two tensors share the same numbers."""
    if first is other:
        return True
    is_alike = (first.shape, first.dtype) == (other.shape, other.dtype)
    return is_alike and first.data_ptr() == other.data_ptr()


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
        self._plan: Plan | None = None
        self._places: dict[int, int] = {}  # of each parameter: the number of its layer
        self.forget()

    def forget(self) -> None:
        """Begin a step of which nothing is known."""
        self._starts: list[Tensor] = []  # of each chunk
        self._ends: list[Tensor] = []
        self._paths: list[Path] | None = []  # of each step of the optimizer; None: they are not known

    def watch(self, optimizer: Any) -> None:
        """Look at each step of this optimizer from now on; nothing is known of one that is not torch's."""
        if optimizer is not self.optimizer and hasattr(optimizer, "register_step_pre_hook"):
            self.optimizer = optimizer
            optimizer.register_step_pre_hook(self._before_step)

    def start(self, named: Named, of_step: int | None = None, trainable: bool | None = None) -> None:
        """Look at the weights at the start of a step; `trainable` None: as the tensors say."""
        import torch

        self.forget()
        self.of_step = of_step
        self.trainable = trainable
        plan = self._planned(list(named))
        is_rounded = self.network != "critic" and self.network != "reference"
        with torch.no_grad():
            self._starts = [chunk.start(is_rounded) for chunk in plan.chunks]

    def finish(self, named: Named) -> None:
        """Look at the same weights at the end of the step."""
        import torch

        named = list(named)
        if self._plan is None or not self._starts:
            return
        if not self._plan.fits(named):
            raise ValueError("the weights at the end of a step are other tensors than at its start")
        with torch.no_grad():
            self._ends = [chunk.end() for chunk in self._plan.chunks]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the step, one a layer; None is what was not looked at."""
        if not self._starts or self._plan is None:
            return []
        paths = self._paths if self._ends and self._steers() else None
        gradients = _together([path.norms for path in paths or () if path.norms])
        starts, ends, lengths = _fetched([self._starts, self._ends, gradients])
        of_start = _added(self._plan.chunks, starts)
        of_end = _added(self._plan.chunks, ends)
        layers = self._plan.layers
        rows = [self._row(layer, of_start[layer.name], of_end.get(layer.name)) for layer in layers]
        if paths is not None:
            for row, steered in zip(rows, self._steered(paths, lengths), strict=True):
                row |= steered
        return rows

    def _steered(self, paths: Sequence[Path], lengths: Sequence[Rows]) -> list[dict[str, Any]]:
        """What the optimizer did to each layer, from the norms of its gradients."""
        count = len(self._plan.layers) if self._plan is not None else 0
        fetched = iter(lengths)
        walked = [0.0] * count
        for path in paths:
            if path.norms:
                walked = [a + b for a, b in zip(walked, path.lengths(next(fetched)[0], count), strict=True)]
        common = {"optimizer": describe(self.optimizer), "optimizer_steps": len(paths)}
        rows = []
        for number in range(count):
            rate = sum(path.highest.get(number, 0.0) for path in paths)
            rows.append({**common, "lr_sum": rate, "gradient_path": walked[number]})
        return rows

    def _planned(self, named: list[tuple[str, Any]]) -> Plan:
        """The plan of these tensors; the last one where they are the same."""
        if self._plan is None or not self._plan.fits(named):
            self._plan = Plan(named, self._mark)
            self._places = {}
            for number, layer in enumerate(self._plan.layers):
                for tensor in layer.tensors.values():
                    self._places[id(tensor)] = number
        return self._plan

    def _mark(self, name: str, tensor: Tensor) -> Marks:
        key = (name, tensor.numel(), tensor.device)
        if key not in self._marks:
            self._marks[key] = Marks.of(name, tensor.numel(), tensor.device)
        return self._marks[key]

    def _steers(self) -> bool:
        """Whether the optimizer that is watched has these very tensors, and no copies of them."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        parameters = chain.from_iterable(group["params"] for group in groups)
        return any(id(parameter) in self._places for parameter in parameters)

    def _row(self, layer: Layer, start: Sequence[float], end: Sequence[float] | None) -> dict[str, Any]:
        return {
            "network": self.network,
            "layer": layer.name,
            "parameters": layer.parameters,
            "sampled": layer.sampled,
            "trainable": layer.trainable if self.trainable is None else self.trainable,
            "dtype": layer.dtype,
            "of_step": self.of_step,
            "weight_norm": math.sqrt(start[2]),
            "moved": None if end is None else math.sqrt(end[1]),
            "moved_least": None if end is None else math.sqrt(end[2]),
            "fingerprint_start": start[0],
            "fingerprint_end": None if end is None else end[0],
            "fingerprint_bfloat16": start[3] if len(start) > 3 else None,
            "fingerprint_norm": math.sqrt(start[1]),
        }

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        """Look at a step that the optimizer is about to take; a mistake must not stop training."""
        if not self._starts or self._paths is None:
            return
        import torch

        try:
            with torch.no_grad():
                self._paths.append(Path.of(optimizer, self._places))
        except Exception as error:  # noqa: BLE001  whatever an optimizer holds, training goes on
            self._paths = None
            log.warning("the steps of an optimizer are not witnessed: %s: %s", type(error).__name__, error)


@dataclass(frozen=True)
class Path:
    """A step that an optimizer is about to take: learning rates and gradients."""

    highest: dict[int, float]  # learning rate of each layer, by its number
    places: list[int]  # of each gradient: the number of its layer
    rates: list[float]
    norms: tuple[Tensor, ...]  # of each gradient, on its device

    @classmethod
    def of(cls, optimizer: Any, layers: Mapping[int, int]) -> Path:
        """Look at an optimizer; `layers`: the number of the layer of each parameter, by its id."""
        highest: dict[int, float] = {}
        gradients: list[Tensor] = []
        places: list[int] = []
        rates: list[float] = []
        for group in optimizer.param_groups:
            rate = float(group["lr"])
            for parameter in group["params"]:
                place = layers.get(id(parameter))
                if place is None:
                    continue
                highest[place] = max(highest.get(place, 0.0), rate)
                if parameter.grad is not None:
                    gradients.append(parameter.grad)
                    places.append(place)
                    rates.append(rate)
        return cls(highest, places, rates, norms_apart(gradients) if gradients else ())

    def lengths(self, norms: Sequence[float], layers: int) -> list[float]:
        """Learning rate times norm of the gradient, of each layer."""
        squares = [0.0] * layers
        for place, rate, norm in zip(self.places, self.rates, norms, strict=True):
            squares[place] += (rate * norm) ** 2
        return [math.sqrt(square) for square in squares]


def _together(groups: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Numbers of several groups as matrices with one row, one a group: all are widened in one call."""
    import torch

    if not groups:
        return []
    device = groups[0][0].device  # a model may be spread over several
    stacked = _wide(torch.stack([number.to(device) for number in chain.from_iterable(groups)]))
    lengths = [len(group) for group in groups]
    return [part[None] for part in stacked.split(lengths)]


def _added(chunks: Sequence[Chunk], sums: Sequence[Rows]) -> dict[str, list[float]]:
    """The sums of each layer by its name; the parts of a layer on several devices are added up."""
    found: dict[str, list[float]] = {}
    for chunk, rows in zip(chunks, sums, strict=False):
        for layer, own in zip(chunk.layers, zip(*rows, strict=True), strict=True):
            before = found.get(layer.name, [0.0] * len(own))
            found[layer.name] = [a + b for a, b in zip(before, own, strict=True)]
    return found


def _fetched(groups: Sequence[Sequence[Tensor]]) -> list[list[Rows]]:
    """Return the matrices of each group as lists: one transfer from the device."""
    import torch

    every = list(chain.from_iterable(groups))
    device = every[0].device
    values: list[float] = torch.cat([one.reshape(-1).to(device) for one in every]).tolist()
    fetched: list[list[Rows]] = []
    place = 0
    for group in groups:
        fetched.append([])
        for one in group:
            rows = [values[place + k * one.shape[1] :][: one.shape[1]] for k in range(one.shape[0])]
            fetched[-1].append(rows)
            place += one.numel()
    return fetched


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows with the same or fewer names as columns; what a row lacks is None."""
    columns: dict[str, list[Any]] = {name: [] for name in chain.from_iterable(rows)}
    for name, values in columns.items():
        values += [row.get(name) for row in rows]
    return columns


# ---- tokens ----


def row_checksums(tokens: np.ndarray, mask: np.ndarray) -> list[int]:
    """Checksum of tokens (N, T) and loss mask of each row, up to the last token that is trained on."""
    width = mask.shape[1]
    last = width - mask[:, ::-1].argmax(axis=1)
    last = np.where(mask.any(axis=1), last, 0)
    inside = np.arange(width) < last[:, None]
    each = scrambled(tokens.astype(np.uint64) * np.uint64(2) + mask.astype(np.uint64) + counted(width))
    rows = np.where(inside, each, np.uint64(0)).sum(axis=1, dtype=np.uint64)
    return [int(number) for number in scrambled(rows) >> np.uint64(64 - CHECKSUM_BITS)]


def row_checksum(tokens: np.ndarray, mask: np.ndarray) -> int:
    """The checksum of one row, (T,)."""
    return row_checksums(tokens[None], mask[None])[0]


def total_checksum(checksums: Iterable[int]) -> int:
    """One checksum of rows in any order."""
    return sum(checksums) % 2**CHECKSUM_BITS


def trained_rows(checksums: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the checksums of the rows that were trained on, each (trajectory, checksum) once: a row that
    differs between two updates counts twice.
    """
    for _, checksum in sorted(set(checksums)):
        yield checksum

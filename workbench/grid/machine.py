"""What this machine computes a second: a probe of a second or two, which the estimate of `sorl plan` uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from statistics import median

_SECONDS = 0.6  # of each of the three measurements
_TOKENS = 512  # rows of a product of training
_WEIGHTS = 1 << 24  # of the matrices that decoding reads: 64 MiB, more than a cache holds
_NARROW = 64  # width of the embedded policy


@dataclass(frozen=True)
class Machine:
    """Rates of a machine, in seconds a piece of work; smaller is faster."""

    small_seconds: float  # a small operation forward and backward, where calling it costs more than computing
    product_seconds: float  # a multiply-add of a product with many rows
    weight_seconds: float  # a weight that a decoding step reads
    is_probed: bool = True

    @property
    def slowness(self) -> float:
        """How many times as long the embedded policy takes as on the machine of the constants."""
        return self.small_seconds / REFERENCE.small_seconds


# The 2-core Xeon with AVX-512 on which the constants of `cost` were measured, one thread.
REFERENCE = Machine(small_seconds=1.86e-4, product_seconds=2.5e-11, weight_seconds=5e-10, is_probed=False)


@cache
def probe(threads: int, rows: int, width: int) -> Machine:
    """Measure this machine at `threads` threads: decoding of `rows` rows and training, with matrices `width`
    wide. REFERENCE without torch.
    """
    if find_spec("torch") is None:
        return REFERENCE
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        narrow = torch.randn(_TOKENS, _NARROW, requires_grad=True)
        small = torch.randn(_NARROW, _NARROW, requires_grad=True)
        wide = torch.randn(width, 4 * width)
        many = torch.randn(_TOKENS, width)
        few = torch.randn(rows, width)
        layers = [wide.clone() for _ in range(max(1, _WEIGHTS // wide.numel()))]

        def call_small() -> object:
            return torch.autograd.grad(torch.tanh(narrow @ small).sum(), (narrow, small))

        def train() -> object:
            return many @ wide

        def decode() -> object:
            return [few @ layer for layer in layers]

        return Machine(
            small_seconds=_time(call_small),
            product_seconds=_time(train) / (_TOKENS * wide.numel()),
            weight_seconds=_time(decode) / (len(layers) * wide.numel()),
        )
    finally:
        torch.set_num_threads(before)


def _time(work: Callable[[], object]) -> float:
    """Return the median seconds of `work`, done at least three times and for half a second or so."""
    work()
    seconds: list[float] = []
    while sum(seconds) < _SECONDS or len(seconds) < 3:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return median(seconds)

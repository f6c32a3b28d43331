"""What this machine computes a second: a probe of a few seconds, which the estimate of `sorl plan` uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_TOKENS = 512  # of a step of the embedded policy
_NARROW = 64  # width of the embedded policy


@dataclass(frozen=True)
class Machine:
    """Rates of a machine, in seconds a piece of work; smaller is faster."""

    small_seconds: float  # a small operation forward and backward, where calling it costs more than computing
    product_seconds: float  # a multiply-add of a forward pass over many tokens
    weight_seconds: float  # a weight that a decoding pass of all rows reads
    is_probed: bool = True

    @property
    def slowness(self) -> float:
        """How many times as long the embedded policy takes as on the machine of the constants."""
        return self.small_seconds / REFERENCE.small_seconds


# The 2-core Xeon with AVX-512 on which the constants of `cost` were measured, one thread.
REFERENCE = Machine(small_seconds=1.86e-4, product_seconds=2.5e-11, weight_seconds=9e-10, is_probed=False)


@cache
def probe(threads: int) -> Machine:
    """Time a small operation as the embedded policy makes them, with `threads` threads; what a larger model
    costs is scaled from it. REFERENCE without torch.
    """
    if find_spec("torch") is None:
        return REFERENCE
    import torch

    from sorl.learn.speed import time_work

    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = torch.randn(_TOKENS, _NARROW, requires_grad=True)
        weight = torch.randn(_NARROW, _NARROW, requires_grad=True)

        def call_small() -> object:
            return torch.autograd.grad(torch.tanh(rows @ weight).sum(), (rows, weight))

        seconds = time_work(call_small, rows.device)
    finally:
        torch.set_num_threads(threads_before)
    slowness = seconds / REFERENCE.small_seconds
    return Machine(seconds, REFERENCE.product_seconds * slowness, REFERENCE.weight_seconds * slowness)


def probe_model(
    machine: Machine, folder: Path, settings_json: str, rows: int, tokens: float, written: float
) -> Machine:
    """Time the layers of the model in `folder`: the probed `machine` with the rates of its passes.

    `rows` are sampled together and have `tokens` tokens each, of which the policy has `written`. The machine
    itself where it was not probed, or where transformers cannot build such a model.
    """
    if not machine.is_probed:
        return machine
    from sorl.learn.speed import Rows, time_passes

    step = Rows(rows, max(2, round(tokens)), max(1, round(written)))
    try:
        seconds = time_passes(folder, settings_json, step)
    except (OSError, ValueError, KeyError, AttributeError, ImportError, RuntimeError):
        return machine  # of another kind, or without room on the device
    return replace(machine, product_seconds=seconds.product, weight_seconds=seconds.decoded_weight)

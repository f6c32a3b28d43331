"""How much memory training took at most."""

from __future__ import annotations

import resource
import sys

import torch


def peak(device: torch.device) -> int:
    """Bytes: on a GPU the most that torch held allocated, on the CPU the largest resident set of the process.

    Both since the process started, so the column never falls.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)

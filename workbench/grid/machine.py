"""What this machine gives a grid: cores, and whether its kernel killed something for want of memory."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_VMSTAT = Path("/proc/vmstat")


def cores() -> int:
    """Cores that this process may use: its affinity, and the whole cores of a container's CPU quota; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(allowed, quota(_QUOTA) or allowed))


def quota(file: Path) -> int | None:
    """Whole cores that a cgroup may use, from its `cpu.max` (microseconds a period); None without a limit."""
    try:
        limit, period = file.read_text().split()
        return max(1, int(limit) // int(period))
    except (OSError, ValueError):  # no cgroup, another system, or the word "max"
        return None


def oom_kills(file: Path = _VMSTAT) -> int | None:
    """Processes that the kernel has killed for want of memory since it started; None where it does not count them."""
    try:
        return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError):
        return None

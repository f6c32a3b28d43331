"""How a cell ended, from what its process left behind: the cause has a name, and the reason is one line."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.grid.child import Sight
from workbench.store.console import plain

FINISHED, WRONG_INPUT, INTERRUPTED, HELD = 0, 2, 3, 4  # exit codes of a trainer; everything else is a failure
_STARVED = re.compile(
    r"MemoryError|OutOfMemoryError|out of memory|DefaultCPUAllocator|bad_alloc|cannot allocate memory"
    r"|unable to allocate|malloc of size \d+ failed",
    re.IGNORECASE,
)
_LENGTH = 400  # characters of a reason: it is read in a table


@dataclass(frozen=True)
class Ending:
    """What became of a process: the status of its row, the kind of its event (empty for a good end), the reason."""

    status: str
    kind: str = ""
    reason: str = ""
    again: bool = False  # another attempt may end better


def ending(sight: Sight, said: str) -> Ending:
    """The ending of a process that ended by itself; `said` is the reason that it gave or its last words.

    A process that the kernel killed cannot say so: the kernel's own count of such kills does (`sight.starved`).
    """
    code, words = sight.code, one_line(said)
    if sight.lost:
        return Ending("failed", "killed", f"lost: {one_line(sight.lost)}", again=True)
    if code == FINISHED:
        return Ending("finished")
    if code == INTERRUPTED:
        return Ending("interrupted", "interrupted", words)
    if code == WRONG_INPUT:
        return Ending("failed", "failed", words.removeprefix("sorl: ") or "its settings were refused")
    if code == -signal.SIGKILL:
        if sight.starved:
            return Ending("failed", "out_of_memory", f"out of memory: the kernel killed it{_at(sight)}", again=True)
        return Ending("failed", "killed", f"killed by SIGKILL{_at(sight)}", again=True)
    if _STARVED.search(words):
        return Ending("failed", "out_of_memory", f"out of memory{_at(sight)}: {words}", again=True)
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return Ending("failed", "killed", f"killed by {name}" + (f": {words}" if words else ""), again=True)
    return Ending("failed", "failed", words or f"exit code {code}, nothing in console.log", again=True)


def hang(seconds: float, step: int, where: str = "") -> Ending:
    """The ending of a process that was killed because it gave no sign of life for `seconds`."""
    stood = f", in {where}" if where else ""
    return Ending("failed", "hang", f"hang: no sign of life for {seconds:.0f} s in step {step}{stood}", again=True)


def over_memory(sight: Sight, limit: int) -> Ending:
    """The ending of a process that was killed because it held more than `limit` bytes."""
    reason = f"out of memory: {gib(sight.peak)}, over the limit of {gib(limit)} a cell (--memory)"
    return Ending("failed", "out_of_memory", reason, again=True)


def cause(row: Mapping[str, Any]) -> str:
    """The cause of a bad end, from a row of table `run`: diverged, hang, out of memory, killed or failed; else empty.

    Reasons begin with their cause, so that the row alone tells it, whoever trained the run.
    """
    if row.get("outcome") == "diverged":
        return "diverged"
    if row.get("status") != "failed":
        return ""
    reason = str(row.get("reason") or "")
    found = [name for name in ("hang", "out of memory", "killed", "lost") if reason.startswith(name)]
    return found[0].replace("lost", "killed") if found else "failed"


def one_line(text: str) -> str:
    """`text` in one line of at most 400 characters, without control characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 4]} ..."


def gib(size: int) -> str:
    """Bytes as GiB with three digits."""
    return f"{size / 2**30:.3g} GiB"


def _at(sight: Sight) -> str:
    return f" at {gib(sight.peak)}" if sight.peak else ""

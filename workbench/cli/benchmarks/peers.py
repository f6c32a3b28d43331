"""The same question to trackio and TensorBoard: one metric of N runs, until it can be drawn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(".venv-browse/bin/python")
SCRIPT = Path(__file__).parents[3] / "bench" / "browse_peers.py"
TOOLS = ("trackio", "tensorboard")


@dataclass(frozen=True)
class Peer:
    """What one tool needed for `runs` runs, and what we did; seconds of CPU time and by the clock."""

    tool: str
    version: str
    runs: int
    points: int  # that a run was thinned out to
    ready_s: float
    ready_cpu_s: float
    again_s: float
    again_cpu_s: float
    ours_s: float
    ours_cpu_s: float


def missing() -> str | None:
    """What the comparison lacks on this machine; None when it can run."""
    absent = [str(path) for path in (PYTHON, SCRIPT) if not path.is_file()]
    return f"{' and '.join(absent)} not found: type `make bench-browse` in a checkout of sorl" if absent else None


def measure(folder: Path, steps: int, counts: str, ours: Callable[[int], tuple[float, float]]) -> Iterator[Peer]:
    """Each tool with more and more runs, `ours` with as many; raises RuntimeError with the last words of one that died.

    `ours` gives seconds by the clock and of CPU time for so many runs.
    """
    for tool in TOOLS:
        command = [str(PYTHON), str(SCRIPT), tool, str(folder / tool), "--steps", str(steps), "--runs", counts]
        with (
            (folder / f"{tool}.log").open("w+") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                seconds, cpu = ours(json.loads(line)["runs"])
                yield Peer(**json.loads(line), ours_s=seconds, ours_cpu_s=cpu)
        if process.returncode:
            raise RuntimeError(f"{tool} ended:\n{(folder / f'{tool}.log').read_text()[-3000:]}")

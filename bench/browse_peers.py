"""Overlay one metric of N runs in trackio and in TensorBoard; `make bench-browse` drives it, `sorl bench`
reads it.

Runs in an environment of its own (constraints-browse.txt) and imports nothing of this project. By hand:

    .venv-browse/bin/python bench/browse_peers.py trackio FOLDER --steps 10000 --runs 5,20,100

Each line on stdout is one N: {"tool", "version", "runs", "ready_s", "ready_cpu_s", "again_s", "again_cpu_s",
"points"}. ready: from the first request after the runs were written (TensorBoard: from the start of its
server, which reads the files before it can answer) until the points of all runs are there, as Python values
or JSON; again: the same request a second time. points: how many a run was answered with; both thin a run out.
A tool is asked about the next N only while `ready` stays below --limit seconds of CPU time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

METRICS = 10  # of a step
PATIENCE = 900.0  # seconds
AT_ONCE = 64  # runs: trackio answers no question about more


def rows(steps: int) -> list[dict[str, float]]:
    """A learning curve and nine other metrics."""
    return [
        {
            "success": 0.8 * (1 - math.exp(-s / 800)),
            **{f"metric_{i}": math.sin(s * i / 100) for i in range(1, METRICS)},
        }
        for s in range(steps)
    ]


def trackio(folder: Path, steps: int) -> Iterator[tuple[int, Callable[[], int], Callable[[], float]]]:
    """Writes the runs that are asked for with `send`; yields how to ask its server's own function for all of
    them.
    """
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.server import get_logs_batch
    from trackio.sqlite_storage import SQLiteStorage

    written = 0
    each = rows(steps)
    wanted = yield 0, lambda: 0, time.process_time
    while True:
        for number in range(written, wanted):
            SQLiteStorage.bulk_log("browse", f"run-{number}", each)
        written = wanted

        def ask(n: int = wanted) -> int:
            curves = []
            for first in range(0, n, AT_ONCE):
                names = [f"run-{i}" for i in range(first, min(n, first + AT_ONCE))]
                answer = get_logs_batch("browse", [{"run": name, "run_id": name} for name in names])
                curves += [[(row["step"], row["success"]) for row in part["logs"]] for part in answer]
            return len(curves[-1])

        wanted = yield wanted, ask, time.process_time


def tensorboard(folder: Path, steps: int) -> Iterator[tuple[int, Callable[[], int], Callable[[], float]]]:
    """The same with event files and a server (with its fast loader) that starts at the first request for each
    N.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    first = folder / "model"
    writer = EventFileWriter(str(first))
    for step, row in enumerate(rows(steps)):
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=values)))
    writer.close()
    wanted = yield 0, lambda: 0, time.process_time
    while True:
        logs = folder / f"logs-{wanted}"
        for number in range(wanted):
            shutil.copytree(first, logs / f"run-{number}")
        with served(logs) as (address, cpu):

            def ask(n: int = wanted, address: str = address) -> int:
                return _answer(address, n, steps)

            wanted = yield wanted, ask, cpu
        shutil.rmtree(logs)


@contextmanager
def served(logs: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Address of a TensorBoard over `logs`, and the CPU seconds that it and its children have taken."""
    import psutil

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(logs),
        "--port",
        str(port),
        "--load_fast",
        "true",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def cpu() -> float:
        top = psutil.Process(server.pid)
        return sum(sum(p.cpu_times()[:2]) for p in [top, *top.children(recursive=True)])

    try:
        yield f"http://127.0.0.1:{port}/data/plugin/scalars/scalars_multirun", cpu
    finally:
        server.terminate()
        server.wait(30)


def _answer(address: str, runs: int, steps: int) -> int:
    """Ask until all runs are there to their last step; how many points a run has."""
    body = urlencode([("tag", "success"), *(("runs", f"run-{i}") for i in range(runs))]).encode()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with urlopen(address, body, timeout=PATIENCE) as response:
                found = json.loads(response.read())
            if len(found) == runs and all(points and points[-1][1] == steps - 1 for points in found.values()):
                return len(found["run-0"])
        except (URLError, ConnectionError):
            pass
        time.sleep(0.05)
    raise TimeoutError(f"no answer for {runs} runs in {PATIENCE:g} s")


def main() -> None:
    """Measure one tool, N by N."""
    parser = argparse.ArgumentParser(description="Overlay one metric of N runs.")
    parser.add_argument("tool", choices=["trackio", "tensorboard"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--runs", default="5,20,50,100,200,500,1000")
    parser.add_argument("--limit", type=float, default=10.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    tool = {"trackio": trackio, "tensorboard": tensorboard}[options.tool](options.folder, options.steps)
    next(tool)
    for runs in map(int, options.runs.split(",")):
        _, ask, cpu = tool.send(runs)  # type: ignore[attr-defined]
        seen: dict[str, Any] = {"tool": options.tool, "version": version(options.tool), "runs": runs}
        before = 0.0 if options.tool == "tensorboard" else cpu()  # its server is at work since it was started
        for name in ("ready", "again"):
            began = time.perf_counter()
            seen["points"] = ask()
            now = cpu()
            seen |= {f"{name}_s": time.perf_counter() - began, f"{name}_cpu_s": now - before}
            before = now
        print(json.dumps(seen), flush=True)
        if seen["ready_cpu_s"] > options.limit:
            break
    tool.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()

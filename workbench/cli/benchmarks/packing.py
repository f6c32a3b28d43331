"""Which way of sharing the cores out trains the most: one process a core, or fewer with more threads each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from workbench.cli.benchmarks.pairs import Comparison, Sample, Side, Target, alternate
from workbench.cli.benchmarks.scene import Scene
from workbench.cli.benchmarks.trl import Worker, worker
from workbench.grid.process import cores

MOST = 8  # cores that are compared on a larger machine: every process takes the memory of a whole run
_WARM_UP = 2  # iterations: the first ones allocate


def splits(n: int) -> list[tuple[int, int]]:
    """(processes, threads) that use `n` cores evenly, most processes first: the first is the grid's default."""
    return [(n // threads, threads) for threads in range(1, n + 1) if n % threads == 0]


def compared_cores() -> int:
    """Cores that the benchmark uses."""
    return min(MOST, cores())


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Iterations/s over all processes that run side by side, the default beside each alternative; none on one core."""
    default, *others = splits(compared_cores())
    found = []
    for split in others:
        with ExitStack() as stack:
            ours = _side(stack, scene, *default, beside=split)
            theirs = _side(stack, scene, *split, beside=split)
            a, b = alternate(ours, theirs, rounds, warm_up=_WARM_UP)
        found.append(
            Comparison(
                name=f"packing, {label(*split)}",
                unit="iterations/s",
                ours=Side(label(*default), a),
                baseline=Side(label(*split), b),
                target=Target("ratio", 0.95),
                note="whole iterations with the recorder on; the first is what `sorl run` does by default",
                facts={"cores": compared_cores(), "processes": split[0], "threads": split[1]},
            )
        )
    return found


def label(processes: int, threads: int) -> str:
    """`2 processes x 1 thread`."""
    return f"{processes} process{'es' * (processes > 1)} x {threads} thread{'s' * (threads > 1)}"


def _side(
    stack: ExitStack, scene: Scene, processes: int, threads: int, beside: tuple[int, int]
) -> Callable[[], Sample]:
    """Start the processes of one side; each call has all of them make one iteration at the same time."""
    place = scene.folder / f"packing-{processes}x{threads}-beside-{beside[0]}x{beside[1]}"
    workers = [
        stack.enter_context(worker(_command(scene, place / str(i), threads), place / f"{i}.log", threads))
        for i in range(processes)
    ]
    return lambda: together(workers)


def _command(scene: Scene, folder: Path, threads: int) -> list[str]:
    folder.mkdir(parents=True)
    settings = folder / "settings.json"
    settings.write_text(scene.settings.model_copy(update={"threads": threads}).model_dump_json())
    return [sys.executable, "-m", f"{__package__}.iteration", str(settings), str(scene.start), str(folder)]


def together(workers: Sequence[Worker]) -> Sample:
    """One iteration of every worker at once, from the first question to the last answer."""
    began = time.perf_counter()
    for each in workers:
        each.ask()
    seen = [each.answer() for each in workers]
    return Sample(len(workers), time.perf_counter() - began, sum(s["cpu_seconds"] for s in seen))

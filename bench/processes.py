"""Whole iterations in processes of their own: against TRL's GRPO, and the ways to share the cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bench.measure import Comparison, Sample, Side, Target, alternate
from bench.training import Scene
from sorl.algorithms import resolve
from sorl.grid.process import cores
from sorl.spec import InputError

ITERATION = Path(__file__).with_name("iteration.py")
PYTHON = Path(".venv-trl/bin/python")
SCRIPT = Path(__file__).with_name("trl_grpo.py")
WARM_UP = 2  # iterations: the first ones allocate, and TRL's builds its generation config
_OPTIMIZERS = {"sgd": "sgd", "adamw": "adamw_torch_fused"}


def missing_trl() -> str | None:
    """What this comparison lacks on this machine; None when it can run."""
    absent = [str(path) for path in (PYTHON, SCRIPT) if not path.is_file()]
    return (
        f"{' and '.join(absent)} not found: type `make bench-trl` in a checkout of sorl" if absent else None
    )


@dataclass
class Worker:
    """A process that makes one iteration for each line it is sent and answers with one line of JSON."""

    process: subprocess.Popen[str]
    log: Path

    def ask(self) -> None:
        """Have it begin one iteration."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # that it died is what its answer says
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What the iteration took and trained on. Raises RuntimeError with the end of the log
        when it died.
        """
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"process {self.process.pid} ended:\n{self.log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def iterate(self) -> dict[str, Any]:
        """One iteration, from asking to the answer; raises as `answer` does."""
        self.ask()
        return self.answer()

    def sample(self) -> Sample:
        """One iteration as a sample whose work is its trained tokens."""
        seen = self.iterate()
        return Sample(seen["trained_tokens"], seen["seconds"], seen["cpu_seconds"])


@contextmanager
def worker(command: Sequence[str], log: Path, threads: int) -> Iterator[Worker]:
    """Start `command`; it is sent the end of its input afterwards, and killed if that does not end it."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        try:
            yield Worker(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ours(scene: Scene, folder: Path) -> list[str]:
    """Command of our side."""
    folder.mkdir()
    settings = folder / "settings.json"
    settings.write_text(scene.variant("grpo").model_dump_json())
    return [sys.executable, str(ITERATION), str(settings), str(scene.start), str(folder)]


def theirs(scene: Scene, prompts: Sequence[int], completion: int) -> list[str]:
    """Command of TRL's side: same checkpoint, batch, group size, epochs, minibatches, optimizer and step
    size.
    """
    learn = scene.settings.learn
    options = {
        "model": scene.start,
        "prompts": ",".join(map(str, prompts)),
        "completion": completion,
        "completions": learn.episodes,
        "group-size": group_size(scene),
        "epochs": learn.epochs,
        "minibatches": learn.minibatches,
        "optimizer": _OPTIMIZERS[learn.policy.kind],
        "lr": learn.policy.lr,
        "threads": scene.settings.threads,
    }
    return [
        str(PYTHON),
        str(SCRIPT),
        *(word for key, value in options.items() for word in (f"--{key}", str(value))),
    ]


def group_size(scene: Scene) -> int:
    """Completions a prompt."""
    return scene.settings.learn.group_size or resolve("grpo").group_size


def prompt_lengths(lengths: Sequence[int], completion: int, groups: int) -> list[int]:
    """Lengths of a batch's prompts that make its sequences as long as ours: one a group, the means of
    quantiles.
    """
    ordered = sorted(lengths)
    n = len(lengths)
    parts = [ordered[i * n // groups : (i + 1) * n // groups] for i in range(groups)]
    return [max(1, round(mean(part)) - completion) for part in parts]


def trl(scene: Scene, rounds: int, what: str = "iteration", warm_up: int = WARM_UP) -> list[Comparison]:
    """Trained tokens/s (tokens that the policy wrote, once an epoch) of whole iterations.

    TRL's completions are as long as what our policy writes in an episode on average, and its prompts as long
    as the rest of an episode (our prompts and observations), so both train on and read as many tokens. Twice:
    with sequences as unequal in length as ours, and with all of them equal, which spares TRL the padding that
    we have.
    """
    if reason := missing_trl():
        raise InputError(reason)
    learn = scene.settings.learn
    threads = scene.settings.threads
    found = []
    with worker(ours(scene, scene.folder / "trl"), scene.folder / "ours.log", threads) as us:
        seen = [us.iterate() for _ in range(warm_up)][-1]
        completion = round(seen["trained_tokens"] / learn.epochs / learn.episodes)
        groups = learn.episodes // group_size(scene)
        for name, kinds in (("lengths as ours", groups), ("no padding", 1)):
            prompts = prompt_lengths(seen["lengths"], completion, kinds)
            with worker(theirs(scene, prompts, completion), scene.folder / "trl.log", threads) as them:
                a, b = alternate(us.sample, them.sample, rounds, warm_up=warm_up)
            found.append(
                Comparison(
                    name=f"{what}, {name}",
                    unit="trained tokens/s",
                    ours=Side("grpo, recorder on", a),
                    baseline=Side("TRL GRPOTrainer", b),
                    target=Target("ratio", 1.5),
                    note="trained tokens: what the policy wrote x epochs; TRL logs and saves nothing",
                    facts={
                        "completions": learn.episodes,
                        "updates": learn.epochs * learn.minibatches,
                        "their_prompts": prompts,
                        "their_completion": completion,
                        "our_mean_sequence": mean(seen["lengths"]),
                        "our_longest_sequence": max(seen["lengths"]),
                    },
                )
            )
    return found


MOST = 8  # cores that are compared on a larger machine: every process takes the memory of a whole run


def splits(n: int) -> list[tuple[int, int]]:
    """(processes, threads) that use `n` cores evenly, most processes first: the first is the
    grid's default.
    """
    return [(n // threads, threads) for threads in range(1, n + 1) if n % threads == 0]


def compared_cores() -> int:
    """Cores that the benchmark uses."""
    return min(MOST, cores())


def packing(scene: Scene, rounds: int) -> list[Comparison]:
    """Iterations/s over all processes that run side by side, the default against each alternative; none on
    one core.
    """
    default, *others = splits(compared_cores())
    found = []
    for split in others:
        with ExitStack() as stack:
            ours = _workers(stack, scene, *default, other=split)
            theirs = _workers(stack, scene, *split, other=split)
            a, b = alternate(ours, theirs, rounds, warm_up=WARM_UP)
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


def _workers(
    stack: ExitStack, scene: Scene, processes: int, threads: int, other: tuple[int, int]
) -> Callable[[], Sample]:
    """Start the processes of one side; each call has all of them make one iteration at the same time."""
    place = scene.folder / f"packing-{processes}x{threads}-with-{other[0]}x{other[1]}"
    workers = [
        stack.enter_context(worker(_command(scene, place / str(i), threads), place / f"{i}.log", threads))
        for i in range(processes)
    ]
    return lambda: together(workers)


def _command(scene: Scene, folder: Path, threads: int) -> list[str]:
    folder.mkdir(parents=True)
    settings = folder / "settings.json"
    settings.write_text(scene.settings.model_copy(update={"threads": threads}).model_dump_json())
    return [sys.executable, str(ITERATION), str(settings), str(scene.start), str(folder)]


def together(workers: Sequence[Worker]) -> Sample:
    """One iteration of every worker at once, from the first question to the last answer."""
    began = time.perf_counter()
    for each in workers:
        each.ask()
    seen = [each.answer() for each in workers]
    return Sample(len(workers), time.perf_counter() - began, sum(s["cpu_seconds"] for s in seen))

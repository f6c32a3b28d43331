"""A whole GRPO iteration beside TRL's: two processes, each in its own environment, that iterate in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from workbench.algorithms import resolve
from workbench.cli.benchmarks.pairs import Comparison, Sample, Side, Target, alternate
from workbench.cli.benchmarks.scene import Scene
from workbench.spec import InputError

PYTHON = Path(".venv-trl/bin/python")
SCRIPT = Path(__file__).parents[3] / "bench" / "trl_grpo.py"
WARM_UP = 2  # iterations: the first ones allocate, and TRL's builds its generation config
_OPTIMIZERS = {"sgd": "sgd", "adamw": "adamw_torch_fused"}


def missing() -> str | None:
    """What this comparison lacks on this machine; None when it can run."""
    absent = [str(path) for path in (PYTHON, SCRIPT) if not path.is_file()]
    return f"{' and '.join(absent)} not found: type `make bench-trl` in a checkout of sorl" if absent else None


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
        """What the iteration took and trained on. Raises RuntimeError with the end of the log when it died."""
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
    return [sys.executable, "-m", f"{__package__}.iteration", str(settings), str(scene.start), str(folder)]


def theirs(scene: Scene, prompts: Sequence[int], completion: int) -> list[str]:
    """Command of TRL's side: same checkpoint, batch, group size, epochs, minibatches, optimizer and step size."""
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
    return [str(PYTHON), str(SCRIPT), *(word for key, value in options.items() for word in (f"--{key}", str(value)))]


def group_size(scene: Scene) -> int:
    """Completions a prompt."""
    return scene.settings.learn.group_size or resolve("grpo").group_size


def prompt_lengths(lengths: Sequence[int], completion: int, groups: int) -> list[int]:
    """Lengths of a batch's prompts that make its sequences as long as ours: one a group, the means of quantiles."""
    ordered, n = sorted(lengths), len(lengths)
    parts = [ordered[i * n // groups : (i + 1) * n // groups] for i in range(groups)]
    return [max(1, round(mean(part)) - completion) for part in parts]


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Trained tokens/s (tokens that the policy wrote, once an epoch) of whole iterations.

    TRL's completions are as long as what our policy writes in an episode on average, and its prompts as long as the
    rest of an episode (our prompts and observations), so both train on and read as many tokens. Twice: with sequences
    as unequal in length as ours, and with all of them equal, which spares TRL the padding that we have.
    """
    if reason := missing():
        raise InputError(reason)
    learn, threads = scene.settings.learn, scene.settings.threads
    found = []
    with worker(ours(scene, scene.folder / "trl"), scene.folder / "ours.log", threads) as us:
        seen = [us.iterate() for _ in range(WARM_UP)][-1]
        completion = round(seen["trained_tokens"] / learn.epochs / learn.episodes)
        groups = learn.episodes // group_size(scene)
        for name, kinds in (("lengths as ours", groups), ("no padding", 1)):
            prompts = prompt_lengths(seen["lengths"], completion, kinds)
            with worker(theirs(scene, prompts, completion), scene.folder / "trl.log", threads) as them:
                a, b = alternate(us.sample, them.sample, rounds, warm_up=WARM_UP)
            found.append(
                Comparison(
                    name=f"iteration, {name}",
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

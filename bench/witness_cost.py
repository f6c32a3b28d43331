"""What the witnesses cost: the CPU time of a step with them, divided by that of the same step without.

    PYTHONPATH=. .venv/bin/python bench/witness_cost.py

Runs our trainer at two sizes of the policy. The time of the witnesses is taken inside each step, so that the
rest of the step, and the machine's other work, is the same on both sides. Prints a ratio for each size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.training import scene
from sorl.learn.loop import Trainer
from sorl.recording.recorder import Recorder
from sorl.recording.witness import Witness
from sorl.spec import RunSettings

SIZES: Mapping[str, Mapping[str, int]] = {
    "default": {"hidden": 64, "layers": 2, "heads": 4, "mlp": 172},
    "large": {"hidden": 384, "layers": 6, "heads": 6, "mlp": 1024},
}


class Stopwatch:
    """CPU seconds of the calls that it wraps; a call inside another one counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def wrap(self, owner: Any, name: str) -> None:
        """Time a method of an object or of a class from now on."""
        plain: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any, **more: Any) -> Any:
            if self._inside:
                return plain(*given, **more)
            self._inside = True
            began = time.thread_time()
            try:
                return plain(*given, **more)
            finally:
                self._inside = False
                self.seconds += time.thread_time() - began

        setattr(owner, name, timed)


def ratios(trainer: Trainer, watch: Stopwatch, steps: int) -> list[float]:
    """Of each step its CPU time divided by that without the witnesses; the first step warms up."""
    witnesses = trainer.witnesses
    assert witnesses is not None
    for name in ("start", "sampler", "reference", "finish", "record"):
        watch.wrap(witnesses, name)
    found = []
    began = time.thread_time()
    for _ in trainer.steps():
        spent = time.thread_time() - began
        found.append(spent / (spent - watch.seconds))
        watch.seconds = 0.0
        if len(found) > steps:
            break
        began = time.thread_time()
    return found[1:]


def settings_of(size: str, episodes: int, algorithm: str) -> RunSettings:
    """A PPO run with a critic and a reference, the most networks that a run has."""
    return RunSettings.model_validate(
        {
            "algorithm": algorithm,
            "iterations": 10**6,
            "policy": SIZES[size],
            "warmstart": {"steps": 0},
            "slots": {"kl": {"kind": "loss", "beta": 0.01}},
            "learn": {"episodes": episodes, "epochs": 1, "minibatches": 4, "staleness": 0},
            "evaluation": {"every": 0, "episodes": 1},
        }
    )


def main(argv: list[str] | None = None) -> None:
    """Measure both sizes and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5, help="measured, after one that warms up")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--size", action="append", choices=[*SIZES], help="default: each")
    options = parser.parse_args(argv)
    watch = Stopwatch()
    watch.wrap(Witness, "_before_step")  # which the optimizers call
    for size in options.size or SIZES:
        settings = settings_of(size, options.episodes, options.algorithm)
        with TemporaryDirectory() as folder, scene(settings, Path(folder)) as place:
            recorder = Recorder(Path(folder) / "run", "cost", settings)
            trainer = place.trainer(settings, recorder)
            found = ratios(trainer, watch, options.steps)
            recorder.close()
            parameters = sum(p.numel() for p in trainer.learner.policy.parameters())
        largest = max(found)
        print(
            f"{size}: {parameters:,} parameters, ratio {median(found):.4f}, largest {largest:.4f}", flush=True
        )


if __name__ == "__main__":
    main()

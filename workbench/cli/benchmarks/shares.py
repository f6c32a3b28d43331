"""Where the wall time of an iteration goes: sampling, updating, measuring and writing down."""

from __future__ import annotations

import time
from dataclasses import dataclass

from workbench.cli.benchmarks.scene import Scene
from workbench.record.recorder import Recorder

ALGORITHMS = ("ppo", "grpo")  # with a critic and without


@dataclass(frozen=True)
class Share:
    """Seconds of some iterations of one algorithm, by what they were spent on."""

    algorithm: str
    iterations: int
    total: float
    rollout: float
    update: float
    logging: float


def measure(scene: Scene, rounds: int) -> list[Share]:
    """`rounds` iterations of each of ALGORITHMS after a first one; writing in the background is in the total."""
    return [_train(scene, algorithm, rounds) for algorithm in ALGORITHMS]


def _train(scene: Scene, algorithm: str, iterations: int) -> Share:
    settings = scene.variant(algorithm)
    with Recorder(scene.folder / f"shares-{algorithm}", f"shares-{algorithm}", settings) as recorder:
        steps = scene.trainer(settings, recorder).steps()
        next(steps)
        began = time.perf_counter()
        rows = []
        stepped = []
        for _ in range(iterations):
            start = time.perf_counter()
            rows.append(next(steps))
            stepped.append(time.perf_counter() - start)
        total = time.perf_counter() - began

    def seconds(name: str) -> float:
        return sum(float(row[f"seconds_{name}"] or 0.0) for row in rows)

    # The recorder runs after the clock of the step has stopped, so its share is what is left.
    return Share(algorithm, iterations, total, seconds("rollout"), seconds("update"), sum(stepped) - seconds("total"))

"""What writing a run down costs: the same training, bit for bit, with the recorder and without it."""

from __future__ import annotations

from workbench.cli.benchmarks.pairs import Comparison, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.record.recorder import NullRecorder, Recorder

STEPS = 2  # a repetition; the buffer is flushed after each, as the recorder's clock would about as often


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Iterations/s of two trainers with one seed, the one recording everything, the other nothing."""
    settings = scene.settings
    with Recorder(scene.folder / "logging", "logging", settings) as recorder:
        silent = NullRecorder(settings)
        trainers = {r: scene.trainer(settings, r) for r in (recorder, silent)}
        steps = {r: trainer.steps() for r, trainer in trainers.items()}

        def training(kept: Recorder) -> Work:
            def train() -> float:
                for _ in range(STEPS):
                    next(steps[kept])
                # Inside the time and on this side only: left to its thread, it would run while the other side is timed.
                kept.flush()
                return STEPS

            return train

        a, b = alternate(timed(lambda: training(recorder)), timed(lambda: training(silent)), rounds)
    return [
        Comparison(
            name="logging",
            unit="iterations/s",
            ours=Side("recorder on", a),
            baseline=Side("recorder off", b),
            target=Target("ratio", 0.98),
            note="diagnostics and writing; the same weights at every step",
            facts={"algorithm": settings.algorithm, "steps_a_round": STEPS},
        )
    ]

"""What writing a run down costs: the same training, bit for bit, with the recorder and without it."""

from __future__ import annotations

from workbench.cli.benchmarks.pairs import Comparison, Sample, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.grid.keys import merge
from workbench.record.recorder import NullRecorder, Recorder
from workbench.spec import RunSettings

STEPS = 2  # a repetition; the buffer is flushed after each, as the recorder's clock would about as often


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Iterations/s of two trainers with one seed: all recorded or nothing, and with the black box or without it."""
    settings = scene.settings
    without = RunSettings.model_validate(merge(settings.model_dump(), {"record": {"batches": {"mb": 0}}}))
    facts = {"algorithm": settings.algorithm, "steps_a_round": STEPS}
    with Recorder(scene.folder / "logging", "logging", settings) as recorder:
        a, b = _alternated(scene, (settings, recorder), (without, NullRecorder(without)), rounds)
    logging = Comparison(
        name="logging",
        unit="iterations/s",
        ours=Side("recorder on", a),
        baseline=Side("recorder off", b),
        target=Target("ratio", 0.98),
        note="diagnostics, writing and the black box; the same weights at every step",
        facts=facts,
    )
    with (
        Recorder(scene.folder / "boxed", "boxed", settings) as boxed,
        Recorder(scene.folder / "unboxed", "unboxed", without) as unboxed,
    ):
        a, b = _alternated(scene, (settings, boxed), (without, unboxed), rounds)
    box = Comparison(
        name="black box",
        unit="iterations/s",
        ours=Side("batches and weights of every step kept", a),
        baseline=Side("record.batches.mb = 0", b),
        target=Target("ratio", 0.99),
        note="everything else is recorded on both sides",
        facts=facts,
    )
    return [logging, box]


def _alternated(
    scene: Scene, ours: tuple[RunSettings, Recorder], baseline: tuple[RunSettings, Recorder], rounds: int
) -> tuple[list[Sample], list[Sample]]:
    def prepared(settings: RunSettings, recorder: Recorder) -> Work:
        steps = scene.trainer(settings, recorder).steps()

        def train() -> float:
            for _ in range(STEPS):
                next(steps)
            # Inside the time and on this side only: left to its thread, it would run while the other side is timed.
            recorder.flush()
            return STEPS

        return train

    a, b = (prepared(*side) for side in (ours, baseline))
    return alternate(timed(lambda: a), timed(lambda: b), rounds)

"""What every part of the benchmark works on: the warm-started policy at the default sizes, and a trainer of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from workbench.learn.loop import Trainer
from workbench.learn.warmstart import ensure
from workbench.record.recorder import Recorder
from workbench.spec import EvaluationSettings, LearnSettings, RunSettings

ENDLESS = 1_000_000  # iterations: whoever measures decides when to stop


@dataclass(frozen=True)
class Scene:
    """Settings, the checkpoint that they start from, and a folder for whatever a part writes."""

    settings: RunSettings
    start: Path
    tokenizer: Any
    folder: Path

    def variant(self, algorithm: str) -> RunSettings:
        """The settings with another algorithm."""
        return self.settings.model_copy(update={"algorithm": algorithm})

    def trainer(self, settings: RunSettings, recorder: Recorder) -> Trainer:
        """A trainer at its first step."""
        return Trainer(settings, self.start, recorder, self.tokenizer)


def defaults(threads: int = 1) -> RunSettings:
    """An off-policy run of the default sizes, without end and without held-out evaluation, which no baseline does.

    The batch is spelled out, so that figures stay comparable when a default moves.
    """
    return RunSettings(
        algorithm="ppo",
        iterations=ENDLESS,
        learn=LearnSettings(episodes=64, epochs=4, minibatches=4, staleness=0),
        evaluation=EvaluationSettings(every=0, episodes=1),
        threads=threads,
    )


@contextmanager
def scene(settings: RunSettings, cache: Path) -> Iterator[Scene]:
    """The scene in a temporary folder; the warm start comes from `cache`, where the grid keeps its own."""
    torch.set_num_threads(settings.threads)
    start = ensure(settings, cache)
    with tempfile.TemporaryDirectory(prefix="sorl-bench-") as folder:
        yield Scene(settings, start, AutoTokenizer.from_pretrained(start), Path(folder))

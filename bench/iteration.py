"""Our GRPO, one iteration for each line on stdin: the counterpart of bench/trl_grpo.py, in a process of its
own.

    python bench/iteration.py SETTINGS.json CHECKPOINT FOLDER

An iteration is a whole step of a run: sampling, old log-probs, advantages, updates, diagnostics, segments on
the disk. Each starts from the checkpoint's weights, so that episodes stay as long as they were when the other
side was set up. Each line on stdout is {"seconds", "cpu_seconds", "trained_tokens", "lengths"} of one
iteration.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from sorl.learn.loop import Trainer
from sorl.measures.evidence import StepEvidence
from sorl.recording.recorder import Recorder
from sorl.spec import RunSettings


class Counting(Recorder):
    """A recorder that also remembers how much the last step trained on."""

    counts: Mapping[str, Any]

    def step(
        self, step: int, evidence: StepEvidence, evaluations: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float | None]:
        """Record, and count."""
        rows = (evidence.trained or evidence.rollouts).tokens or ()
        self.counts = {"trained_tokens": evidence.tokens_trained, "lengths": [len(tokens) for tokens in rows]}
        return super().step(step, evidence, evaluations)


def main(arguments: list[str]) -> None:
    """Train until stdin ends."""
    settings_file, start, folder = arguments
    settings = RunSettings.model_validate_json(Path(settings_file).read_text())
    with Counting(Path(folder), "bench-trl", settings) as recorder:
        trainer = Trainer(settings, Path(start), recorder, AutoTokenizer.from_pretrained(start))
        weights = deepcopy(trainer.learner.policy.state_dict())
        steps = trainer.steps()
        for _ in sys.stdin:
            trainer.learner.policy.load_state_dict(weights)
            cpu = time.process_time()
            began = time.perf_counter()
            next(steps)
            recorder.flush()
            report = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
            print(json.dumps({**report, **recorder.counts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

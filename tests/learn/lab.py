"""Runs with a fault that share the iterations before it: the first one is trained once, the others on copies."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.learn.tiny import CLOCK, TINY, merged
from workbench.agent.tokenizer import build_tokenizer
from workbench.diagnostics import measure
from workbench.diagnostics.evidence import Evidence, StepEvidence
from workbench.diagnostics.measure import Measurements
from workbench.diagnostics.rules import Event
from workbench.learn.faults import inject
from workbench.learn.loop import Trainer
from workbench.learn.warmstart import ensure
from workbench.record.recorder import NullRecorder
from workbench.spec import FaultSettings, RunSettings

AT = 2  # the first iteration with a fault; iteration 0 is shared, 1 is trained with the fault waiting
CHANGES: dict[str, Any] = {
    "iterations": 4,
    "world": {"max_turns": 4},
    "learn": {"epochs": 1, "staleness": 0, "policy": {"lr": 0.05, "max_grad_norm": 0.1}},
    "evaluation": {"every": 0, "episodes": 2},
}
KL: dict[str, Any] = {"slots": {"kl": {"kind": "loss", "beta": 0.01}}}


class Seen(NullRecorder):
    """Keeps what a recorder would have measured and written."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings)
        self.evidence: list[StepEvidence] = []
        self.measured: list[Measurements] = []
        self.said: list[Event] = []

    def step(
        self, step: int, evidence: StepEvidence, evaluations: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float | None]:
        self.evidence.append(evidence)
        self.measured.append(measure(step, evidence))
        self.said += self._see(step, self.measured[-1].step, evidence.mismatches or ())
        return self.measured[-1].step


@dataclass
class Run:
    """A finished run: `row`, `column` and `updates` of a step."""

    seen: Seen

    def row(self, step: int) -> dict[str, Any]:
        return {k: v for k, v in self.seen.measured[step].step.items() if not k.startswith(CLOCK)}

    def column(self, table: str, name: str, step: int) -> Any:
        return np.ma.getdata(getattr(self.seen.measured[step], table)[name])

    def updates(self, step: int) -> Evidence:
        found = self.seen.evidence[step].updates
        assert found is not None
        return found

    def events(self, prefix: str = "guard_") -> list[tuple[str, int]]:
        return [(e.kind, e.step) for e in self.seen.said if e.kind.startswith(prefix)]


@dataclass
class Bench:
    """Trains iterations 1 .. with a fault from `AT` on, or without one."""

    cache: Path
    begun: dict[str, Trainer] = field(default_factory=dict)
    finished: dict[str, Run] = field(default_factory=dict)

    def healthy(self, algorithm: str = "grpo", **changes: Any) -> Run:
        return self._run(algorithm, None, changes)

    def faulty(self, kind: str, algorithm: str = "grpo", changes: Mapping[str, Any] | None = None, **fault: Any) -> Run:
        settings = FaultSettings.model_validate({"at_step": AT, **fault, "kind": kind})
        return self._run(algorithm, settings, changes or {})

    def _run(self, algorithm: str, fault: FaultSettings | None, changes: Mapping[str, Any]) -> Run:
        start, key = f"{algorithm} {changes}", f"{algorithm} {fault} {changes}"
        if key in self.finished:
            return self.finished[key]
        if start not in self.begun:
            given = merged(merged(merged(TINY, CHANGES), dict(changes)), {"algorithm": algorithm, "iterations": 1})
            settings = RunSettings.model_validate(given)
            self.begun[start] = Trainer(settings, ensure(settings, self.cache), Seen(settings), build_tokenizer())
            list(self.begun[start].steps())
        trainer = deepcopy(self.begun[start])
        trainer.settings = trainer.settings.model_copy(update={"iterations": CHANGES["iterations"], "fault": fault})
        policy = trainer.learner.policy
        trainer.fault = trainer.sampler.fault = inject(trainer.settings, trainer.algorithm, policy, trainer.tokenizer)
        list(trainer.steps())
        assert isinstance(trainer.recorder, Seen)
        self.finished[key] = Run(trainer.recorder)
        return self.finished[key]


@pytest.fixture(scope="session")
def bench(cache: Path) -> Bench:
    return Bench(cache)

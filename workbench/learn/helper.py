"""The processes of a run besides its leader: they do what it calls until it lets them go."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import torch

from workbench.agent.errors import NonFinite
from workbench.batch import Batch
from workbench.learn import checkpoint
from workbench.learn.crew import Team
from workbench.learn.faults.hooks import Lab
from workbench.learn.locate import tokenizer_of
from workbench.learn.loop import learner_of, sampler_of
from workbench.learn.rollouts import Sampler
from workbench.learn.update import Learner
from workbench.spec import LearnSettings, RunSettings


class Helper:
    """What the leader can call; the leader does the same by the method of that name of Learner or Sampler."""

    def __init__(self, learner: Learner, sampler: Sampler) -> None:
        self._learner, self._sampler = learner, sampler

    def draw(self, number: int, again: int) -> None:
        """The episodes of one draw of a rollout."""
        with suppress(NonFinite):  # the leader has it as well, and says so
            self._sampler.draw(number, again, self._sampler.engine, self._sampler.world)

    def restore(self, folder: str) -> None:
        """Go to where a checkpoint was written."""
        checkpoint.load(Path(folder), self._learner)

    def train(self, settings: LearnSettings, batch: Batch) -> None:
        """One optimizer update."""
        self._learner.follow(settings)
        self._learner.train(batch)

    def log_probs(self, batch: Batch) -> None:
        """Log-probs under the policy as it is."""
        self._learner.log_probs(batch)

    def values(self, batch: Batch) -> None:
        """Values under the critic as it is."""
        self._learner.values(batch)


def help_out(settings: RunSettings, start: Path) -> None:
    """Serve the leader of a run until it says that it is over. A signal is for the leader, who saves first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(settings.threads)
    team = Team(settings.compute)
    learner = learner_of(settings, start, team)
    helper = Helper(learner, sampler_of(settings, learner, tokenizer_of(start), Lab()))
    while True:
        name, arguments = team.called()
        if name == "leave":
            team.part()
            return
        getattr(helper, name)(*arguments)

"""The processes of a run besides its leader: they do what it calls until it lets them go."""

from __future__ import annotations

import signal
from pathlib import Path

import torch

from workbench.batch import Batch
from workbench.learn import checkpoint
from workbench.learn.crew import Team
from workbench.learn.loop import learner_of
from workbench.learn.update import Learner
from workbench.spec import LearnSettings, RunSettings


class Helper:
    """What the leader can call; each method is the leader's share of the same name in Learner."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

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
    helper = Helper(learner_of(settings, start, team))
    while True:
        name, arguments = team.called()
        if name == "leave":
            team.part()
            return
        getattr(helper, name)(*arguments)

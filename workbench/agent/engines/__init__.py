"""What samples: every engine turns questions into episodes, tokens in, tokens and behaviour log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from workbench.agent.episode import Episode
from workbench.agent.worlds import Question, World


class Engine(Protocol):
    """The one call that learning makes of a sampler."""

    def rollout(
        self,
        world: World,
        questions: Sequence[Question],
        groups: Sequence[int],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """One episode for each question, in order; `groups` are their prompt groups."""

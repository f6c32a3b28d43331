"""What the kinds of fault share: their settings, their strength, and random numbers of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.learn.faults.declared import strength
from workbench.learn.faults.hooks import Hooks
from workbench.learn.rollouts import FAULT, generator
from workbench.spec import FaultSettings, RunSettings


@dataclass
class Fault(Hooks):
    """A bug: overrides the hook in which it sits. Its random numbers are its own, so that nobody else's change."""

    run: RunSettings
    settings: FaultSettings
    policy: PreTrainedModel
    tokenizer: Any

    @property
    def strength(self) -> float:
        """Its one number."""
        return strength(self.settings)

    def stream(self, *key: int) -> torch.Generator:
        """Random numbers addressed by `key`."""
        return generator(self.run.seed, FAULT, *key)

    def some(self, n: int, *key: int) -> Tensor:
        """True at the share `strength` of `n` rows, drawn at random, at least one of them, (n,) bool."""
        chosen = torch.zeros(n, dtype=torch.bool)
        if self.strength > 0:
            chosen[torch.randperm(n, generator=self.stream(*key))[: max(1, round(n * self.strength))]] = True
        return chosen

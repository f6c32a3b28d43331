"""What an algorithm is: a choice for every slot of the pipeline, and what its page says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from workbench.objective.advantage import Advantage
from workbench.objective.aggregate import Aggregate, TokenMean
from workbench.objective.clip import Clip
from workbench.objective.kl import KL
from workbench.objective.ratio import Pool
from workbench.objective.rollout_correction import Correction, Routing
from workbench.objective.schedule import EarlyStop, Schedule
from workbench.objective.select import Select, Shaping
from workbench.objective.stabilise import Stabiliser

# The families that `sorl algorithms` lists and the app colours, with their titles.
FAMILIES: Mapping[str, str] = MappingProxyType({
    "critic": "With a critic", "normalised": "Normalised by the clipping bias",
    "group": "Against the other rollouts of a prompt", "reinforce": "REINFORCE",
    "unit": "Ratios of sentences, turns and sequences", "weight": "Another weight than the clipped ratio",
    "guard": "Guards against drift", "correction": "Correction of the rollout",
})  # fmt: skip


@dataclass(frozen=True)
class Algorithm:
    """A named choice for every slot of the pipeline; holds no maths.

    `summary`: what it does, in a sentence. `experimental`: why the declaration may not be what its source does; empty =
    read in the source. `claim`: what the source reports.
    """

    name: str
    title: str
    paper: str
    formula: str
    differs_from: str | None
    advantage: Advantage
    ratio: Pool
    clip: Clip
    stabilise: Stabiliser = field(default_factory=Stabiliser)
    aggregate: Aggregate = field(default_factory=TokenMean)
    kl: KL = field(default_factory=KL)
    select: Select = field(default_factory=Select)
    correction: Correction = field(default_factory=Correction)
    shaping: Shaping = field(default_factory=Shaping)
    schedule: Schedule = field(default_factory=Schedule)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    routing: Routing = field(default_factory=Routing)
    summary: str = ""
    experimental: str = ""
    claim: str = ""

    def but(self, name: str, **changes: Any) -> Algorithm:
        """Another algorithm that differs from this one in `changes`; what was said of this one is not said of it."""
        said = {"summary": "", "experimental": "", "claim": "", "differs_from": self.name}
        return replace(self, name=name, **(said | changes))

    def within(self, budget: float) -> Algorithm:
        """This algorithm in a run whose policy may write `budget` tokens an episode (a constant of some losses)."""
        return replace(self, aggregate=self.aggregate.within(budget))

    @property
    def critic(self) -> bool:
        """Whether the advantage needs a critic's values."""
        return self.advantage.needs_values

    @property
    def group_size(self) -> int:
        """Rollouts per prompt unless a run says otherwise: 1, or 8 where a rule compares inside a prompt group."""
        return max(self.advantage.group_size, self.select.group_size)

    @property
    def needs_sampler(self) -> bool:
        """Whether the loss needs the sampler's log-probs in addition to those of the proximal policy."""
        return self.correction.kind != "none" or getattr(self.clip, "against", "old") != "old"

    @property
    def needs_reference(self) -> bool:
        """Whether the KL term needs log-probs of a frozen reference."""
        return self.kl.needs_reference

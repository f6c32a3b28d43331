"""Pure maths: from log-probs, rewards and values to losses. No algorithm by name, only slots and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workbench.objective.advantage import Advantage, value_loss
from workbench.objective.aggregate import Aggregate, Normaliser
from workbench.objective.algorithm import FAMILIES, Algorithm
from workbench.objective.clip import Clip
from workbench.objective.kl import KL
from workbench.objective.pipeline import LossTerms, PolicyLoss, policy_loss, prepare, statistics
from workbench.objective.ratio import Pool
from workbench.objective.rollout_correction import Correction, Routing
from workbench.objective.schedule import EarlyStop, Schedule
from workbench.objective.select import Select, Shaping
from workbench.objective.slot import Slot
from workbench.objective.stabilise import Stabiliser

# Every slot of the pipeline, in the order of an algorithm's fields, with the kinds that it takes.
KINDS: Mapping[str, Mapping[str, type[Slot]]] = MappingProxyType({
    "advantage": Advantage.kinds, "ratio": Pool.kinds, "clip": Clip.kinds, "stabilise": Stabiliser.kinds,
    "aggregate": Aggregate.kinds, "kl": KL.kinds, "select": Select.kinds, "correction": Correction.kinds,
    "shaping": Shaping.kinds, "schedule": Schedule.kinds, "early_stop": EarlyStop.kinds,
    "routing": Routing.kinds,
})  # fmt: skip

__all__ = [
    "FAMILIES", "KINDS", "Algorithm", "LossTerms", "Normaliser", "PolicyLoss", "Pool", "Slot", "policy_loss",
    "prepare", "statistics", "value_loss",
]  # fmt: skip

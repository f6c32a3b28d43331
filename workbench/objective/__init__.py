"""Pure maths: from log-probs, rewards and values to losses. No algorithm by name, only slots and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workbench.objective.advantage import ADVANTAGES
from workbench.objective.aggregate import AGGREGATES, Normaliser
from workbench.objective.algorithm import FAMILIES, Algorithm
from workbench.objective.clip import CLIPS
from workbench.objective.clip_adaptive import ADAPTIVE
from workbench.objective.clip_weighted import WEIGHTED
from workbench.objective.early_stop import EARLY_STOPS
from workbench.objective.kl import KLS
from workbench.objective.pipeline import (
    LossTerms,
    PolicyLoss,
    clipped_loss,
    policy_loss,
    prepare,
    statistics,
)
from workbench.objective.ratio import RATIOS, Pool
from workbench.objective.rollout_correction import CORRECTIONS
from workbench.objective.schedule import SCHEDULES
from workbench.objective.select import SELECTS
from workbench.objective.shaping import SHAPINGS
from workbench.objective.slot import Slot
from workbench.objective.stabilise import STABILISERS
from workbench.objective.value import entropy, value_loss

_CHOICES: dict[str, tuple[type[Slot], ...]] = {
    "advantage": ADVANTAGES,
    "ratio": RATIOS,
    "clip": (*CLIPS, *WEIGHTED, *ADAPTIVE),
    "stabilise": STABILISERS,
    "aggregate": AGGREGATES,
    "kl": KLS,
    "select": SELECTS,
    "correction": CORRECTIONS,
    "shaping": SHAPINGS,
    "schedule": SCHEDULES,
    "early_stop": EARLY_STOPS,
}

KINDS: Mapping[str, Mapping[str, type[Slot]]] = MappingProxyType(
    {slot: {choice.kind: choice for choice in choices} for slot, choices in _CHOICES.items()}
)
"""Every slot of the pipeline, in the order of an algorithm's fields, with the kinds that it takes."""

__all__ = [
    "FAMILIES",
    "KINDS",
    "Algorithm",
    "LossTerms",
    "Normaliser",
    "PolicyLoss",
    "Pool",
    "Slot",
    "clipped_loss",
    "entropy",
    "policy_loss",
    "prepare",
    "statistics",
    "value_loss",
]

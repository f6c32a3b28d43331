"""Pure maths: from log-probs, rewards and values to losses. No algorithm by name, only slots
and their kinds.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_type_hints

from sorl.objective.advantage import value_loss
from sorl.objective.aggregate import Normaliser
from sorl.objective.pipeline import (
    FAMILIES,
    Algorithm,
    LossTerms,
    PolicyLoss,
    policy_loss,
    prepare,
    statistics,
)
from sorl.objective.ratio import Pool
from sorl.objective.slot import Slot

_HINTS = get_type_hints(Algorithm).items()
_SLOTS = {name: hint for name, hint in _HINTS if isinstance(hint, type) and issubclass(hint, Slot)}
# Every slot of the pipeline, in the order of an algorithm's fields, with the kinds that it takes.
KINDS: Mapping[str, Mapping[str, type[Slot]]] = MappingProxyType(
    {name: slot.kinds for name, slot in _SLOTS.items()}
)

__all__ = [
    "FAMILIES",
    "KINDS",
    "Algorithm",
    "LossTerms",
    "Normaliser",
    "PolicyLoss",
    "Pool",
    "Slot",
    "policy_loss",
    "prepare",
    "statistics",
    "value_loss",
]

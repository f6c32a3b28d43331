"""The class of each fault, and its construction from the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

from workbench.learn.faults import sampling, training
from workbench.learn.faults.declared import KINDS, Kind, check, kind
from workbench.learn.faults.hooks import Lab
from workbench.learn.faults.sampling import Fault
from workbench.objective import Algorithm
from workbench.spec import RunSettings

FAMILIES = (sampling, training)


def _class_of(kind: Kind) -> type[Fault]:
    """Return the class of a kind, in the module of its family: that of stale_weights is StaleWeights."""
    name = kind.name.title().replace("_", "")
    found: type[Fault] = next(getattr(family, name) for family in FAMILIES if hasattr(family, name))
    return found


FAULTS: Mapping[str, type[Fault]] = MappingProxyType({kind.name: _class_of(kind) for kind in KINDS})


def inject(run: RunSettings, algorithm: Algorithm, policy: PreTrainedModel, tokenizer: Any) -> Lab:
    """Return the lab of a run: empty without `[fault]`. Raises InputError for a fault that cannot happen to the run."""
    if run.fault is None:
        return Lab()
    check(run, algorithm)
    declared = kind(run.fault.kind)
    return Lab(FAULTS[declared.name](run, run.fault, policy, tokenizer), run.fault, declared.lead)

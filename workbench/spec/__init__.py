"""The vocabulary: levels, units, alarms, checks, tables, settings. Imports nothing heavy and nothing else of
ours.

The settings are imported at their first use: to build their models takes longer than to read a log without
any.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sorl.spec.docstrings import first_paragraph
from sorl.spec.files import InputError, nearest
from sorl.spec.names import BATCH_FOLDER, BATCH_FORMAT
from sorl.spec.tables import TABLES, Column, Table, table
from sorl.spec.vocabulary import (
    COLLAPSED,
    GUARD,
    MEANINGS,
    NOT_RISEN,
    OUTCOMES,
    RATIO_TOLERANCE,
    UNDECIDED,
    Alarm,
    Check,
    Diagnostic,
    Level,
    Outcome,
    Unit,
    check,
)

if TYPE_CHECKING:
    from sorl.spec.settings import (
        COSMETIC,
        Arm,
        BatchesSettings,
        CollapseSettings,
        ComputeSettings,
        EngineSettings,
        EvaluationSettings,
        FaultSettings,
        GridFile,
        GuardSettings,
        LearnSettings,
        OptimizerSettings,
        PolicySettings,
        RecordSettings,
        RegionSettings,
        RetrieverSettings,
        RunSettings,
        StopSettings,
        WarmStartSettings,
        WorldSettings,
    )

__all__ = [
    "BATCH_FOLDER",
    "BATCH_FORMAT",
    "COLLAPSED",
    "COSMETIC",
    "GUARD",
    "MEANINGS",
    "NOT_RISEN",
    "OUTCOMES",
    "RATIO_TOLERANCE",
    "TABLES",
    "UNDECIDED",
    "Alarm",
    "Arm",
    "BatchesSettings",
    "Check",
    "CollapseSettings",
    "Column",
    "ComputeSettings",
    "Diagnostic",
    "EngineSettings",
    "EvaluationSettings",
    "FaultSettings",
    "GridFile",
    "GuardSettings",
    "InputError",
    "LearnSettings",
    "Level",
    "OptimizerSettings",
    "Outcome",
    "PolicySettings",
    "RecordSettings",
    "RegionSettings",
    "RetrieverSettings",
    "RunSettings",
    "StopSettings",
    "Table",
    "Unit",
    "WarmStartSettings",
    "WorldSettings",
    "check",
    "first_paragraph",
    "nearest",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sorl.spec' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(import_module("sorl.spec.settings"), name)

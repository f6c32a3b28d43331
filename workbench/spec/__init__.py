"""The vocabulary: levels, units, alarms, checks, tables, settings. Imports nothing heavy and nothing else of ours."""

from workbench.spec.files import InputError, nearest

from workbench.spec.settings import (  # isort: skip
    BATCH_FOLDER, BATCH_FORMAT, COSMETIC, Arm, BatchesSettings, CollapseSettings, ComputeSettings, EngineSettings,
    EvaluationSettings, FaultSettings, GridFile, LearnSettings, OptimizerSettings, PolicySettings, RecordSettings,
    RegionSettings, RetrieverSettings, RunSettings, StopSettings, WarmStartSettings, WorldSettings,
)  # fmt: skip
from workbench.spec.tables import TABLES, Column, Table, table

from workbench.spec.vocabulary import COLLAPSED, GUARD, MEANINGS, OUTCOMES, RATIO_TOLERANCE, UNDECIDED  # isort: skip
from workbench.spec.vocabulary import Alarm, Check, Diagnostic, Level, Outcome, Unit, check  # isort: skip

__all__ = [
    "BATCH_FOLDER", "BATCH_FORMAT", "COLLAPSED", "COSMETIC", "GUARD", "MEANINGS", "OUTCOMES", "RATIO_TOLERANCE",
    "TABLES", "UNDECIDED", "Alarm", "Arm", "BatchesSettings", "Check", "CollapseSettings", "Column",
    "ComputeSettings", "Diagnostic", "EngineSettings", "EvaluationSettings", "FaultSettings", "GridFile", "InputError",
    "LearnSettings", "Level", "OptimizerSettings", "Outcome", "PolicySettings", "RecordSettings", "RegionSettings",
    "RetrieverSettings", "RunSettings", "StopSettings", "Table", "Unit", "WarmStartSettings", "WorldSettings",
    "check", "nearest", "table",
]  # fmt: skip

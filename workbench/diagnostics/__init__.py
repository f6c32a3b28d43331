"""Declared measurements: the name is the column, the docstring the tooltip. Importable without torch."""

from workbench.diagnostics.measure import (
    Measurements,
    catalogue,
    measure,
    measure_turn_steps,
    measure_turns,
    measure_updates,
)
from workbench.spec import Diagnostic

CATALOGUE: tuple[Diagnostic, ...] = catalogue()

__all__ = ["CATALOGUE", "Measurements", "measure", "measure_turn_steps", "measure_turns", "measure_updates"]

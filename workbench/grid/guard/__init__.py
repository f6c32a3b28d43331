"""The fair-comparison guard: whether arms can be compared, by their settings and by what their runs recorded."""

from workbench.grid.guard.finding import Finding, lines
from workbench.grid.guard.planned import planned
from workbench.grid.guard.recorded import Run, recorded

__all__ = ["Finding", "Run", "lines", "planned", "recorded"]

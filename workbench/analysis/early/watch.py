"""The one detector that a single run is watched by: it needs no other runs, only its own success."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analysis.early.detectors import score

# Of the shipped corpus about one healthy run in twenty ever loses so much, of all runs that did not collapse (mild ones
# and those that never learned as well) one in five, and nine of ten collapses by the time that they are called.
LOST = 0.55


@dataclass(frozen=True)
class Slump:
    """The first step at which the median of three steps of success lay `lost` (a share) below the best such median."""

    step: int
    lost: float


def slumped(success: pd.Series) -> Slump | None:
    """Where success, indexed by step, first slumps by LOST; None where it never did, or was not logged."""
    if success.empty:
        return None
    scores = score("slump", success.to_numpy(float), "below")
    reached = np.flatnonzero(scores >= LOST)
    if not len(reached):
        return None
    at = int(reached[0])
    return Slump(int(success.index[at]), float(min(scores[at], 1.0)))

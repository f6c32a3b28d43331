"""Do chosen rows differ from the others? A permutation test within strata, since rows resemble each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Shift:
    """How the chosen differ from the others of their strata: means of the values, and a test of their ranks.

    Units are prompt groups where each was chosen as a whole, else rows.
    """

    chosen: float  # mean over the chosen units
    others: float
    chosen_units: int
    z: float  # standard errors by which ranks of the chosen lie above what chance gives

    @property
    def p(self) -> float:
        """Two-sided, by the normal approximation of the permutation distribution."""
        return math.erfc(abs(self.z) / math.sqrt(2))


def shift(values: pd.Series, chosen: pd.Series, step: pd.Series, group: pd.Series) -> Shift | None:
    """Compare chosen rows with the others; None where no stratum has both, or all its values are equal.

    Rollouts of one prompt resemble each other. Where whole groups were chosen, a group counts once, by its
    mean, and the strata are steps. Else the strata are groups: a row is compared with rollouts of its own
    prompt, and what prompts differ in plays no part.
    """
    rows = pd.DataFrame({"value": values, "chosen": chosen, "step": step, "group": group}).dropna()
    groups = rows.groupby(["step", "group"])["chosen"]
    if (groups.nunique() == 1).all():
        units = rows.groupby(["step", "group"], as_index=False).agg({"value": "mean", "chosen": "first"})
        stratum = units["step"].to_numpy()
    else:
        units = rows
        stratum = rows.groupby(["step", "group"]).ngroup().to_numpy()
    flags = units["chosen"].astype(bool)
    chosen_share = flags.groupby(stratum).transform("mean")
    is_mixed = ((chosen_share > 0) & (chosen_share < 1)).to_numpy()
    if not is_mixed.any():
        return None
    return _of_units(units["value"][is_mixed], flags[is_mixed], stratum[is_mixed])


def _of_units(values: pd.Series, chosen: pd.Series, stratum: np.ndarray) -> Shift | None:
    """The test over units whose strata have both kinds."""
    ranks = values.groupby(stratum).rank()
    table = pd.DataFrame({"rank": ranks, "chosen": chosen, "sum": ranks.where(chosen, 0.0)})
    strata = table.groupby(stratum)
    size = strata.size()
    taken = strata["chosen"].sum()
    surplus = strata["sum"].sum() - taken * strata["rank"].mean()
    variance = taken * (size - taken) / size * strata["rank"].var()
    total = float(variance.sum())
    if total <= 0:
        return None
    return Shift(
        float(values[chosen].mean()),
        float(values[~chosen].mean()),
        int(chosen.sum()),
        float(surplus.sum()) / math.sqrt(total),
    )

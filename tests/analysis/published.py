"""Survival data that R's survival package ships, and what its documentation and tests print of them.

Numbers, from therneau/survival (tests/doaml.Rout.save, tests/difftest.Rout.save, tests/book2.Rout.save) and
from printed sessions of survfit, survdiff and coxph on the same data.
"""

from collections.abc import Sequence

import pandas as pd


def rows(arm: str, time: Sequence[float], event: Sequence[int]) -> pd.DataFrame:
    """Runs of one arm as survival.observed gives them."""
    return pd.DataFrame(
        {
            "run_id": [f"{arm}-{i}" for i in range(len(time))],
            "arm": arm,
            "seed": range(len(time)),
            "time": [float(t) for t in time],
            "event": [bool(e) for e in event],
        }
    )


FELL = rows("ppo", [10, 12, 14, 16, 20], [1] * 5)
STOOD = rows("st-ppo", [36] * 5, [0] * 5)

# Acute myelogenous leukaemia, with and without maintenance chemotherapy (Miller 1981).
AML = pd.concat(
    [
        rows("Maintained", [9, 13, 13, 18, 23, 28, 31, 34, 45, 48, 161], [1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0]),
        rows(
            "Nonmaintained",
            [5, 5, 8, 8, 12, 16, 23, 27, 30, 33, 43, 45],
            [1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1],
        ),
    ],
    ignore_index=True,
)

# Data set 1 of the appendix of Therneau and Grambsch (2000): ties, and a solution in closed form.
TIED = pd.concat([rows("x=0", [9, 6, 8], [1, 1, 0]), rows("x=1", [1, 1, 6], [1, 0, 1])], ignore_index=True)


def lung(by: str = "sex") -> pd.DataFrame:
    """NCCTG lung data: 228 patients by sex, or 227 by performance status."""
    from lifelines.datasets import load_lung

    data = load_lung().dropna(subset=[by]).replace({"sex": {1: "male", 2: "female"}})
    arms = data.groupby(by, sort=by != "sex")
    return pd.concat(
        [rows(str(arm), group["time"], group["status"]) for arm, group in arms], ignore_index=True
    )

"""Algorithms over all conditions that they share: where a grid crosses them with staleness, epochs and the like."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from workbench.analysis.runs import replicate
from workbench.analysis.statistics import interquartile_mean, interquartile_mean_interval


def by_algorithm(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per algorithm: IQM of the final success over all shared conditions, with a stratified 95 % interval.

    A condition is everything that is configured except the algorithm and the seed; the bootstrap resamples seeds inside
    each. Only conditions in which every algorithm has finished runs count, so that all are asked the same. Empty unless
    at least two algorithms share at least two.
    """
    over = runs[(runs["status"] == "finished") & runs["final_success"].notna() & runs["config"].notna()]
    if over.empty:
        return pd.DataFrame()
    pooled, conditions = zip(*(_split(config) for config in over["config"]), strict=True)
    over = over.assign(pooled=pooled, condition=conditions)
    # An algorithm that occurs in one condition only is a control and is pooled with nothing.
    crossed = over.groupby("pooled")["condition"].transform("nunique") > 1
    over = over[crossed]
    present = over.groupby("condition")["pooled"].nunique()
    shared = present[present == over["pooled"].nunique()].index
    over = over[over["condition"].isin(shared)]
    if over["pooled"].nunique() < 2 or len(shared) < 2:
        return pd.DataFrame()
    return pd.DataFrame([_algorithm(str(name), rows) for name, rows in over.groupby("pooled", sort=False)])


def _split(config: str) -> tuple[str, str]:
    settings = replicate(config)
    chosen = {key: value for key, value in settings.items() if key.split(".")[0] in ("algorithm", "slots")}
    rest = {key: value for key, value in settings.items() if key not in chosen}
    name = chosen.pop("algorithm", None) or chosen.pop("algorithm.base", "variant")
    changes = [f"{key.removeprefix('algorithm.')} {value}" for key, value in chosen.items()]
    return f"{name} ({', '.join(changes)})" if changes else str(name), json.dumps(rest, sort_keys=True)


def _algorithm(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    strata = [group["final_success"].to_list() for _, group in rows.groupby("condition")]
    low, high = interquartile_mean_interval(strata)
    return {
        "pooled": name,
        "arms": list(dict.fromkeys(rows["arm"])),
        "conditions": len(strata),
        "pooled_runs": len(rows),
        "pooled_final_iqm": interquartile_mean(rows["final_success"].to_list()),
        "pooled_final_iqm_low": low,
        "pooled_final_iqm_high": high,
    }

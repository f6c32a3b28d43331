"""The shipped runs as scalar logs: what a trainer would have logged of them, where their truth shows in
scalars.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from studies.scalar_logs import trainers

RESULTS = ("controls", "neighbours", "readings", "region_adamw", "region_sgd", "six_by_five")
# A metric of trainers.NAMES -> our column.
COLUMNS = {
    "step": "step",
    "reward": "reward",
    "reward_std": "group_reward_std",
    "zero_std": "zero_advantage_frac",
    "entropy": "entropy",
    "kl": "kl_ref",
    "clip": "clip_frac",
    "approx_kl": "approx_kl",
    "length": "response_tokens",
    "grad_norm": "grad_norm_mean",
    "truncated": "truncated_frac",
    "mismatch_kl": "mismatch_kl",
    "turns": "turns",
    "explained_variance": "explained_variance",
    "eval": "heldout_success",
}
OF_A_RUN = ("run_id", "experiment", "algorithm", "outcome", "config", "seed")


@dataclass(frozen=True)
class Run:
    """A run as rows under the keys of a trainer, and the cause of its fall (empty for a healthy run)."""

    run_id: str
    experiment: str
    cause: str
    trainer: str
    rows: list[dict[str, float]]


def runs(folder: Path) -> Iterator[Run]:
    """Yield the healthy runs, those that logged a gradient that is no number, and those that fell by stale
    data alone.

    Stale data alone: a run with the same settings and seed, but fresher data, stayed healthy. What else
    brought a run down is known for none of the others, so they are left out.
    """
    rows = [row for name in RESULTS for row in _rows(folder / f"{name}.parquet")]
    twins: dict[str, dict[int, str]] = {}
    for row in rows:
        twins.setdefault(_settings(row), {})[row["staleness"]] = row["outcome"]
    for row in rows:
        same = twins[_settings(row)]
        if row["outcome"] == "healthy":
            yield _run(row, "healthy")
        elif row["outcome"] == "diverged" and any(
            x is not None and math.isnan(x) for x in row["grad_norm_mean"]
        ):
            yield _run(row, "non_finite")
        elif row["outcome"] == "collapsed" and row["staleness"] > min(same) and same[min(same)] == "healthy":
            yield _run(row, "stale_data")


def _rows(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path, columns=[*OF_A_RUN, *COLUMNS.values()])
    return [
        {**row, "staleness": json.loads(row["config"])["learn"]["staleness"]} for row in table.to_pylist()
    ]


def _settings(row: Mapping[str, Any]) -> str:
    config = json.loads(row["config"])
    config["learn"] = {**config["learn"], "staleness": None}
    return json.dumps({**config, "seed": row["seed"]}, sort_keys=True)


def _run(row: Mapping[str, Any], cause: str) -> Run:
    """The run as verl logs a critic's, as TRL logs a group's: a column that was not measured is absent."""
    trainer = "verl" if _any(row["explained_variance"]) else "trl"
    keys = trainers.NAMES[trainer]
    measured = {keys[m]: row[c] for m, c in COLUMNS.items() if m in keys and (m == "step" or _any(row[c]))}
    rows = [
        {key: float(series[i]) for key, series in measured.items() if series[i] is not None}
        for i in range(len(row["step"]))
    ]
    if row["staleness"] and "staleness" in keys:
        rows = [line | {keys["staleness"]: float(row["staleness"])} for line in rows]
    return Run(row["run_id"], row["experiment"], cause, trainer, rows)


def _any(series: Any) -> bool:
    return series is not None and any(value is not None for value in series)

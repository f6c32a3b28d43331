"""Small experiments with known answers: a row a run, as Results.runs has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sorl.cli.report import slots
from sorl.spec import RunSettings

STALE = {"learn": {"epochs": 4, "staleness": 16}}
STEPS = 40


def run(
    arm: str, seed: int, onset: int | None = None, *, settings: dict[str, Any] | None = None, **columns: Any
) -> dict[str, Any]:
    """A finished run of 40 steps that collapses at `onset` or stays up; columns as in the file of results."""
    config = RunSettings.model_validate(
        {"iterations": STEPS, "seed": seed, **(settings or {})}
    ).model_dump_json()
    row = {
        "run_id": f"{arm}-s{seed}",
        "experiment": "demo",
        "arm": arm,
        "algorithm": "ppo",
        "seed": seed,
        "status": "finished",
        "reason": None,
        "outcome": "healthy" if onset is None else "collapsed",
        "collapse_step": np.nan if onset is None else float(onset),
        "onset_low": np.nan,
        "onset_high": np.nan,
        "detected": np.nan,
        "steps": STEPS,
        "planned": STEPS,
        "peak_success": 0.7,
        "final_success": 0.6 if onset is None else 0.05,
        "clip_frac": 0.1,
        "grad_norm_median": 1.0,
        "grad_norm_max": 2.0,
        "config": config,
        "slots": slots(config),
        "seconds": 60.0,
        "versions": '{"sorl": "0.1.0"}',
        "time": float(STEPS if onset is None else onset),
        "event": onset is not None,
        "step": np.arange(STEPS),
    }
    curves = {
        "success": np.full(STEPS, 0.6),
        "grad_norm_max": np.ones(STEPS),
        "clip_frac": np.full(STEPS, 0.1),
        "ess_frac_min": np.full(STEPS, 0.8),
        "entropy": np.ones(STEPS),
        "clip_bias_norm": np.full(STEPS, 0.2),
        "value_mae": np.full(STEPS, 0.3),
    }
    return row | {f"{name}_curve": values for name, values in curves.items()} | columns


def arm(
    name: str, onsets: Sequence[int | None], algorithm: str = "ppo", **changes: Any
) -> list[dict[str, Any]]:
    """One run per onset, seeds from 0; `changes` are settings over 4 epochs and staleness 16."""
    settings = {"algorithm": algorithm, **STALE, **changes}
    return [
        run(name, seed, onset, settings=settings, algorithm=algorithm) for seed, onset in enumerate(onsets)
    ]


def on_policy(name: str, onsets: Sequence[int | None], algorithm: str = "ppo") -> list[dict[str, Any]]:
    return arm(name, onsets, algorithm, learn={"epochs": 1, "staleness": 0})


def frame(*arms: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame([row for rows in arms for row in rows])


def up(n: int) -> list[None]:
    return [None] * n


def down(n: int, onset: int = 20) -> list[int]:
    return [onset + seed % 3 for seed in range(n)]

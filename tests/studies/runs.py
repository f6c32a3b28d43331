"""Runs made by hand: healthy ones that learn, and ones that fall."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.early_warning.corpus import Run

STEPS, ONSET = 30, 18


def run(seed: int, falls: bool, *, onset: int = ONSET, **changes: Any) -> Run:
    """Success climbs; where it `falls`, entropy rises two steps before the onset and success is lost after it."""
    draw = np.random.default_rng(seed)
    steps = np.arange(STEPS)
    success = 0.4 + 0.01 * steps + draw.normal(0, 0.02, STEPS)
    entropy = 0.2 + draw.normal(0, 0.005, STEPS)
    noise = draw.normal(1.0, 0.1, STEPS)
    if falls:
        success[onset + 1 :] = 0.02
        entropy[onset - 2 :] = 0.6
    curves = {name: (values, np.ones(STEPS, bool)) for name, values in
              (("success", success), ("entropy", entropy), ("grad_norm_max", noise))}  # fmt: skip
    plain: dict[str, Any] = {
        "run_id": f"run-{'falls' if falls else 'stays'}-{seed}", "experiment": "made", "optimizer": "sgd",
        "algorithm": ("ppo", "grpo")[seed // 2 % 2], "outcome": "collapsed" if falls else "healthy", "seed": seed,
        "staleness": 0, "onset": onset if falls else None, "detection": onset + 8 if falls else None, "lr": 0.1,
        "max_grad_norm": None, "steps": steps, "curves": curves,
    }  # fmt: skip
    return Run(**{**plain, **changes})


def corpus(n: int = 20) -> list[Run]:
    """n runs of either kind."""
    return [run(seed, falls) for falls in (True, False) for seed in range(n)]

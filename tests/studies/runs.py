"""Runs made by hand: healthy ones that learn, ones that fall, and regions of both."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sorl.analysis.results import Results, results
from studies.early_warning.corpus import Run
from tests.analysis.frames import arm, down, frame, up

STEPS = 30
ONSET = 18


def run(seed: int, falls: bool, *, onset: int = ONSET, **changes: Any) -> Run:
    """Success climbs; where it `falls`, entropy rises two steps before the onset and success is lost after
    it.
    """
    draw = np.random.default_rng(seed)
    steps = np.arange(STEPS)
    success = 0.4 + 0.01 * steps + draw.normal(0, 0.02, STEPS)
    entropy = 0.2 + draw.normal(0, 0.005, STEPS)
    noise = draw.normal(1.0, 0.1, STEPS)
    if falls:
        success[onset + 1 :] = 0.02
        entropy[onset - 2 :] = 0.6
    curves = {
        name: (values, np.ones(STEPS, bool))
        for name, values in (("success", success), ("entropy", entropy), ("grad_norm_max", noise))
    }
    plain: dict[str, Any] = {
        "run_id": f"run-{'falls' if falls else 'stays'}-{seed}",
        "experiment": "made",
        "optimizer": "sgd",
        "algorithm": ("ppo", "grpo")[seed // 2 % 2],
        "outcome": "collapsed" if falls else "healthy",
        "seed": seed,
        "staleness": 0,
        "onset": onset if falls else None,
        "detection": onset + 8 if falls else None,
        "lr": 0.1,
        "max_grad_norm": None,
        "steps": steps,
        "curves": curves,
    }
    return Run(**{**plain, **changes})


def corpus(n: int = 20) -> list[Run]:
    """n runs of either kind."""
    return [run(seed, falls) for falls in (True, False) for seed in range(n)]


def region(points: int, survives: Mapping[str, Mapping[int, float]], n: int, **options: str) -> Results:
    """n seeds of each algorithm; they collapse above the learning rate that it survives at each staleness."""
    rates = [float(f"{0.1 * 2**i:.3g}") for i in range(points)]
    rows = [
        arm(
            f"{algorithm} · staleness {staleness} · policy.lr {rate:g}",
            down(n) if rate > most else up(n),
            algorithm,
            learn={"epochs": 4, "staleness": staleness, "policy": {"lr": rate}},
        )
        for algorithm, each in survives.items()
        for staleness, most in each.items()
        for rate in rates
    ]
    toml = "\n".join(
        [
            'kind = "region"',
            'question = "How large?"',
            "seeds = [0, 1, 2, 3, 4]",
            "[axes]",
            f"algorithm = {list(survives)}",
            '"learn.staleness" = [0, 3]',
            "[region]",
            f"low = {rates[0]:g}",
            f"high = {rates[-1]:g}",
            f"points = {points}",
            *(f'{key} = "{value}"' for key, value in options.items()),
        ]
    )
    return results(frame(*rows), {"experiment": "demo", "question": "How large?", "toml": toml})

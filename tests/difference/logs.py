"""Logs of another trainer made by hand: a reward that climbs, and settings and versions beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 60
SETTINGS = {
    "learning_rate": 1e-6,
    "num_generations": 8,
    "max_completion_length": 256,
    "per_device_train_batch_size": 8,
    "num_iterations": 2,
}


def rows(seed: int, changes: Mapping[str, Any] | None = None) -> list[dict[str, float]]:
    """Rows of TRL: `changes` gives columns that are another function of the step."""
    draw = np.random.default_rng(seed)
    table: list[dict[str, float]] = []
    for step in range(1, STEPS + 1):
        row = {
            "step": step,
            "reward": 0.3 + 0.008 * step + draw.normal(0, 0.03),
            "reward_std": 0.3 + draw.normal(0, 0.01),
            "completions/mean_length": 100 + draw.normal(0, 4),
            "completions/clipped_ratio": 0.02 + abs(draw.normal(0, 0.005)),
            "loss": draw.normal(0, 0.01),
            "grad_norm": 0.5 + draw.normal(0, 0.04),
            "learning_rate": 1e-6,
            "entropy": 0.5 + draw.normal(0, 0.01),
            "frac_reward_zero_std": 0.1,
        }
        for name, change in (changes or {}).items():
            row[name] = float(change(step, row[name]))
        table.append(row)
    return table


def trl_run(
    folder: Path,
    seed: int = 0,
    *,
    version: str = "",
    settings: Mapping[str, Any] | None = SETTINGS,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder as TRL's trainer leaves it: its state, its arguments and the card with versions."""
    folder.mkdir(parents=True)
    state = {"log_history": rows(seed, changes), "global_step": STEPS, "max_steps": STEPS}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    if settings is not None:
        own = {**settings, "output_dir": folder.name, "seed": seed}
        (folder / "training_args.json").write_text(json.dumps(own))
    if version:
        card = f"# Model\n\n### Framework versions\n\n- TRL: {version}\n- Transformers: 4.52.3\n"
        (folder / "README.md").write_text(card)
    return folder

"""Logs of scalars made by hand: a healthy run of a trainer, what each cause does to it, and what looks like it."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from workbench.diagnosis.log import Log

STEPS = 400
Columns = dict[str, np.ndarray]
Change = Callable[[Columns, np.ndarray, np.random.Generator], None]


def healthy(seed: int = 0, steps: int = STEPS) -> Columns:
    """A run that learns: reward and evaluation rise, entropy falls with them, KL and length grow gently."""
    draw, t = np.random.default_rng(seed), np.linspace(0, 1, steps)

    def noisy(curve: np.ndarray, sd: float) -> np.ndarray:
        return curve + sd * draw.normal(size=steps)

    skill = 0.2 + 0.5 * (1 - np.exp(-2 * t))
    return {
        "step.reward": noisy(skill, 0.03), "step.heldout_success": noisy(skill - 0.05, 0.02),
        "step.entropy": np.abs(noisy(0.3 + 0.5 * np.exp(-1.5 * t), 0.02)), "step.kl_ref": np.abs(noisy(0.01 + 0.2 * t, 0.01)),
        "step.clip_frac": np.abs(noisy(0.02 + 0.02 * t, 0.005)), "step.approx_kl": np.abs(noisy(0.002 + 0 * t, 0.0005)),
        "step.response_tokens": noisy(400 + 150 * t, 20), "step.truncated_frac": np.abs(noisy(0.01 + 0 * t, 0.005)),
        "step.zero_advantage_frac": np.clip(noisy(0.15 + 0.15 * t, 0.05), 0, 1), "step.staleness": np.abs(noisy(1 + 0 * t, 0.2)),
        "minibatch.grad_norm": 0.4 * np.exp(noisy(0 * t, 0.2)), "minibatch.mismatch": 0.005 * np.exp(noisy(0.2 * t, 0.1)),
        "minibatch.value_loss": 0.1 * np.exp(noisy(-0.5 * t, 0.2)), "step.explained_variance": noisy(0.2 + 0.4 * t, 0.05),
        "step.reward_part_correct": noisy(skill, 0.03), "step.reward_part_format": noisy(0.98 - 0.3 * np.exp(-20 * t), 0.01),
        "minibatch.non_finite": np.zeros(steps),
    }  # fmt: skip


def log(columns: Columns, name: str = "made") -> Log:
    """These columns as a log of scalars."""
    tables = {}
    for table in ("step", "minibatch"):
        kept = {key.split(".", 1)[1]: value for key, value in columns.items() if key.split(".")[0] == table}
        tables[table] = pd.DataFrame({"step": np.arange(len(next(iter(columns.values())))), **kept})
    return Log(name, lambda table, step: tables.get(table, pd.DataFrame()), {}, {"outcome": None})


def times(column: str, curve: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Multiply a column by a function of the share of the run."""
    return lambda columns, t, draw: columns.update({column: columns[column] * curve(t)})


def plus(column: str, curve: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Add a function of the share of the run to a column."""
    return lambda columns, t, draw: columns.update({column: columns[column] + curve(t)})


def level(column: str, curve: Callable[[np.ndarray], np.ndarray], sd: float = 0.02) -> Change:
    """Replace a column by a function of the share of the run, and noise."""
    return lambda columns, t, draw: columns.update({column: curve(t) + sd * draw.normal(size=len(t))})


def ramp(at: float, to: float) -> Callable[[np.ndarray], np.ndarray]:
    """From 1 at a share of the run to a factor at its end."""
    return lambda t: 1 + (to - 1) * np.clip((t - at) / (1 - at), 0, 1)


def stalled(at: float) -> Change:
    """Reward and evaluation stay where they are at a share of the run."""

    def change(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
        for name in ("step.reward", "step.heldout_success", "step.reward_part_correct"):
            lost = 0.5 * (np.exp(-2 * min(at, 1)) - np.exp(-2 * t))
            columns[name] = columns[name] - np.where(t > at, lost, 0)

    return change

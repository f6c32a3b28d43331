"""What claims read off the curves of runs: a mean while both arms are up, and the growth before a collapse."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.claims.comparison import Comparison, of_factors
from workbench.analysis.claims.designs import Design

WINDOW = 5  # steps right before the onset, and as many before these
LEAST = 2  # values that a window needs
Row = Mapping[Hashable, Any]


def mean_between(run: Row, name: str, first: float, last: float) -> float | None:
    """Mean of the finite values of a curve in the steps [first, last); None with fewer than LEAST of them."""
    values = run.get(f"{name}_curve")
    if values is None or run.get("step") is None or np.ndim(values) == 0:
        return None
    step, values = np.asarray(run["step"], dtype=float), np.asarray(values, dtype=float)
    if len(step) != len(values):
        return None
    inside = values[(step >= first) & (step < last) & np.isfinite(values)]
    return float(inside.mean()) if len(inside) >= LEAST else None


def log_factor(over: float | None, under: float | None) -> float | None:
    """log(over / under); None unless both are measured and positive."""
    return math.log(over / under) if over is not None and under is not None and over > 0 and under > 0 else None


def growth(run: Row, name: str, onset: float) -> float | None:
    """Log of the mean over the WINDOW steps before `onset` over that of the WINDOW steps before these."""
    late = mean_between(run, name, onset - WINDOW, onset)
    return log_factor(late, mean_between(run, name, onset - 2 * WINDOW, onset - WINDOW))


def while_up(over: pd.DataFrame, name: str, more: str, less: str) -> Comparison:
    """Factor of a curve's mean in arm `more` over `less`, within seeds, over the steps before either collapses."""
    arms = {arm: {r["seed"]: r for r in rows.to_dict("records")} for arm, rows in over.groupby("arm")}
    one, other = arms.get(more, {}), arms.get(less, {})
    logs, means = {}, []
    for seed in set(one) & set(other):
        end = min(float(one[seed]["time"]), float(other[seed]["time"]))
        a, b = (mean_between(run[seed], name, 0, end) for run in (one, other))
        if (value := log_factor(a, b)) is not None:
            logs[seed] = value
            means.append((a or 0.0, b or 0.0))
    told = "{} {:.3g} against {:.3g}".format(name, *np.mean(means, axis=0)) if means else ""
    return of_factors(logs, more, less, told, len(set(one) | set(other)) - len(logs))


def before_collapse(over: pd.DataFrame, arms: Mapping[str, Design], name: str) -> Comparison | None:
    """Growth of a curve before collapses of off-policy runs, over its growth at the same steps in runs that stay up.

    The runs that stay up share seed, epochs, staleness and kind of advantage with the run that collapses; growths are
    averaged within seeds, which are the replicates. None where no run collapsed with the curve measured.
    """
    rows = [r for r in over.to_dict("records") if r["arm"] in arms and arms[r["arm"]].off_policy]
    fell = [r for r in rows if r["dead"] and not pd.isna(r["collapse_step"])]
    grown: dict[Any, list[float]] = {}
    told: list[tuple[float, float]] = []
    seeds = set()
    for run in fell:
        onset = float(run["collapse_step"])
        mine = growth(run, name, onset)
        design = arms[run["arm"]]
        seeds.add(run["seed"])
        up = [
            growth(other, name, onset)
            for other in rows
            if other["seed"] == run["seed"] and not other["dead"] and float(other["time"]) >= onset
            and _alike(arms[other["arm"]], design)
        ]  # fmt: skip
        theirs = [value for value in up if value is not None]
        if mine is not None and theirs:
            usual = sum(theirs) / len(theirs)
            grown.setdefault(run["seed"], []).append(mine - usual)
            told.append((mine, usual))
    if not fell or not any(growth(r, name, float(r["collapse_step"])) is not None for r in fell):
        return None
    words = ""
    if told:
        mine, usual = (math.exp(v) for v in np.mean(told, axis=0))
        words = f"x {mine:.3g} in {len(told)} runs, against x {usual:.3g}"
    return of_factors(
        {seed: sum(v) / len(v) for seed, v in grown.items()}, f"growth of {name} before a collapse",
        "its growth in runs that stay up", words, len(seeds - set(grown)),
    )  # fmt: skip


def _alike(a: Design, b: Design) -> bool:
    keys = ("learn.epochs", "learn.staleness", "critic", "slot.advantage.kind")
    return all(a.settings.get(key) == b.settings.get(key) for key in keys)

"""From query answers to what a curve is drawn from: where each bucket stands on the x-axis, and bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# x-axis -> its title: what is counted, in which unit, from where.
AXES = {
    "step": "training step (iteration, from 0)",
    "updates": "optimizer updates since the beginning (count)",
    "tokens": "tokens trained on since the beginning, each epoch counted (tokens)",
    "onset": "steps from the onset of the collapse (0 = onset)",
}
CLOCKS = {"updates": "updates", "tokens": "tokens_trained"}  # x-axis -> the column of `step` that adds up to it

_POINTS = 60_000  # of a whole panel: what a browser draws without a pause
_MOST, _LEAST = 240, 24  # points of one line


@dataclass(frozen=True)
class Window:
    """The steps that are drawn (counted from each run's origin), and how many of them share a bucket."""

    first: int
    last: int
    width: int

    @classmethod
    def over(cls, first: int, last: int, lines: int, least: int = 1) -> Window:
        """The buckets of `lines` curves: fewer to each where there are many."""
        return cls.made(first, last, min(_MOST, max(_LEAST, _POINTS // max(lines, 1))), least)

    @classmethod
    def made(cls, first: int, last: int, points: int, least: int = 1) -> Window:
        """At most `points` buckets of at least `least` steps."""
        return cls(first, last, max(least, math.ceil((last - first + 1) / points)))


def origins(runs: pd.DataFrame, axis: str) -> list[int]:
    """The step that x counts from, for each of `runs`: 0, or the onset of its collapse.

    A run without a collapse is aligned at the median onset of the others: there its curve shows what staying up looks
    like at the same age.
    """
    if axis != "onset" or runs["collapse_step"].isna().all():
        return [0] * len(runs)
    onsets = runs["collapse_step"].astype(float)
    return [round(step) for step in onsets.fillna(onsets.median())]


def placed(series: pd.DataFrame, runs: pd.DataFrame, window: Window, clock: pd.DataFrame | None = None) -> pd.DataFrame:
    """`series` with arm, run_id, seed and x: the middle of the bucket in steps, or what `clock` counts at its end.

    `runs` holds the chosen runs in the order in which they were asked for.
    """
    found = series.assign(
        arm=runs["arm"].to_numpy()[series["run"]],
        run_id=runs["run_id"].to_numpy()[series["run"]],
        seed=runs["seed"].to_numpy()[series["run"]],
        x=window.first + series["bucket"] * window.width + (window.width - 1) / 2,
    )
    if clock is None:
        return found
    return found.drop(columns="x").merge(clock, on=["run", "bucket"], how="inner")


def banded(points: pd.DataFrame) -> pd.DataFrame:
    """One row per arm and bucket: interquartile mean over seeds, its interval, the extremes, and the mean x."""
    from workbench.analysis.stats import bands

    where = points.groupby(["arm", "bucket"], as_index=False, sort=False)["x"].mean()
    return bands(points).merge(where, on=["arm", "bucket"], how="left").sort_values(["arm", "x"], ignore_index=True)


def is_wide(values: Sequence[float] | np.ndarray) -> bool:
    """True where a linear axis would hide most of the values: all positive, the largest 50 times the median."""
    import numpy as np

    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not len(known) or known.min() <= 0:
        return False
    return bool(known.max() > 50 * np.partition(known, len(known) // 2)[len(known) // 2])

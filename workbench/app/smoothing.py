"""Smoothed curves: a running mean or an exponential moving average of each run, over its measured steps.

A value that is NaN or Inf is no number to average: the line has a gap there, and no mean reaches across it.
A step without a value was not measured: it has no point, and means around it count the others.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

WIDEST = 100  # steps
KINDS = {"mean": "running mean", "ema": "exponential average"}


class Smoothing(NamedTuple):
    """How curves are smoothed: over so many steps; one is not at all."""

    kind: str = "mean"  # one of KINDS
    steps: int = 1

    def points(self, bucket_steps: int) -> int:
        """How many neighbouring points are averaged where a point stands for `bucket_steps` steps."""
        return max(1, round(self.steps / bucket_steps))


UNSMOOTHED = Smoothing()


class _Grid(NamedTuple):
    """The points of all runs on one grid, (runs, buckets)."""

    row: np.ndarray  # of each point
    column: np.ndarray
    values: np.ndarray  # NaN where there is no number
    piece: np.ndarray  # counts what is NaN or Inf: no mean reaches from one piece into the next


def smooth(points: pd.DataFrame, smoothing: Smoothing, bucket_steps: int) -> pd.DataFrame:
    """Return `points` (run, bucket, mean) with smoothed means; extremes stay as they were measured."""
    count = smoothing.points(bucket_steps)
    if count < 2 or points.empty:
        return points
    grid = _grid_of(points)
    if smoothing.kind == "ema":
        averaged = _exponential(grid, (1 - 2 / (smoothing.steps + 1)) ** bucket_steps)
    else:
        averaged = _centred(grid, count)
    means = averaged[grid.row, grid.column]
    return points.assign(mean=np.where(np.isnan(points["mean"].to_numpy(float)), np.nan, means))


def before_and_after(count: int) -> tuple[int, int]:
    """Return how many points before and after its own a mean of `count` points takes."""
    return count // 2, count - 1 - count // 2


def _grid_of(points: pd.DataFrame) -> _Grid:
    row, _ = pd.factorize(points["run"])
    column = points["bucket"].to_numpy(int) - int(points["bucket"].min())
    means = points["mean"].to_numpy(float)
    values = np.full((row.max() + 1, column.max() + 1), np.nan)
    values[row, column] = means
    is_broken = np.zeros(values.shape, dtype=int)
    is_broken[row, column] = np.isnan(means)
    return _Grid(row, column, values, is_broken.cumsum(axis=1))


def _centred(grid: _Grid, count: int) -> np.ndarray:
    before, after = before_and_after(count)
    total = np.zeros(grid.values.shape)
    numbers = np.zeros(grid.values.shape)
    width = grid.values.shape[1]
    for shift in range(max(-before, 1 - width), min(after, width - 1) + 1):
        target = slice(max(0, -shift), width - max(0, shift))
        source = slice(max(0, shift), width - max(0, -shift))
        values = grid.values[:, source]
        counts = np.isfinite(values) & (grid.piece[:, source] == grid.piece[:, target])
        total[:, target] += np.where(counts, values, 0.0)
        numbers[:, target] += counts
    return total / np.maximum(numbers, 1)


def _exponential(grid: _Grid, decay: float) -> np.ndarray:
    averaged = np.zeros(grid.values.shape)
    total = np.zeros(len(grid.values))
    weight = np.zeros(len(grid.values))
    piece = np.zeros(len(grid.values), dtype=int)
    for column in range(grid.values.shape[1]):
        goes_on = grid.piece[:, column] == piece
        piece = grid.piece[:, column]
        values = grid.values[:, column]
        is_number = np.isfinite(values)
        total = np.where(goes_on, decay * total, 0.0) + np.where(is_number, values, 0.0)
        weight = np.where(goes_on, decay * weight, 0.0) + is_number
        averaged[:, column] = total / np.maximum(weight, 1e-300)
    return averaged

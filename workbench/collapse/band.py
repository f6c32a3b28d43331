"""The band of runs that worked: what is normal for a recipe, column by column, and the rule that a run has
left it.

A saved baseline (`sorl baseline save`) holds the bands. A run that names one raises the event `baseline`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sorl.collapse.events import Found, Judged, Memory, Row, Rule
from sorl.spec import InputError
from sorl.spec.baselines import KIND, LARGEST
from sorl.spec.files import from_json, read_text

WINDOW = 5  # steps whose median must lie outside
FEWEST = 12  # common steps, below which nothing is said
MARGIN = 6.0  # units of noise
# Good runs, from which on their spread is known; of fewer a share of the curve's own range stands for it.
SPREAD_KNOWN = 3
SHARE_OF_RANGE = 0.25
TIMES_SPREAD = 2.0
FLOOR = 0.05  # of the median value: less is no difference
# In a column's own unit: less is no difference either.
LEAST_OF_FRACTION = 0.02
LEAST_OF_KL = 1e-3
NOISE_STEPS = 64  # newest steps that the noise of a live run is taken from
DEVIATION = 1.4826  # standard deviation of a normal sample over its median absolute deviation


class Usual(NamedTuple):
    """What is normal for a column at one step: the mean of the good runs, and the unit of its noise."""

    mean: float
    unit: float


@dataclass(frozen=True)
class Band:
    """What one column does in good runs: (T,) steps, mean over runs and unit, of which MARGIN are normal.

    The unit is the noise of a curve about its trend. To that comes, of fewer than SPREAD_KNOWN runs, a share
    of the range of the curve, because nobody knows how far two seeds of this recipe lie apart; of more runs
    it is at least TIMES_SPREAD the largest spread between them up to that step.
    """

    column: str
    steps: np.ndarray
    mean: np.ndarray
    unit: np.ndarray
    runs: int

    @classmethod
    def of(cls, column: str, curves: Sequence[pd.Series]) -> Self | None:
        """Return the band of some curves, each by step; None where they share too few finite steps."""
        table = pd.concat(
            [curve[~curve.index.duplicated()] for curve in curves], axis=1, join="inner"
        ).sort_index()
        table = table[np.isfinite(table.to_numpy(float)).all(axis=1)]
        if len(table) < FEWEST:
            return None
        values = table.to_numpy(float)  # (T, runs)
        mean = values.mean(axis=1)
        floor = FLOOR * float(np.median(np.abs(mean)))
        noise = max(float(np.sqrt(np.mean(noise_of(values) ** 2))), floor, _least(column))
        if len(curves) < SPREAD_KNOWN:
            allowance = SHARE_OF_RANGE * float(np.ptp(running_median(mean[:, None])))
            unit = np.full(len(mean), noise + allowance)
        else:
            between = np.sqrt(np.maximum.accumulate(running_median(values).var(axis=1, ddof=1)))
            between = np.concatenate([np.repeat(between[0], WINDOW - 1), between])
            unit = np.maximum(noise, TIMES_SPREAD * np.sqrt(1 + 1 / len(curves)) * between)
        return cls(column, table.index.to_numpy(), mean, unit, len(curves))

    @cached_property
    def usual(self) -> Mapping[int, Usual]:
        """What is normal, by step."""
        rows = zip(self.steps.tolist(), self.mean.tolist(), self.unit.tolist(), strict=True)
        return {step: Usual(mean, unit) for step, mean, unit in rows}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as a saved baseline holds it."""
        arrays = {name: getattr(self, name).tolist() for name in ("steps", "mean", "unit")}
        return {"column": self.column, "runs": self.runs, **arrays}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Self:
        """Return the band of `as_dict`. Raises KeyError, TypeError or ValueError for other data."""
        steps, mean, unit = (np.asarray(told[name], float) for name in ("steps", "mean", "unit"))
        if not len(steps) == len(mean) == len(unit):
            raise ValueError("a band has as many means and units as steps")
        return cls(str(told["column"]), steps.astype(int), mean, unit, int(told["runs"]))


def noise_of(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation (runs,) of the points (T, runs) about their trends, from second
    differences.
    """
    return np.asarray(DEVIATION * np.median(np.abs(np.diff(values, 2, axis=0)), axis=0) / np.sqrt(6))


def running_median(values: np.ndarray) -> np.ndarray:
    """Return medians of WINDOW steps, (T - WINDOW + 1, runs) of (T, runs)."""
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=0)
    return np.asarray(np.median(windows, axis=-1))


def band_rules(bands: Iterable[Band], name: str) -> Iterator[Rule]:
    """Yield a rule a column: that a run has left the band of baseline `name`; it rings once."""
    for band in bands:
        yield Rule(
            KIND,
            "warning",
            f"the median of {WINDOW} steps of `step.{band.column}` lies outside the band of baseline {name}",
            "runs of this recipe that worked did something else at these steps",
            partial(_leave_band, band, name),
            once=True,
        )


def _leave_band(band: Band, name: str, row: Row, memory: Memory) -> Judged:
    value = row.measured.get(band.column)
    usual = band.usual.get(row.step)
    if value is None or usual is None or not math.isfinite(value):
        return None
    values = memory.setdefault("values", deque(maxlen=NOISE_STEPS))
    values.append(value)
    distances = memory.setdefault("distances", deque(maxlen=WINDOW))
    distances.append(value - usual.mean)
    memory["steps"] = memory.get("steps", 0) + 1
    if memory["steps"] < FEWEST:
        return None
    distance = median(distances)
    if abs(distance) <= MARGIN * usual.unit:
        return False
    # The noise of this run counts as well. It is dear to compute, and can only widen the band.
    noise = float(noise_of(np.array(values)[:, None])[0])
    width = MARGIN * math.hypot(usual.unit, noise)
    if abs(distance) <= width:
        return False
    middle = usual.mean + distance
    end = usual.mean + math.copysign(width, distance)
    side = "above" if distance > 0 else "below"
    message = (
        f"{band.column} {middle:.3g} (median of {WINDOW} steps), {side} {end:.3g}, the end of the band of"
        f" baseline {name}"
    )
    return Found(message, band.column, middle, end)


def read_bands(file: Path, name: str) -> list[Band]:
    """Return the bands of a baseline's file. Raises InputError for one that is damaged."""
    try:
        return [Band.from_dict(band) for band in from_json(read_text(file, LARGEST))["bands"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"baseline '{name}' cannot be read: {error}; save it again") from None


def _least(column: str) -> float:
    """Return what is no difference in the unit of a column."""
    if column.endswith("_frac"):
        return LEAST_OF_FRACTION
    if "kl" in column.rpartition(".")[2].split("_"):
        return LEAST_OF_KL
    return 1e-9

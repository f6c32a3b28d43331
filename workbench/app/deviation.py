"""When a turn of a run first leaves its usual band, and how far: from all its cells, whatever is drawn.

A cell is a turn index at a step: the mean of a measure over the turns of that index. The usual band of a
turn index is what the other runs of the experiment that did not fall show at it, and what the run itself
showed in its first third before it fell. Of its own cells alone, which are few, the band is twice as wide. A
cell is out when it lies beyond the band; the first cell that counts is one whose next step is out as well, so
that one odd cell in hundreds is no finding.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from sorl.app.figures.maps import FEW

_FEW_CELLS = 20  # of a turn index below which its band is that of all turn indices
_OWN_SHARE = 1 / 3  # of the steps before a fall, from which a run's own band is made
_FEWEST_STEPS = 3
_ROUNDING = 1e-12


class Band(NamedTuple):
    """What is usual: the lowest and the highest cell, of so many other runs that did not fall, and of the run
    itself before a step.
    """

    low: float
    high: float
    runs: int
    before: int


class OutCell(NamedTuple):
    """A cell outside of its band."""

    step: int
    turn: int
    value: float
    band: Band


@dataclass(frozen=True)
class Deviation:
    """Where a run leaves its usual band: first and farthest; None where it does not."""

    first: OutCell | None
    farthest: OutCell | None
    cells: int  # cells outside of their band
    known: int  # cells that were compared

    @property
    def is_known(self) -> bool:
        """Whether there was anything to compare."""
        return self.known > 0


def find_deviations(cells: pd.DataFrame, falls: Mapping[str, int], *, is_ratio: bool) -> dict[str, Deviation]:
    """Return by run where it leaves its usual band.

    `cells`: run_id, step, turn_index, value, turns; a row a cell of each run of the experiment. `falls`:
    run_id -> first step at which it may have begun to fall. Distances of ratios are of logarithms.
    """
    known = cells[(cells["turns"] >= FEW) & np.isfinite(cells["value"].astype(float))]
    if is_ratio:
        known = known[known["value"] > 0]
    size = np.log(known["value"].astype(float)) if is_ratio else known["value"].astype(float)
    known = known.assign(size=size)
    return {
        str(run): _deviation_of(str(run), known, falls, is_ratio=is_ratio) for run in cells["run_id"].unique()
    }


def _deviation_of(run: str, known: pd.DataFrame, falls: Mapping[str, int], *, is_ratio: bool) -> Deviation:
    is_own = known["run_id"] == run
    own = known[is_own].sort_values(["step", "turn_index"])
    if own.empty:
        return Deviation(None, None, 0, 0)
    before = _first_steps(own["step"], falls.get(run))
    steady = known[~is_own & ~known["run_id"].isin(list(falls))]
    usual = pd.concat([steady, own[own["step"] < before]])
    later = own[own["step"] >= before]
    if usual.empty or later.empty:
        return Deviation(None, None, 0, 0)
    bands = _bands_of(usual, run, before, is_ratio=is_ratio)
    return _deviation_in(_judge(later, bands, is_ratio=is_ratio), bands)


def _deviation_in(judged: pd.DataFrame, bands: Mapping[int, Band]) -> Deviation:
    """Return the first and the farthest of the judged cells that are out."""
    out = judged[judged["distance"] > 0]
    lasting = out[_goes_on(judged).loc[out.index]]
    first = lasting.iloc[0] if len(lasting) else None
    farthest = out.iloc[int(out["distance"].to_numpy().argmax())] if len(out) else None
    return Deviation(_cell(first, bands), _cell(farthest, bands), len(out), len(judged))


def _first_steps(steps: pd.Series, fall: int | None) -> int:
    """Return the step before which a run's own cells are usual: a third of the way to its fall or its end."""
    begin = int(steps.min())
    end = int(steps.max()) + 1 if fall is None else fall
    return begin + max(_FEWEST_STEPS, int(_OWN_SHARE * (end - begin)))


def _bands_of(usual: pd.DataFrame, run: str, before: int, *, is_ratio: bool) -> dict[int, Band]:
    """Return the band of each turn index: of its own cells where there are enough, else of all."""
    bands: dict[int, Band] = defaultdict(partial(_band_of, usual, run, before, is_ratio))
    for turn in usual["turn_index"].unique():
        mine = usual[usual["turn_index"] == turn]
        if len(mine) >= _FEW_CELLS:
            bands[turn] = _band_of(mine, run, before, is_ratio)
    return bands


def _band_of(usual: pd.DataFrame, run: str, before: int, is_ratio: bool) -> Band:
    others = usual.loc[usual["run_id"] != run, "run_id"].nunique()
    low = usual["size"].min()
    high = usual["size"].max()
    if not others:
        middle = usual["size"].median()
        reach = 2 * max(high - middle, middle - low)
        low = middle - reach
        high = middle + reach
    ends = np.exp([low, high]) if is_ratio else [low, high]
    return Band(float(ends[0]), float(ends[1]), others, before)


def _judge(own: pd.DataFrame, bands: Mapping[int, Band], *, is_ratio: bool) -> pd.DataFrame:
    """Add how far each cell lies beyond its band; 0 inside."""
    low = own["turn_index"].map(lambda turn: bands[turn].low)
    high = own["turn_index"].map(lambda turn: bands[turn].high)
    if is_ratio:
        low = np.log(low)
        high = np.log(high)
    beyond = pd.Series(np.maximum(low - own["size"], own["size"] - high), index=own.index)
    return own.assign(distance=beyond.where(beyond > _ROUNDING, 0.0)).reset_index(drop=True)


def _goes_on(judged: pd.DataFrame) -> pd.Series:
    """Whether the same turn is out at its next step as well; at its last one there is nothing to wait for."""
    following = judged.groupby("turn_index")["distance"].shift(-1)
    return following.isna() | (following > 0)


def _cell(row: pd.Series | None, bands: Mapping[int, Band]) -> OutCell | None:
    if row is None:
        return None
    turn = int(row["turn_index"])
    value = float(row["value"])
    assert math.isfinite(value)
    return OutCell(int(row["step"]), turn, value, bands[turn])

"""The stability region: the runs of a searched setting, the boundary of survival in each column, and the area
below it.

`region_fit.py` draws the boundaries, `region_words.py` says the answer.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy

from sorl.analysis.region_fit import Arm, Fitted, fit
from sorl.analysis.runs import NOT_DEAD, flat, newest, replicate, settings_of, survived
from sorl.analysis.stats import Estimate
from sorl.spec import UNDECIDED, GridFile, InputError, RegionSettings, nearest

if TYPE_CHECKING:
    from sorl.store.reader import Reader

_RUNS = """
    SELECT run_id, arm, algorithm, seed, status, outcome, final_success, seconds, started_at, config
    FROM run WHERE experiment = ? ORDER BY started_at NULLS LAST, run_id
"""
ARM = ["series", "slice"]


@dataclass(frozen=True)
class Landscape:
    """The judged runs of a region, one row each.

    arm, series (arm without its point), algorithm, slice (what further numeric axes say, else empty), y
    (condition, 0 where no axis is numeric), x (value of the searched setting), seed, outcome, collapsed,
    final (success), seconds.
    """

    runs: pd.DataFrame  # collapsed: it did not survive, by the reading `survival`
    settings: RegionSettings
    across: str | None  # setting of the conditions; None without one
    planned: int  # seeds of a point next to the boundary
    left_out: int = 0  # runs with other settings: the file was edited since
    unjudged: int = 0  # finished, but too short for the collapse rule
    fading: pd.DataFrame = field(default_factory=pd.DataFrame)  # falling at their end: count neither way
    survival: str = NOT_DEAD

    def read_as(self, survival: str) -> Self:
        """Return the same runs under a reading of survival: NOT_DEAD, or KEPT for runs that learned and kept
        it.
        """
        fell = ~survived(self.runs["outcome"], survival)
        return replace(self, runs=self.runs.assign(collapsed=fell), survival=survival)

    def with_fading(self) -> Self:
        """Return the region if every run that was falling at its end had collapsed."""
        down = self.fading.assign(collapsed=True)
        return replace(
            self, runs=pd.concat([self.runs, down], ignore_index=True), fading=self.fading.iloc[:0]
        )

    @cached_property
    def parts(self) -> dict[Arm, pd.DataFrame]:
        """The runs of every (series, slice), in the order of their first runs."""
        return {
            (str(series), str(piece)): runs for (series, piece), runs in self.runs.groupby(ARM, sort=False)
        }

    @cached_property
    def fitted(self) -> Fitted:
        """Draws of the boundaries and of the widths."""
        return fit(self.runs, self.settings.low, self.settings.high)


class Boundary(NamedTuple):
    """The value at which half of the recorded runs collapse, in log2."""

    at: float
    # above: even at the highest value tried, `at`, fewer collapsed; below: at the lowest half or more
    beyond: str = ""
    low: float | None = None  # the tried values next to it
    high: float | None = None


def boundary(points: Mapping[float, tuple[float, float]]) -> Boundary | None:
    """Return the boundary of a column from log2 x -> (collapsed, judged runs); None without a judged run.

    Shares of collapsed runs are made to rise with x (isotonic regression, weighted by the runs); the boundary
    is where the straight lines between them cross 1/2, or the middle of a stretch at exactly 1/2.
    """
    counts = np.array([(x, k, n) for x, (k, n) in sorted(points.items()) if n > 0], float)
    if not len(counts):
        return None
    tried = counts[:, 0].tolist()
    collapsed = counts[:, 1]
    judged = counts[:, 2]
    fitted = scipy.optimize.isotonic_regression(collapsed / judged, weights=judged).x
    shares = np.where(np.abs(fitted - 0.5) < 1e-9, 0.5, fitted).tolist()
    up = [i for i, share in enumerate(shares) if share < 0.5]
    down = [i for i, share in enumerate(shares) if share > 0.5]
    if len(up) == len(tried):
        return Boundary(tried[-1], "above", low=tried[-1])
    if not up:  # at 1/2 from the lowest value on: the boundary is there or below
        return Boundary(tried[0], "below", high=tried[0])

    def half(i: int) -> float:  # where the line from point i to the next crosses 1/2
        return tried[i] + (tried[i + 1] - tried[i]) * (0.5 - shares[i]) / (shares[i + 1] - shares[i])

    last = up[-1]
    ends = half(last), half(down[0] - 1) if down else tried[-1]
    return Boundary(sum(ends) / 2, low=tried[last], high=tried[min(last + 1, len(tried) - 1)])


def edges(runs: pd.DataFrame) -> dict[float, Boundary]:
    """Condition y -> where the recorded shares cross 1/2, and whether that lies beyond what was tried."""
    boundaries = {}
    for y, column in runs.groupby("y"):
        counts = column.groupby(np.log2(column["x"]))["collapsed"].agg(["sum", "size"])
        tried = counts.index.to_numpy(dtype=float)
        collapsed = {float(x): (k, n) for x, k, n in zip(tried, counts["sum"], counts["size"], strict=True)}
        boundaries[float(y)] = boundary(collapsed)  # type: ignore[arg-type]
    return {y: edge for y, edge in boundaries.items() if edge}


def region_file(reader: "Reader", experiment: str) -> GridFile | None:
    """Return the recorded grid file of an experiment of kind region; None for any other experiment."""
    files = reader.rows("SELECT toml FROM experiment WHERE experiment = ?", [experiment]).rows
    return region_of(files[0][0]) if files else None


def region_of(text: object) -> GridFile | None:
    """Return the grid file of this text if it is of kind region; None for any other text."""
    try:
        document = tomllib.loads(text) if isinstance(text, str) and "region" in text else {}
        file = GridFile.model_validate({**document, "axes": flat(document.get("axes", {}))})
    except (ValueError, AttributeError, RecursionError):
        return None  # of another version, or of another trainer
    return file if file.kind == "region" else None


def landscape(reader: "Reader", experiment: str) -> Landscape:
    """Return the region of an experiment; InputError where it is none, or has no run that can
    be judged yet.
    """
    if (file := region_file(reader, experiment)) is None:
        raise InputError(f"'{experiment}' is no experiment of kind region")
    return from_runs(newest(reader.query(_RUNS, [experiment])), file, experiment)


def from_runs(frame: pd.DataFrame, file: GridFile, experiment: str) -> Landscape:
    """Return the region from runs in the order of their starts; InputError where no run can be judged yet."""
    assert file.region is not None
    frame = frame[frame["config"].notna()]
    runs = _same_settings(frame, file)
    over = runs[runs["status"] == "finished"]
    judged = over[over["outcome"].notna()]
    if judged.empty:
        raise InputError(
            f"no run of '{experiment}' can be judged yet; `sorl run` it, or wait for its first round"
        )
    numeric = _numeric_axes(file)
    across = next(iter(numeric), None)
    rows = _in_order(_placed(judged, file, numeric), file)
    down = rows["outcome"].isin(UNDECIDED)
    return Landscape(
        rows[~down].reset_index(drop=True),
        file.region,
        across,
        planned=len(file.seeds),
        left_out=len(frame) - len(runs),
        unjudged=len(over) - len(judged),
        fading=rows[down].reset_index(drop=True),
    )


def _numeric_axes(file: GridFile) -> list[str]:
    """The axes with numbers only, in the order of the file: the first is that of the conditions."""
    return [key for key, values in file.axes.items() if _are_numbers(values)]


def _are_numbers(values: Sequence[object]) -> bool:
    return all(type(value) in (int, float) for value in values)


def _placed(judged: pd.DataFrame, file: GridFile, numeric: Sequence[str]) -> pd.DataFrame:
    """The judged runs with their place in the region: series, slice, y and x."""
    assert file.region is not None
    across = next(iter(numeric), None)
    further = [key for key in numeric[1:] if len(file.axes[key]) > 1]
    points = 1 + sum(len(file.axes[key]) > 1 for key in numeric)  # parts of an arm's name that say its point
    settings = [settings_of(config) for config in judged["config"]]
    return judged[["run_id", "arm", "algorithm", "seed", "outcome"]].assign(
        series=[arm.rsplit(" · ", points)[0] for arm in judged["arm"]],
        slice=[_slice_name(of_run, further) for of_run in settings],
        y=[float(of_run[across]) if across else 0.0 for of_run in settings],
        x=[float(of_run[file.region.along]) for of_run in settings],
        collapsed=~survived(judged["outcome"]),
        final=judged["final_success"],
        seconds=judged["seconds"].fillna(0.0),
    )


def _slice_name(settings: Mapping[str, Any], further: Sequence[str]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {settings[key]:g}" for key in further)


def _in_order(rows: pd.DataFrame, file: GridFile) -> pd.DataFrame:
    """The runs by series as the file names them, then by slice, y, x and seed."""
    algorithms = [name for name in file.axes.get("algorithm", []) if isinstance(name, str)]
    named = [*algorithms, *(arm.name for arm in file.arms)]
    place = rows["series"].map({name: i for i, name in reversed([*enumerate(named)])}).fillna(len(named))
    rows = rows.assign(place=place).sort_values(["place", "slice", "y", "x", "seed"], kind="stable")
    return rows.drop(columns="place")


def _same_settings(frame: pd.DataFrame, file: GridFile) -> pd.DataFrame:
    """Return the runs that have the settings of the newest one, apart from those that the file varies."""
    if frame.empty or file.region is None:
        return frame
    varied = {*file.axes, file.region.along}
    for arm in file.arms:
        varied |= set(flat(arm.model_extra or {}))

    def is_varied(key: str) -> bool:
        return any(f"{key}.".startswith(f"{setting}.") for setting in varied)

    def common(config: str) -> str:
        fixed = {key: value for key, value in replicate(config).items() if not is_varied(key)}
        return json.dumps(fixed, sort_keys=True)

    settings = frame["config"].map(common)
    begun = settings[frame["started_at"].notna()]
    return frame[settings == (begun if len(begun) else settings).iloc[-1]]


def heights(conditions: Sequence[float]) -> list[float]:
    """Return the conditions on the axis that the area is taken over: log2 y, or log2(1 + y) where one of them
    is 0.
    """
    shift = 1.0 if min(conditions) <= 0 else 0.0
    return [math.log2(y + shift) for y in conditions]


def areas(drawn: Mapping[float, np.ndarray], settings: RegionSettings) -> np.ndarray | None:
    """Return the area in doublings² from `low` to each draw's boundary, (D,), by trapezoids; None for one
    column.
    """
    if len(drawn) < 2:
        return None
    order = sorted(drawn)
    low = math.log2(settings.low)
    high = math.log2(settings.high)
    width = np.stack([np.clip(drawn[y], low, high) - low for y in order])
    return np.asarray(np.trapezoid(width, heights(order), axis=0))


def estimate(draws: np.ndarray | None, seeds: int) -> Estimate:
    """Return median and 95 % interval of draws; no interval for fewer than three seeds, whose spread is not
    known.
    """
    if draws is None:
        return Estimate(None)
    low, high = map(float, np.quantile(draws, (0.025, 0.975))) if seeds > 2 else (None, None)
    return Estimate(float(np.median(draws)), low, high)


def by_series(landscape: Landscape, reference: str | None = None) -> pd.DataFrame:
    """Return one row per series and slice: the area with its interval, and its difference to that of
    `reference`.

    area: in `unit`, median and 95 % interval of the fit; share: of the searched rectangle; beyond: where a
    boundary lies outside what was tried; width: doublings from 10 to 90 % collapsed. InputError for an
    unknown reference.
    """
    names = list(landscape.runs["series"].unique())
    reference = reference or names[0]
    if reference not in names:
        raise InputError(
            f"no arm '{reference}' in this region{nearest(reference, names)}; arms: {'; '.join(names)}"
        )
    boundaries = landscape.fitted[0]
    area = {key: areas(boundaries[key], landscape.settings) for key in landscape.parts}
    return pd.DataFrame([_series_row(landscape, key, area, reference) for key in landscape.parts])


def _series_row(
    landscape: Landscape, key: Arm, area: Mapping[Arm, np.ndarray | None], reference: str
) -> dict[str, Any]:
    """The row of one series and slice in `by_series`; `area` has the draws of all."""
    series, piece = key
    runs = landscape.parts[key]
    seeds = int(landscape.runs["seed"].nunique())
    mine = area[key]
    other = area.get((reference, piece))
    size = estimate(mine, seeds)
    gap = mine - other if mine is not None and other is not None and series != reference else None
    beyond = {edge.beyond for edge in edges(runs).values()} - {""}
    return {
        "series": series,
        "slice": piece,
        "algorithm": runs["algorithm"].iloc[0],
        **size.columns("area"),
        "unit": _unit_of_area(landscape),
        "share": None if size.value is None else size.value / _searched_area(landscape.settings, runs),
        "beyond": " and ".join(sorted(beyond)),
        "reference": reference,
        **estimate(gap, seeds).columns("difference"),
        **estimate(landscape.fitted[1][key], seeds).columns("width"),
        "runs": len(runs),
        "minutes": float(runs["seconds"].sum()) / 60,
        "seeds": int(runs["seed"].nunique()),
    }


def _unit_of_area(landscape: Landscape) -> str:
    x, y = ((key or "").rsplit(".", 1)[-1] for key in (landscape.settings.along, landscape.across))
    return f"log2({x}) x log2({'1+' if (landscape.runs['y'] <= 0).any() else ''}{y})"


def _searched_area(settings: RegionSettings, runs: pd.DataFrame) -> float:
    """The area of the searched rectangle, doublings²."""
    order = heights(sorted(runs["y"].unique()))
    return (order[-1] - order[0]) * (math.log2(settings.high) - math.log2(settings.low))


def _within_tried(fitted: Estimate, edge: Boundary) -> Estimate:
    """Return the fitted boundary; where it lies beyond what was tried, the last value tried and the interval
    on its side.
    """
    if edge.beyond == "above":
        return Estimate(edge.at, None if fitted.low is None else min(fitted.low, edge.at))
    if edge.beyond == "below":
        return Estimate(edge.at, None, None if fitted.high is None else max(fitted.high, edge.at))
    return fitted


def by_column(landscape: Landscape) -> pd.DataFrame:
    """Return one row per series, slice and condition y: the boundary with its 95 % interval, and what it
    rests on.

    boundary: median of the fit, or the last value tried where it lies `beyond`; low, high: the tried values
    next to it, with the runs there and how many of them collapsed.
    """
    seeds = int(landscape.runs["seed"].nunique())
    rows: list[dict[str, Any]] = []
    for (series, piece), runs in landscape.parts.items():
        for y, edge in edges(runs).items():
            column = runs[runs["y"] == y]
            fitted = estimate(landscape.fitted[0][series, piece][y], seeds)
            logs = _within_tried(fitted, edge).columns("boundary").items()
            row = {
                "series": series,
                "slice": piece,
                "y": y,
                **{k: v if v is None else 2**v for k, v in logs},
                "beyond": edge.beyond,
            }
            for side, at in (("low", edge.low), ("high", edge.high)):
                there = column[np.isclose(np.log2(column["x"]), math.nan if at is None else at)]
                row[side] = None if at is None else float(there["x"].iloc[0])
                row |= {f"{side}_runs": len(there), f"{side}_collapsed": int(there["collapsed"].sum())}
            rows.append(row | {"runs": len(column)})
    return pd.DataFrame(rows)


def by_point(landscape: Landscape) -> pd.DataFrame:
    """Return one row per series, slice, condition y and value x: arm, runs, how many collapsed, mean final
    success.
    """
    by = landscape.runs.groupby([*ARM, "y", "x"], sort=False, as_index=False)
    return by.agg(
        arm=("arm", "first"), runs=("seed", "size"), collapsed=("collapsed", "sum"), final=("final", "mean")
    )

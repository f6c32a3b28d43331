"""The stability region: the boundary of survival in each column, the area below it, and how sure few seeds can be.

Axes: the searched setting x as log2 x, so that lengths are doublings; the condition y of a column as log2 y, or as
log2(1 + y) where one of the conditions is 0.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.analysis.region_fit import fit
from workbench.analysis.runs import KEPT, NOT_DEAD, flat, newest, replicate, survived
from workbench.spec import UNDECIDED, GridFile, InputError, RegionSettings, nearest

if TYPE_CHECKING:
    from workbench.store.reader import Reader

_RUNS = """
    SELECT run_id, arm, algorithm, seed, status, outcome, final_success, seconds, started_at, config
    FROM run WHERE experiment = ? ORDER BY started_at NULLS LAST, run_id
"""
FALLS = {NOT_DEAD: "collapse", KEPT: "do not learn and keep it"}  # reading of survival -> what half of the runs do


@dataclass(frozen=True)
class Landscape:
    """`runs` has one row a judged run.

    series (arm without its point), algorithm, slice (what further numeric axes say, else empty), y (condition, 0 where
    no axis is numeric), x (value of the searched setting), seed, outcome, collapsed (bool: it did not survive, by the
    reading `survival`), final (success), seconds. Runs that were falling at their end are in `fading`, with the same
    columns: they count neither way, see `with_fading`.
    """

    runs: pd.DataFrame
    settings: RegionSettings
    across: str | None  # setting of the conditions; None without one
    planned: int  # seeds of a point next to the boundary
    left_out: int = 0  # runs with other settings: the file was edited since
    unjudged: int = 0  # finished, but too short for the collapse rule
    fading: pd.DataFrame = field(default_factory=pd.DataFrame)
    survival: str = NOT_DEAD

    def read_as(self, survival: str) -> Landscape:
        """Return the same runs under a reading of survival: NOT_DEAD, or KEPT for runs that learned and kept it."""
        return replace(
            self, runs=self.runs.assign(collapsed=~survived(self.runs["outcome"], survival)), survival=survival
        )

    def with_fading(self) -> Landscape:
        """Return the region if every run that was falling at its end had collapsed."""
        down = self.fading.assign(collapsed=True)
        return replace(self, runs=pd.concat([self.runs, down], ignore_index=True), fading=self.fading.iloc[:0])

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Every (series, slice), in the order of their first runs."""
        return list(dict.fromkeys(zip(self.runs["series"], self.runs["slice"], strict=True)))

    def part(self, series: str, piece: str) -> pd.DataFrame:
        """Return the runs of one series in one slice."""
        return self.runs[(self.runs["series"] == series) & (self.runs["slice"] == piece)]

    def edges(self, series: str, piece: str) -> dict[float, Boundary]:
        """Condition y -> where the recorded shares cross 1/2, and whether that lies beyond what was tried."""
        runs = self.part(series, piece)
        found = {}
        for y in sorted(runs["y"].unique()):
            column = runs[runs["y"] == y]
            counts = column.groupby(np.log2(column["x"]))["collapsed"].agg(["sum", "size"])
            edge = boundary({float(x): Counts(k, n) for x, k, n in counts.itertuples()})
            assert edge is not None
            found[float(y)] = edge
        return found

    @cached_property
    def drawn(self) -> dict[tuple[str, str], dict[float, np.ndarray]]:
        """(series, slice) -> condition y -> draws of log2 of the boundary, (D,), as region_fit describes them."""
        return self._fit[0]

    @cached_property
    def widths(self) -> dict[tuple[str, str], np.ndarray]:
        """(series, slice) -> draws of the doublings in which the share of collapses goes from 10 to 90 %, (D,)."""
        return self._fit[1]

    @cached_property
    def _fit(self) -> tuple[dict[tuple[str, str], dict[float, np.ndarray]], dict[tuple[str, str], np.ndarray]]:
        runs = self.runs
        arms = list(zip(runs["series"], runs["slice"], strict=True))
        found, columns, names = fit(
            arms, runs["y"], runs["x"], runs["seed"], runs["collapsed"], self.settings.low, self.settings.high
        )
        boundaries: dict[tuple[str, str], dict[float, np.ndarray]] = {}
        for (arm, y), draws in sorted(zip(columns, found.boundaries.T, strict=True), key=lambda each: each[0][1]):
            boundaries.setdefault(arm, {})[y] = draws
        return boundaries, dict(zip(names, found.widths.T, strict=True))


def region_file(reader: Reader, experiment: str) -> GridFile | None:
    """Return the recorded grid file of an experiment of kind region; None for any other experiment."""
    found = reader.query("SELECT toml FROM experiment WHERE experiment = ?", [experiment])
    return region_of(None if found.empty else found["toml"].iloc[0])


def region_of(text: object) -> GridFile | None:
    """Return the grid file of this text if it is of kind region; None for any other text."""
    if not isinstance(text, str) or "region" not in text:
        return None
    try:
        document = tomllib.loads(text)
        file = GridFile.model_validate({**document, "axes": flat(document.get("axes", {}))})
    except (tomllib.TOMLDecodeError, ValueError, AttributeError, RecursionError):
        return None  # of another version, or of another trainer
    return file if file.kind == "region" else None


def landscape(reader: Reader, experiment: str) -> Landscape:
    """Return the region of an experiment; InputError where it is none, or has no run that can be judged yet."""
    file = region_file(reader, experiment)
    if file is None or file.region is None:
        raise InputError(f"'{experiment}' is no experiment of kind region")
    return from_runs(newest(reader.query(_RUNS, [experiment])), file, experiment)


def from_runs(frame: pd.DataFrame, file: GridFile, experiment: str) -> Landscape:
    """Return the region from a row a run in the order of their starts; InputError where no run can be judged yet."""
    assert file.region is not None
    frame = frame[frame["config"].notna()]
    keys = [key for key, values in file.axes.items() if _numeric(values)]
    runs, left_out = _same_settings(frame, file, keys)
    over = runs[runs["status"] == "finished"]
    judged = over[over["outcome"].notna()]
    if judged.empty:
        raise InputError(f"no run of '{experiment}' can be judged yet; `sorl run` it, or wait for its first round")
    across, further = (keys[0], keys[1:]) if keys else (None, [])
    several = sum(len(file.axes[key]) > 1 for key in keys)
    settings = [flat(json.loads(config)) for config in judged["config"]]
    rows = pd.DataFrame(
        {
            "run_id": judged["run_id"].to_list(),
            "series": [arm.rsplit(" · ", several + 1)[0] for arm in judged["arm"]],
            "algorithm": judged["algorithm"].to_list(),
            "slice": [_slice(s, [k for k in further if len(file.axes[k]) > 1]) for s in settings],
            "y": [float(s[across]) if across else 0.0 for s in settings],
            "x": [float(s[file.region.along]) for s in settings],
            "seed": judged["seed"].to_list(),
            "outcome": judged["outcome"].to_list(),
            "collapsed": (~survived(judged["outcome"])).to_list(),
            "final": judged["final_success"].to_list(),
            "seconds": judged["seconds"].fillna(0.0).to_list(),
        }
    )
    named = [a for a in file.axes.get("algorithm", []) if isinstance(a, str)]
    order = {name: i for i, name in enumerate([*named, *(arm.name for arm in file.arms)])}
    rows = rows.sort_values(
        ["series", "slice", "y", "x", "seed"], ignore_index=True, kind="stable",
        key=lambda c: c.map(lambda name: order.get(name, len(order))) if c.name == "series" else c,
    )  # fmt: skip
    down = rows["outcome"].isin(UNDECIDED)
    return Landscape(
        rows[~down].reset_index(drop=True), file.region, across, len(file.seeds), left_out, len(over) - len(judged),
        rows[down].reset_index(drop=True),
    )  # fmt: skip


def _numeric(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _slice(settings: Mapping[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {settings[key]:g}" for key in keys)


def _same_settings(frame: pd.DataFrame, file: GridFile, keys: list[str]) -> tuple[pd.DataFrame, int]:
    """Return the runs whose common settings are those of the newest run, and how many others there are."""
    if frame.empty:
        return frame, 0
    assert file.region is not None
    apart = {*file.axes, *keys, file.region.along, *(k for arm in file.arms for k in flat(arm.model_extra or {}))}
    common = [
        json.dumps({k: v for k, v in replicate(config).items() if not _under(k, apart)}, sort_keys=True)
        for config in frame["config"]
    ]
    begun = frame["started_at"].notna().to_numpy()
    last = common[int(begun.nonzero()[0][-1])] if begun.any() else common[-1]
    same = [c == last for c in common]
    return frame[same], len(frame) - sum(same)


def _under(key: str, parents: set[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)


# Boundaries and areas


@dataclass(frozen=True)
class Counts:
    """Runs at one value of the searched setting: how many were judged, how many of them collapsed (may be weighted)."""

    collapsed: float
    judged: float


@dataclass(frozen=True)
class Boundary:
    """The value at which half of the recorded runs collapse, in log2; `beyond`: it lies outside what was tried.

    beyond = above: even at the highest value tried fewer than half collapsed, `at` is that value; below: at the lowest
    value tried half or more did. `low` and `high` are the tried values next to the boundary, None where there is none.
    """

    at: float
    beyond: str = ""  # above, below or empty
    low: float | None = None
    high: float | None = None


def boundary(points: Mapping[float, Counts]) -> Boundary | None:
    """Return the boundary of a column from log2 x -> counts; None without a judged run.

    Shares of collapsed runs are made to rise with x (isotonic regression, weighted by the runs) and the 1/2 is read off
    the straight lines between them. Where a stretch lies at exactly 1/2, its middle counts.
    """
    tried = sorted(x for x, counts in points.items() if counts.judged > 0)
    if not tried:
        return None
    from scipy.optimize import isotonic_regression

    weights = [points[x].judged for x in tried]
    fitted = isotonic_regression([points[x].collapsed / points[x].judged for x in tried], weights=weights).x
    shares = [0.5 if abs(share - 0.5) < 1e-9 else float(share) for share in fitted]
    up = [i for i, share in enumerate(shares) if share < 0.5]
    down = [i for i, share in enumerate(shares) if share > 0.5]
    if len(up) == len(tried):
        return Boundary(tried[-1], "above", low=tried[-1])
    if not up:
        # At 1/2 from the lowest value on: the boundary is there or below.
        return Boundary(tried[0], "below", high=tried[0])
    last, first = up[-1], down[0] if down else len(tried)
    left = _half(tried, shares, last)
    right = _half(tried, shares, first - 1) if down else tried[-1]
    return Boundary((left + right) / 2, low=tried[last], high=tried[min(last + 1, len(tried) - 1)])


def _half(x: Sequence[float], shares: Sequence[float], i: int) -> float:
    """Return where the line from point i to the next crosses 1/2."""
    return x[i] + (x[i + 1] - x[i]) * (0.5 - shares[i]) / (shares[i + 1] - shares[i])


def heights(conditions: Sequence[float]) -> list[float]:
    """Return the conditions on the axis that the area is taken over: log2 y, or log2(1 + y) where one of them is 0."""
    shift = 1.0 if min(conditions) <= 0 else 0.0
    return [math.log2(y + shift) for y in conditions]


def areas(drawn: Mapping[float, np.ndarray], settings: RegionSettings) -> np.ndarray | None:
    """Area from `low` up to the boundary in each draw, (D,), in doublings x doublings; None below two columns.

    By the trapezoid rule over the conditions; a boundary counts as far as the searched range goes.
    """
    if len(drawn) < 2:
        return None
    order, low, high = sorted(drawn), math.log2(settings.low), math.log2(settings.high)
    width = np.stack([np.clip(drawn[y], low, high) - low for y in order])
    return np.asarray(np.trapezoid(width, heights(order), axis=0))


def interval(values: np.ndarray, seeds: int) -> tuple[float | None, float | None]:
    """Return the 95 % interval of draws; (None, None) for a single seed, whose spread is not known."""
    if seeds < 2:
        return None, None
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


# Tables


def by_series(landscape: Landscape, reference: str | None = None) -> pd.DataFrame:
    """One row per series and slice: the area with its interval, and its difference to that of the series `reference`.

    The reference is the first series unless another is named; InputError for one that is not there.
    area: doublings x doublings, median and 95 % interval of the fit; share: of the searched rectangle; beyond: above,
    below or both where a boundary lies outside what was tried, so that the area rests on the prior there; width:
    doublings from 10 to 90 % collapsed; runs, minutes: spent.
    """
    settings = landscape.settings
    names = list(dict.fromkeys(series for series, _ in landscape.parts))
    reference = reference or names[0]
    if reference not in names:
        raise InputError(f"no arm '{reference}' in this region{nearest(reference, names)}; arms: {'; '.join(names)}")
    drawn = {key: areas(landscape.drawn[key], settings) for key in landscape.parts}
    seeds = int(landscape.runs["seed"].nunique())
    rows: list[dict[str, Any]] = []
    for series, piece in landscape.parts:
        runs, mine, other = landscape.part(series, piece), drawn[series, piece], drawn.get((reference, piece))
        order = heights(sorted(runs["y"].unique()))
        whole = (order[-1] - order[0]) * (math.log2(settings.high) - math.log2(settings.low))
        gap = mine - other if mine is not None and other is not None and series != reference else None
        beyond = {edge.beyond for edge in landscape.edges(series, piece).values()} - {""}
        rows.append(
            {
                "series": series,
                "slice": piece,
                "algorithm": runs["algorithm"].iloc[0],
                **_span("area", mine, seeds),
                "share": None if mine is None else float(np.median(mine)) / whole,
                "beyond": " and ".join(sorted(beyond)),
                "reference": reference,
                **_span("difference", gap, seeds),
                **_span("width", landscape.widths[series, piece], seeds),
                "runs": len(runs),
                "minutes": float(runs["seconds"].sum()) / 60,
                "seeds": int(runs["seed"].nunique()),
            }
        )
    return pd.DataFrame(rows)


def by_column(landscape: Landscape) -> pd.DataFrame:
    """Return one row per series, slice and condition y: the boundary with its 95 % interval, and what it rests on.

    boundary: value of the searched setting at which half of the runs collapse, the median of the fit; beyond: above or
    below, where it lies outside what was tried: `boundary` is then the last value tried, and the interval is open on
    that side; low, high: the tried values next to it, with the runs there and how many of them collapsed.
    """
    seeds = int(landscape.runs["seed"].nunique())
    rows: list[dict[str, Any]] = []
    for series, piece in landscape.parts:
        runs = landscape.part(series, piece)
        for y, edge in landscape.edges(series, piece).items():
            column, drawn = runs[runs["y"] == y], landscape.drawn[series, piece][y]
            low, high = interval(drawn, seeds)
            if edge.beyond == "above":
                low, high = None if low is None else min(low, edge.at), None
            elif edge.beyond == "below":
                low, high = None, None if high is None else max(high, edge.at)
            rows.append(
                {
                    "series": series,
                    "slice": piece,
                    "y": y,
                    "boundary": 2 ** (edge.at if edge.beyond else float(np.median(drawn))),
                    "boundary_low": None if low is None else 2**low,
                    "boundary_high": None if high is None else 2**high,
                    "beyond": edge.beyond,
                    **_beside(column, edge),
                    "runs": len(column),
                }
            )
    return pd.DataFrame(rows)


def by_point(landscape: Landscape) -> pd.DataFrame:
    """Return one row per series, slice, condition y and value x: runs, how many collapsed, mean final success."""
    groups = landscape.runs.groupby(["series", "slice", "y", "x"], sort=False)
    return groups.agg(runs=("seed", "size"), collapsed=("collapsed", "sum"), final=("final", "mean")).reset_index()


def _beside(column: pd.DataFrame, edge: Boundary) -> dict[str, Any]:
    beside: dict[str, Any] = {}
    for side, at in (("low", edge.low), ("high", edge.high)):
        here = column[np.isclose(np.log2(column["x"]), math.nan if at is None else at)]
        beside[side] = None if at is None else float(here["x"].iloc[0])
        beside |= {f"{side}_runs": len(here), f"{side}_collapsed": int(here["collapsed"].sum())}
    return beside


def _span(name: str, values: np.ndarray | None, seeds: int) -> dict[str, float | None]:
    low, high = (None, None) if values is None else interval(values, seeds)
    return {name: None if values is None else float(np.median(values)), f"{name}_low": low, f"{name}_high": high}


# Words


def readable_series(series: pd.DataFrame) -> pd.DataFrame:
    """Area with interval, share of what was searched, difference to the reference, width: one row an arm."""
    sliced = bool((series["slice"] != "").any())
    reference = str(series["reference"].iloc[0]) if len(series) else ""
    rows = [
        {
            "arm": row["series"],
            **({"at": row["slice"]} if sliced else {}),
            "area (doublings²)": ("~ " if row["beyond"] else "") + _spanned(row, "area"),
            "of what was searched": "-" if _missing(row["share"]) else f"{100 * row['share']:.0f} %",
            f"area less that of {reference}": _spanned(row, "difference", sign=True),
            "10 to 90 % over (doublings)": _spanned(row, "width"),
            "seeds": str(row["seeds"]),
            "runs": str(row["runs"]),
            "minutes": f"{row['minutes']:.0f}",
        }
        for row in series.to_dict(orient="records")
    ]
    return pd.DataFrame(rows)


def readable_columns(columns: pd.DataFrame) -> pd.DataFrame:
    """One row an arm, one column a condition: `0.17 [0.15, 0.2]`, `> 1 [0.8, -]` and `< 0.03 [-, 0.04]` beyond."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    sliced = bool((columns["slice"] != "").any())
    for row in columns.to_dict(orient="records"):
        key = (row["series"], row["slice"])
        line = rows.setdefault(key, {"arm": row["series"], **({"at": row["slice"]} if sliced else {})})
        line[f"{row['y']:g}"] = edge(row)
    return pd.DataFrame(list(rows.values())).fillna("-")


def edge(row: dict[Any, Any]) -> str:
    """Return the boundary of a row of by_column, `>` or `<` the last value tried where it lies beyond."""
    sign = {"above": "> ", "below": "< "}.get(row["beyond"], "")
    ends = [row["boundary_low"], row["boundary_high"]]
    if all(map(_missing, ends)):
        return f"{sign}{row['boundary']:.3g}"
    low, high = ("-" if _missing(end) else f"{end:.3g}" for end in ends)
    return f"{sign}{row['boundary']:.3g} [{low}, {high}]"


def answer(landscape: Landscape, series: pd.DataFrame, columns: pd.DataFrame) -> list[str]:
    """Return what the areas say, what lies outside the searched range, and what the figures rest on."""
    lines = []
    survival = "" if landscape.survival == NOT_DEAD else f" ({landscape.survival})"
    for piece, rows in series[series["area"].notna()].groupby("slice", sort=False):
        if len(rows) > 1:
            at = f" at {piece!s}" if piece else ""
            ranked = rows.sort_values("area", ascending=False).to_dict(orient="records")
            sizes = ", ".join(f"{r['series']} {'~ ' if r['beyond'] else ''}{_spanned(r, 'area')}" for r in ranked)
            lines.append(f"Stable area{survival}{at}, from the largest: {sizes}.")
    does = FALLS[landscape.survival]
    for word, what in (
        ("above", f"at the highest value tried fewer than half of the runs {does}"),
        ("below", f"at the lowest value tried half or more {does}"),
    ):
        if len(part := columns[columns["beyond"] == word]):
            where = ", ".join(f"{r['series']} at {r['y']:g}" for r in part.to_dict(orient="records"))
            lines.append(f"Beyond what was tried ({what}): {where}. Their area (~) rests on the prior there.")
    if loose := _loose(landscape, columns):
        lines.append(f"Not yet narrowed down to two neighbouring values with {landscape.planned} seeds each: {loose}.")
    lines.append(
        f"Area: log2 {landscape.settings.along} from {landscape.settings.low:g} up to the boundary, over "
        f"{_axis(landscape)}. Intervals: 95 % of a fitted curve with a shift of each seed; see docs/regions.md."
    )
    if landscape.survival != NOT_DEAD:
        return lines[:-1]  # the rest is the same for every reading
    if len(landscape.fading):
        lines.append(_fading(landscape, columns))
    if landscape.unjudged:
        lines.append(f"Left out, too short for the collapse rule: {landscape.unjudged} runs.")
    if landscape.left_out:
        lines.append(f"Left out, run with other settings than the newest run: {landscape.left_out} runs.")
    return lines


def _fading(landscape: Landscape, columns: pd.DataFrame) -> str:
    """How many runs were falling at their end, and which boundaries move by .1 doublings if they count as collapsed."""
    moved = by_column(landscape.with_fading()).merge(columns, on=["series", "slice", "y"], suffixes=("", "_without"))
    apart = np.abs(np.log2(moved["boundary"] / moved["boundary_without"])) >= 0.1
    moved = moved[apart | (moved["beyond"] != moved["beyond_without"])]
    where = ", ".join(f"{r['series']} at {r['y']:g} {edge(r)}" for r in moved.to_dict(orient="records"))
    ends = f"counted as collapsed they move these boundaries by .1 doublings or more: {where}"
    ends = ends if where else "counted as collapsed they move no boundary by .1 doublings"
    return f"Left out, falling at their end: {len(landscape.fading)} runs; {ends}."


def _axis(landscape: Landscape) -> str:
    if landscape.across is None:
        return "nothing, there is one column"
    return f"log2({'1 + ' if (landscape.runs['y'] <= 0).any() else ''}{landscape.across})"


def _loose(landscape: Landscape, columns: pd.DataFrame) -> str:
    """Return the columns whose boundary has a gap next to it, or too few runs there."""
    lattice = list(landscape.settings.lattice)
    found = []
    for row in columns.to_dict(orient="records"):
        beside = [s for s in ("low", "high") if not _missing(row[s])]
        few = any(row[f"{s}_runs"] < landscape.planned for s in beside)
        ends = [min(range(len(lattice)), key=lambda i, s=s: abs(lattice[i] - row[s])) for s in beside]  # type: ignore[misc]
        gap = ends[1] - ends[0] > 1 if len(ends) == 2 else ends[0] not in (0, len(lattice) - 1)
        if few or gap:
            found.append(f"{row['series']} at {row['y']:g}")
    return ", ".join(found)


def _spanned(row: dict[Any, Any], name: str, sign: bool = False) -> str:
    if _missing(row[name]):
        return "-"
    form = "+.2f" if sign else ".2f"
    value = format(row[name], form)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return value if _missing(low) else f"{value} [{format(low, form)}, {format(high, form)}]"


def _missing(value: Any) -> bool:
    return value is None or value != value

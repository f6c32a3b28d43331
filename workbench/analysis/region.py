"""The stability region: the boundary of survival in each column, the area below it, and how sure few seeds
can be.

Axes: the searched setting x as log2 x, so that lengths are doublings; the condition y of a column as log2 y,
or as log2(1 + y) where one of the conditions is 0. A run collapses where x lies above its threshold
(docs/regions.md):

    threshold = boundary + shift + width * noise,    noise ~ N(0, 1)

`boundary` belongs to a column, `width` to an arm, `shift` to a seed in an arm: N(common, OWN^2), where
`common` is what the seed does in all arms, N(0, SHARED^2).

Weak priors: an arm's boundaries are normal around their common centre with a deviation of 1.5 doublings, and
the centre is normal around the middle of the searched range with half the range as deviation; the distance
from 10 to 90 % is log-normal around .8 doublings, by a factor of 2 for all arms together and of 1.35 for an
arm; SHARED is half-normal with a scale of .4 doublings, OWN has a density of exp(-(OWN / .3)^2 / 2) / OWN
from .01 doublings on.

The posterior is drawn by Gibbs sampling (Albert and Chib 1993) with a fixed random stream. Independent data
sets can be drawn side by side: `bench/region_coverage.py` does so to measure how often the intervals hold the
truth.
"""

import json
import math
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy

from sorl.analysis.runs import KEPT, NOT_DEAD, flat, newest, replicate, settings_of, survived
from sorl.analysis.stats import Estimate, percent, spanned
from sorl.spec import UNDECIDED, GridFile, InputError, RegionSettings, nearest

if TYPE_CHECKING:
    from sorl.store.reader import Reader

_RUNS = """
    SELECT run_id, arm, algorithm, seed, status, outcome, final_success, seconds, started_at, config
    FROM run WHERE experiment = ? ORDER BY started_at NULLS LAST, run_id
"""
# reading of survival -> what half of the runs do
FALLS = {NOT_DEAD: "collapse", KEPT: "do not learn and keep it"}
ARM = ["series", "slice"]
# other settings: their own name
NAMES = {"learn.policy.lr": "policy learning rate", "learn.staleness": "staleness"}
MOVES = 0.1  # doublings: a smaller move of a boundary is not reported

TEN_TO_NINETY = 2.563  # the distance from 10 to 90 % of a normal distribution with deviation 1
APART = 1.5  # doublings, of an arm's boundaries around their centre
# from 10 to 90 %, doublings; deviations of its log: all arms, one arm
WIDTH = 0.8
WIDTH_SPREAD = 0.7
ARM_SPREAD = 0.3
# doublings, scales of the priors of a seed's shift in one arm and in all
OWN = 0.3
SHARED = 0.4
CHAINS = 24
BURN = 150
KEEP = 500
# grids of the deviations
_WIDTHS = np.geomspace(0.02, 8.0, 48)
_SHIFTS = np.geomspace(0.01, 4.0, 40)
# Log densities on the grid, which is even in the logarithm: half-normal, and the same over the deviation
# itself, which puts most of it near none.
_SHARED_PRIOR = -0.5 * (_SHIFTS / SHARED) ** 2 + np.log(_SHIFTS)
_OWN_PRIOR = -0.5 * (_SHIFTS / OWN) ** 2

Arm = tuple[str, str]  # its series and slice
# Draws of log2 of the boundary by arm and condition y, and of the doublings from 10 to 90 % by arm, (D,).
Fitted = tuple[dict[Arm, dict[float, np.ndarray]], dict[Arm, np.ndarray]]


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
    found = {}
    for y, column in runs.groupby("y"):
        counts = column.groupby(np.log2(column["x"]))["collapsed"].agg(["sum", "size"])
        tried = counts.index.to_numpy(dtype=float)
        collapsed = {float(x): (k, n) for x, k, n in zip(tried, counts["sum"], counts["size"], strict=True)}
        found[float(y)] = boundary(collapsed)  # type: ignore[arg-type]
    return {y: edge for y, edge in found.items() if edge}


def in_words(key: str | None, *, unit: bool = False) -> str:
    """Return a setting as a sentence names it, or with its unit as an axis does; empty for None."""
    name = NAMES.get(key, key.rsplit(".", 1)[-1].replace("_", " ")) if key else ""
    return f"{name} (steps)" if unit and key == "learn.staleness" else name


def region_file(reader: "Reader", experiment: str) -> GridFile | None:
    """Return the recorded grid file of an experiment of kind region; None for any other experiment."""
    found = reader.rows("SELECT toml FROM experiment WHERE experiment = ?", [experiment]).rows
    return region_of(found[0][0]) if found else None


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
    numeric = [
        key for key, values in file.axes.items() if all(type(value) in (int, float) for value in values)
    ]
    across = next(iter(numeric), None)
    further = [key for key in numeric[1:] if len(file.axes[key]) > 1]
    points = 1 + sum(len(file.axes[key]) > 1 for key in numeric)  # parts of an arm's name that say its point
    settings = [settings_of(config) for config in judged["config"]]
    rows = judged[["run_id", "arm", "algorithm", "seed", "outcome"]].assign(
        series=[arm.rsplit(" · ", points)[0] for arm in judged["arm"]],
        slice=[", ".join(f"{key.rsplit('.', 1)[-1]} {s[key]:g}" for key in further) for s in settings],
        y=[float(s[across]) if across else 0.0 for s in settings],
        x=[float(s[file.region.along]) for s in settings],
        collapsed=~survived(judged["outcome"]),
        final=judged["final_success"],
        seconds=judged["seconds"].fillna(0.0),
    )
    named = [
        *(a for a in file.axes.get("algorithm", []) if isinstance(a, str)),
        *(arm.name for arm in file.arms),
    ]
    place = rows["series"].map({name: i for i, name in reversed([*enumerate(named)])}).fillna(len(named))
    rows = rows.assign(place=place).sort_values(["place", "slice", "y", "x", "seed"], kind="stable")
    down = rows["outcome"].isin(UNDECIDED)
    rows = rows.drop(columns="place")
    return Landscape(
        rows[~down].reset_index(drop=True),
        file.region,
        across,
        len(file.seeds),
        len(frame) - len(runs),
        len(over) - len(judged),
        rows[down].reset_index(drop=True),
    )


def _same_settings(frame: pd.DataFrame, file: GridFile) -> pd.DataFrame:
    """Return the runs that have the settings of the newest one, apart from those that the file varies."""
    if frame.empty or file.region is None:
        return frame
    apart = {*file.axes, file.region.along, *(k for arm in file.arms for k in flat(arm.model_extra or {}))}

    def common(config: str) -> str:
        kept = {
            k: v
            for k, v in replicate(config).items()
            if not any(f"{k}.".startswith(f"{one}.") for one in apart)
        }
        return json.dumps(kept, sort_keys=True)

    found = frame["config"].map(common)
    begun = found[frame["started_at"].notna()]
    return frame[found == (begun if len(begun) else found).iloc[-1]]


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
    settings = landscape.settings
    drawn, widths = landscape.fitted
    names = list(landscape.runs["series"].unique())
    reference = reference or names[0]
    if reference not in names:
        raise InputError(
            f"no arm '{reference}' in this region{nearest(reference, names)}; arms: {'; '.join(names)}"
        )
    x, y = ((key or "").rsplit(".", 1)[-1] for key in (settings.along, landscape.across))
    unit = f"log2({x}) x log2({'1+' if (landscape.runs['y'] <= 0).any() else ''}{y})"
    area = {key: areas(drawn[key], settings) for key in landscape.parts}
    seeds = int(landscape.runs["seed"].nunique())
    rows: list[dict[str, Any]] = []
    for (series, piece), runs in landscape.parts.items():
        mine = area[series, piece]
        other = area.get((reference, piece))
        order = heights(sorted(runs["y"].unique()))
        found = estimate(mine, seeds)
        whole = (order[-1] - order[0]) * (math.log2(settings.high) - math.log2(settings.low))
        gap = mine - other if mine is not None and other is not None and series != reference else None
        beyond = {edge.beyond for edge in edges(runs).values()} - {""}
        rows.append(
            {
                "series": series,
                "slice": piece,
                "algorithm": runs["algorithm"].iloc[0],
                **found.columns("area"),
                "unit": unit,
                "share": None if found.value is None else found.value / whole,
                "beyond": " and ".join(sorted(beyond)),
                "reference": reference,
                **estimate(gap, seeds).columns("difference"),
                **estimate(widths[series, piece], seeds).columns("width"),
                "runs": len(runs),
                "minutes": float(runs["seconds"].sum()) / 60,
                "seeds": int(runs["seed"].nunique()),
            }
        )
    return pd.DataFrame(rows)


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
            found = estimate(landscape.fitted[0][series, piece][y], seeds)
            if edge.beyond == "above":
                found = Estimate(edge.at, None if found.low is None else min(found.low, edge.at))
            elif edge.beyond == "below":
                found = Estimate(edge.at, None, None if found.high is None else max(found.high, edge.at))
            logs = found.columns("boundary").items()
            row = {
                "series": series,
                "slice": piece,
                "y": y,
                **{k: v if v is None else 2**v for k, v in logs},
                "beyond": edge.beyond,
            }
            for side, at in (("low", edge.low), ("high", edge.high)):
                here = column[np.isclose(np.log2(column["x"]), math.nan if at is None else at)]
                row[side] = None if at is None else float(here["x"].iloc[0])
                row |= {f"{side}_runs": len(here), f"{side}_collapsed": int(here["collapsed"].sum())}
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


def readable_series(series: pd.DataFrame) -> pd.DataFrame:
    """Return one row an arm: area, share of what was searched, difference to the reference, width."""
    return pd.DataFrame(
        {
            "arm": row["series"],
            **_at(series, row),
            f"area: {row['unit']}": ("~ " if row["beyond"] else "") + spanned(row, "area"),
            "share of the searched area": "-" if pd.isna(row["share"]) else percent(row["share"]),
            f"area minus that of {row['reference']}": spanned(row, "difference", "+z.2f"),
            "10 to 90 % collapse over (doublings)": spanned(row, "width"),
            "seeds": str(row["seeds"]),
            "runs": str(row["runs"]),
            "minutes of training": f"{row['minutes']:.0f}",
        }
        for row in series.to_dict(orient="records")
    )


def readable_columns(columns: pd.DataFrame) -> pd.DataFrame:
    """Return one row an arm, one column a condition: `0.17 [0.15, 0.2]`, `> 1 [0.8, -]` and `< 0.03 [-,
    0.04]`.
    """
    rows: dict[Arm, dict[str, Any]] = {}
    for row in columns.to_dict(orient="records"):
        line = rows.setdefault((row["series"], row["slice"]), {"arm": row["series"], **_at(columns, row)})
        line[f"{row['y']:g}"] = edge(row)
    return pd.DataFrame(rows.values()).fillna("-")


def _at(frame: pd.DataFrame, row: Mapping[Hashable, Any]) -> dict[str, Any]:
    # where an experiment has several slices
    return {"at": row["slice"]} if (frame["slice"] != "").any() else {}


def edge(row: Mapping[Hashable, Any]) -> str:
    """Return the boundary of a row of by_column, `>` or `<` the last value tried where it lies beyond."""
    return {"above": "> ", "below": "< "}.get(row["beyond"], "") + spanned(row, "boundary", ".3g")


def answer(landscape: Landscape, series: pd.DataFrame, columns: pd.DataFrame) -> list[str]:
    """Return the `headline`, what the areas say, what lies outside the searched range, what
    figures rest on.
    """
    lines = [headline(landscape, columns)]
    settings = landscape.settings
    survival = "" if landscape.survival == NOT_DEAD else f" ({landscape.survival})"
    for piece, rows in series[series["area"].notna()].groupby("slice", sort=False):
        if len(rows) > 1:
            ranked = rows.sort_values("area", ascending=False).to_dict(orient="records")
            sizes = ", ".join(
                f"{r['series']} {'~ ' if r['beyond'] else ''}{spanned(r, 'area')}" for r in ranked
            )
            lines.append(
                f"Stable area{survival}{f' at {piece!s}' if piece else ''}, from the largest: {sizes}."
            )
    does = FALLS[landscape.survival]
    for word, what in (
        ("above", f"at the highest value tried fewer than half of the runs {does}"),
        ("below", f"at the lowest value tried half or more {does}"),
    ):
        if len(part := columns[columns["beyond"] == word]):
            lines.append(
                f"Beyond what was tried ({what}): {_listed(part)}. Their area (~) rests on the prior there."
            )
    if len(loose := columns[[_loose(landscape, row) for row in columns.to_dict(orient="records")]]):
        seeds = f"with {landscape.planned} seeds each"
        lines.append(f"Not yet narrowed down to two neighbouring values {seeds}: {_listed(loose)}.")
    if landscape.survival != NOT_DEAD:
        return lines  # the rest is the same for every reading
    shift = "1 + " if (landscape.runs["y"] <= 0).any() else ""
    across = in_words(landscape.across)
    axis = f"log2({shift}{across})" if across else "nothing, there is one column"
    lines.append(
        f"Area: log2({in_words(settings.along)}) from {settings.low:g} up to the boundary, over {axis}. "
        "Intervals: 95 % of a fitted curve with a shift of each seed; see docs/regions.md."
    )
    if len(landscape.fading):
        moved = by_column(landscape.with_fading()).merge(columns, on=[*ARM, "y"], suffixes=("", "_without"))
        apart = np.abs(np.log2(moved["boundary"] / moved["boundary_without"])) >= MOVES
        moved = moved[apart | (moved["beyond"] != moved["beyond_without"])]
        where = f"these boundaries by .1 doublings or more: {_listed(moved, words=edge)}"
        lines.append(
            f"Left out, falling at their end: {len(landscape.fading)} runs; counted as collapsed they move "
            f"{where if len(moved) else 'no boundary by .1 doublings'}."
        )
    for runs, why in (
        (landscape.unjudged, "too short for the collapse rule"),
        (landscape.left_out, "run with other settings than the newest run"),
    ):
        lines += [f"Left out, {why}: {runs} runs."] if runs else []
    return lines


def headline(landscape: Landscape, columns: pd.DataFrame) -> str:
    """Say where half of the runs collapse at the highest condition: with the lowest and the highest arm, or
    outside.
    """
    said = []
    for piece, rows in columns.groupby("slice", sort=False):
        hardest = (
            rows[rows["y"] == rows["y"].max()]
            .sort_values("boundary", kind="stable")
            .to_dict(orient="records")
        )
        known = [row for row in hardest if not row["beyond"]]
        ends = [*known[:1], *known[1:][-1:]]
        parts = []
        if ends:
            each = ", at ".join(f"{edge(row)} with {row['series']}" for row in ends)
            parts.append(f"at {in_words(landscape.settings.along)} {each}")
        if len(ends) == 2:
            low, high = (row[name] for row, name in zip(ends, ("boundary_high", "boundary_low"), strict=True))
            overlap = (
                ", but their intervals overlap"
                if not pd.isna(low) and not pd.isna(high) and low >= high
                else ""
            )
            parts[0] += f", {ends[1]['boundary'] / ends[0]['boundary']:.1f} x higher{overlap}"
        for word, where in (
            ("below", "below the lowest value tried"),
            ("above", "above the highest value tried"),
        ):
            out = [f"{row['series']} ({row['boundary']:.3g})" for row in hardest if row["beyond"] == word]
            parts += [f"{where} with {', '.join(out)}"] if out else []
        at = [f"{in_words(landscape.across)} {hardest[0]['y']:g}"] if landscape.across else []
        at += [str(piece)] if piece else []
        half = f"half of the runs {FALLS[landscape.survival]} {'; '.join(parts)}."
        said.append(f"At {', '.join(at)}, {half}" if at else half.capitalize())
    return " ".join(said)


def _listed(columns: pd.DataFrame, words: Any = lambda _: "") -> str:
    return ", ".join(
        f"{r['series']} at {r['y']:g} {words(r)}".rstrip() for r in columns.to_dict(orient="records")
    )


def _loose(landscape: Landscape, row: Mapping[Hashable, Any]) -> bool:
    lattice = np.array(landscape.settings.lattice)
    sides = [s for s in ("low", "high") if not pd.isna(row[s])]
    ends = [int(np.abs(lattice - row[side]).argmin()) for side in sides]
    gap = ends[1] - ends[0] > 1 if len(ends) == 2 else ends[0] not in (0, len(lattice) - 1)
    return gap or any(row[f"{side}_runs"] < landscape.planned for side in sides)


# The fit


class Trials(NamedTuple):
    """The runs of one or several data sets and what belongs to what; indices count over all data sets."""

    x: np.ndarray  # log2 of the searched setting
    collapsed: np.ndarray
    column: np.ndarray  # of each run
    unit: np.ndarray  # of each run: its seed in its arm
    arm_of_column: np.ndarray
    arm_of_unit: np.ndarray
    seed_of_unit: np.ndarray
    set_of_arm: np.ndarray
    set_of_seed: np.ndarray


def fit(runs: pd.DataFrame, low: float, high: float) -> Fitted:
    """Return draws (D,) of log2 of the boundary, by arm and condition y, and of each arm's width, of a
    Landscape.
    """
    arm, column, unit, seed = (
        runs.groupby(keys, sort=False).ngroup().to_numpy()
        for keys in (["series", "slice"], ["series", "slice", "y"], ["series", "slice", "seed"], ["seed"])
    )
    (_, of_arm), (_, of_column), (_, of_unit) = (
        np.unique(codes, return_index=True) for codes in (arm, column, unit)
    )
    x, collapsed = (
        np.tile(values, CHAINS) for values in (np.log2(runs["x"].to_numpy(float)), runs["collapsed"])
    )
    indices = (
        column,
        unit,
        arm[of_column],
        arm[of_unit],
        seed[of_unit],
        0 * of_arm,
        np.zeros(seed.max() + 1, int),
    )
    chains = ((codes + (codes.max() + 1) * np.arange(CHAINS)[:, None]).ravel() for codes in indices)
    found = draw(Trials(x, collapsed, *chains), math.log2(low), math.log2(high), BURN, KEEP)
    boundaries, widths = (part.reshape(KEEP * CHAINS, -1).T for part in found)
    names = list(zip(runs["series"], runs["slice"], strict=True))
    drawn: dict[Arm, dict[float, np.ndarray]] = {names[i]: {} for i in of_arm}
    for i in np.argsort(runs["y"].to_numpy()[of_column], kind="stable"):
        drawn[names[of_column[i]]][float(runs["y"].iloc[of_column[i]])] = boundaries[i]
    return drawn, {names[i]: width for i, width in zip(of_arm, widths, strict=True)}


def draw(
    trials: Trials, low: float, high: float, burn: int, keep: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Draw log2 of each column's boundary and each arm's doublings from 10 to 90 %, (keep, n), in a range of
    log2.
    """
    t = trials
    random = np.random.default_rng(seed)
    ndtr = scipy.special.ndtr
    ndtri = scipy.special.ndtri
    total = np.bincount  # of the values (or of ones) with each code
    arm = t.arm_of_column[t.column]
    set_of_unit = t.set_of_arm[t.arm_of_unit]
    set_of_run = t.set_of_arm[arm]
    sets = int(t.set_of_arm.max()) + 1
    sign = np.where(t.collapsed, 1.0, -1.0)
    middle = (low + high) / 2
    spread = ((high - low) / 2) ** 2
    columns = len(t.arm_of_column)
    units = len(t.arm_of_unit)
    arms = len(t.set_of_arm)

    def normal(weighted: np.ndarray, precision: np.ndarray) -> np.ndarray:
        return weighted / precision + random.standard_normal(len(weighted)) / np.sqrt(precision)

    def pick(logs: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return a value of the grid for each row of log densities."""
        mass = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
        return np.asarray(grid[(mass < random.random((len(mass), 1)) * mass[:, -1:]).sum(1)])

    def deviation(values: np.ndarray, of: np.ndarray, prior: np.ndarray) -> np.ndarray:
        count = total(of, None, sets)[:, None]
        square = total(of, values**2, sets)[:, None]
        return pick(-count * np.log(_SHIFTS) - square / (2 * _SHIFTS**2) + prior, _SHIFTS)

    def scale(score: np.ndarray, rest: np.ndarray, prior: np.ndarray) -> np.ndarray:
        weighted = score * weight[arm]
        square, product = (total(set_of_run, weighted * values, sets)[:, None] for values in (score, rest))
        return pick(product * _SHIFTS - square * _SHIFTS**2 / 2 + prior, _SHIFTS)

    boundary = total(t.column, t.x, columns) / np.maximum(total(t.column, None, columns), 1)
    centre = np.full(len(t.set_of_arm), middle)
    shift = np.zeros(len(t.seed_of_unit))
    common = np.zeros(len(t.set_of_seed))
    usual = np.full(sets, math.log(WIDTH / TEN_TO_NINETY))
    width = np.exp(usual)[t.set_of_arm]
    own = np.full(sets, OWN)
    shared = np.full(sets, SHARED / 2)
    boundaries = []
    widths = []
    for step in range(burn + keep):
        # The threshold of each run: above its setting unless it collapsed.
        mean = boundary[t.column] + shift[t.unit]
        share = np.maximum(ndtr(sign * (t.x - mean) / width[arm]), 1e-300)
        threshold = mean + width[arm] * sign * ndtri(share * random.random(len(share)))
        weight = 1 / width**2

        # The boundaries, and the centre of each arm's.
        by_column = weight[t.arm_of_column]
        apart = 1 / APART**2
        weighted = (
            total(t.column, threshold - shift[t.unit], columns) * by_column + centre[t.arm_of_column] * apart
        )
        boundary = normal(weighted, total(t.column, None, columns) * by_column + apart)
        weighted = total(t.arm_of_column, boundary, arms) * apart + middle / spread
        centre = normal(weighted, total(t.arm_of_column) * apart + 1 / spread)

        # The shift of each seed in each arm, and what it does in all.
        by_unit = weight[t.arm_of_unit]
        by_set = 1 / own**2
        weighted = total(t.unit, threshold - boundary[t.column], units) * by_unit
        weighted += common[t.seed_of_unit] * by_set[set_of_unit]
        shift = normal(weighted, total(t.unit, None, units) * by_unit + by_set[set_of_unit])
        by_seed = by_set[t.set_of_seed]
        precision = total(t.seed_of_unit) * by_seed + 1 / shared[t.set_of_seed] ** 2
        common = normal(total(t.seed_of_unit, shift) * by_seed, precision)

        # Move boundaries against seeds, within each arm and over all: one by one they would take long to get
        # there.
        by_arm = by_set[t.set_of_arm]
        weighted = total(t.arm_of_unit, shift - common[t.seed_of_unit]) * by_arm - (centre - middle) / spread
        up = normal(weighted, total(t.arm_of_unit) * by_arm + 1 / spread)
        boundary = boundary + up[t.arm_of_column]
        centre = centre + up
        shift = shift - up[t.arm_of_unit]
        weighted = total(t.set_of_seed, common) / shared**2 - total(t.set_of_arm, centre - middle) / spread
        up = normal(weighted, total(t.set_of_seed) / shared**2 + total(t.set_of_arm) / spread)
        boundary = boundary + up[t.set_of_arm][t.arm_of_column]
        centre = centre + up[t.set_of_arm]
        common = common - up[t.set_of_seed]
        shift = shift - up[set_of_unit]

        # The deviations of the shifts, first as they are, then with the shifts measured in deviations: small
        # ones too.
        between = shift - common[t.seed_of_unit]
        own = deviation(between, set_of_unit, _OWN_PRIOR)
        shared = deviation(common, t.set_of_seed, _SHARED_PRIOR)
        rest = threshold - boundary[t.column]
        score = between / own[set_of_unit]
        own = scale(score[t.unit], rest - common[t.seed_of_unit][t.unit], _OWN_PRIOR)
        between = score * own[set_of_unit]
        score = common / shared[t.set_of_seed]
        shared = scale(score[t.seed_of_unit][t.unit], rest - between[t.unit], _SHARED_PRIOR)
        common = score * shared[t.set_of_seed]
        shift = common[t.seed_of_unit] + between

        # The width of each arm, and the usual one of all.
        logs = np.log(_WIDTHS)
        squares = total(arm, (rest - shift[t.unit]) ** 2, arms)[:, None]
        density = -0.5 * ((logs - usual[t.set_of_arm][:, None]) / ARM_SPREAD) ** 2
        width = pick(density - total(arm, None, arms)[:, None] * logs - squares / (2 * _WIDTHS**2), _WIDTHS)
        weighted = total(t.set_of_arm, np.log(width)) / ARM_SPREAD**2
        weighted += math.log(WIDTH / TEN_TO_NINETY) / WIDTH_SPREAD**2
        usual = normal(weighted, total(t.set_of_arm) / ARM_SPREAD**2 + 1 / WIDTH_SPREAD**2)
        if step >= burn:
            boundaries.append(boundary)
            widths.append(width * TEN_TO_NINETY)
    return np.array(boundaries), np.array(widths)

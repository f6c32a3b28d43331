"""A stability region in words: its answer in sentences, and its tables for people to read."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sorl.analysis.region import ARM, Landscape, by_column
from sorl.analysis.region_fit import Arm
from sorl.analysis.runs import KEPT, NOT_DEAD
from sorl.analysis.stats import percent, spanned

Row = Mapping[Hashable, Any]
# reading of survival -> what half of the runs do
FALLS = {NOT_DEAD: "collapse", KEPT: "do not learn and keep it"}
# other settings: their own name
NAMES = {"learn.policy.lr": "policy learning rate", "learn.staleness": "staleness"}
MOVES = 0.1  # doublings: a smaller move of a boundary is not reported


def in_words(key: str | None, *, unit: bool = False) -> str:
    """Return a setting as a sentence names it, or with its unit as an axis does; empty for None."""
    name = NAMES.get(key, key.rsplit(".", 1)[-1].replace("_", " ")) if key else ""
    return f"{name} (steps)" if unit and key == "learn.staleness" else name


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
    lines = [
        headline(landscape, columns),
        *_ranked_areas(landscape, series),
        *_beyond_range(landscape, columns),
        *_loose_columns(landscape, columns),
    ]
    if landscape.survival != NOT_DEAD:
        return lines  # the rest is the same for every reading
    lines.append(_meaning_of_area(landscape))
    if len(landscape.fading):
        lines.append(_effect_of_fading(landscape, columns))
    for runs, why in (
        (landscape.unjudged, "too short for the collapse rule"),
        (landscape.left_out, "run with other settings than the newest run"),
    ):
        if runs:
            lines.append(f"Left out, {why}: {runs} runs.")
    return lines


def _ranked_areas(landscape: Landscape, series: pd.DataFrame) -> Iterator[str]:
    """The stable areas of a slice's arms, from the largest."""
    survival = "" if landscape.survival == NOT_DEAD else f" ({landscape.survival})"
    for piece, rows in series[series["area"].notna()].groupby("slice", sort=False):
        if len(rows) < 2:
            continue
        ranked = rows.sort_values("area", ascending=False).to_dict(orient="records")
        sizes = ", ".join(f"{r['series']} {'~ ' if r['beyond'] else ''}{spanned(r, 'area')}" for r in ranked)
        where = f" at {piece!s}" if piece else ""
        yield f"Stable area{survival}{where}, from the largest: {sizes}."


def _beyond_range(landscape: Landscape, columns: pd.DataFrame) -> Iterator[str]:
    does = FALLS[landscape.survival]
    for word, what in (
        ("above", f"at the highest value tried fewer than half of the runs {does}"),
        ("below", f"at the lowest value tried half or more {does}"),
    ):
        part = columns[columns["beyond"] == word]
        if len(part):
            yield f"Beyond what was tried ({what}): {_listed(part)}. Their area (~) rests on the prior there."


def _loose_columns(landscape: Landscape, columns: pd.DataFrame) -> Iterator[str]:
    loose = columns[[_loose(landscape, row) for row in columns.to_dict(orient="records")]]
    if len(loose):
        seeds = f"with {landscape.planned} seeds each"
        yield f"Not yet narrowed down to two neighbouring values {seeds}: {_listed(loose)}."


def _meaning_of_area(landscape: Landscape) -> str:
    settings = landscape.settings
    shift = "1 + " if (landscape.runs["y"] <= 0).any() else ""
    across = in_words(landscape.across)
    axis = f"log2({shift}{across})" if across else "nothing, there is one column"
    return (
        f"Area: log2({in_words(settings.along)}) from {settings.low:g} up to the boundary, over {axis}. "
        "Intervals: 95 % of a fitted curve with a shift of each seed; see docs/regions.md."
    )


def _effect_of_fading(landscape: Landscape, columns: pd.DataFrame) -> str:
    """Which boundaries move if the runs that fall at their end count as collapsed."""
    moved = by_column(landscape.with_fading()).merge(columns, on=[*ARM, "y"], suffixes=("", "_without"))
    apart = np.abs(np.log2(moved["boundary"] / moved["boundary_without"])) >= MOVES
    moved = moved[apart | (moved["beyond"] != moved["beyond_without"])]
    where = "no boundary by .1 doublings"
    if len(moved):
        where = f"these boundaries by .1 doublings or more: {_listed(moved, words=edge)}"
    return (
        f"Left out, falling at their end: {len(landscape.fading)} runs; counted as collapsed they move "
        f"{where}."
    )


def headline(landscape: Landscape, columns: pd.DataFrame) -> str:
    """Say where half of the runs collapse at the highest condition: with the lowest and the highest arm, or
    outside.
    """
    sentences = []
    for piece, rows in columns.groupby("slice", sort=False):
        hardest = (
            rows[rows["y"] == rows["y"].max()]
            .sort_values("boundary", kind="stable")
            .to_dict(orient="records")
        )
        parts = [*_inner_boundaries(landscape, hardest), *_outer_boundaries(hardest)]
        at = [f"{in_words(landscape.across)} {hardest[0]['y']:g}"] if landscape.across else []
        at += [str(piece)] if piece else []
        half = f"half of the runs {FALLS[landscape.survival]} {'; '.join(parts)}."
        sentences.append(f"At {', '.join(at)}, {half}" if at else half.capitalize())
    return " ".join(sentences)


def _inner_boundaries(landscape: Landscape, hardest: Sequence[Row]) -> Iterator[str]:
    """The lowest and the highest boundary inside the searched range, and how far they are apart."""
    inside = [row for row in hardest if not row["beyond"]]
    if not inside:
        return
    ends = [*inside[:1], *inside[1:][-1:]]
    each = ", at ".join(f"{edge(row)} with {row['series']}" for row in ends)
    words = f"at {in_words(landscape.settings.along)} {each}"
    if len(ends) == 2:
        lowest, highest = ends
        words += f", {highest['boundary'] / lowest['boundary']:.1f} x higher"
        if _intervals_overlap(lowest, highest):
            words += ", but their intervals overlap"
    yield words


def _intervals_overlap(lowest: Row, highest: Row) -> bool:
    low = lowest["boundary_high"]
    high = highest["boundary_low"]
    return not pd.isna(low) and not pd.isna(high) and low >= high


def _outer_boundaries(hardest: Sequence[Row]) -> Iterator[str]:
    """The arms whose boundary lies below or above everything tried."""
    for word, where in (
        ("below", "below the lowest value tried"),
        ("above", "above the highest value tried"),
    ):
        outside = [f"{row['series']} ({row['boundary']:.3g})" for row in hardest if row["beyond"] == word]
        if outside:
            yield f"{where} with {', '.join(outside)}"


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

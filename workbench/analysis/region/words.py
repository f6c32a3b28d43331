"""The tables of a stability region as text cells, and what they say in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.region.claims import Shift
from workbench.analysis.region.landscape import Landscape
from workbench.analysis.region.tables import by_column


def readable_series(series: pd.DataFrame) -> pd.DataFrame:
    """Area with interval, share of what was searched, difference to the reference: one row an arm."""
    rows = []
    sliced = bool((series["slice"] != "").any())
    for row in series.to_dict(orient="records"):
        bound = {"at least": ">= ", "at most": "<= "}.get(str(row["beyond"]), "~ " if row["beyond"] else "")
        rows.append(
            {
                "arm": row["series"],
                **({"at": row["slice"]} if sliced else {}),
                "area (doublings²)": bound + _spanned(row, "area"),
                "of what was searched": "-" if _missing(row["share"]) else f"{100 * row['share']:.0f} %",
                f"area less that of {_reference(series)}": _spanned(row, "difference", sign=True),
                "seeds": str(row["seeds"]),
                "runs": str(row["runs"]),
                "minutes": f"{row['minutes']:.0f}",
            }
        )
    return pd.DataFrame(rows)


def readable_columns(columns: pd.DataFrame) -> pd.DataFrame:
    """One row an arm, one column a condition: `0.17 [0.15, 0.2]`, `> 1` and `< 0.03` beyond what was tried."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    sliced = bool((columns["slice"] != "").any())
    for row in columns.to_dict(orient="records"):
        key = (row["series"], row["slice"])
        line = rows.setdefault(key, {"arm": row["series"], **({"at": row["slice"]} if sliced else {})})
        line[f"{row['y']:g}"] = edge(row)
    return pd.DataFrame(list(rows.values())).fillna("-")


def readable_shifts(found: Sequence[Shift]) -> pd.DataFrame:
    """One row per hypothesis: whose boundary lies how many doublings further up, with interval, test and verdict."""
    return pd.DataFrame(
        [
            {
                "claim": one.letter,
                "compared": f"{one.favoured} less {one.reference}",
                "boundary further up by (doublings)": _doublings(one),
                "as a factor": "-" if one.doublings is None else f"x {2**one.doublings:.2f}",
                "seeds": str(one.seeds),
                "p (Holm)": "-" if one.p is None else f"{_p(one.p)} ({_p(one.p_holm)})",
                "verdict": one.verdict,
            }
            for one in found
        ]
    )


def _doublings(one: Shift) -> str:
    if one.doublings is None:
        return "-"
    cut = " (cut off at what was searched)" if one.bound else ""
    return f"{one.doublings:+.2f} [{one.low:+.2f}, {one.high:+.2f}]{cut}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def answer(landscape: Landscape, series: pd.DataFrame, columns: pd.DataFrame) -> list[str]:
    """What the areas say, what lies outside the searched range, and what the figures rest on."""
    lines = []
    known = series[series["area"].notna()]
    for piece, rows in known.groupby("slice", sort=False):
        if len(rows) > 1:
            at = f" at {piece!s}" if piece else ""
            ranked = rows.sort_values("area", ascending=False)
            told = ", ".join(f"{r['series']} {_spanned(r, 'area')}" for r in ranked.to_dict(orient="records"))
            lines.append(f"Stable area{at}, from the largest: {told}.")
    for word, side, what in (
        ("above", "high", "even at the highest value tried fewer than half of the runs collapsed"),
        ("below", "low", "already at the lowest value tried half or more collapsed"),
    ):
        if len(part := columns[columns["beyond"] == word]):
            where = ", ".join(f"{r['series']} at {r['y']:g}" for r in part.to_dict(orient="records"))
            bound = "a lower bound" if side == "high" else "an upper bound, counting as nothing there"
            lines.append(f"Beyond what was tried ({what}): {where}. Their area is {bound}.")
    if loose := _loose(landscape, columns):
        lines.append(f"Not yet narrowed down to two neighbouring values with {landscape.planned} seeds each: {loose}.")
    lines.append(
        f"Area: log2 {landscape.settings.along} from {landscape.settings.low:g} up to the boundary, over "
        f"{_axis(landscape)}. Intervals: 95 % bootstrap over seeds, drawn alike for all arms; see docs/regions.md."
    )
    if len(landscape.fading):
        lines.append(_fading(landscape, columns))
    if landscape.unjudged:
        lines.append(f"Left out, too short for the collapse rule: {landscape.unjudged} runs.")
    if landscape.left_out:
        lines.append(f"Left out, run with other settings than the newest run: {landscape.left_out} runs.")
    return lines


def _fading(landscape: Landscape, columns: pd.DataFrame) -> str:
    """How many runs were falling at their end, and which boundaries move if they count as collapsed."""
    moved = by_column(landscape.with_fading()).merge(columns, on=["series", "slice", "y"], suffixes=("", "_without"))
    moved = moved[~np.isclose(moved["boundary"], moved["boundary_without"])]
    told = ", ".join(f"{r['series']} at {r['y']:g} {edge(r)}" for r in moved.to_dict(orient="records"))
    ends = f"counted as collapsed they move these boundaries: {told}" if told else "counted as collapsed they move none"
    return f"Left out, falling at their end: {len(landscape.fading)} runs; {ends}."


def _axis(landscape: Landscape) -> str:
    if landscape.across is None:
        return "nothing, there is one column"
    return f"log2({'1 + ' if (landscape.runs['y'] <= 0).any() else ''}{landscape.across})"


def _loose(landscape: Landscape, columns: pd.DataFrame) -> str:
    """The columns whose boundary has a gap beside it, or too few runs there."""
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


def edge(row: dict[Any, Any]) -> str:
    """The boundary of a row of by_column: `0.17 [0.15, 0.2]`, `> 1` or `< 0.03` beyond what was tried."""
    if row["beyond"]:
        return f"{'>' if row['beyond'] == 'above' else '<'} {row['boundary']:.3g}"
    if _missing(row["boundary_low"]):
        return f"{row['boundary']:.3g}"
    return f"{row['boundary']:.3g} [{row['boundary_low']:.3g}, {row['boundary_high']:.3g}]"


def _reference(series: pd.DataFrame) -> str:
    return str(series["reference"].iloc[0]) if len(series) else ""


def _spanned(row: dict[Any, Any], name: str, sign: bool = False) -> str:
    if _missing(row[name]):
        return "-"
    form = "+.2f" if sign else ".2f"
    value = format(row[name], form)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return value if _missing(low) else f"{value} [{format(low, form)}, {format(high, form)}]"


def _missing(value: Any) -> bool:
    return value is None or value != value

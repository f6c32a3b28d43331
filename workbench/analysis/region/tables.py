"""The tables of a stability region: the area of each series, and the boundary in each column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.region.bootstrap import Draws, areas, edges, interval, positions
from workbench.analysis.region.boundary import Area, Boundary, area
from workbench.analysis.region.landscape import Landscape
from workbench.spec import InputError, nearest


def _draws(landscape: Landscape) -> tuple[Draws, Draws]:
    seeds = sorted(int(seed) for seed in landscape.runs["seed"].unique())
    return Draws.once(seeds), Draws.of(seeds)


def by_series(landscape: Landscape, reference: str | None = None) -> pd.DataFrame:
    """One row per series and slice: the area with its interval, and its difference to that of the series `reference`.

    The reference is the first series unless another is named; InputError for one that is not there.
    area: doublings x doublings; share: of the searched rectangle; beyond: `at least` or `at most` where a boundary lies
    outside what was tried; difference: seeds drawn alike for both; runs, minutes: spent. Intervals are 95 % bootstrap.
    """
    once, draws = _draws(landscape)
    low, high = landscape.settings.low, landscape.settings.high
    names = list(dict.fromkeys(series for series, _ in landscape.parts))
    reference = reference or names[0]
    if reference not in names:
        raise InputError(f"no arm '{reference}' in this region{nearest(reference, names)}; arms: {'; '.join(names)}")
    recorded: dict[tuple[str, str], Area | None] = {}
    drawn: dict[tuple[str, str], np.ndarray | None] = {}
    for key in landscape.parts:
        runs = landscape.part(*key)
        found = {y: edge for y, (edge,) in edges(runs, once).items() if edge is not None}
        recorded[key] = area(found, math.log2(low), math.log2(high))
        drawn[key] = areas(positions(edges(runs, draws), draws, " ".join(key)), low, high)
    rows: list[dict[str, Any]] = []
    for series, piece in landscape.parts:
        runs, mine, theirs = landscape.part(series, piece), recorded[series, piece], recorded.get((reference, piece))
        values, others = drawn[series, piece], drawn.get((reference, piece))
        apart = series != reference and mine is not None and theirs is not None
        gap = values - others if apart and values is not None and others is not None else None
        rows.append(
            {
                "series": series,
                "slice": piece,
                "algorithm": runs["algorithm"].iloc[0],
                "area": mine.value if mine else None,
                **_span("area", interval(values, draws)),
                "share": mine.share if mine else None,
                "beyond": _beyond(mine),
                "reference": reference,
                "difference": mine.value - theirs.value if mine and theirs and apart else None,
                **_span("difference", interval(gap, draws)),
                "runs": len(runs),
                "minutes": float(runs["seconds"].sum()) / 60,
                "seeds": int(runs["seed"].nunique()),
            }
        )
    return pd.DataFrame(rows)


def by_column(landscape: Landscape) -> pd.DataFrame:
    """One row per series, slice and condition y: the boundary with its 95 % bootstrap interval, and what it rests on.

    boundary: value of the searched setting at which half of the runs collapse; beyond: above or below, where it lies
    outside what was tried; low, high: the tried values beside it, with the runs there and how many of them collapsed.
    """
    once, draws = _draws(landscape)
    rows: list[dict[str, Any]] = []
    for series, piece in landscape.parts:
        runs = landscape.part(series, piece)
        placed = positions(edges(runs, draws), draws, f"{series} {piece}")
        for y, (edge,) in edges(runs, once).items():
            assert edge is not None
            column = runs[runs["y"] == y]
            rows.append(
                {
                    "series": series,
                    "slice": piece,
                    "y": y,
                    "boundary": 2**edge.at,
                    **_span("boundary", interval(2 ** placed[y], draws)),
                    "beyond": edge.beyond,
                    **_beside(column, edge),
                    "runs": len(column),
                }
            )
    return pd.DataFrame(rows)


def by_point(landscape: Landscape) -> pd.DataFrame:
    """One row per series, slice, condition y and value x: runs, how many collapsed, mean final success."""
    groups = landscape.runs.groupby(["series", "slice", "y", "x"], sort=False)
    return groups.agg(runs=("seed", "size"), collapsed=("collapsed", "sum"), final=("final", "mean")).reset_index()


def _beside(column: pd.DataFrame, edge: Boundary) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for side, at in (("low", edge.low), ("high", edge.high)):
        here = column[np.isclose(np.log2(column["x"]), math.nan if at is None else at)]
        told[side] = None if at is None else float(here["x"].iloc[0])
        told |= {f"{side}_runs": len(here), f"{side}_collapsed": int(here["collapsed"].sum())}
    return told


def _span(name: str, found: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = found or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _beyond(found: Area | None) -> str:
    if found is None:
        return ""
    return " and ".join(word for word, holds in (("at least", found.at_least), ("at most", found.at_most)) if holds)

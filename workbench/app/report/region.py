"""What a report says of an experiment of kind region: heat maps, areas, boundaries, and the claims that they judge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from workbench.analysis import region_claims as claims
from workbench.analysis.region import (
    FALLS,
    Landscape,
    answer,
    by_column,
    by_point,
    by_series,
    from_runs,
    readable_columns,
    readable_series,
    region_of,
)
from workbench.analysis.results import Results
from workbench.analysis.runs import KEPT
from workbench.app.figures.region import region as drawn
from workbench.app.report import figures
from workbench.app.report.parts import Figure, Items, Part, Section, Table, Text
from workbench.app.theme import Palette, styles
from workbench.spec import GridFile, InputError

if TYPE_CHECKING:
    import plotly.graph_objects as go

TONES = tuple(figures.TONES.items())


def is_region(found: Results) -> bool:
    """Whether the experiment is of kind region."""
    return region_of(found.toml) is not None


def of(found: Results, level: int) -> list[Section]:
    """The sections of a region: areas and boundaries by both readings of survival, and the claims that they judge."""
    file = region_of(found.toml)
    assert file is not None
    try:
        landscape = _landscape(found, file)
    except InputError as error:
        return [Section("Stability region", [Text(str(error))], level)]
    parts: list[Part] = [*_maps(landscape, by_column(landscape), by_point(landscape))]
    kept = landscape.read_as(KEPT)
    for one, who in ((landscape, "every run that did not collapse"), (kept, "only runs that learned and kept it")):
        series, columns = by_series(one), by_column(one)
        parts += [
            Text(f"Stable area where {who} survived ({one.survival}), with 95 % intervals of the fit."),
            Table.of(readable_series(series)),
            Text(f"Boundary: {one.settings.along} at which half of the runs {FALLS[one.survival]}, by {one.across}."),
            Table.of(readable_columns(columns)),
            Items(answer(one, series, columns) if one is landscape else answer(one, series, columns)[:-1]),
        ]
    return [Section("Stability region", parts, level), *_claimed(landscape, kept, found.runs, level)]


def headline(found: Results) -> str:
    """The areas in a sentence."""
    file = region_of(found.toml)
    assert file is not None
    try:
        landscape = _landscape(found, file)
    except InputError as error:
        return str(error)
    both = (landscape, landscape.read_as(KEPT))
    return " ".join(answer(one, by_series(one), by_column(one))[0] for one in both)


def _landscape(found: Results, file: GridFile) -> Landscape:
    return from_runs(found.runs.assign(started_at=None), file, found.experiment)


def _maps(landscape: Landscape, columns: pd.DataFrame, points: pd.DataFrame) -> list[Part]:
    arms = landscape.runs[["series", "algorithm"]].drop_duplicates("series")
    found: list[Part] = []
    for piece in dict.fromkeys(points["slice"]):
        mine = points[points["slice"] == piece]
        caption = (
            f"{int(mine['runs'].sum())} runs, seeds {_seeds(landscape)}. A cell: collapsed runs of runs at one "
            f"{landscape.settings.along} and {landscape.across}; empty where the search ran nothing. Line: where half "
            "of the runs collapse, with its 95 % interval; a triangle points beyond what was tried."
        )
        title = f"Collapsed runs by {landscape.settings.along} and {landscape.across}{f', {piece}' if piece else ''}"
        draw = partial(_draw, mine, columns[columns["slice"] == piece], landscape, arms)
        found.append(Figure(draw, title, caption))
    return found


def _draw(
    points: pd.DataFrame, columns: pd.DataFrame, landscape: Landscape, arms: pd.DataFrame, palette: Palette
) -> go.Figure:
    looks = styles(list(arms.itertuples(index=False, name=None)), palette)
    along, across = landscape.settings.along, landscape.across or ""
    return drawn(points, columns, landscape.settings.lattice, looks, palette, along, across)


def _seeds(landscape: Landscape) -> str:
    seeds = sorted({int(seed) for seed in landscape.runs["seed"]})
    return f"{seeds[0]} to {seeds[-1]}" if seeds == list(range(seeds[0], seeds[-1] + 1)) else ", ".join(map(str, seeds))


def both_ways(down: int, found: Mapping[str, str], with_them: Mapping[str, str]) -> str:
    """What `down` runs that were falling at their end would change in the verdicts, claim by claim."""
    told = [f"({claim}) {with_them[claim]}" for claim in found if found[claim] != with_them[claim]]
    changes = (
        f"counted as collapsed they would change: {', '.join(told)}"
        if told
        else "counted as collapsed they change no verdict"
    )
    return f"{down} runs were falling at their end and count neither way; {changes}."


def _claimed(landscape: Landscape, kept: Landscape, runs: pd.DataFrame, level: int) -> list[Section]:
    found, other = claims.shifts(landscape, runs), claims.shifts(kept, runs)
    if not found:
        return []
    by_kept = claims.verdicts(other)
    summary = pd.DataFrame(
        [
            {
                "claim": f"({letter}) {claims.SENTENCES[letter]}",
                "verdict": verdict,
                f"verdict if {KEPT}": by_kept[letter],
            }
            for letter, verdict in claims.verdicts(found).items()
        ]
    )
    parts: list[Part] = [Table.of(summary, TONES), Table.of(claims.readable(found, other), TONES)]
    if len(landscape.fading):
        fading = claims.verdicts(claims.shifts(landscape.with_fading(), runs))
        parts.append(Text(both_ways(len(landscape.fading), claims.verdicts(found), fading), "note"))
    parts.append(Text(claims.rule(), "note"))
    return [Section("The paper's claims, by stable areas", parts, level)]

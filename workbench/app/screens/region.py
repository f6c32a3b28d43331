"""Region: where each arm of an experiment of kind region collapses, its area, and what was run to know it."""

from typing import NamedTuple

import pandas as pd
import streamlit as st

from sorl.analysis import region as analysis
from sorl.analysis import region_words
from sorl.analysis.runs import KEPT, NOT_DEAD
from sorl.app import export, page
from sorl.app.choices import is_region, question
from sorl.app.figures import maps
from sorl.app.page import address, anchor, note
from sorl.app.queries import Store
from sorl.app.text import figure_text, number, tag
from sorl.app.theme import styles
from sorl.app.url import choose
from sorl.store.reader import Reader


class Region(NamedTuple):
    """The runs of a region and its tables: a row an arm, an arm and condition, an arm and searched point."""

    landscape: analysis.Landscape
    series: pd.DataFrame
    columns: pd.DataFrame
    points: pd.DataFrame
    along: str  # the searched setting in words
    across: str  # the condition


@page.screen
def region(store: Store) -> None:
    """Show the boundary of collapse of each arm, side by side on one scale."""
    searches = _searches(store)
    if not searches:
        page.say(
            "No region search yet. Run one, or load the shipped one:",
            "sorl run experiments/region_sgd.toml",
            "sorl sync --from experiments/results/region_sgd.parquet",
        )
        return
    left, middle, right = st.columns([2, 2, 3])
    with left:
        experiment = choose("experiment", "Experiment", searches)
    with middle:
        survival = choose("survival", "Survives", [NOT_DEAD, KEPT], kind="row")
    with right:
        measure = choose("measure", "Coloured by", maps.MEASURES, kind="row")
    chosen = region_of(store, experiment, survival)
    st.html(tag("h2", question(store, experiment), css="sorl-question"))
    draw_region(chosen, experiment, measure)
    note("Stable area of each arm, with what was run to know it.")
    page.table(region_words.readable_series(chosen.series))
    by = f", by {chosen.across}" if chosen.across else ""
    note(f"Boundary: the {chosen.along} at which half of the runs {region_words.FALLS[survival]}{by}.")
    page.table(region_words.readable_columns(chosen.columns))
    with st.expander("Every point, with a link to its runs"):
        _show_points(chosen, experiment)
    page.links([anchor("Every run as a cell", address("overview", experiment=experiment, show="runs"))])


def _searches(store: Store) -> list[str]:
    """Return the experiments of kind region."""
    recorded = store.query("experiments")["experiment"]
    if recorded.empty:
        raise page.Empty
    return [name for name in recorded if is_region(store, name)]


def _show_points(region: Region, experiment: str) -> None:
    """Show a table of the points that were tried; each opens its runs in Compare."""
    points = region.points
    links = [anchor(arm, address("compare", experiment=experiment, arm=arm)) for arm in points["arm"]]
    names = {
        "y": region.across,
        "x": region.along,
        "runs": "runs",
        "collapsed": "collapsed",
        "final": "mean final success",
    }
    figures = {words: _numbers(points[name]) for name, words in names.items()}
    page.table(pd.DataFrame({"point": links} | figures), "sorl-listing")


def region_of(store: Store, experiment: str, survival: str = NOT_DEAD) -> Region:
    """Return the region of an experiment by a reading of survival; InputError where no run can
    be judged yet.
    """

    def ask(reader: Reader) -> Region:
        landscape = analysis.landscape(reader, experiment).read_as(survival)
        return Region(
            landscape,
            analysis.by_series(landscape),
            analysis.by_column(landscape),
            analysis.by_point(landscape),
            along=region_words.in_words(landscape.settings.along),
            across=region_words.in_words(landscape.across),
        )

    return store.computed(("region", experiment, survival), ask)


def draw_region(region: Region, experiment: str, measure: str) -> None:
    """Say where half of the runs collapse, and draw a figure a slice: every arm by searched setting and
    condition.
    """
    page.answer(region_words.headline(region.landscape, region.columns))
    palette = page.look()
    looks = styles(region.series[["series", "algorithm"]].to_numpy(), palette)
    words = (
        f"For each arm of {experiment}: {maps.MEASURES[measure]} by {region.along} and {region.across}, with"
        " the boundary at which half of the runs collapse."
    )
    for place, name in enumerate(dict.fromkeys(region.series["slice"])):
        piece = _slice_of(region, name)
        if name:
            st.html(tag("b", name))
        drawn = maps.region(piece, looks, palette, measure)
        clicked = export.figure(drawn, f"region-{place}", piece.points, select=True, describe=words)
        arm = _clicked_arm(piece.points, clicked[0][0]) if clicked else None
        if arm:
            page.open_screen("compare", experiment=experiment, arm=[arm])
    note("Click a cell to compare its runs.")
    for line in region_words.answer(region.landscape, region.series, region.columns)[1:]:
        note(line)


def _slice_of(region: Region, name: str) -> maps.Slice:
    """Return the tables of a slice as the figure draws them."""
    return maps.Slice(
        region.points[region.points["slice"] == name],
        region.columns[region.columns["slice"] == name],
        region.landscape.settings.lattice,
        region.along,
        region_words.in_words(region.landscape.across, unit=True),
    )


def _clicked_arm(points: pd.DataFrame, text: str) -> str | None:
    """Return the arm that a cell names, whose text is escaped for a figure."""
    return next((str(arm) for arm in points["arm"] if figure_text(arm) == text), None)


def _numbers(column: pd.Series) -> list[str]:
    return [number(value) for value in column.tolist()]

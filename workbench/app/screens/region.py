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

    found: analysis.Landscape
    series: pd.DataFrame
    columns: pd.DataFrame
    points: pd.DataFrame
    along: str  # the searched setting in words
    across: str  # the condition


@page.screen
def region(store: Store) -> None:
    """Show the boundary of collapse of each arm, side by side on one scale."""
    recorded = store.query("experiments")["experiment"]
    if recorded.empty:
        raise page.Empty
    known = [name for name in recorded if is_region(store, name)]
    if not known:
        page.say(
            "No region search yet. Run one, or load the shipped one:",
            "sorl run experiments/region_sgd.toml",
            "sorl sync --from experiments/results/region_sgd.parquet",
        )
        return
    left, middle, right = st.columns([2, 2, 3])
    with left:
        experiment = choose("experiment", "Experiment", known)
    with middle:
        survival = choose("survival", "Survives", [NOT_DEAD, KEPT], kind="row")
    with right:
        measure = choose("measure", "Coloured by", maps.MEASURES, kind="row")
    shown = region_of(store, experiment, survival)
    st.html(tag("h2", question(store, experiment), css="sorl-question"))
    draw(shown, experiment, measure)
    note("Stable area of each arm, with what was run to know it.")
    page.table(region_words.readable_series(shown.series))
    by = f", by {shown.across}" if shown.across else ""
    note(f"Boundary: the {shown.along} at which half of the runs {region_words.FALLS[survival]}{by}.")
    page.table(region_words.readable_columns(shown.columns))
    with st.expander("Every point, with a link to its runs"):
        points = shown.points
        links = [anchor(arm, address("compare", experiment=experiment, arm=arm)) for arm in points["arm"]]
        names = {
            "y": shown.across,
            "x": shown.along,
            "runs": "runs",
            "collapsed": "collapsed",
            "final": "mean final success",
        }
        figures = {words: _numbers(points[name]) for name, words in names.items()}
        page.table(pd.DataFrame({"point": links} | figures), "sorl-listing")
    page.links([anchor("Every run as a cell", address("overview", experiment=experiment, show="runs"))])


def region_of(store: Store, experiment: str, survival: str = NOT_DEAD) -> Region:
    """Return the region of an experiment by a reading of survival; InputError where no run can
    be judged yet.
    """

    def made(reader: Reader) -> Region:
        found = analysis.landscape(reader, experiment).read_as(survival)
        words = region_words.in_words(found.settings.along), region_words.in_words(found.across)
        return Region(
            found, analysis.by_series(found), analysis.by_column(found), analysis.by_point(found), *words
        )

    return store.computed(("region", experiment, survival), made)


def draw(shown: Region, experiment: str, measure: str) -> None:
    """Say where half of the runs collapse, and draw a figure a slice: every arm by searched setting and
    condition.
    """
    page.answer(region_words.headline(shown.found, shown.columns))
    axis = region_words.in_words(shown.found.across, unit=True)
    palette = page.look()
    looks = styles(shown.series[["series", "algorithm"]].to_numpy(), palette)
    words = (
        f"For each arm of {experiment}: {maps.MEASURES[measure]} by {shown.along} and {shown.across}, with"
        " the boundary at which half of the runs collapse."
    )
    for place, piece in enumerate(dict.fromkeys(shown.series["slice"])):
        mine, edges = (part[part["slice"] == piece] for part in (shown.points, shown.columns))
        if piece:
            st.html(tag("b", piece))
        drawn = maps.region(
            mine, edges, shown.found.settings.lattice, looks, palette, shown.along, axis, measure
        )
        clicked = export.figure(drawn, f"region-{place}", mine, select=True, describe=words)
        if clicked and (arm := next((a for a in mine["arm"] if figure_text(a) == clicked[0][0]), None)):
            page.open_screen("compare", experiment=experiment, arm=[arm])
    note("Click a cell to compare its runs.")
    for line in region_words.answer(shown.found, shown.series, shown.columns)[1:]:
        note(line)


def _numbers(column: pd.Series) -> list[str]:
    return [number(value) for value in column.tolist()]

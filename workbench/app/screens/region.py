"""Region: where each arm of an experiment of kind region collapses, its area, and what was run to know it."""

from typing import NamedTuple

import pandas as pd
import streamlit as st

from workbench.analysis import region as analysis
from workbench.analysis.runs import KEPT, NOT_DEAD
from workbench.app import export
from workbench.app.experiments import is_region, question, show_table
from workbench.app.figures.maps import MEASURES
from workbench.app.figures.maps import region as figure
from workbench.app.page import (
    Empty,
    address,
    anchor,
    answer,
    linked_table,
    links,
    look,
    note,
    open_screen,
    say,
    screen,
)  # fmt: skip
from workbench.app.store import Store
from workbench.app.text import figure_text, number, tag
from workbench.app.theme import styles
from workbench.app.url import choose
from workbench.store.reader import Reader


class Region(NamedTuple):
    """The runs of a region and its tables: a row an arm, an arm and condition, an arm and searched point."""

    found: analysis.Landscape
    series: pd.DataFrame
    columns: pd.DataFrame
    points: pd.DataFrame


@screen
def region(store: Store) -> None:
    """Show the boundary of collapse of each arm, side by side on one scale."""
    recorded = store.query("experiments")["experiment"]
    if recorded.empty:
        raise Empty
    known = [name for name in recorded if is_region(store, name)]
    if not known:
        say("No region search yet. Run one, or load the shipped one:", "sorl run experiments/region_sgd.toml",
            "sorl sync --from experiments/results/region_sgd.parquet")  # fmt: skip
        return
    left, middle, right = st.columns([2, 2, 3])
    with left:
        experiment = choose("experiment", "Experiment", known)
    with middle:
        survival = choose("survival", "Survives", [NOT_DEAD, KEPT], kind="row")
    with right:
        measure = choose("measure", "Coloured by", MEASURES, kind="row")
    shown = region_of(store, experiment, survival)
    st.html(tag("p", question(store, experiment), css="sorl-question"))
    say_answer(shown)
    draw(shown, experiment, measure)
    along, across = _words(shown)
    note("Stable area of each arm, with what was run to know it.")
    show_table(analysis.readable_series(shown.series))
    by, does = f", by {across}" if across else "", analysis.FALLS[survival]
    note(f"Boundary: the {along} at which half of the runs {does}{by}.")
    show_table(analysis.readable_columns(shown.columns))
    with st.expander("Every point, with a link to its runs"):
        header = [(name, "") for name in ("point", across, along, "runs", "collapsed", "mean final success")]
        linked_table(header, [
            (address("compare", experiment=experiment, arm=row["arm"]),
             [row["arm"], *(number(row[name]) for name in ("y", "x", "runs", "collapsed", "final"))])
            for row in shown.points.to_dict("records")
        ])  # fmt: skip
    links([anchor("Every run as a cell", address("overview", experiment=experiment, show="runs"))])


def region_of(store: Store, experiment: str, survival: str = NOT_DEAD) -> Region:
    """Return the region of an experiment by a reading of survival; InputError where no run can be judged yet."""

    def made(reader: Reader) -> Region:
        found = analysis.landscape(reader, experiment).read_as(survival)
        return Region(found, analysis.by_series(found), analysis.by_column(found), analysis.by_point(found))

    return store.computed(("region", experiment, survival), made)


def say_answer(shown: Region) -> None:
    """Say in a sentence where half of the runs collapse."""
    answer(analysis.headline(shown.found, shown.columns))


def draw(shown: Region, experiment: str, measure: str) -> None:
    """Draw a figure a slice: every arm by the searched setting and the condition; a click opens the runs of a cell."""
    series, settings, (along, across) = shown.series, shown.found.settings, _words(shown)
    axis = analysis.in_words(shown.found.across, unit=True)
    looks = styles(list(dict(zip(series["series"], series["algorithm"], strict=True)).items()), look())
    for place, piece in enumerate(dict.fromkeys(series["slice"])):
        mine, edges = (part[part["slice"] == piece] for part in (shown.points, shown.columns))
        if piece:
            st.html(tag("b", piece))
        clicked = export.figure(
            figure(mine, edges, settings.lattice, looks, look(), along, axis, measure), f"region-{place}", mine,
            select=True, describe=f"For each arm of {experiment}: {MEASURES[measure]} by {along} and {across}, with "
            "the boundary at which half of the runs collapse.",
        )  # fmt: skip
        if clicked and (arm := next((a for a in mine["arm"] if figure_text(a) == clicked[0][0]), None)):
            open_screen("compare", experiment=experiment, arm=[arm])
    note("Click a cell to compare its runs.")
    for line in analysis.answer(shown.found, series, shown.columns)[1:]:
        note(line)


def _words(shown: Region) -> tuple[str, str]:
    """Return the names of the searched setting and of the condition."""
    return analysis.in_words(shown.found.settings.along), analysis.in_words(shown.found.across)

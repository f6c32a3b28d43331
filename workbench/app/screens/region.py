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
from workbench.app.page import Empty, address, anchor, answer, links, look, note, screen
from workbench.app.store import Store
from workbench.app.text import tag
from workbench.app.theme import styles
from workbench.app.url import choose
from workbench.spec import InputError
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
        raise InputError("no experiment of kind region is recorded here: `sorl run experiments/region_sgd.toml`")
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
    note("Stable area of each arm, with what was run to know it.")
    show_table(analysis.readable_series(shown.series))
    by = f", by {shown.found.across}" if shown.found.across else ""
    does = analysis.FALLS[survival]
    note(f"Boundary: the {shown.found.settings.along} at which half of the runs {does}{by}.")
    show_table(analysis.readable_columns(shown.columns))
    every = address("overview", experiment=experiment, show="runs")
    single = address("compare", experiment=experiment)
    links([anchor("Every run as a cell", every)], [anchor("curves of single points", single)])


def region_of(store: Store, experiment: str, survival: str = NOT_DEAD) -> Region:
    """Return the region of an experiment by a reading of survival; InputError where no run can be judged yet."""

    def made(reader: Reader) -> Region:
        found = analysis.landscape(reader, experiment).read_as(survival)
        return Region(found, analysis.by_series(found), analysis.by_column(found), analysis.by_point(found))

    return store.computed(("region", experiment, survival), made)


def say_answer(shown: Region) -> None:
    """Say the areas in a sentence, and below it what they rest on."""
    first, *others = analysis.answer(shown.found, shown.series, shown.columns)
    answer(first)
    if others:
        note(" ".join(others))


def draw(shown: Region, experiment: str, measure: str) -> None:
    """Draw a figure a slice: every arm by the searched setting and the condition, coloured by `measure`."""
    series, settings, across = shown.series, shown.found.settings, shown.found.across or ""
    looks = styles(list(dict(zip(series["series"], series["algorithm"], strict=True)).items()), look())
    for place, piece in enumerate(dict.fromkeys(series["slice"])):
        mine, edges = (part[part["slice"] == piece] for part in (shown.points, shown.columns))
        if piece:
            st.html(tag("b", piece))
        export.figure(
            figure(mine, edges, settings.lattice, looks, look(), settings.along, across, measure), f"region-{place}",
            mine, describe=f"For each arm of {experiment}: {MEASURES[measure]} by {settings.along} and {across}, with "
            "the boundary at which half of the runs collapse.",
        )  # fmt: skip

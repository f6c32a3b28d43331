"""Region: where each arm of an experiment of kind region collapses, its area, and what was run to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from workbench.analysis.region import FALLS, readable_columns, readable_series
from workbench.analysis.runs import KEPT, NOT_DEAD
from workbench.app import regions
from workbench.app.experiments import question
from workbench.app.figures.region import MEASURES
from workbench.app.links import address, anchor, link_line
from workbench.app.page import Empty, note, screen, table
from workbench.app.text import html_text
from workbench.app.url import choose
from workbench.spec import InputError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store


@screen
def region(store: Store) -> None:
    """The boundary of collapse of each arm, side by side on one scale."""
    recorded = store.query("experiments")["experiment"]
    if recorded.empty:
        raise Empty("no run is recorded here yet: `sorl run experiments/region_sgd.toml`")
    known = [name for name in recorded if regions.is_region(store, name)]
    if not known:
        raise InputError("no experiment of kind region is recorded here: `sorl run experiments/region_sgd.toml`")
    left, middle, right = st.columns([2, 2, 3])
    with left:
        experiment = choose("experiment", "Experiment", known)
    with middle:
        survival = choose("survival", "Survives", [NOT_DEAD, KEPT], kind="row")
    with right:
        measure = choose("measure", "Coloured by", list(MEASURES), kind="row", words=lambda name: MEASURES[name])
    shown = regions.region_of(store, experiment, survival)
    st.html(f'<p class="sorl-question">{html_text(question(store, experiment))}</p>')
    regions.say_answer(shown)
    regions.draw(shown, experiment, measure)
    settings = shown.found.settings
    note("Stable area of each arm, with what was run to know it.")
    _table(readable_series(shown.series))
    by = f", by {shown.found.across}" if shown.found.across else ""
    note(f"Boundary: the {settings.along} at which half of the runs {FALLS[survival]}{by}.")
    _table(readable_columns(shown.columns))
    every = anchor("Every run as a cell", address("overview", experiment=experiment, show="runs"))
    curves = anchor("curves of single points", address("compare", experiment=experiment))
    link_line([every], [curves])


def _table(words: pd.DataFrame) -> None:
    table(list(words.columns), words.astype(str).to_numpy().tolist(), figures=True)

"""Region: where each arm of an experiment of kind region collapses, its area, and what was run to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from workbench.spec import InputError
from workbench.verdict.region.landscape import Landscape, landscape, region_file
from workbench.verdict.region.tables import by_column, by_point, by_series
from workbench.verdict.region.words import answer, readable_columns, readable_series
from workbench.view import export
from workbench.view.controls import choose
from workbench.view.experiments import question
from workbench.view.figures.region import MEASURES
from workbench.view.figures.region import region as drawn
from workbench.view.page import Empty, look, note, screen, table
from workbench.view.safe import html_text
from workbench.view.theme import styles

if TYPE_CHECKING:
    import pandas as pd

    from workbench.view.data import Store


@screen
def region(store: Store) -> None:
    """The boundary of collapse of each arm, side by side on one scale."""
    recorded = store.query("experiments")["experiment"]
    if recorded.empty:
        raise Empty("no run is recorded here yet: `sorl run experiments/region_sgd.toml`")
    known = [name for name in recorded if _searched(store, name)]
    if not known:
        raise InputError("no experiment of kind region is recorded here: `sorl run experiments/region_sgd.toml`")
    left, right = st.columns([2, 3])
    with left:
        experiment = choose("experiment", "Experiment", known)
    with right:
        measure = choose("measure", "Coloured by", list(MEASURES), words=lambda name: MEASURES[name])
    made = store.computed(("region", experiment), lambda reader: _tables(landscape(reader, experiment)))
    found, series, columns, points = made
    st.html(f'<p class="sorl-question">{html_text(question(store, experiment))}</p>')
    for line in answer(found, series, columns):
        note(line)
    looks = styles(list(dict(zip(series["series"], series["algorithm"], strict=True)).items()), look())
    for place, piece in enumerate(dict.fromkeys(series["slice"])):
        mine = points[points["slice"] == piece]
        if piece:
            note(str(piece))
        figure = drawn(
            mine, columns[columns["slice"] == piece], found.settings.lattice, looks, look(), found.settings.along,
            found.across or "", measure,
        )  # fmt: skip
        export.figure(
            figure, f"region-{place}", mine,
            describe=f"For each arm of {experiment}: {MEASURES[measure]} by {found.settings.along} and {found.across}, "
            "with the boundary at which half of the runs collapse.",
        )  # fmt: skip
    for words in (readable_series(series), readable_columns(columns)):
        table(list(words.columns), words.astype(str).to_numpy().tolist(), figures=True)


def _searched(store: Store, experiment: str) -> bool:
    return store.computed(("region file", experiment), lambda reader: region_file(reader, experiment) is not None)


def _tables(found: Landscape) -> tuple[Landscape, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    return found, by_series(found), by_column(found), by_point(found)

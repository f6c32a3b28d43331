"""An experiment of kind region on a screen: its tables, its answer in words, its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from workbench.analysis.region import Landscape, answer, by_column, by_point, by_series, landscape, region_file
from workbench.analysis.runs import NOT_DEAD
from workbench.app import export
from workbench.app.figures.region import MEASURES, region
from workbench.app.links import address, anchor, link_line
from workbench.app.page import look, note
from workbench.app.text import html_text
from workbench.app.theme import styles

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store


class Region(NamedTuple):
    """The runs of a region and its tables: a row an arm, an arm and condition, an arm and searched point."""

    found: Landscape
    series: pd.DataFrame
    columns: pd.DataFrame
    points: pd.DataFrame


def is_region(store: Store, experiment: str) -> bool:
    """True for an experiment whose file is of kind region."""
    return store.computed(("region file", experiment), lambda reader: region_file(reader, experiment) is not None)


def region_of(store: Store, experiment: str, survival: str = NOT_DEAD) -> Region:
    """The region of an experiment by a reading of survival; InputError where no run of it can be judged yet."""

    def made(found: Landscape) -> Region:
        return Region(found, by_series(found), by_column(found), by_point(found))

    return store.computed(
        ("region", experiment, survival), lambda reader: made(landscape(reader, experiment).read_as(survival))
    )


def point_to(store: Store, experiment: str) -> None:
    """Above the curves of single points of a region: the way to the whole of it."""
    if is_region(store, experiment):
        whole = anchor("Region shows the whole of it", address("region", experiment=experiment))
        link_line(["Each arm here is one point of a search."], [whole])


def say_answer(shown: Region) -> None:
    """The areas in a sentence, and below it what they rest on."""
    first, *others = answer(shown.found, shown.series, shown.columns)
    st.html(f'<p class="sorl-answer">{html_text(first)}</p>')
    if others:
        note(" ".join(others))


def draw(shown: Region, experiment: str, measure: str) -> None:
    """A figure a slice: every arm by the searched setting and the condition, coloured by `measure`."""
    series, settings = shown.series, shown.found.settings
    looks = styles(list(dict(zip(series["series"], series["algorithm"], strict=True)).items()), look())
    for place, piece in enumerate(dict.fromkeys(series["slice"])):
        mine = shown.points[shown.points["slice"] == piece]
        if piece:
            st.html(f"<b>{html_text(piece)}</b>")
        figure = region(
            mine, shown.columns[shown.columns["slice"] == piece], settings.lattice, looks, look(), settings.along,
            shown.found.across or "", measure,
        )  # fmt: skip
        export.figure(
            figure, f"region-{place}", mine,
            describe=f"For each arm of {experiment}: {MEASURES[measure]} by {settings.along} and {shown.found.across}, "
            "with the boundary at which half of the runs collapse.",
        )  # fmt: skip

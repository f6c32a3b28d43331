"""Overview: the question of a grid, its answer in a sentence, and every run as a cell."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from workbench.analysis import compare
from workbench.analysis.region import readable_series
from workbench.app import regions, theme
from workbench.app.experiments import choose_experiment, question, runs, updated
from workbench.app.export import drawing
from workbench.app.figures.matrix import layout, matrix, parts
from workbench.app.links import address, anchor, link_line, open_screen
from workbench.app.page import look, screen, table
from workbench.app.panels import success
from workbench.app.text import html_text
from workbench.app.url import choose
from workbench.spec import OUTCOMES, InputError
from workbench.store.connect import Busy

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store

_SHOWN = {"region": "the region", "runs": "every run"}


@screen
def overview(store: Store) -> None:
    """Which arm died, in how many seeds, and when."""
    chosen, count = st.columns([2, 3], vertical_alignment="bottom")
    with store.reader.together():
        with chosen:
            experiment = choose_experiment(store)
        each = runs(store, experiment)
        if not regions.is_region(store, experiment):
            success(store, each)  # remembered until it is drawn
    shown = _region(store, experiment)
    with count:
        st.html(f'<p class="sorl-note">{html_text(_count(each))}</p>')
    st.html(f'<p class="sorl-question">{html_text(question(store, experiment))}</p>')
    if shown is not None:
        regions.say_answer(shown)
        as_runs = choose("show", "Show", list(_SHOWN), kind="row", words=lambda one: _SHOWN[one]) == "runs"
        if not as_runs:
            regions.draw(shown, experiment, "collapsed")
            words = readable_series(shown.series)
            table(list(words.columns), words.astype(str).to_numpy().tolist(), figures=True)
            more = anchor("More in Region", address("region", experiment=experiment))
            link_line([more])
            return
    answer = st.container()
    _runs(store, experiment, each)  # before the answer, whose intervals of a thousand runs take longer
    summary = store.computed(("summary", experiment), lambda _: compare.summarise(updated(store, experiment)))
    if shown is None:
        answer.html(f'<p class="sorl-answer">{html_text(compare.answer(summary))}</p>')
    words = compare.readable(summary)
    table(list(words.columns), words.astype(str).to_numpy().tolist(), figures=True)


def _region(store: Store, experiment: str) -> regions.Region | None:
    """The region of an experiment of that kind; None while no run of it can be judged, and for any other."""
    if not regions.is_region(store, experiment):
        return None
    try:
        return regions.region_of(store, experiment)
    except Busy:
        raise
    except InputError:
        return None


def _runs(store: Store, experiment: str, each: pd.DataFrame) -> None:
    """Every run as a cell, which opens it."""
    palette = look()
    cells = _part(layout(each))
    st.html(_key(each, palette))
    picture = matrix(cells, success(store, each), palette, partial(_address, experiment))
    run = drawing(
        picture, "grid", each[each["run_id"].isin(cells["run_id"])].drop(columns="config"), palette,
        describe=f"The runs of {experiment}: a row an arm, a column a seed, the outcome as colour, success as a curve.",
    )  # fmt: skip
    if run is not None:
        open_screen("run", experiment=experiment, run=run)


def _address(experiment: str, run: str) -> str:
    return address("run", experiment=experiment, run=run)


def _part(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells to draw: of a large grid those of the rows that are chosen."""
    named = parts(cells)
    return named[choose("rows", "Rows", list(named), kind="row") if len(named) > 1 else next(iter(named))]


def _count(each: pd.DataFrame) -> str:
    status = each["status"].value_counts()
    parts = [f"{len(each)} runs"] + [f"{n} {word}" for word, n in status.items()]
    return " · ".join(parts)


def _key(each: pd.DataFrame, palette: theme.Palette) -> str:
    """The colours of the outcomes that occur."""
    words = {"no_learning": "no learning", "falling": "falling at the end", "": "undecided or running"}
    seen = set(each["outcome"].fillna(""))
    return '<p class="sorl-key">' + "".join(
        f'<span><i style="background:{theme.faded(palette.outcomes[name], 0.16)};'
        f'border-color:{palette.outcomes[name]}"></i>{words.get(name, name)}</span>'
        for name in (*OUTCOMES, "") if name in seen
    ) + "<span>curve: success, 0 to 1, over the longest run; dotted line: onset of the collapse</span></p>"  # fmt: skip

"""Overview: the question of a grid, its answer in a sentence, and every run as a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from workbench.spec import InputError
from workbench.store.connect import Busy
from workbench.verdict import table as verdict
from workbench.verdict.region.words import readable_series
from workbench.view import export, regions, theme
from workbench.view.controls import choose
from workbench.view.experiments import choose_experiment, question, runs, updated
from workbench.view.figures.matrix import layout, matrix
from workbench.view.links import STYLE, address, anchor
from workbench.view.navigation import open_screen
from workbench.view.page import look, screen, table
from workbench.view.panels import curve
from workbench.view.safe import html_text
from workbench.view.series import Window

if TYPE_CHECKING:
    import pandas as pd

    from workbench.view.data import Store

_POINTS = 40  # of a curve in a cell
_OPENED = "sorl opened"
_SHOWN = {"region": "the region", "runs": "every run"}


@screen
def overview(store: Store) -> None:
    """Which arm died, in how many seeds, and when."""
    chosen, count = st.columns([2, 3], vertical_alignment="bottom")
    with chosen:
        experiment = choose_experiment(store)
    each = runs(store, experiment)
    with count:
        st.html(f'<p class="sorl-note">{html_text(_count(each))}</p>')
    st.html(f'<p class="sorl-question">{html_text(question(store, experiment))}</p>')
    if (shown := _region(store, experiment)) is not None:
        regions.say_answer(shown)
        as_runs = choose("show", "Show", list(_SHOWN), kind="row", words=lambda one: _SHOWN[one]) == "runs"
        if not as_runs:
            regions.draw(shown, experiment, "collapsed")
            words = readable_series(shown.series)
            table(list(words.columns), words.astype(str).to_numpy().tolist(), figures=True)
            more = anchor("More in Region", address("region", experiment=experiment))
            st.html(STYLE)
            st.html(f'<p class="sorl-note sorl-ways">{more}</p>')
            return
    each = updated(store, experiment)
    summary = store.computed(("summary", experiment), lambda _: verdict.summarise(each))
    if shown is None:
        st.html(f'<p class="sorl-answer">{html_text(verdict.answer(summary))}</p>')
    _runs(store, experiment, each)
    words = verdict.readable(summary)
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
    cells = layout(each)
    figure = matrix(cells, _success(store, each), palette)
    st.html(_key(each, palette))
    clicked = export.figure(
        figure, "grid", each.drop(columns="config"), select=True,
        describe=f"The runs of {experiment}: a row an arm, a column a seed, the outcome as colour, success as a curve.",
    )  # fmt: skip
    run = clicked[0]["customdata"][0] if clicked else None
    if run is not None and run != st.session_state.get(_OPENED):  # a live screen is drawn again with the click still on
        st.session_state[_OPENED] = run
        open_screen("run", experiment=experiment, run=run)
    st.session_state[_OPENED] = run


def _success(store: Store, each: pd.DataFrame) -> pd.DataFrame:
    """Success of every run in few points: run_id, x (step), mean, and the last step of the longest run."""
    ids, zero = list(each["run_id"]), [0] * len(each)
    extent = store.query("extent", runs=ids, origins=zero)
    last = extent["last"].fillna(0).iloc[0]
    window = Window.made(0, int(last), -(-(int(last) + 1) // _POINTS))
    series = curve(store, ids, zero, window, "step", "success")
    return series.assign(
        run_id=each["run_id"].to_numpy()[series["run"]], x=series["bucket"] * window.width, last=window.last
    )


def _count(each: pd.DataFrame) -> str:
    status = each["status"].value_counts()
    parts = [f"{len(each)} runs"] + [f"{n} {word}" for word, n in status.items()]
    return " · ".join(parts)


def _key(each: pd.DataFrame, palette: theme.Palette) -> str:
    """The colours of the outcomes that occur."""
    words = {"no_learning": "no learning", "": "undecided or running"}
    seen = set(each["outcome"].fillna(""))
    return '<p class="sorl-key">' + "".join(
        f'<span><i style="background:{theme.faded(palette.outcomes[name], 0.16)};'
        f'border-color:{palette.outcomes[name]}"></i>{words.get(name, name)}</span>'
        for name in (*theme.OUTCOMES, "") if name in seen
    ) + "<span>curve: success, 0 to 1, over the longest run; dotted line: onset of the collapse</span></p>"  # fmt: skip

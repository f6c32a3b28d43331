"""Overview: the question of a grid, its answer in a sentence, and every run as a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from workbench.analysis import compare
from workbench.analysis.region import readable_series
from workbench.analysis.runs import with_updates
from workbench.app import theme
from workbench.app.curve_data import Chosen, Window, extent
from workbench.app.experiments import choose_experiment, is_region, question, runs, show_table
from workbench.app.export import drawing
from workbench.app.figures.matrix import layout, matrix, parts
from workbench.app.links import address, anchor, link_line, open_screen
from workbench.app.page import look, screen
from workbench.app.screens.region import Region, draw, region_of, say_answer
from workbench.app.text import html_text
from workbench.app.url import choose
from workbench.spec import OUTCOMES, InputError
from workbench.store.connect import Busy

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store

_POINTS = 40  # of a curve in a cell
_SHOWN = {"region": "the region", "runs": "every run"}


@screen
def overview(store: Store) -> None:
    """Show which arm collapsed, in how many seeds, and when."""
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with store.reader.together():
        with left:
            experiment = choose_experiment(store)
        each = runs(store, experiment)
        if not is_region(store, experiment):
            success(store, each)  # remembered until it is drawn
    shown = _region(store, experiment)
    counts = [f"{len(each)} runs", *(f"{n} {word}" for word, n in each["status"].value_counts().items())]
    with right:
        st.html(f'<p class="sorl-note">{html_text(" · ".join(counts))}</p>')
    st.html(f'<p class="sorl-question">{html_text(question(store, experiment))}</p>')
    if shown is not None:
        say_answer(shown)
        if choose("show", "Show", list(_SHOWN), kind="row", words=lambda one: _SHOWN[one]) == "region":
            draw(shown, experiment, "collapsed")
            show_table(readable_series(shown.series))
            more = anchor("More in Region", address("region", experiment=experiment))
            link_line([more])
            return
    answer = st.container()
    _runs(store, experiment, each)  # before the answer, whose intervals of a thousand runs take longer
    updated = store.computed(("updated", experiment), lambda reader: with_updates(reader, experiment, each))
    summary = store.computed(("summary", experiment), lambda _: compare.summarise(updated))
    if shown is None:
        answer.html(f'<p class="sorl-answer">{html_text(compare.answer(summary))}</p>')
    show_table(compare.readable(summary))


def success(store: Store, each: pd.DataFrame) -> pd.DataFrame:
    """Return success of every run in few points: run_id, x (step), mean, and the last step of the longest run."""
    zero = [0] * len(each)
    with store.reader.together():
        last = extent(store, each, zero)[1]
        window = Window.made(0, last, _POINTS)
        points = Chosen(each, "step", zero, window).points(store, "step", "success")
    return points.assign(x=points["bucket"] * window.width, last=last)


def _region(store: Store, experiment: str) -> Region | None:
    """Return the region of an experiment of that kind; None while no run can be judged, and for any other."""
    if not is_region(store, experiment):
        return None
    try:
        return region_of(store, experiment)
    except Busy:
        raise
    except InputError:
        return None


def _runs(store: Store, experiment: str, each: pd.DataFrame) -> None:
    """Draw every run as a cell that opens it; of a large grid the chosen rows."""
    palette = look()
    named = parts(layout(each))
    cells = named[choose("rows", "Rows", list(named), kind="row") if len(named) > 1 else next(iter(named))]
    words = {"no_learning": "no learning", "falling": "falling at the end", "": "undecided or running"}
    occurring = set(each["outcome"].fillna(""))
    key = "".join(
        f'<span><i style="background:{theme.faded(palette.outcomes[name], 0.16)};'
        f'border-color:{palette.outcomes[name]}"></i>{words.get(name, name)}</span>'
        for name in (*OUTCOMES, "")
        if name in occurring
    )
    curve = "<span>curve: success, 0 to 1, over the longest run; dotted line: onset of the collapse</span>"
    st.html(f'<p class="sorl-key">{key}{curve}</p>')
    picture = matrix(
        cells, success(store, each), palette, lambda run_id: address("run", experiment=experiment, run=run_id)
    )
    run = drawing(
        picture, "grid", each[each["run_id"].isin(cells["run_id"])].drop(columns="config"), palette,
        describe=f"The runs of {experiment}: a row an arm, a column a seed, the outcome as colour, success as a curve.",
    )  # fmt: skip
    if run is not None:
        open_screen("run", experiment=experiment, run=run)

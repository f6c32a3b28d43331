"""Overview: the question of a grid, its answer in a sentence, and every run as a cell."""

import pandas as pd
import streamlit as st

from workbench.analysis import compare
from workbench.analysis.region import readable_series
from workbench.analysis.runs import with_updates
from workbench.app import theme
from workbench.app.curve_data import Chosen, Window, extent
from workbench.app.experiments import choose_experiment, is_region, question, runs, show_table
from workbench.app.export import drawing
from workbench.app.figures.matrix import layout, matrix, parts
from workbench.app.page import address, anchor, answer, links, look, note, open_screen, screen
from workbench.app.screens.region import draw, region_of, say_answer
from workbench.app.store import Store
from workbench.app.text import tag
from workbench.app.url import choose
from workbench.spec import OUTCOMES, InputError
from workbench.store.connect import Busy

_POINTS = 40  # of a curve in a cell
_SHOWN = {"region": "the region", "runs": "every run"}
_WORDS = {"no_learning": "no learning", "falling": "falling at the end", "": "undecided or running"}  # for outcomes


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
    with right:
        note(" · ".join([f"{len(each)} runs", *(f"{n} {word}" for word, n in each["status"].value_counts().items())]))
    st.html(tag("p", question(store, experiment), css="sorl-question"))
    shown = None
    if is_region(store, experiment):
        try:
            shown = region_of(store, experiment)
        except Busy:
            raise
        except InputError:  # no run can be judged yet
            pass
    if shown is not None:
        say_answer(shown)
        if choose("show", "Show", _SHOWN, kind="row") == "region":
            draw(shown, experiment, "collapsed")
            show_table(readable_series(shown.series))
            links([anchor("More in Region", address("region", experiment=experiment))])
            return
    above = st.container()
    _runs(store, experiment, each)  # before the answer, whose intervals of a thousand runs take longer
    updated = store.computed(("updated", experiment), lambda reader: with_updates(reader, experiment, each))
    summary = store.computed(("summary", experiment), lambda _: compare.summarise(updated))
    if shown is None:
        with above:
            answer(compare.answer(summary))
    show_table(compare.readable(summary))


def success(store: Store, each: pd.DataFrame) -> pd.DataFrame:
    """Return success of every run in few points: run_id, x (step), mean, and the last step of the longest run."""
    zero = [0] * len(each)
    with store.reader.together():
        last = extent(store, each, zero)[1]
        window = Window.made(0, last, _POINTS)
        points = Chosen(each, "step", zero, window).points(store, "step", "success")
    return points.assign(x=points["bucket"] * window.width, last=last)


def _runs(store: Store, experiment: str, each: pd.DataFrame) -> None:
    palette = look()
    named = parts(layout(each))
    cells = named[choose("rows", "Rows", list(named), kind="row") if len(named) > 1 else next(iter(named))]
    occurring = set(each["outcome"].fillna(""))
    key = []
    for name in (outcome for outcome in (*OUTCOMES, "") if outcome in occurring):
        colour = palette.outcomes[name]
        swatch = tag("i", style=f"background:{theme.faded(colour, 0.16)};border-color:{colour}")
        key.append(tag("span", swatch, _WORDS.get(name, name)))
    curve = tag("span", "curve: success, 0 to 1, over the longest run; dotted line: onset of the collapse")
    st.html(tag("p", *key, curve, css="sorl-key"))
    picture = matrix(
        cells, success(store, each), palette, lambda run_id: address("run", experiment=experiment, run=run_id)
    )
    run = drawing(
        picture, "grid", each[each["run_id"].isin(cells["run_id"])].drop(columns="config"),
        describe=f"The runs of {experiment}: a row an arm, a column a seed, the outcome as colour, success as a curve.",
    )  # fmt: skip
    if run is not None:
        open_screen("run", experiment=experiment, run=run)

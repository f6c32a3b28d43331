"""Overview: the question of a grid, its answer in a sentence, and every run as a cell."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup

from workbench.analysis import compare
from workbench.analysis.region import readable_series
from workbench.analysis.runs import with_updates
from workbench.app import run_table, theme
from workbench.app.curve_data import Chosen, Window, extent
from workbench.app.experiments import choose_experiment, is_region, question, runs, show_table, shown
from workbench.app.export import button, drawing
from workbench.app.figures.matrix import STATES, layout, matrix, parts, state
from workbench.app.page import address, anchor, answer, heading, links, look, note, open_screen, screen
from workbench.app.screens.region import draw, region_of, say_answer
from workbench.app.store import Store
from workbench.app.text import table_html, tag
from workbench.app.trajectories import fall_of
from workbench.app.url import about, choose
from workbench.diagnosis.alerts import RATE, alerts
from workbench.diagnosis.diagnose import diagnose, first_signals, none_found
from workbench.diagnosis.log import of_run
from workbench.spec import OUTCOMES, InputError
from workbench.store import notes
from workbench.store.connect import Busy
from workbench.store.notes import Notes
from workbench.store.reader import Reader

_POINTS = 40  # of a curve in a cell
_NARROW = 5  # columns of a grid that leaves room for words next to it
_WORST = ("diverged", "collapsed", "falling", "failed", "recovered", "mild")  # what is looked at first
_LOOK, _LONG = 3, 2_000  # runs to look at first; steps up to which a diagnosis takes well under a second
_SHOWN = {"region": "the region", "runs": "every run"}


@screen
def overview(store: Store) -> None:
    """Show which arm collapsed, in how many seeds, and when."""
    with store.reader.together():
        _overview(store)


def _overview(store: Store) -> None:
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        experiment = choose_experiment(store)
    each = now(store, experiment, shown(store, experiment))
    with right:
        note(" · ".join([f"{len(each)} runs", *(f"{n} {word}" for word, n in each["status"].value_counts().items())]))
    falling = each[each["slump"].notna()]
    if len(falling):
        about(f"▼ {len(falling)} falling", "")  # in the title of the tab
        which = "; ".join(f"{r.arm}, seed {r.seed}, since step {r.slump:.0f}" for r in falling.itertuples())
        note(f"Falling now: {which}. Success is 55 % or more below its best: {RATE}.")
    st.html(tag("p", question(store, experiment), css="sorl-question"))
    region = None
    if is_region(store, experiment):
        try:
            region = region_of(store, experiment)
        except Busy:
            raise
        except InputError:  # no run can be judged yet
            pass
    if region is not None:
        say_answer(region)
        if choose("show", "Show", _SHOWN, kind="row") == "region":
            draw(region, experiment, "collapsed")
            show_table(readable_series(region.series))
            links([anchor("More in Region", address("region", experiment=experiment))])
            return
    above = st.container()
    cells = layout(each)
    sides = st.columns([3, 2], gap="large") if cells["across"].iloc[0] <= _NARROW else [st.container()] * 2
    with sides[0]:
        kept = _runs(store, experiment, each, cells)  # before the answer: intervals of a thousand runs take longer
    summary = summarised(store, experiment, each)
    if region is None:
        with above:
            answer(compare.answer(summary))
    with sides[1]:
        look_first(store, experiment, each)
    heading("Arms")
    written = compare.readable(summary)
    arms = [anchor(arm, address("compare", experiment=experiment, arm=[arm])) for arm in written["arm"]]
    lines = [[arm, *cells[1:]] for arm, cells in zip(arms, written.astype(str).to_numpy().tolist(), strict=True)]
    st.html(table_html(list(written), lines, "sorl-figures sorl-listing"))
    note(f"{compare.ABOUT} An arm opens in Compare.")
    button("CSV of this table", lambda: written.to_csv(index=False).encode(), "sorl-arms.csv", "text/csv")
    heading("Runs")
    run_table.show(store, experiment, runs(store, experiment), kept)


def prepare(store: Store) -> None:
    """Answer what the first page asks, before anybody asks it: a browser takes as long to start."""
    with store.reader.together():
        known = store.query("experiments")["experiment"].head(1)
        for experiment in known[[not is_region(store, name) for name in known]]:
            each = now(store, experiment, runs(store, experiment))
            success(store, each)
            for run in worst(each).to_dict("records"):
                why(store, str(run["run_id"]), run)
            summarised(store, experiment, each)  # loads scipy.stats, which takes as long as all the rest


def now(store: Store, experiment: str, each: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `slump`: the step since which one that is training is falling, NaN of the others."""
    found = store.computed(("alerts", experiment), lambda reader: alerts(reader, experiment))
    since = {one.run_id: one.step for one in found if one.kind == "falling"}
    return each.assign(slump=each["run_id"].map(since).astype(float))


def summarised(store: Store, experiment: str, each: pd.DataFrame) -> pd.DataFrame:
    """Return `compare.summarise` of the runs."""

    def ask(reader: Reader) -> pd.DataFrame:
        return compare.summarise(with_updates(reader, experiment, each))

    return store.computed(("summary", experiment, tuple(each["run_id"])), ask)


def worst(each: pd.DataFrame) -> pd.DataFrame:
    """Return the runs to look at first: by how they stand, then by how much of their peak they have lost."""
    stands = each["outcome"].where(each["outcome"].notna(), each["status"]).where(each["slump"].isna(), "falling")
    bad = each.assign(stands=stands.map({name: place for place, name in enumerate(_WORST)}))
    bad = bad.assign(left=bad["final_success"] / bad["peak_success"])
    return bad.dropna(subset=["stands"]).sort_values(["stands", "left"], kind="stable").head(_LOOK)


def look_first(store: Store, experiment: str, each: pd.DataFrame) -> None:
    """Show the worst runs, each with since when and why, and where to go on; say so where none is bad."""
    heading("Look at these first")
    found = worst(each)
    if found.empty:
        note("No run has collapsed, failed, or lost a fifth of its best." if len(each) else "")
    for run in found.to_dict("records"):
        name, fall = str(run["run_id"]), fall_of(run)
        since = "" if fall is None else f", down after step {fall[0]}"
        since += f" to {fall[1]} (95 %)" if fall and fall[1] > fall[0] else ""
        words = f"{state(run).split(' at ')[0]}{since}. {why(store, name, run)}"
        title = anchor(f"{run['arm']}, seed {run['seed']}", address("run", experiment=experiment, run=name))
        st.html(tag("div", title, Markup(": "), words, css="sorl-finding"))


def why(store: Store, name: str, run: Mapping[Any, Any]) -> str:
    """Say the first diagnosed cause of a run, else that none shows or too little was recorded to look for one, and
    which signals moved; what it said itself where it failed.
    """
    if run["status"] == "failed":
        return f"It ended with: {run['reason']}" if isinstance(run["reason"], str) else "It ended without a message."
    if run["steps"] > _LONG:
        return "This run is long; its page says more."
    said = store.computed(("diagnosis", name), lambda reader: diagnose(of_run(reader, name)))
    if causes := [finding for finding in said.findings if said.onset is None or finding.clue.step <= said.onset]:
        return f"Likely cause ({100 * causes[0].clue.confidence:.0f} %): {causes[0].cause.title}."
    return f"{none_found(said)} {first_signals(said)}"


def success(store: Store, each: pd.DataFrame) -> pd.DataFrame:
    """Return success of every run in few points: run_id, x (step), mean, and the last step of the longest run."""
    zero = [0] * len(each)
    last = extent(store, each, zero)[1]
    window = Window.made(0, last, _POINTS)
    points = Chosen(each, "step", zero, window).points(store, "step", "success")
    return points.assign(x=points["bucket"] * window.width, last=last)


def _runs(store: Store, experiment: str, each: pd.DataFrame, every: pd.DataFrame) -> dict[str, Notes]:
    """Draw every run as a cell; return the notes of the runs."""
    palette, kept = look(), notes.every(store.runs, experiment)
    told = pd.Series({run: kept.get(run) for run in every["run_id"]}, dtype=object)
    named = parts(every.assign(notes=every["run_id"].map(told)))
    cells = named[choose("rows", "Rows", list(named), kind="row") if len(named) > 1 else next(iter(named))]
    occurring = set(each["outcome"].fillna(""))
    key = []
    for name in (outcome for outcome in (*OUTCOMES, "") if outcome in occurring):
        colour = palette.outcomes[name]
        swatch = tag("i", style=f"background:{theme.faded(colour, 0.16)};border-color:{colour}")
        key.append(tag("span", swatch, STATES.get(name, name) or "undecided or running"))
    curve = tag("span", "curve: success, 0 to 1, over the longest run; dotted line: where the fall began; "
                "dashed border: falling; ✎ has notes. A cell opens its run.")  # fmt: skip
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
    return kept

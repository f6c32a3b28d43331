"""Replay: one stored batch through several algorithms, side by side: ratios, clips, and who carries the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from workbench.algorithms import ALGORITHMS, CORE
from workbench.app import episodes, export, replays
from workbench.app.controls import choose, choose_many
from workbench.app.diagnostics import dictionary
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.chart import chart
from workbench.app.links import STYLE, address, anchor, linked_table
from workbench.app.page import commands, look, note, say, screen, table
from workbench.app.picks import keep
from workbench.app.replayed import replayed
from workbench.store import batches

if TYPE_CHECKING:
    from workbench.app.data import Store

_GAP = 1e-3  # of an advantage; rounding stays far below


@screen
def replay(store: Store) -> None:
    """What would another algorithm have done with this very batch?"""
    st.html(STYLE)
    left, middle, right = st.columns([2, 4, 1])
    with left:
        experiment = choose_experiment(store)
    each = {row["run_id"]: row for row in runs(store, experiment).to_dict("records")}
    folders = {run: batches.folder_of(store.runs, experiment, run) for run in each}
    stored = {run: batches.steps(folder) if folder else [] for run, folder in folders.items()}
    first = episodes.first_run(runs(store, experiment))
    first = first if stored[first] else next((run for run, there in stored.items() if there), first)
    with middle:
        run = choose("run", "Run", list(each), first, words=lambda r: episodes.run_words(each[r]))
    folder, there = folders[run], stored[run]
    if folder is None or not there:
        say(f"Run {run} has no stored batch. Runs keep some unless record.batches.mb = 0; train it again to have them:")
        commands("sorl run FILE.toml --fresh")
        return
    onset = each[run]["collapse_step"]
    before = [step for step in there if pd.isna(onset) or step <= onset] or there
    with right:
        step = int(choose("step", "Step", [str(s) for s in there], str(before[-1])))
    algorithms = choose_many("algorithm", "Algorithms", list(ALGORITHMS), list(CORE))
    trajectory = keep("trajectory", (run, step), _number, lambda t: [] if t is None else [str(t)])
    with st.spinner("Replaying the batch ..."):
        told = replayed(folder, step, algorithms or list(CORE), trajectory)
    _summary(told)
    _turns(told, step)
    here = {"experiment": experiment, "run": run, "step": str(step)}
    left, right = st.columns(2, gap="medium")
    with left:
        note("The turns that carry most of the gradient; each opens the tokens of its trajectory.")
        linked_table(
            [(name, "") for name in replays.CULPRITS],
            [
                (address("replay", **here, algorithm=algorithms, trajectory=str(which)), cells)
                for which, cells in replays.culprits(told)
            ],
        )
    with right:
        words, header, rows = replays.tokens(told)
        note(words)
        if rows:
            with st.container(height=420, border=False):
                table(header, rows, figures=True)
            which = str(told["tokens"][0]["trajectory"])
            link = episodes.address(dictionary(store), **here, trajectory=which)
            told_more = anchor(f"Trajectory {which} of step {step} in Episode", link)
            st.html(f'<p class="sorl-note sorl-ways">{told_more}</p>')


def _summary(told: replays.Answer) -> None:
    """The figures of each algorithm; who has none, and why."""
    table(["algorithm", *replays.FIGURES], replays.summary(told))
    for name, reason in told["reasons"].items():
        note(f"{name}: no answer, {reason}.")
    gap = told["advantage_gap"]
    if isinstance(gap, float) and gap > _GAP:
        say(
            f"The advantages of {told['own']}, made again from the stored rewards, differ by up to {gap:.3g} from "
            "those that it was trained on."
        )


def _turns(told: replays.Answer, step: int) -> None:
    """One measure by turn, a colour an algorithm."""
    measure = choose("measure", "By turn", list(replays.MEASURES), kind="row")
    frame = replays.by_turn(told, measure)
    if frame.empty:
        note(f"No algorithm has a {measure} in this step.")
        return
    words = {measure: ("", replays.MEASURES[measure])}
    drawn = chart(frame, "turn_index", measure, "algorithm", "bars", lambda c: words.get(c, ("", "")), look())
    export.figure(drawn, "replay", frame, describe=f"{measure} by turn of step {step}, for each algorithm.")


def _number(given: Sequence[str]) -> int | None:
    return next((int(value) for value in given if value.isdecimal() and len(value) < 9), None)

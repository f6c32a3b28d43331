"""Episode: from a spike to its culprit. A run's signal, the trajectories of a step, the tokens of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import streamlit as st

from workbench.app import episodes, export, theme, transcript
from workbench.app.controls import choose
from workbench.app.diagnostics import Diagnostics, dictionary
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.run import peaks, ranking
from workbench.app.ledger import ledger
from workbench.app.links import STYLE, address, anchor, run_links
from workbench.app.page import curves_only, look, note, screen
from workbench.app.picks import choose_number, follow, keep
from workbench.store import batches

if TYPE_CHECKING:
    from workbench.app.data import Store

_BARS = 8  # trajectories that the ranking draws


@screen
def episode(store: Store) -> None:
    """Which trajectory, which turn, which token did it?"""
    st.html(STYLE)
    left, middle, right = st.columns([2, 4, 2])
    with left:
        experiment = choose_experiment(store)
    each = {row["run_id"]: row for row in runs(store, experiment).to_dict("records")}
    first = episodes.first_run(runs(store, experiment))
    with middle:
        run = each[choose("run", "Run", list(each), first, words=lambda r: episodes.run_words(each[r]))]
    known = dictionary(store)
    with right:
        signal = choose("signal", "Signal", episodes.signals(known))
    seen = episodes.watched(store, known, run, signal)
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        step = choose_number("step", "Step", 0, max(0, seen.steps - 1), seen.spike)
        by = choose("rank", "Rank trajectories by", list(episodes.RANKS), kind="row")
    rows = episodes.ranked(store.records("ranking", run=run["run_id"], step=step), episodes.RANKS[by])
    there = [row["trajectory"] for row in rows]
    chosen = keep(
        "trajectory",
        (run["run_id"], step),
        lambda given: _trajectory(given, there),
        lambda t: [] if t is None else [str(t)],
    )
    palette = look()
    curve, bars = st.columns(2, gap="medium")
    with curve:
        hue = theme.colour(str(run["algorithm"]), palette)
        words = f"{signal} of {run['run_id']} over training; step {step} is chosen."
        clicked = export.figure(
            peaks(seen.signal, hue, palette, step), "peaks", seen.signal.points, select=True, describe=words
        )
        if clicked and int(clicked[0]["customdata"]) != step:
            follow("step", [str(clicked[0]["customdata"])])
    if chosen is None:
        with bars:
            curves_only(f"No trajectory of step {step} is recorded for this run.")
        return
    with bars:
        drawn = ranking(episodes.shown(rows, chosen, _BARS), 1 / len(rows), palette, step, chosen)
        words = f"The trajectories of step {step}, ranked by {by}; {chosen} is chosen."
        clicked = export.figure(drawn, "ranking", lambda: episodes.frame(rows), select=True, describe=words)
        if clicked and int(clicked[0]["customdata"]) != chosen:
            follow("trajectory", [str(clicked[0]["customdata"])])
    st.html(episodes.answered(next(row for row in rows if row["trajectory"] == chosen)))
    _episode(store, known, experiment, run["run_id"], step, chosen)
    folder = batches.folder_of(store.runs, experiment, run["run_id"])
    if folder is not None and step in batches.steps(folder):
        place = {"experiment": experiment, "run": run["run_id"], "step": str(step), "trajectory": str(chosen)}
        st.html(
            f'<p class="sorl-note">{anchor("Replay this batch with other algorithms", address("replay", **place))}</p>'
        )
    all_runs = runs(store, experiment)
    run_links(all_runs[all_runs["run_id"] == run["run_id"]], experiment)


def _episode(store: Store, known: Diagnostics, experiment: str, run: str, step: int, trajectory: int) -> None:
    """The transcript of a trajectory and the table of its turns."""
    turns = store.records("ledger", run=run, step=step, trajectory=trajectory)
    text, table = st.columns([11, 9], gap="medium")
    with table:
        worst, mine = episodes.worst_epoch(turns), []
        if worst is None:
            note("No turn of this trajectory is recorded.")
        else:
            epochs = [episodes.WORST, *(str(epoch) for epoch in sorted({turn["epoch"] for turn in turns}))]
            told = {episodes.WORST: f"largest gradient ({worst})"}
            chosen = choose("epoch", "Epoch of the figures", epochs, kind="row", words=lambda e: told.get(e, e))
            epoch = worst if chosen == episodes.WORST else int(chosen)
            mine = [turn for turn in turns if turn["epoch"] == epoch]
            st.html(ledger(mine, known))
            note("Bold: the turn with the largest gradient_share. Point at a name for its definition.")
    with text:
        tokens = store.records("tokens", run=run, step=step, trajectory=trajectory)
        if tokens:
            palette = look()
            st.html(transcript.legend(palette) + transcript.transcript(tokens[0], mine, palette))
        else:
            place = {"experiment": experiment, "run": run, "step": str(step)}
            here = episodes.kept(store, run).get(step, [])
            st.html(episodes.missing(
                trajectory, here, lambda other: episodes.address(known, **place, trajectory=str(other))
            ))  # fmt: skip


def _trajectory(given: Sequence[str], there: Sequence[int]) -> int | None:
    """The trajectory of the address, else the first of the ranking."""
    asked = [int(value[:9]) for value in given if value.isdecimal()]
    return next((t for t in asked if t in there), there[0] if there else None)

"""Turns: where in the dialogue it happens. Turn index against training, the arms on one colour scale, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import streamlit as st

from workbench.app import export, openings, regions, theme
from workbench.app.cells import Cell, Turns, cells_over, columns, listed, measure_of, measures
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.heat import Heat, heat
from workbench.app.links import linked_table, run_links
from workbench.app.page import curves_only, look, note, screen
from workbench.app.series import AXES, Window, origins
from workbench.app.store import Diagnostics, dictionary
from workbench.app.text import html_text
from workbench.app.theme import shading
from workbench.app.url import choose, choose_many, choose_range, follow, keep, zoom
from workbench.spec import InputError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store

_AXIS = {"step": "step", "onset": "before collapse"}


@screen
def turns(store: Store) -> None:
    """In which turn, and when, do the signals leave their usual range?"""
    left, right = st.columns([1, 3])
    with left:
        experiment = choose_experiment(store, collapsed=True)
    each = runs(store, experiment)
    with right:
        regions.point_to(store, experiment)
        names = choose_many("arm", "Arms", list(each["arm"].unique()), openings.arms(each))
    known = dictionary(store)
    view, axis, extreme = _how(store, each, names, known)
    if view.runs.empty:
        note("Choose at least one arm that has this seed.")
        return
    maps = view.heats(store, names, extreme=extreme)
    if _values(maps).empty:
        curves_only(f"None of these runs has recorded {view.measure.name} by turn.")
        return
    st.html(f'<p class="sorl-answer">{html_text(openings.farthest(view, maps))}</p>')
    palette = look()
    pairs = list(each[["arm", "algorithm"]].drop_duplicates().itertuples(index=False, name=None))
    cell = keep("cell", (experiment, axis), lambda given: Cell.read(given, names), lambda c: c.written if c else [])
    bucket = view.bucket(cell)
    shown = None if cell is None or bucket is None else view.cell(cell.arm, bucket, cell.turn)
    clicked, dragged = export.zoomable_cells(
        heat(maps, view.measure, shading(view.measure.unit, _values(maps)["value"].dropna()),
             theme.styles(pairs, palette), palette, view.window, AXES[axis],
             chosen=None if cell is None or bucket is None else (names.index(cell.arm), bucket, cell.turn)),
        "turns", lambda: _values(maps).drop(columns=["value", "bucket"]),
        describe=f"{view.measure.name} by turn index and {AXES[axis]} for {', '.join(names)}.",
    )  # fmt: skip
    zoom("range", dragged)
    if clicked:
        place, *where = (int(v) for v in clicked[0]["customdata"][:3])
        if (other := view.cell(names[place], *where)) != shown:
            follow("cell", other.written)
    note(f"A cell is the {'most extreme' if extreme else 'mean'} value over the runs and steps in it. "
         "▼ onset of a collapse · hatched: not measured · – no such turn · ✕ NaN or Inf")  # fmt: skip
    if shown is None:
        note("Click a cell to list its trajectories; drag over steps to see only them.")
    else:
        _listing(store, view, known, experiment, shown)
    run_links(view.runs, experiment)


def _how(store: Store, each: pd.DataFrame, names: list[str], known: Diagnostics) -> tuple[Turns, str, bool]:
    """The runs, the column and the range; the axis; and whether a cell shows its extreme."""
    found = measures(known)
    if not found:
        raise InputError("table turn_step has no measured column here: these runs recorded no turns")
    seeds = [str(seed) for seed in sorted(each["seed"].unique())]
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        name = choose("measure", "Diagnostic", found, width=210)
        axis = choose("x", "Align on", list(_AXIS), kind="row", words=lambda a: _AXIS[a])
        seed = choose("seed", "Seed", ["all", *seeds], width=110)
        shown = choose("cells", "Cell shows", ["mean", "extreme"], kind="row")
    picked = each[each["arm"].isin(names) & ((seed == "all") | (each["seed"].astype(str) == seed))]
    picked = picked.sort_values("arm", key=lambda a: a.map(names.index), kind="stable")
    if picked.empty:
        return Turns(picked, [], Window(0, 0, 1), measure_of(known, name)), axis, False
    starts = origins(picked, axis)
    extent = store.query("extent", runs=list(picked["run_id"]), origins=starts).fillna(0)
    first, last = choose_range("range", "Steps", int(extent["first"].iloc[0]), int(extent["last"].iloc[0]))
    window = cells_over(first, last, len(names), len(picked))
    return Turns(picked, starts, window, measure_of(known, name)), axis, shown == "extreme"


def _listing(store: Store, view: Turns, known: Diagnostics, experiment: str, cell: Cell) -> None:
    """The trajectories of the chosen cell, the most extreme first, each a link to its episode."""
    name = view.measure.name if f"turn.{view.measure.name}" in known.rows else "log_ratio_sum"
    found = view.trajectories(store, cell, name)
    last = view.last(cell)
    steps = f"step {last}" if last == cell.first else f"steps {cell.first} to {last}"
    place = f"{cell.arm}, turn {cell.turn}, {steps}"
    if not found:
        note(f"{place}: no trajectory of these runs is recorded there.")
        return
    few = f"the {len(found)} farthest in {name}" if found[0]["total"] > len(found) else f"ordered by {name}"
    note(f"{place}: {found[0]['total']} trajectories, {few}; figures of the last epoch. A number opens its episode.")
    linked_table(columns(name, known), listed(found, experiment, name, known))


def _values(maps: Sequence[Heat]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([part.cells.assign(arm=part.arm) for part in maps])

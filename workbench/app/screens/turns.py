"""Turns: where in the dialogue it happens. Turn index against training, the arms on one colour scale, cell by
cell.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pandas as pd
import streamlit as st

from sorl.app import export, page
from sorl.app.choices import Arms, choose_arms
from sorl.app.data import Chosen, Fall, Row, Window, extent, fall_of, fell, onsets, origins
from sorl.app.deviation import Deviation, find_deviations
from sorl.app.figures.common import AXES
from sorl.app.figures.maps import ACROSS, FEW, Heat, Measure, colour_scale, heat
from sorl.app.page import address, anchor, note
from sorl.app.queries import Diagnostics, Store, dictionary, notation
from sorl.app.sentences.turns import (
    Broken,
    RunDeviation,
    describe_deviations,
    onset_step,
    told_cells,
)
from sorl.app.text import number, table_html, word
from sorl.app.url import choose, choose_range, follow, keep

_AXIS = {"step": "step", "onset": "onset of the fall"}
# What a reader of a collapse asks for first; the other columns of the roll-up follow.
FIRST = (
    "ratio_geo",
    "ratio_arith",
    "ratio_prod",
    "clip_frac",
    "approx_kl",
    "entropy",
    "advantage",
    "value_error",
    "gradient_share",
    "ratio_mass_frac",
)
_LISTED = ("log_ratio_sum", "clip_frac", "advantage", "ratio_mass_frac", "gradient_share")  # of a trajectory
# A list below the fold comes into sight; the number of the cell makes the page run this for each.
_TO_LIST = """<script>/* %d */ requestAnimationFrame(() => requestAnimationFrame(() =>
  document.querySelector('.sorl-listing')?.parentElement.scrollIntoView({ block: 'nearest' })));</script>"""
CELLS = 360  # of all maps in a row: narrower ones could not be told apart


class Cell(NamedTuple):
    """A cell by what it means: an arm, the step (on the axis) at which it begins, and a turn index."""

    arm: str
    first: int
    turn: int

    @classmethod
    def read(cls, given: Sequence[str], arms: Sequence[str]) -> Self | None:
        """Return the cell that an address names; None where it names none of these arms."""
        if (
            len(given) != 3
            or given[0] not in arms
            or not all(re.fullmatch(r"-?[0-9]{1,9}", n) for n in given[1:])
        ):
            return None
        return cls(given[0], int(given[1]), int(given[2]))


@dataclass(frozen=True)
class Turns(Chosen):
    """The chosen runs and steps, and the column of `turn_step` that is drawn."""

    measure: Measure

    @property
    def is_ratio(self) -> bool:
        """True for importance ratios: their logarithm is averaged and coloured."""
        return self.measure.unit == "ratio"

    def cells(self, store: Store, groups: Sequence[int], *, extreme: bool = False) -> pd.DataFrame:
        """Return the cells of groups of the runs; with `extreme` `value` is what lies farthest
        from neutral.
        """
        window = self.window
        cells = store.query(
            "heat",
            runs=self.ids,
            origins=self.origins,
            arms=list(groups),
            first=window.first,
            last=window.last,
            width=window.width,
            column=self.measure.name,
            log=self.is_ratio,
        )
        low = cells["low"]
        high = cells["high"]
        value = cells["mean"]
        if extreme:
            value = high.where(high * low >= 1 if self.is_ratio else high.abs() >= low.abs(), low)
        return cells.assign(value=value, first_step=window.first + cells["bucket"] * window.width)

    def heats(self, store: Store, names: Sequence[str], *, extreme: bool) -> list[Heat]:
        """Return a heat map an arm."""
        cells = self.cells(store, [names.index(arm) for arm in self.runs["arm"]], extreme=extreme)
        began = {
            arm: list(mine[["x", "seed"]].itertuples(index=False, name=None))
            for arm, mine in onsets(self).join(self.runs["seed"]).groupby("arm")
        }
        return [Heat(arm, cells[cells["arm"] == i], began.get(arm, [])) for i, arm in enumerate(names)]

    def cell(self, arm: str, bucket: int, turn: int) -> Cell:
        """Return the cell of a bucket."""
        return Cell(arm, self.window.first + bucket * self.window.width, turn)

    def bucket(self, cell: Cell) -> int:
        """Return the bucket in which a cell begins."""
        return (cell.first - self.window.first) // self.window.width

    def last(self, cell: Cell) -> int:
        """Return the last step of a cell."""
        return min(cell.first + self.window.width - 1, self.window.last)

    def trajectories(self, store: Store, cell: Cell, column: str) -> list[dict[str, Any]]:
        """Return the trajectories behind a cell, most extreme first by `column` of `turn`."""
        mine = self.runs.assign(origin=self.origins)[(self.runs["arm"] == cell.arm).to_numpy()]
        return store.records(
            "cell",
            runs=mine["run_id"].tolist(),
            origins=mine["origin"].tolist(),
            first=cell.first,
            last=self.last(cell),
            turn=cell.turn,
            column=column,
            log=self.is_ratio and column == self.measure.name,
        )


class _Request(NamedTuple):
    """What the controls above the maps say."""

    measure: str  # a column of `turn_step`
    axis: str  # of _AXIS
    seed: str  # or all
    is_extreme: bool  # cells show what lies farthest from neutral, not the mean


@page.screen
def turns(store: Store) -> None:
    """Show in which turn, and when, the signals leave their usual range."""
    arms = choose_arms(store)
    known = dictionary(store)
    columns = known.names("turn_step", FIRST)
    if not columns:
        page.not_recorded("No turn of these runs", "tables turn and turn_step")
        return
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        request = _choose_request({name: known.title(f"turn_step.{name}") for name in columns}, arms)
    runs = arms.runs[(request.seed == "all") | (arms.runs["seed"].astype(str) == request.seed)]
    if runs.empty:
        note("Choose at least one arm that has this seed.")
        return
    view = _choose_view(store, known, runs, request, len(arms.names))
    maps = view.heats(store, arms.names, extreme=request.is_extreme)
    values = pd.concat([part.cells.assign(arm=part.arm) for part in maps], ignore_index=True)
    if values.empty:
        page.not_recorded("No turn of these runs", "tables turn and turn_step")
        return
    _say_deviations(store, arms, view)
    cell = _keep_cell(arms, view)
    _draw_maps(arms, view, maps, values, cell)
    value = "the most extreme value" if request.is_extreme else "the mean"
    note(
        f"Each cell: {value} over seeds and steps. Faded: fewer than {FEW} turns, too few to go by · ▼ onset"
        " of a collapse, with its seed · hatched: not measured · – no such turn · ✕ NaN or Inf"
    )
    if cell is None:
        note("Click a cell to list its trajectories; drag over steps to zoom.")
    else:
        _list_trajectories(store, known, arms.experiment, view, cell)
    page.run_links(runs, arms.experiment)


def _choose_request(titles: dict[str, str], arms: Arms) -> _Request:
    """Choose what the maps show; `titles` are those of the columns."""
    measure = choose("measure", "Diagnostic", titles, width=300)
    axis = choose("x", "Align on", _AXIS, kind="row")
    seeds = [str(seed) for seed in sorted(arms.every["seed"].unique())]
    seed = choose("seed", "Seed", ["all", *seeds], width=110)
    is_extreme = choose("cells", "Cell shows", ["mean", "extreme"], kind="row") == "extreme"
    return _Request(measure, axis, seed, is_extreme)


def _choose_view(store: Store, known: Diagnostics, runs: pd.DataFrame, request: _Request, arms: int) -> Turns:
    """Choose the steps that the maps of so many arms show."""
    starts = origins(runs, request.axis)
    ends = choose_range("range", "Steps", *extent(store, runs, starts))
    window = Window.over(*ends, most=CELLS // min(arms, ACROSS))
    column = f"turn_step.{request.measure}"
    measure = Measure(request.measure, known.title(column), *known.words(column))
    return Turns(runs, request.axis, starts, window, measure)


def _say_deviations(store: Store, arms: Arms, view: Turns) -> None:
    """Say where the runs leave their usual range, and lead there."""
    every = cells_of_runs(store, arms.every, view.measure)
    deviations = deviations_of(every, view.ids, is_ratio=view.is_ratio)
    page.answer(describe_deviations(view.measure.title, deviations, broken_cells(every, view.ids)))
    _link_cells(view, deviations)


def _keep_cell(arms: Arms, view: Turns) -> Cell | None:
    """Return the chosen cell, which the address names; None where the maps do not show it."""
    under = (arms.experiment, view.axis)
    chosen = keep(
        "cell", under, lambda given: Cell.read(given, arms.names), lambda c: list(map(str, c or ()))
    )
    if chosen is None or not view.window.first <= chosen.first <= view.window.last:
        return None
    return view.cell(chosen.arm, view.bucket(chosen), chosen.turn)


def _draw_maps(
    arms: Arms, view: Turns, maps: Sequence[Heat], values: pd.DataFrame, cell: Cell | None
) -> None:
    """Draw the maps, the chosen cell in a frame; a click chooses another."""
    measure = view.measure
    signs = notation(measure.definition)
    x_title = AXES[view.axis]
    colours = colour_scale(measure.unit, values["value"].dropna())
    framed = None if cell is None else (arms.names.index(cell.arm), view.bucket(cell), cell.turn)
    clicked = export.figure(
        heat(maps, measure, colours, arms.styles, page.look(), view.window, x_title, chosen=framed),
        "turns",
        lambda: values.drop(columns=["value", "bucket"]),
        select=True,
        zooms="range",
        key=signs,
        describe=f"{measure.title} by turn index and {x_title} for {', '.join(arms.names)}.",
    )
    if signs:
        note(signs)
    if clicked:
        place, bucket, turn = (int(value) for value in clicked[0])
        other = view.cell(arms.names[place], bucket, turn)
        if other != cell:
            follow("cell", list(map(str, other)))


def _list_trajectories(store: Store, known: Diagnostics, experiment: str, view: Turns, cell: Cell) -> None:
    """List the trajectories behind a cell; each opens its episode."""
    name = view.measure.name
    by = name if f"turn.{name}" in known.rows else "log_ratio_sum"
    trajectories = view.trajectories(store, cell, by)
    last = view.last(cell)
    steps = f"step {last}" if last == cell.first else f"steps {cell.first} to {last}"
    where = f"{cell.arm}, turn {cell.turn}, {steps}"
    if not trajectories:
        note(f"{where}: no trajectory of these runs is recorded there.")
        return
    total = trajectories[0]["total"]
    some = f", {len(trajectories)} shown" if total > len(trajectories) else ""
    note(
        f"{where}: {total} trajectories{some}, those with tokens first, then ordered by"
        f" {known.title(f'turn.{by}')}; values after the last epoch; click a number."
    )
    st.html(table_html(*listed(trajectories, experiment, by, known), "sorl-listing sorl-asked"))
    st.html(_TO_LIST % hash(cell), unsafe_allow_javascript=True)


class RunCells(NamedTuple):
    """Every run of an experiment, and its cells: a turn index at a step, whatever the figure shows."""

    runs: pd.DataFrame
    cells: pd.DataFrame  # run_id, step, turn_index, value, turns, non_finite


def cells_of_runs(store: Store, runs: pd.DataFrame, measure: Measure) -> RunCells:
    """Return the means of a measure at every step and turn index of each run."""
    starts = [0] * len(runs)
    first, last = extent(store, runs, starts)
    cells = store.query(
        "heat",
        runs=list(runs["run_id"]),
        origins=starts,
        arms=list(range(len(runs))),
        first=first,
        last=last,
        width=1,
        column=measure.name,
        log=measure.unit == "ratio",
    )
    ids = runs["run_id"].to_numpy()[cells["arm"]]
    return RunCells(runs, cells.assign(run_id=ids, step=first + cells["bucket"], value=cells["mean"]))


def deviations_of(every: RunCells, run_ids: Sequence[str], *, is_ratio: bool) -> list[RunDeviation]:
    """Return where some runs leave their usual band, which all runs of the experiment make."""
    rows = {str(run["run_id"]): run for run in every.runs.to_dict("records")}
    falls = {}
    for name, run in rows.items():
        fall = _fall(run)
        if fall is not None:
            falls[name] = fall.step
    deviations = find_deviations(every.cells, falls, is_ratio=is_ratio)
    nothing = Deviation(None, None, 0, 0)
    return [
        RunDeviation(
            f"{rows[name]['arm']} seed {rows[name]['seed']}",
            _fall_in_words(rows[name]),
            onset_step(rows[name]),
            deviations.get(name, nothing),
        )
        for name in run_ids
    ]


def _fall(run: Row) -> Fall | None:
    """Return when a run may have begun to fall; one that diverged fell at its end."""
    fall = fall_of(run)
    if fall is None and run["outcome"] == "diverged" and pd.notna(run["steps"]):
        last = int(run["steps"]) - 1
        return Fall(last, last, last)
    return fall


def _fall_in_words(run: Row) -> str:
    """Say when a run began to fall; nothing of one that did not."""
    if words := fell(run):
        return words
    fall = _fall(run)
    return "" if fall is None else f"at step {fall.low:,}, where it diverged"


def broken_cells(every: RunCells, run_ids: Sequence[str]) -> Broken | None:
    """Return how many cells of some runs have NaN or Inf, and the first; None where none has."""
    cells = every.cells[every.cells["run_id"].isin(run_ids) & (every.cells["non_finite"] > 0)]
    if cells.empty:
        return None
    first = cells.sort_values(["step", "turn_index"]).iloc[0]
    run = every.runs[every.runs["run_id"] == first["run_id"]].iloc[0]
    name = f"{run['arm']} seed {run['seed']}"
    return Broken(len(cells), name, int(first["turn_index"]), int(first["step"]))


def _link_cells(view: Turns, deviations: Sequence[RunDeviation]) -> None:
    """Lead to the cells that the sentences name, as far as the figure shows them."""
    address_now = {name: st.query_params.get_all(name) for name in st.query_params}
    runs = view.runs.assign(origin=view.origins)
    names = dict(zip(runs["arm"] + " seed " + runs["seed"].astype(str), runs.to_dict("records"), strict=True))
    links = []
    for name, out in told_cells(deviations):
        run = names[name]
        bucket = (out.step - run["origin"] - view.window.first) // view.window.width
        cell = view.cell(run["arm"], bucket, out.turn)
        if view.window.first <= cell.first <= view.window.last:
            words = f"{name}, turn {out.turn}, step {out.step:,}"
            where = address("turns", **address_now | {"cell": list(map(str, cell))})
            links.append([anchor(words, where)])
    if links:
        page.links(["Open the cell:"], *links)


def listed(
    trajectories: Sequence[Row], experiment: str, measured: str, known: Diagnostics
) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return header (name, definition) and rows of the trajectories of a cell; the first cell of a row is a
    link.
    """
    names = [measured, *(name for name in _LISTED if name != measured)]
    header = [
        ("trajectory", "opens the episode"),
        ("tokens", "whether its tokens were kept"),
        ("seed", ""),
        ("step", ""),
        ("action", "what the agent did in the turn"),
        *[_column_head(name, known) for name in names],
        ("solved", "the trajectory's answer is exactly right"),
        ("question", ""),
    ]
    lines = []
    for row in trajectories:
        step = str(row["step"])
        which = str(row["trajectory"])
        link = page.episode_address(experiment=experiment, run=row["run_id"], step=step, trajectory=which)
        numbers = [number(row["value"]), *(number(row[name]) for name in names[1:])]
        lines.append(
            [
                anchor(which, link),
                "kept" if row["kept"] else "–",
                str(row["seed"]),
                step,
                word(row["status"]),
                *numbers,
                word(row["success"]),
                word(row["question"]),
            ]
        )
    return header, lines


def _column_head(name: str, known: Diagnostics) -> tuple[str, str]:
    """Return what a person calls a column of table `turn`, and its definition."""
    row = known.rows.get(f"turn.{name}")
    if row is None:
        return name, ""
    unit = f" ({row['unit']})" if row["unit"] else ""
    return known.title(f"turn.{name}"), f"{name}: {row['formula']}{unit}"

"""Turns: where in the dialogue it happens. Turn index against training, the arms on one colour scale, cell by cell."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pandas as pd
import streamlit as st

from workbench.app import export
from workbench.app.curve_data import Chosen, Window, extent, onsets, origins
from workbench.app.experiments import Arms, choose_arms
from workbench.app.figures.common import AXES
from workbench.app.figures.maps import ACROSS, Heat, Measure, colour_scale, heat
from workbench.app.page import answer, curves_only, episode_address, linked_table, look, note, run_links, screen
from workbench.app.store import Diagnostics, Store, dictionary
from workbench.app.text import number, word
from workbench.app.url import choose, choose_range, follow, keep
from workbench.spec import InputError

_AXIS = {"step": "step", "onset": "before collapse"}
# What a reader of a collapse asks for first; the other columns of the roll-up follow.
_FIRST = ("ratio_geo", "ratio_arith", "ratio_prod", "clip_frac", "approx_kl", "entropy", "advantage", "value_error",
          "gradient_share", "ratio_mass_frac")  # fmt: skip
_LISTED = ("log_ratio_sum", "clip_frac", "advantage", "ratio_mass_frac", "gradient_share")  # of a trajectory
CELLS = 360  # of all maps in a row: narrower ones could not be told apart


class Cell(NamedTuple):
    """A cell by what it means: an arm, the step (on the axis) at which it begins, and a turn index."""

    arm: str
    first: int
    turn: int

    @classmethod
    def read(cls, given: Sequence[str], arms: Sequence[str]) -> Self | None:
        """Return the cell that an address names; None where it names none of these arms."""
        if len(given) != 3 or given[0] not in arms or not all(re.fullmatch(r"-?[0-9]{1,9}", n) for n in given[1:]):
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

    def heats(self, store: Store, names: Sequence[str], *, extreme: bool) -> list[Heat]:
        """Return a heat map an arm; with `extreme` a cell is coloured by its value farthest from what is neutral."""
        window = self.window
        cells = store.query(
            "heat", runs=self.ids, origins=self.origins, arms=[names.index(arm) for arm in self.runs["arm"]],
            first=window.first, last=window.last, width=window.width, column=self.measure.name, log=self.is_ratio,
        )  # fmt: skip
        low, high, value = cells["low"], cells["high"], cells["mean"]
        if extreme:
            value = high.where(high * low >= 1 if self.is_ratio else high.abs() >= low.abs(), low)
        cells = cells.assign(value=value, first_step=window.first + cells["bucket"] * window.width)
        fell = onsets(self)
        return [
            Heat(arm, cells[cells["arm"] == i], fell.loc[fell["arm"] == arm, "x"].tolist())
            for i, arm in enumerate(names)
        ]

    def cell(self, arm: str, bucket: int, turn: int) -> Cell:
        """Return the cell of a bucket."""
        return Cell(arm, self.window.first + bucket * self.window.width, turn)

    def last(self, cell: Cell) -> int:
        """Return the last step of a cell."""
        return min(cell.first + self.window.width - 1, self.window.last)

    def trajectories(self, store: Store, cell: Cell, column: str) -> list[dict[str, Any]]:
        """Return the trajectories behind a cell, most extreme first by `column` of `turn`."""
        mine = self.runs.assign(origin=self.origins)[(self.runs["arm"] == cell.arm).to_numpy()]
        return store.records(
            "cell", runs=mine["run_id"].tolist(), origins=mine["origin"].tolist(), first=cell.first,
            last=self.last(cell), turn=cell.turn, column=column, log=self.is_ratio and column == self.measure.name,
        )  # fmt: skip


@screen
def turns(store: Store) -> None:
    """Show in which turn, and when, the signals leave their usual range."""
    arms = choose_arms(store)
    known = dictionary(store)
    found = measures(known)
    if not found:
        raise InputError("table turn_step has no measured column here: these runs recorded no turns")
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        name = choose("measure", "Diagnostic", found, width=210)
        axis = choose("x", "Align on", _AXIS, kind="row")
        seed = choose("seed", "Seed", ["all", *(str(seed) for seed in sorted(arms.every["seed"].unique()))], width=110)
        extreme = choose("cells", "Cell shows", ["mean", "extreme"], kind="row") == "extreme"
    runs = arms.runs[(seed == "all") | (arms.runs["seed"].astype(str) == seed)]
    if runs.empty:
        note("Choose at least one arm that has this seed.")
        return
    starts = origins(runs, axis)
    ends = choose_range("range", "Steps", *extent(store, runs, starts))
    window = Window.made(*ends, CELLS // min(len(arms.names), ACROSS))
    view = Turns(runs, axis, starts, window, Measure(name, *known.words(f"turn_step.{name}")))
    maps = view.heats(store, arms.names, extreme=extreme)
    values = _values(maps)
    if values.empty:
        curves_only(f"None of these runs has recorded {name} by turn.")
        return
    answer(farthest(view, maps))
    under = (arms.experiment, axis)
    chosen = keep("cell", under, lambda given: Cell.read(given, arms.names), lambda c: [str(part) for part in c or ()])
    shown = framed = None
    if chosen is not None and window.first <= chosen.first <= window.last:
        bucket = (chosen.first - window.first) // window.width
        shown, framed = view.cell(chosen.arm, bucket, chosen.turn), (arms.names.index(chosen.arm), bucket, chosen.turn)
    colours = colour_scale(view.measure.unit, values["value"].dropna())
    clicked = export.figure(
        heat(maps, view.measure, colours, arms.styles, look(), window, AXES[axis], chosen=framed), "turns",
        lambda: values.drop(columns=["value", "bucket"]), select=True, zooms="range",
        describe=f"{name} by turn index and {AXES[axis]} for {', '.join(arms.names)}.",
    )  # fmt: skip
    if clicked:
        place, *where = (int(v) for v in clicked[0][:3])
        if (other := view.cell(arms.names[place], *where)) != shown:
            follow("cell", [str(part) for part in other])
    value = "the most extreme value" if extreme else "the mean"
    note(f"Each cell: {value} over seeds and steps. ▼ onset of a collapse · hatched: not measured · – no such turn · "
         "✕ NaN or Inf")  # fmt: skip
    if shown is None:
        note("Click a cell to list its trajectories; drag over steps to zoom.")
    else:
        _list(store, view, known, arms, shown)
    run_links(runs, arms.experiment)


def measures(known: Diagnostics) -> list[str]:
    """Return the measured columns of a turn index, the telling ones first."""
    found = [known.rows[m]["name"] for m in known.charted if known.rows[m]["table_name"] == "turn_step"]
    return sorted(found, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))


def farthest(view: Turns, maps: Sequence[Heat]) -> str:
    """Say which cell is farthest from 1 (a ratio) or 0, before the collapse where an arm has one, and elsewhere."""
    collapsed = [part for part in maps if part.onsets]
    healthy = [part for part in maps if not part.onsets]
    said = []
    for group, words in ((collapsed, "before a collapse: "), (healthy, "without one: " if collapsed else "")):
        cells = _values(group)
        onset = cells["arm"].map({part.arm: min(part.onsets, default=math.nan) for part in group}).astype(float)
        cells = cells.assign(ahead=onset - cells["first_step"])[onset.isna() | (cells["first_step"] < onset)]
        cells = cells[cells["value"].map(math.isfinite) & ((cells["value"] > 0) | (not view.is_ratio))]
        if cells.empty:
            continue
        away = cells["value"].map(math.log).abs() if view.is_ratio else cells["value"].abs()
        row = cells.iloc[int(away.to_numpy().argmax())]
        ahead = "" if math.isnan(row["ahead"]) else f", {round(row['ahead']):,} before the onset"
        where = f"{row['arm']}, turn {row['turn_index']}, step {row['first_step']:,}"
        said.append(f"{words}{number(row['value'])} in {where}{ahead}")
    return f"{view.measure.name} farthest from {int(view.is_ratio)} {'; '.join(said)}." if said else ""


def _values(maps: Iterable[Heat]) -> pd.DataFrame:
    none = pd.DataFrame(columns=["arm", "first_step", "value"])
    return pd.concat([part.cells.assign(arm=part.arm) for part in maps] or [none], ignore_index=True)


def _list(store: Store, view: Turns, known: Diagnostics, arms: Arms, cell: Cell) -> None:
    name = view.measure.name if f"turn.{view.measure.name}" in known.rows else "log_ratio_sum"
    found = view.trajectories(store, cell, name)
    last = view.last(cell)
    steps = f"step {last}" if last == cell.first else f"steps {cell.first} to {last}"
    place = f"{cell.arm}, turn {cell.turn}, {steps}"
    if not found:
        note(f"{place}: no trajectory of these runs is recorded there.")
        return
    few = f"the {len(found)} farthest in {name}" if found[0]["total"] > len(found) else f"ordered by {name}"
    note(f"{place}: {found[0]['total']} trajectories, {few}; values after the last epoch; click a number.")
    linked_table(*listed(found, arms.experiment, name, known))


def listed(
    found: Sequence[dict[str, Any]], experiment: str, measured: str, known: Diagnostics
) -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
    """Return header (name, definition) and rows (address of the episode, cells) of the trajectories of a cell."""
    names = [measured, *(name for name in _LISTED if name != measured)]
    rows = {name: known.rows.get(f"turn.{name}") for name in names}
    header = [
        ("trajectory", "opens the episode"), ("tokens", "whether its tokens were kept"), ("seed", ""), ("step", ""),
        ("action", "what the agent did in the turn"),
        *[(name, f"{row['formula']} ({row['unit'] or 'no unit'})" if row else "") for name, row in rows.items()],
        ("solved", "the trajectory's answer is exactly right"), ("question", ""),
    ]  # fmt: skip
    lines = []
    for row in found:
        step, trajectory, kept = str(row["step"]), str(row["trajectory"]), "kept" if row["kept"] else "–"
        link = episode_address(experiment=experiment, run=row["run_id"], step=step, trajectory=trajectory)
        numbers = [number(row["value"]), *(number(row[name]) for name in names[1:])]
        last = [word(row["success"]), word(row["question"])]
        lines.append((link, [trajectory, kept, str(row["seed"]), step, word(row["status"]), *numbers, *last]))
    return header, lines

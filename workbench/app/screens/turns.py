"""Turns: where in the dialogue it happens. Turn index against training, the arms on one colour scale, cell by
cell.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pandas as pd
import streamlit as st

from sorl.app import export, page
from sorl.app.curve_data import Chosen, Row, Window, extent, fall_of, fell, onsets, origins
from sorl.app.experiments import choose_arms
from sorl.app.figures.common import AXES
from sorl.app.figures.maps import ACROSS, FEW, Heat, Measure, colour_scale, heat
from sorl.app.page import address, anchor, note
from sorl.app.store import Diagnostics, Store, dictionary, notation
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
NAMED = 3  # runs of a headline
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


@page.screen
def turns(store: Store) -> None:
    """Show in which turn, and when, the signals leave their usual range."""
    arms = choose_arms(store)
    known = dictionary(store)
    found = known.names("turn_step", FIRST)
    if not found:
        page.not_recorded("No turn of these runs", "tables turn and turn_step")
        return
    titles = {name: known.title(f"turn_step.{name}") for name in found}
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        name = choose("measure", "Diagnostic", titles, width=300)
        axis = choose("x", "Align on", _AXIS, kind="row")
        seed = choose(
            "seed", "Seed", ["all", *(str(seed) for seed in sorted(arms.every["seed"].unique()))], width=110
        )
        extreme = choose("cells", "Cell shows", ["mean", "extreme"], kind="row") == "extreme"
    runs = arms.runs[(seed == "all") | (arms.runs["seed"].astype(str) == seed)]
    if runs.empty:
        note("Choose at least one arm that has this seed.")
        return
    starts = origins(runs, axis)
    ends = choose_range("range", "Steps", *extent(store, runs, starts))
    window = Window.over(*ends, most=CELLS // min(len(arms.names), ACROSS))
    view = Turns(runs, axis, starts, window, Measure(name, titles[name], *known.words(f"turn_step.{name}")))
    maps = view.heats(store, arms.names, extreme=extreme)
    values = pd.concat([part.cells.assign(arm=part.arm) for part in maps], ignore_index=True)
    if values.empty:
        page.not_recorded("No turn of these runs", "tables turn and turn_step")
        return
    said, places = headline(view, view.cells(store, range(len(runs)), extreme=extreme))
    page.answer(said)
    here = {name: st.query_params.get_all(name) for name in st.query_params}
    if places:
        page.links(
            ["Open the cell:"],
            *(
                [
                    anchor(
                        f"{cell.arm}, turn {cell.turn}, from step {cell.first}",
                        address("turns", **here | {"cell": list(map(str, cell))}),
                    )
                ]
                for cell in places
            ),
        )
    under = (arms.experiment, axis)
    chosen = keep(
        "cell", under, lambda given: Cell.read(given, arms.names), lambda c: list(map(str, c or ()))
    )
    shown = framed = None
    if chosen is not None and window.first <= chosen.first <= window.last:
        bucket = (chosen.first - window.first) // window.width
        shown = view.cell(chosen.arm, bucket, chosen.turn)
        framed = (arms.names.index(chosen.arm), bucket, chosen.turn)
    colours = colour_scale(view.measure.unit, values["value"].dropna())
    signs = notation(view.measure.definition)
    clicked = export.figure(
        heat(maps, view.measure, colours, arms.styles, page.look(), window, AXES[axis], chosen=framed),
        "turns",
        lambda: values.drop(columns=["value", "bucket"]),
        select=True,
        zooms="range",
        key=signs,
        describe=f"{titles[name]} by turn index and {AXES[axis]} for {', '.join(arms.names)}.",
    )
    if signs:
        note(signs)
    if clicked:
        place, *at = (int(v) for v in clicked[0])
        if (other := view.cell(arms.names[place], *at)) != shown:
            follow("cell", list(map(str, other)))
    value = "the most extreme value" if extreme else "the mean"
    note(
        f"Each cell: {value} over seeds and steps. Faded: fewer than {FEW} turns, too few to go by · ▼ onset"
        " of a collapse, with its seed · hatched: not measured · – no such turn · ✕ NaN or Inf"
    )
    if shown is None:
        note("Click a cell to list its trajectories; drag over steps to zoom.")
    else:
        by = name if f"turn.{name}" in known.rows else "log_ratio_sum"
        listing = view.trajectories(store, shown, by)
        last = view.last(shown)
        steps = f"step {last}" if last == shown.first else f"steps {shown.first} to {last}"
        where = f"{shown.arm}, turn {shown.turn}, {steps}"
        if listing:
            some = f", {len(listing)} shown" if listing[0]["total"] > len(listing) else ""
            note(
                f"{where}: {listing[0]['total']} trajectories{some}, those with tokens first, then ordered by"
                f" {known.title(f'turn.{by}')}; values after the last epoch; click a number."
            )
            st.html(table_html(*listed(listing, arms.experiment, by, known), "sorl-listing sorl-asked"))
            st.html(_TO_LIST % hash(shown), unsafe_allow_javascript=True)
        else:
            note(f"{where}: no trajectory of these runs is recorded there.")
    page.run_links(runs, arms.experiment)


def headline(view: Turns, cells: pd.DataFrame) -> tuple[str, list[Cell]]:
    """Say by run what left the usual range when its collapse began, then what moved before; return those
    cells, too.

    `cells` are those of each run (`arm` is its place in the runs); those of fewer than FEW turns do not
    count. Usual is what 98 % of the cells hold in runs that did not collapse; without such a run, before the
    collapses.
    """
    runs = view.runs.to_dict("records")
    name = view.measure.title
    width = view.window.width
    names = [f"{run['arm']} seed {run['seed']}" for run in runs]
    falls = {place: fall for place, run in enumerate(runs) if (fall := _fall(run))}
    step = cells["first_step"] + cells["arm"].map(dict(enumerate(view.origins)))
    began = cells["arm"].map({place: fall[0] for place, fall in falls.items()}).astype(float)
    cells = cells.assign(step=step, last=step + width - 1, began=began)
    finite = cells["value"].map(math.isfinite) & ((cells["value"] > 0) | (not view.is_ratio))
    known = cells[finite & (cells["turns"] >= FEW)]
    early = known["last"] < known["began"]
    steady = known["began"].isna()
    usual = known[steady]
    whose = "in runs that did not collapse"
    if usual.empty:
        usual = known[early]
        whose = "before the collapses"
    if usual.empty:
        return f"{name}: no cell of {FEW} turns {whose}, so nothing can be compared.", []
    low, high = usual["value"].quantile([0.01, 0.99], interpolation="nearest")
    size = known["value"].map(math.log) if view.is_ratio else known["value"]
    known = known.assign(away=(size - size[usual.index].median()).abs())
    edge = known.loc[usual.index, "away"][usual["value"].between(low, high)].max()

    def farthest(rows: pd.DataFrame) -> tuple[str, Any]:
        row = rows.astype(object).iloc[int(rows["away"].to_numpy().argmax())]
        steps = f"step {row['step']:,}" if width == 1 else f"steps {row['step']:,} to {row['last']:,}"
        return f"{number(row['value'])} in turn {row['turn_index']}, {steps}", row

    told: list[tuple[int, str, Any]] = []  # cells out of the usual range, a sentence, the farthest cell
    for place, fall in falls.items():
        since = known[(known["arm"] == place) & (known["last"] >= fall[0])]
        out = since[~since["value"].between(low, high)]
        ends = fell(runs[place])
        ends = f"; the fall began {ends}." if ends else f"; it diverged at step {fall[0]:,}."
        if len(out) <= 0.02 * len(since):  # as few as in the others
            what = "nothing stands out" if len(since) else f"no cell of {FEW} turns from there on"
            told.append((0, f"{names[place]}: {what}{ends}", None))
            continue
        since = since[since["step"] >= out["step"].min()]
        sides = {f"below {number(low)}": out["value"] < low, f"above {number(high)}": out["value"] > high}
        side = " or ".join(words for words, there in sides.items() if there.any())
        where = "all turns" if len(out) == len(since) else f"{len(out)} of {len(since)} cells"
        words, row = farthest(out)
        from_there = f"from step {since['step'].min():,} on, farthest {words}"
        told.append((len(out), f"{names[place]}: {side} in {where} {from_there}{ends}", row))
    told.sort(key=lambda one: -one[0])
    lines = [f"{name[0].upper()}{name[1:]}.", *(words for _, words, _ in told[:NAMED])]
    lines += [f"{len(told) - NAMED} more runs fell."] if len(told) > NAMED else []
    lines.append(f"Usual, in 98 % of the cells {whose}: {number(low)} to {number(high)}.")
    shown = [row for _, _, row in told[:NAMED] if row is not None]
    if len(others := known[early] if falls else known):
        words, row = farthest(others)
        quiet = row["away"] <= edge * (1 if falls and steady.any() else 2)  # 2: of these very cells
        verdict = ("Before a fall" if falls else "No run collapsed and") + " nothing stands out: farthest "
        loud = "Farthest before a fall: " if falls else "No run collapsed. Farthest out: "
        lines.append(f"{verdict if quiet else loud}{words} of {names[row['arm']]}.")
        shown.append(row)
    if len(broken := cells[cells["non_finite"] > 0]):
        row = broken.astype(object).iloc[int(broken["step"].to_numpy().argmin())]
        where = f"{names[row['arm']]}, turn {row['turn_index']}, step {row['step']:,}"
        lines.append(f"NaN or Inf in {len(broken)} cells, first in {where}.")
    return " ".join(lines), [
        Cell(runs[r["arm"]]["arm"], int(r["first_step"]), int(r["turn_index"])) for r in shown
    ]


def _fall(run: Row) -> tuple[int, int] | None:
    """Return the first and last step at which a run may have begun to fall; one that diverged fell at its
    end.
    """
    if (fall := fall_of(run)) is None and run["outcome"] == "diverged" and pd.notna(run["steps"]):
        return int(run["steps"]) - 1, int(run["steps"]) - 1
    return fall


def listed(
    found: Sequence[Row], experiment: str, measured: str, known: Diagnostics
) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return header (name, definition) and rows of the trajectories of a cell; the first cell of a row is a
    link.
    """
    names = [measured, *(name for name in _LISTED if name != measured)]
    rows = {name: known.rows.get(f"turn.{name}") for name in names}
    header = [
        ("trajectory", "opens the episode"),
        ("tokens", "whether its tokens were kept"),
        ("seed", ""),
        ("step", ""),
        ("action", "what the agent did in the turn"),
        *[
            (
                (
                    known.title(f"turn.{name}"),
                    f"{name}: {row['formula']}" + f" ({row['unit']})" * bool(row["unit"]),
                )
                if row
                else (name, "")
            )
            for name, row in rows.items()
        ],
        ("solved", "the trajectory's answer is exactly right"),
        ("question", ""),
    ]
    lines = []
    for row in found:
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

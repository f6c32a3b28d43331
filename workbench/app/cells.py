"""The heat maps of screen Turns and the trajectories behind a cell: what is asked of the store for the chosen runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.figures.heat import ACROSS, Heat, Measure
from workbench.app.links import episode_address
from workbench.app.series import Window
from workbench.app.text import number, word

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Diagnostics, Store

# What a reader of a collapse asks for first; the other columns of the roll-up follow.
_FIRST = (
    "ratio_geo", "ratio_arith", "ratio_prod", "clip_frac", "approx_kl", "entropy", "advantage", "value_error",
    "gradient_share", "ratio_mass_frac",
)  # fmt: skip
_CELLS = 360  # of all maps in a row: narrower ones could not be told apart
_WHOLE = re.compile(r"-?[0-9]{1,9}")


def measures(known: Diagnostics) -> list[str]:
    """The measured columns of a turn index, the telling ones first."""
    found = [row["name"] for m, row in known.rows.items() if row["table_name"] == "turn_step" and m in known.charted]
    return sorted(found, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))


def measure_of(known: Diagnostics, name: str) -> Measure:
    """What the dictionary says of a column of the roll-up."""
    row = known.rows[f"turn_step.{name}"]
    return Measure(name, row["unit"] or "", str(row["formula"] or row["description"] or ""))


def cells_over(first: int, last: int, arms: int, runs: int) -> Window:
    """The steps of a cell, for the maps of so many arms in a row."""
    points = _CELLS // max(1, min(arms, ACROSS))
    return Window.made(first, last, points)


@dataclass(frozen=True)
class Cell:
    """A cell by what it means: an arm, the step (on the axis) at which it begins, and a turn index."""

    arm: str
    first: int
    turn: int

    @classmethod
    def read(cls, given: Sequence[str], arms: Sequence[str]) -> Cell | None:
        """The cell that an address names; None where it names none of these arms."""
        if len(given) != 3 or given[0] not in arms or not all(_WHOLE.fullmatch(value) for value in given[1:]):
            return None
        return cls(given[0], int(given[1]), int(given[2]))

    @property
    def written(self) -> list[str]:
        """The cell as `read` takes it."""
        return [self.arm, str(self.first), str(self.turn)]


@dataclass(frozen=True)
class Turns:
    """The chosen runs in the order of their arms, the step that x counts from in each, the steps and the column."""

    runs: pd.DataFrame
    origins: list[int]
    window: Window
    measure: Measure

    @property
    def is_ratio(self) -> bool:
        """True for importance ratios: their logarithm is averaged and coloured."""
        return self.measure.unit == "ratio"

    def heats(self, store: Store, names: Sequence[str], *, extreme: bool) -> list[Heat]:
        """A heat map an arm; with `extreme` a cell is coloured by its value farthest from what is neutral."""
        place = {arm: i for i, arm in enumerate(names)}
        cells = store.query(
            "heat", runs=list(self.runs["run_id"]), origins=self.origins,
            arms=[place[arm] for arm in self.runs["arm"]], first=self.window.first, last=self.window.last,
            width=self.window.width, column=self.measure.name, log=self.is_ratio,
        )  # fmt: skip
        cells = cells.assign(
            value=self._extreme(cells) if extreme else cells["mean"],
            first_step=self.window.first + cells["bucket"] * self.window.width,
        )
        return [Heat(arm, cells[cells["arm"] == i], self._onsets(arm)) for arm, i in place.items()]

    def bucket(self, cell: Cell | None) -> int | None:
        """The bucket that holds the cell; None where it is not drawn."""
        if cell is None or not self.window.first <= cell.first <= self.window.last:
            return None
        return (cell.first - self.window.first) // self.window.width

    def cell(self, arm: str, bucket: int, turn: int) -> Cell:
        """The cell of a bucket."""
        return Cell(arm, self.window.first + bucket * self.window.width, turn)

    def trajectories(self, store: Store, cell: Cell, column: str) -> list[dict[str, Any]]:
        """The trajectories behind a cell, most extreme first by `column` of `turn`."""
        mine = (self.runs["arm"] == cell.arm).to_numpy()
        return store.records(
            "cell", runs=list(self.runs.loc[mine, "run_id"]),
            origins=[o for o, chosen in zip(self.origins, mine, strict=True) if chosen],
            first=cell.first, last=self.last(cell), turn=cell.turn, column=column,
            log=self.is_ratio and column == self.measure.name,
        )  # fmt: skip

    def last(self, cell: Cell) -> int:
        """The last step of a cell."""
        return min(cell.first + self.window.width - 1, self.window.last)

    def _extreme(self, cells: pd.DataFrame) -> pd.Series:
        if not self.is_ratio:
            return cells["high"].where(cells["high"].abs() >= cells["low"].abs(), cells["low"])
        return cells["high"].where(cells["high"] * cells["low"] >= 1, cells["low"])

    def _onsets(self, arm: str) -> list[float]:
        onsets = self.runs["collapse_step"].astype(float) - self.origins
        mine = onsets[(self.runs["arm"] == arm) & onsets.between(self.window.first, self.window.last)]
        return [float(x) for x in mine]


def columns(measured: str, known: Diagnostics) -> list[tuple[str, str]]:
    """Names of the columns that `listed` fills, each with its definition; `measured` is the column of `turn`."""

    def defined(name: str) -> str:
        row = known.rows.get(f"turn.{name}")
        return f"{row['formula']} ({row['unit'] or 'no unit'})" if row else ""

    names = (measured, "log_ratio_sum", "clip_frac", "advantage", "ratio_mass_frac", "gradient_share")
    return [
        ("trajectory", "opens the episode"), ("tokens", "whether its tokens were kept"), ("seed", ""), ("step", ""),
        ("did", "what the agent did in the turn"),
        *[(name, defined(name)) for name in dict.fromkeys(names)],
        ("solved", "the trajectory's answer is exactly right"), ("question", ""),
    ]  # fmt: skip


def listed(
    found: Sequence[dict[str, Any]], experiment: str, measured: str, known: Diagnostics
) -> list[tuple[str, list[str]]]:
    """Address of the episode and cells (as `columns` names them) of each trajectory of a cell."""
    names = dict.fromkeys(("value", "log_ratio_sum", "clip_frac", "advantage", "ratio_mass_frac", "gradient_share"))
    names.pop(measured, None)
    rows = []
    for row in found:
        place = {key: str(row[key]) for key in ("step", "trajectory")}
        link = episode_address(experiment=experiment, run=row["run_id"], **place)
        kept = "kept" if row["kept"] else "–"
        cells = [place["trajectory"], kept, str(row["seed"]), place["step"], word(row["status"])]
        cells += [number(row[name]) for name in names]
        rows.append((link, [*cells, word(row["success"]), word(row["question"])]))
    return rows

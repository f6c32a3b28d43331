"""The panels of screen Compare: what is asked of the store for one diagnostic of the chosen runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.figures.curves import Panel
from workbench.app.series import CLOCKS, Window, banded, placed

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Diagnostics, Store

_SPARK = 40  # points of a curve in a cell


@dataclass(frozen=True)
class Chosen:
    """The chosen runs in the order of their arms, the step that x counts from in each, and the steps to draw."""

    runs: pd.DataFrame
    axis: str
    origins: list[int]
    window: Window

    @property
    def ids(self) -> list[str]:
        """Run ids, in order; queries answer with positions in this list."""
        return list(self.runs["run_id"])

    def place(self, found: pd.DataFrame) -> pd.DataFrame:
        """`found` with the arm and the id of each `run`."""
        return found.assign(
            arm=self.runs["arm"].to_numpy()[found["run"]], run_id=self.runs["run_id"].to_numpy()[found["run"]]
        )

    def notes(self, *, bands: bool) -> list[str]:
        """What a reader of the figure must know, in sentences."""
        lines = []
        if bands:
            lines.append(
                "Line: interquartile mean over seeds. Darker band: its 95 % bootstrap interval over seeds; "
                "paler band: lowest and highest value of any seed."
            )
        else:
            lines.append("Each line is one run; the pale line behind it spans the extremes of every bucket.")
        lines.append("▼ onset of a collapse, △ an alarm, dotted line its threshold, ✕ NaN or Inf.")
        if self.axis not in CLOCKS:
            lines.append("Drag over a part of the curves to see it alone.")
        if self.window.width > 1:
            lines.append(f"A point is the mean of {self.window.width} steps; the extremes of those steps stay drawn.")
        if self.axis == "onset":
            steady = int(self.runs["collapse_step"].isna().sum())
            if steady == len(self.runs):
                lines.append("None of these runs collapsed, so x is the training step.")
            elif steady:
                middle = round(self.runs["collapse_step"].astype(float).median())
                lines.append(
                    f"{steady} of {len(self.runs)} runs did not collapse: they are aligned at step {middle}, "
                    "the median onset of the others."
                )
        return lines


def panel(store: Store, chosen: Chosen, known: Diagnostics, metric: str, *, bands: bool) -> Panel:
    """One diagnostic of the chosen runs, as bands over seeds or run by run."""
    row = known.rows[metric]
    window = chosen.window
    with store.reader.together():
        series = curve(store, chosen.ids, chosen.origins, window, row["table_name"], row["name"])
        clock, thresholds = _clock(store, chosen), _thresholds(store, chosen, row)
        alarms = _alarms(store, chosen, row["name"]) if row["table_name"] == "step" else None
    points = placed(series, chosen.runs, window, clock)
    broken = points[points["non_finite"] > 0]
    finite = points if points["mean"].notna().all() else points.dropna(subset=["mean"])
    return Panel(
        name=known.label(metric), unit=row["unit"] or "", definition=_definition(row),
        data=banded(finite) if bands else finite, thresholds=thresholds, alarms=alarms, broken=broken,
    )  # fmt: skip


def drawn(panels: Sequence[Panel]) -> pd.DataFrame:
    """The points of all panels, a row a point, for the export."""
    import pandas as pd

    found = [p.data.drop(columns=["run", "bucket"], errors="ignore").assign(diagnostic=p.name) for p in panels]
    return pd.concat(found)


def curve(
    store: Store, runs: Sequence[str], origins: Sequence[int], window: Window, table: str, column: str
) -> pd.DataFrame:
    """One row per run (its place in `runs`) and bucket: mean, low, high and non_finite of a column of `table`."""
    return store.query(
        "series", runs=list(runs), origins=list(origins), first=window.first, last=window.last, width=window.width,
        column=column, table=table,
    )  # fmt: skip


def success(store: Store, runs: pd.DataFrame) -> pd.DataFrame:
    """Success of every run in few points: run_id, x (step), mean, and the last step of the longest run."""
    ids, zero = list(runs["run_id"]), [0] * len(runs)
    with store.reader.together():
        last = int(store.query("extent", runs=ids, origins=zero)["last"].fillna(0).iloc[0])
        window = Window.made(0, last, _SPARK)
        series = curve(store, ids, zero, window, "step", "success")
    return series.assign(
        run_id=runs["run_id"].to_numpy()[series["run"]], x=series["bucket"] * window.width, last=window.last
    )


def onsets(chosen: Chosen) -> pd.DataFrame:
    """Where the chosen runs collapse, on an axis that counts steps."""
    import pandas as pd

    if chosen.axis in CLOCKS:
        return pd.DataFrame(columns=["arm", "run_id", "x"])
    window = chosen.window
    rows = chosen.runs[["arm", "run_id"]].assign(x=chosen.runs["collapse_step"] - chosen.origins).dropna()
    return rows[rows["x"].between(window.first, window.last)]


def _clock(store: Store, chosen: Chosen) -> pd.DataFrame | None:
    if chosen.axis not in CLOCKS:
        return None
    window = chosen.window
    return store.query(
        "clock", runs=chosen.ids, origins=chosen.origins, first=window.first, width=window.width,
        column=CLOCKS[chosen.axis],
    )  # fmt: skip


def _definition(row: dict[str, Any]) -> str:
    means = {"minibatch": "per optimizer update: ", "turn_step": "per turn index, all turns together: "}
    return means.get(row["table_name"], "") + str(row["formula"] or row["description"] or "")


def _thresholds(store: Store, chosen: Chosen, row: dict[str, Any]) -> list[tuple[str | None, float]]:
    """The alarm's value, or for each arm the median over its runs of the multiple of their own baseline."""
    value, points = row["alarm_value"], row["alarm_baseline_points"]
    if value is None or row["table_name"] != "step":
        return []
    if points is None:
        return [(None, float(value))]
    found = chosen.place(store.query("baseline", runs=chosen.ids, points=points, column=row["name"]))
    usual = found[found["baseline"] > 0].groupby("arm", sort=False)["baseline"].median()
    return [(str(arm), float(value * base)) for arm, base in usual.items()]


def _alarms(store: Store, chosen: Chosen, name: str) -> pd.DataFrame | None:
    """The alarms of a diagnostic, where x counts steps."""
    if chosen.axis in CLOCKS:
        return None
    events = store.query("events", runs=chosen.ids, origins=chosen.origins)
    window = chosen.window
    mine = events[(events["kind"] == "alarm") & (events["diagnostic"] == name)]
    return chosen.place(mine[mine["x"].between(window.first, window.last)])

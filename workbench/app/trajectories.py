"""From a run to the step and the trajectory behind its spike: what screens Episode, Run, Replay and Collapse ask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.app.figures.run import Signal
from workbench.app.store import Diagnostics, Store
from workbench.app.url import choose

SIGNALS = ("grad_norm_max", "ratio_max", "ess_frac_min")  # the first that a run has is where one begins to look
RANKS = {"gradient": "gradient_share", "ratio mass": "ratio_mass", "log-ratio": "worst_log_ratio"}
WORST = "worst"  # instead of an epoch: the one in which the trajectory had most of the gradient
_POINTS = 1_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """A signal of a run, the steps it has done, and whether low values are the bad ones."""

    signal: Signal
    steps: int
    lowest: bool

    @property
    def spike(self) -> int:
        """The step to begin at: the first with NaN or Inf, else the most extreme about the onset, else the last.

        Of a run that did not fall, and where nothing was measured between the ends of the onset, of all steps.
        """
        points = self.signal.points
        if broken := [int(step) for step in points["broken_step"].dropna()]:
            return min(broken)
        known = points.dropna(subset=["value"])
        near = known if self.signal.onset is None else known[known["step"].between(*self.signal.onset)]
        known = (near if len(near) else known).sort_values("value", ascending=self.lowest, kind="stable")
        return int(known["step"].iloc[0]) if len(known) else max(0, self.steps - 1)


def fall_of(run: Mapping[Any, Any]) -> tuple[int, int] | None:
    """Return the 95 % interval of the step after which a run fell; `run` has columns of table `run`. None: it did not.

    Every screen that opens at one step of a run opens at the most extreme one between the two.
    """
    known = [run.get(name) for name in ("onset_low", "collapse_step", "onset_high")]
    steps = [int(step) for step in known if step is not None and not pd.isna(step)]
    return (min(steps), max(steps)) if steps else None


def moment(store: Store, known: Diagnostics, run: Mapping[Any, Any]) -> int:
    """Return the step at which to look into a run: the spike of the first of SIGNALS that it has."""
    return watched(store, known, run, signals(known)[0]).spike


def choose_run(each: pd.DataFrame, first: str | None = None) -> Mapping[Any, Any]:
    """Choose one of the runs, by default `first` or the first that collapsed; return its row."""
    rows = {row["run_id"]: row for row in each.to_dict("records")}
    return rows[choose("run", "Run", list(rows), first or first_run(each), words=lambda run: run_words(rows[run]))]


def first_run(each: pd.DataFrame) -> str:
    """Choose the run to begin with: the first that collapsed, else the first."""
    fell = each.loc[each[["collapse_step", "onset_low"]].notna().any(axis=1), "run_id"]
    return str(fell.iloc[0] if len(fell) else each["run_id"].iloc[0])


def run_words(row: Mapping[Any, Any]) -> str:
    """Name a run in a list: `ppo, seed 3: collapsed at 17`."""
    how = row["outcome"] if isinstance(row["outcome"], str) else row["status"]
    onset = "" if pd.isna(row["collapse_step"]) else f" at {row['collapse_step']:.0f}"
    return f"{row['arm']}, seed {row['seed']}: {how}{onset}"


def signals(known: Diagnostics) -> list[str]:
    """List the columns of a step, those that spike first."""
    found = [known.rows[m]["name"] for m in known.charted if known.rows[m]["table_name"] == "step"]
    return sorted(found, key=lambda name: SIGNALS.index(name) if name in SIGNALS else len(SIGNALS))


def watched(store: Store, known: Diagnostics, run: Mapping[Any, Any], name: str) -> Watched:
    """Return a signal of a run in at most a thousand points, each the most extreme of its steps."""
    row, run_id, onset = known.rows[f"step.{name}"], run["run_id"], fall_of(run)
    lowest = row["alarm_when"] == "below"
    last = int(store.query("extent", runs=[run_id], origins=[0])["last"].fillna(0).iloc[0])
    width = math.ceil((last + 1) / _POINTS)
    events = store.query("events", runs=[run_id], origins=[0])
    signal = Signal(
        name, row["unit"] or "", str(row["formula"] or row["description"] or ""),
        store.query("peaks", run=run_id, column=name, first=0, width=width, lowest=lowest),
        events[(events["kind"] == "alarm") & (events["diagnostic"] == name)], list(kept(store, run_id)),
        onset,
    )  # fmt: skip
    return Watched(signal, last + 1, lowest)


def kept(store: Store, run: str) -> dict[int, list[int]]:
    """Map each step to the trajectories whose tokens were kept there."""
    return {row["step"]: row["trajectories"] for row in store.records("kept", run=run)}


def ranked(store: Store, run: str, step: int, by: str = RANKS["gradient"]) -> list[Row]:
    """Rank the trajectories of a step, the largest first by column `by`: NaN before any number, NULL last."""
    return sorted(store.records("ranking", run=run, step=step), key=lambda row: _size(row[by]), reverse=True)


def _size(value: float | None) -> float:
    return -1.0 if value is None else math.inf if math.isnan(value) else abs(value)


def culprit(store: Store, run: str, step: int) -> dict[str, str]:
    """Return what opens Episode at the trajectory with most of a step's gradient: choices of its address."""
    rows = ranked(store, run, step)
    place = {"trajectory": str(rows[0]["trajectory"])} if rows else {}
    return {"run": run, "step": str(step), "rank": next(iter(RANKS)), "epoch": WORST} | place


def worst(turns: Sequence[Row]) -> Row | None:
    """Return the turn with the largest gradient_share; NaN is worse than any number. None where none was measured."""
    measured = [turn for turn in turns if turn["gradient_share"] is not None]
    return max(measured, key=lambda turn: _size(turn["gradient_share"]), default=None)

"""From a run to the step and the trajectory behind its spike: what screens Episode, Run, Replay and Collapse ask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.figures.run import Signal

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Diagnostics, Store

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
        """The step to begin at: the first with NaN or Inf, else the most extreme one.

        In a run that collapsed it is looked for up to the onset; without a measured step it is the last.
        """
        points = self.signal.points
        if broken := [int(step) for step in points["broken_step"].dropna()]:
            return min(broken)
        known = points.dropna(subset=["value"])
        before = known if self.signal.onset is None else known[known["step"] <= self.signal.onset]
        known = (before if len(before) else known).sort_values("value", ascending=self.lowest, kind="stable")
        return int(known["step"].iloc[0]) if len(known) else max(0, self.steps - 1)


def first_run(each: pd.DataFrame) -> str:
    """Choose the run to begin with: the first that collapsed, else the first."""
    fell = each.loc[each[["collapse_step", "onset_low"]].notna().any(axis=1), "run_id"]
    return str(fell.iloc[0] if len(fell) else each["run_id"].iloc[0])


def run_words(row: Mapping[Any, Any]) -> str:
    """Name a run in a list: `ppo, seed 3: collapsed at 17`."""
    fell = row["collapse_step"]
    how = row["outcome"] if isinstance(row["outcome"], str) else row["status"]
    return f"{row['arm']}, seed {row['seed']}: {how}" + (f" at {fell:.0f}" if fell == fell and fell is not None else "")


def signals(known: Diagnostics) -> list[str]:
    """List the columns of a step, those that spike first."""
    found = [known.rows[m]["name"] for m in known.charted if known.rows[m]["table_name"] == "step"]
    return sorted(found, key=lambda name: SIGNALS.index(name) if name in SIGNALS else len(SIGNALS))


def watched(store: Store, known: Diagnostics, run: Mapping[Any, Any], name: str) -> Watched:
    """Return a signal of a run in at most a thousand points, each the most extreme of its steps."""
    row = known.rows[f"step.{name}"]
    lowest = row["alarm_when"] == "below"
    ids = [run["run_id"]]
    last = int(store.query("extent", runs=ids, origins=[0])["last"].fillna(0).iloc[0])
    width = math.ceil((last + 1) / _POINTS)
    points = store.query("peaks", run=ids[0], column=name, first=0, width=width, lowest=lowest)
    events = store.query("events", runs=ids, origins=[0])
    onset = run["collapse_step"]
    signal = Signal(
        name, row["unit"] or "", str(row["formula"] or row["description"] or ""), points,
        events[(events["kind"] == "alarm") & (events["diagnostic"] == name)], list(kept(store, ids[0])),
        None if onset != onset or onset is None else float(onset),
    )  # fmt: skip
    return Watched(signal, last + 1, lowest)


def kept(store: Store, run: str) -> dict[int, list[int]]:
    """Map each step to the trajectories whose tokens were kept there."""
    return {row["step"]: row["trajectories"] for row in store.records("kept", run=run)}


def ranked(store: Store, run: str, step: int, by: str = RANKS["gradient"]) -> list[Row]:
    """Rank the trajectories of a step, the largest first by column `by`: NaN before any number, NULL last."""

    def size(row: Row) -> tuple[int, float]:
        value = row[by]
        if value is None:
            return 2, 0.0
        return (0, 0.0) if math.isnan(value) else (1, -abs(value))

    return sorted(store.records("ranking", run=run, step=step), key=size)


def culprit(store: Store, run: str, step: int) -> dict[str, str]:
    """Return what opens Episode at the trajectory with most of a step's gradient: choices of its address."""
    rows = ranked(store, run, step)
    place = {"trajectory": str(rows[0]["trajectory"])} if rows else {}
    return {"run": run, "step": str(step), "rank": next(iter(RANKS)), "epoch": WORST} | place


def worst(turns: Sequence[Row]) -> Row | None:
    """Return the turn with the largest gradient_share; NaN is worse than any number. None where none was measured."""
    measured = [turn for turn in turns if turn["gradient_share"] is not None]

    def size(turn: Row) -> float:
        share = float(turn["gradient_share"])
        return math.inf if math.isnan(share) else share

    return max(measured, key=size, default=None)

"""From a run to the step and the trajectory behind its spike: what screens Episode, Run, Replay and Collapse ask."""

import math
from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup

from workbench.app.curve_data import Row, fall_of, stands
from workbench.app.figures.runs import Signal
from workbench.app.store import Diagnostics, Store
from workbench.app.text import number, percent, times
from workbench.app.url import about, choose

SIGNALS = ("grad_norm_max", "ratio_max", "ess_frac_min")  # the first that a run has is where one begins to look
RANKS = {"gradient": "gradient_share", "ratio mass": "ratio_mass", "log-ratio": "worst_log_ratio"}
WORST = "worst"  # instead of an epoch: the one in which the trajectory had most of the gradient
_POINTS = 1_000


def choose_run(each: pd.DataFrame, first: str | None = None) -> Row:
    """Choose one of the runs, by default `first` or the first that collapsed; return its row."""
    rows = {row["run_id"]: row for row in each.to_dict("records")}
    names = {run: f"{row['arm']}, seed {row['seed']}: {stands(row)}" for run, row in rows.items()}
    run = choose("run", "Run", names, first or first_run(each))
    about(f"{rows[run]['arm']} s{rows[run]['seed']}", names[run])
    return rows[run]


def first_run(each: pd.DataFrame) -> str:
    """Choose the run to begin with: the first that collapsed, else the first."""
    fell = each.loc[each[["collapse_step", "onset_low"]].notna().any(axis=1), "run_id"]
    return str(fell.iloc[0] if len(fell) else each["run_id"].iloc[0])


def signals(known: Diagnostics) -> list[str]:
    """List the columns of a step, those that spike first."""
    found = [known.rows[m]["name"] for m in known.charted if known.rows[m]["table_name"] == "step"]
    return sorted(found, key=lambda name: SIGNALS.index(name) if name in SIGNALS else len(SIGNALS))


def watched(store: Store, known: Diagnostics, run: Row, name: str = "") -> Signal:
    """Return a signal of a run in at most a thousand points, each the most extreme of its steps.

    By default it is the first of SIGNALS that the run has: every screen that opens at one step opens at its spike.
    """
    name = name or signals(known)[0]
    run_id, lowest = run["run_id"], known.rows[f"step.{name}"]["alarm_when"] == "below"
    steps = int(store.query("extent", runs=[run_id], origins=[0])["last"].fillna(0).iloc[0]) + 1
    events = store.query("events", runs=[run_id], origins=[0])
    return Signal(
        name, known.title(f"step.{name}"), *known.words(f"step.{name}"),
        store.query("peaks", run=run_id, column=name, first=0, width=math.ceil(steps / _POINTS), lowest=lowest),
        events[(events["kind"] == "alarm") & (events["diagnostic"] == name)],
        store.query("kept", run=run_id)["step"].tolist(), fall_of(run), steps, lowest,
    )  # fmt: skip


def ranked(store: Store, run: str, step: int, by: str = RANKS["gradient"]) -> list[Row]:
    """Rank the trajectories of a step, the largest first by column `by`: NaN before any number, NULL last."""
    return sorted(store.records("ranking", run=run, step=step), key=lambda row: _size(row[by]), reverse=True)


def share_of(row: Row, among: int, which: str = "") -> Markup:
    """Say how much of its step's gradient a trajectory of `among` has; `row` answers query `ranking`."""
    which, share = which or f"trajectory {row['trajectory']}", row["gradient_share"]
    if share is None or not math.isfinite(share):
        found = "was not measured" if share is None else f"is {number(share)}"
        return Markup("the share of {} in this step's gradient {}").format(which, found)
    equal = f", {times(share * among)} an equal share" if among > 1 and share else ""
    return Markup("{} has {} of this step's gradient{}").format(which, percent(share) if share else "none", equal)


def _size(value: float | None) -> float:
    return -1.0 if value is None else math.inf if math.isnan(value) else abs(value)


def alike(store: Store, experiment: str, run: Row, step: int, question: str | None, most: int = 50) -> list[Row]:
    """List episodes with the same question: with tokens, of this run, across its fall, and near in time come first.

    Each has a `name`, and the `side` of the fall that it is on.
    """
    fall, mine = fall_of(run), run["run_id"]

    def side(at: int) -> str:
        return "" if fall is None else " (after the fall)" if at > fall[1] else " (before the fall)"

    found: list[Row] = []
    for row in store.records("same_question", experiment=experiment, run=mine, question=question):
        own = row["run_id"] == mine
        name = f"step {row['step']}" if own else f"{row['arm']}, seed {row['seed']}, step {row['step']}"
        if not own or row["step"] != step:
            found.append(row | {"name": name, "side": side(row["step"]) if own else ""})
    found.sort(key=lambda row: (
        not row["kept"], row["run_id"] != mine, row["side"] == side(step), abs(row["step"] - step)
    ))  # fmt: skip
    return found[:most]


def worst_epoch(turns: Sequence[Row], tokens: Row | None) -> int | None:
    """Return the epoch in which a trajectory had most of the gradient, so far as its rows say: of its tokens first.

    NaN is more than any number; where no gradient was measured it is the last epoch.
    """
    known = tokens.get("worst_epoch") if tokens else None
    if known is not None and (not turns or known in {turn["epoch"] for turn in turns}):
        return int(known)
    measured = [turn for turn in turns if turn["gradient_share"] is not None]
    by = (lambda turn: _size(turn["gradient_share"])) if measured else (lambda turn: turn["epoch"])
    return int(max(measured or turns, key=by)["epoch"]) if turns else None

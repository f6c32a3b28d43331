"""What screen Collapse asks of the store for the chosen runs: their events, their comparison, their first alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.analysis import compare
from workbench.app.series import origins

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store

NO_TEST = "No log-rank test: it needs two arms at risk and a collapse."


def lives(runs: pd.DataFrame, axis: str) -> pd.DataFrame:
    """`runs` with `start` (the step that x counts from) and x of the first and the last step of each."""
    starts = origins(runs, axis)
    return runs.assign(start=starts, first=[-start for start in starts], last=runs["steps"].fillna(0) - 1 - starts)


def happened(store: Store, drawn: pd.DataFrame) -> pd.DataFrame:
    """The events of the runs of `lives`, each with its run_id and x."""
    events = store.query("events", runs=list(drawn["run_id"]), origins=list(drawn["start"]))
    return events.assign(run_id=drawn["run_id"].to_numpy()[events["run"]]).drop(columns="run")


def comparison(store: Store, runs: pd.DataFrame, experiment: str, reference: str) -> pd.DataFrame:
    """The figures of `sorl compare` for these arms, remembered: permutation tests take their time."""
    key = ("compared", experiment, reference, *dict.fromkeys(runs["arm"]))
    return store.computed(key, lambda _: compare.figures(runs, reference))


def readings(frame: pd.DataFrame) -> tuple[str, list[str]]:
    """The log-rank test of all arms in a sentence, and what else must be known of the survival figures."""
    lines = [line for line in compare.reading(frame) if "IQM" not in line]
    test = next((line for line in lines if line.startswith("Log-rank")), NO_TEST)
    return test, [line for line in lines if line != test]


def first_alarms(store: Store, runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The answer to query `leads`, and of it the runs that have a lead: alarm, arm, run_id, seed, lead (steps)."""
    found = store.query("leads", runs=list(runs["run_id"]))
    known = found.dropna(subset=["lead"])
    named = {column: runs[column].to_numpy()[known["run"]] for column in ("arm", "run_id", "seed")}
    return found, known.assign(alarm=known["diagnostic"], **named)

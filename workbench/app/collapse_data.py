"""The alarms before a collapse: the first one of each kind in each run, and how early each kind comes."""

from __future__ import annotations

import pandas as pd

from workbench.app.store import Diagnostics, Store

_ARROWS = {"above": "↑", "below": "↓"}


def first_alarms(store: Store, runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the answer to query `leads`, and its runs that have a lead: alarm, arm, run_id, seed, lead (steps)."""
    found = store.query("leads", runs=list(runs["run_id"]))
    known = found.dropna(subset=["lead"])
    named = {column: runs[column].to_numpy()[known["run"]] for column in ("arm", "run_id", "seed")}
    return found, known.assign(alarm=known["diagnostic"], **named)


def alarm_leads(leads: pd.DataFrame, known: Diagnostics) -> pd.DataFrame:
    """Return one row per alarm, the earliest median first and those that never warned last; `leads` answers `leads`.

    Of the `collapsed` runs an alarm warned in `before` (its first one at least a step ahead of the onset), came no
    earlier than the onset in `after`, and was silent in `never`; `first` counts the runs in which none came earlier
    (ties count for each). `lead_median`, `lead_low` and `lead_high` are median and quartiles in steps over the `before`
    runs; `false_alarms` of `steady` runs are those without a collapse that raised it. `direction` is an arrow, where
    the dictionary knows it.
    """
    earliest = leads[leads["lead"] >= 1].groupby("run")["lead"].max()
    rows = []
    for name, part in leads.groupby("diagnostic", sort=False):
        fell, steady = part[part["collapse_step"].notna()], part[part["collapse_step"].isna()]
        warned = fell[fell["lead"] >= 1]
        low, middle, high = warned["lead"].astype(float).quantile([0.25, 0.5, 0.75])
        declared = known.rows.get(f"step.{name}", {})
        rows.append({
            "alarm": str(name), "direction": _ARROWS.get(str(declared.get("alarm_when")), ""),
            "collapsed": len(fell), "before": len(warned), "after": int(fell["lead"].notna().sum()) - len(warned),
            "never": int(fell["lead"].isna().sum()),
            "first": int((warned["lead"].to_numpy() == earliest.reindex(warned["run"]).to_numpy()).sum()),
            "lead_median": middle, "lead_low": low, "lead_high": high,
            "steady": len(steady), "false_alarms": int(steady["step"].notna().sum()),
        })  # fmt: skip
    found = pd.DataFrame(rows)
    return found if found.empty else found.sort_values(["lead_median", "before"], ascending=False, ignore_index=True)

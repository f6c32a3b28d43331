"""What screen Run asks of the store: the run as it is now, its curves, its events, and where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.app.curve_data import Chosen, panel
from workbench.store.text import log_of, tail

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.data import Store
    from workbench.app.diagnostics import Diagnostics
    from workbench.app.figures.curves import Panel

# What a run is judged by besides success; those that it did not measure are left out.
CURVES = (
    "step.grad_norm_max", "step.kl_k3", "step.clip_frac", "step.entropy", "step.ratio_max", "step.ess_frac_min",
    "step.explained_variance", "step.valid_action_frac", "step.reward",
)  # fmt: skip
_BARS = 80  # of the wall time
_LINES = 400  # of the console log


def as_it_is(store: Store, run: dict[Any, Any]) -> dict[str, Any]:
    """The run's row of table `run` with what is known while it trains: `run` is its row of the experiment's runs."""
    row = store.records("run", run=run["run_id"])[0]
    planned = run["planned"]
    known = planned is not None and planned == planned
    now = {"steps": int(run["steps"]), "planned": int(planned) if known else None, "arm": run["arm"]}
    return row | now | ({"seconds": _so_far(store, run["run_id"])} if row["status"] == "running" else {})


def _so_far(store: Store, run: str) -> float:
    """The seconds of a run in training: table `run` knows them when it has ended."""
    spent = store.query("spent", run=run, first=0, last=2**62, width=2**62)
    return float(spent[["total", "record"]].sum().sum())


def success(store: Store, chosen: Chosen) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Of the chosen steps: training success (x, mean, low, high), the held-out evaluations, and the events."""
    window, run = chosen.window, chosen.ids[0]
    points = chosen.points(store, "step", "success").dropna(subset=["mean"])
    events = store.query("happened", run=run)
    held_out = store.query("evaluation", run=run, first=window.first, last=window.last)
    return (
        points[["x", "mean", "low", "high"]], held_out,
        events[events["step"].astype(float).between(window.first, window.last)],
    )  # fmt: skip


def signals(store: Store, chosen: Chosen, known: Diagnostics) -> tuple[list[Panel], list[str]]:
    """The main diagnostics of the run as panels, and the names of those that it did not measure."""
    panels = [panel(store, chosen, known, metric, bands=False) for metric in CURVES if metric in known.rows]
    missing = [p.name for p in panels if p.data.empty and (p.broken is None or p.broken.empty)]
    return [p for p in panels if p.name not in missing], missing


def spent(store: Store, chosen: Chosen) -> pd.DataFrame:
    """The wall time of the chosen steps in a few bars."""
    window = chosen.window
    width = max(1, -(-(window.last - window.first + 1) // _BARS))
    return store.query("spent", run=chosen.ids[0], first=window.first, last=window.last, width=width)


def console(store: Store, experiment: str, run: str) -> list[str] | None:
    """The last lines that the run printed; None where its folder holds no log."""
    log = log_of(store.runs, experiment, run)
    return tail(log)[-_LINES:] if log else None

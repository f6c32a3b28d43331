"""The ways from a run to the other screens, and to its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.app import episodes
from workbench.app.links import address

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.diagnostics import Diagnostics

_ARMS = 6  # that other screens show at first
Way = tuple[str, str]  # words, address


def to_screens(run: dict[str, Any], experiment: str, each: pd.DataFrame) -> list[Way]:
    """The other screens with this run: its arm before the others where arms are compared."""
    arm, seed, run_id = str(run["arm"]), str(run["seed"]), str(run["run_id"])
    arms = [arm, *(other for other in each["arm"].unique() if other != arm)][:_ARMS]
    aligned = {"x": "onset"} if run["collapse_step"] is not None else {}
    return [
        ("Overview", address("overview", experiment=experiment)),
        ("Compare", address("compare", experiment=experiment, arm=arms, **aligned)),
        ("Turns", address("turns", experiment=experiment, arm=[arm], seed=seed)),
        ("Collapse", address("collapse", experiment=experiment, arm=arms)),
        ("Episode", address("episode", experiment=experiment, run=run_id)),
        ("Replay", address("replay", experiment=experiment, run=run_id)),
    ]


def to_seeds(run: dict[str, Any], experiment: str, each: pd.DataFrame) -> list[Way]:
    """The other runs of the same arm."""
    others = each[(each["arm"] == run["arm"]) & (each["run_id"] != run["run_id"])]
    return [
        (f"{row['seed']} ({row['outcome'] if isinstance(row['outcome'], str) else row['status']})",
         address("run", experiment=experiment, run=str(row["run_id"])))
        for row in others.to_dict("records")
    ]  # fmt: skip


def to_step(run: dict[str, Any], experiment: str, known: Diagnostics, step: int) -> list[Way]:
    """A step of the run: its trajectories, and its turns."""
    arm, place = str(run["arm"]), {"experiment": experiment, "seed": str(run["seed"])}
    return [
        ("episode", episodes.address(known, experiment=experiment, run=run["run_id"], step=str(step))),
        ("turns", address("turns", **place, arm=[arm], cell=[arm, str(step), "1"])),
    ]

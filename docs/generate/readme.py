"""The table of README.md: how many runs of token PPO fell after one change, from the shipped results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from docs.generate.render import ROOT
from sorl.analysis.results import read
from sorl.spec.markdown import markdown_table

RESULTS = ROOT / "experiments" / "results"
NOT_TRIED = "not tried"
# What is changed -> the arm of the forks, and the arm of rise_and_fall; None where it was not tried.
CHANGES: dict[str, tuple[str, str | None]] = {
    "none": ("unchanged", "ppo"),
    "ratios per turn": ("turn-ratio", "turn-ppo"),
    "the normalisation": ("normalise", "s-ppo"),
    "both": ("turn-ratio-normalise", "st-ppo"),
    "ratios per random stretch": ("placebo-turns", None),
    "clipped gradient norm": ("grad-clip", "ppo, gradient norm .1"),
    "on-policy data": ("on-policy", "ppo, on-policy, as many updates"),
}


def fell_table() -> str:
    """A row a change to token PPO, a column an experiment: runs that fell, of all."""
    forks = forks_before_the_fall(RESULTS / "forks" / "children.parquet")
    steep = forks_before_the_fall(RESULTS / "forks" / "steep.parquet")
    runs = read(RESULTS / "rise_and_fall" / "counted.parquet").runs
    runs = runs.assign(down=runs["outcome"] == "collapsed")
    rows = []
    for change, (fork_arm, run_arm) in CHANGES.items():
        counts = [fell_of_all(forks, fork_arm), fell_of_all(steep, fork_arm), fell_of_all(runs, run_arm)]
        rows.append([change, *counts])
    return markdown_table(("change to token PPO", "SGD", "SGD, larger steps", "AdamW, warm-up"), rows)


def forks_before_the_fall(file: Path) -> pd.DataFrame:
    """The finished children of PPO runs that were forked at or before the last step before the fall."""
    children = pd.read_parquet(file)
    children = children[(children["algorithm"] == "ppo") & children["arm"].notna()]
    return children[children["forked_at"] <= children["onset"]]


def fell_of_all(runs: pd.DataFrame, arm: str | None) -> str:
    """The runs of an arm that are down, of all: "14 of 24"."""
    chosen = runs[runs["arm"] == arm]
    if chosen.empty:
        return NOT_TRIED
    return f"{int(chosen['down'].astype(bool).sum())} of {len(chosen)}"

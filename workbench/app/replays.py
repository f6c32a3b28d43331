"""A replay's answer as the tables and the frame that its screen shows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.app.wording import number

MEASURES = {
    "gradient_share": "share of sum |d loss / d log-prob|",
    "unit_ratio_mean": "mean of the ratio that entered the surrogate",
    "unit_ratio_max": "its largest",
    "clip_frac": "share of tokens whose gradient the clip stopped",
    "out_of_range_frac": "share of tokens whose own ratio is out of bounds",
    "unit_ratio_mass_frac": "share of the sum of the ratios",
}
FIGURES = ("policy_loss", "stabiliser_ratio", "stabiliser_factor", "unit_ratio_max", "ess_frac", "clip_frac",
           "out_of_range_frac", "weight_abs")  # fmt: skip
CULPRITS = ("algorithm", "rank", "trajectory", "turn_index", "gradient_share", "advantage", "ratio_max", "clip_frac")
_SOURCES = {"logged": " (as logged)", "replayed": ""}
Answer = dict[str, Any]


def summary(told: Answer) -> list[list[str]]:
    """All updates together, and below the algorithm that ran what its trainer logged: name and FIGURES."""
    several = any(row["update"] is None for row in told["summary"] if not row["reason"])
    rows = [row for row in told["summary"] if not row["reason"] and (row["update"] is None or not several)]
    return [[row["algorithm"] + _SOURCES[row["source"]], *(shown(row[name]) for name in FIGURES)] for row in rows]


def by_turn(told: Answer, measure: str) -> pd.DataFrame:
    """algorithm, turn_index and the measure over all updates; what is NULL, NaN or Inf is left out."""
    several = any(row["update"] is None for row in told["turns"])
    names = ("algorithm", "turn_index", measure)
    rows = [[row[n] for n in names] for row in told["turns"] if row["update"] is None or not several]
    return pd.DataFrame([row for row in rows if isinstance(row[-1], (int, float))], columns=list(names))


def culprits(told: Answer) -> list[tuple[int, list[str]]]:
    """Trajectory and CULPRITS of each of the turns that carry most."""
    return [
        (int(row["trajectory"]), [row["algorithm"], *(shown(row[name]) for name in CULPRITS[1:])])
        for row in told["culprits"]
    ]


def tokens(told: Answer) -> tuple[str, list[str], list[list[str]]]:
    """What the table of tokens shows, its header, and its rows: turn, text, log-ratio, the weight in each algorithm.

    The figures are those of the last update that trained on the trajectory; there are no rows where none did.
    """
    if not told["tokens"]:
        return "No token of this trajectory was trained on.", [], []
    last = max(row["update"] for row in told["tokens"])
    rows = [row for row in told["tokens"] if row["update"] == last]
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    known = {(row["algorithm"], row["position"]): row for row in rows}
    cells = [
        [str(row["turn_index"]), _text(row), shown(row["log_ratio"]),
         *(_weight(known.get((name, row["position"]))) for name in names)]
        for row in rows if row["algorithm"] == names[0]
    ]  # fmt: skip
    words = (
        f"Trajectory {rows[0]['trajectory']} in update {last}: 1,000 times d loss / d log-prob of every token; below 0 "
        "the update makes it likelier."
    )
    return words, ["turn", "token", "log-ratio", *names], cells


def shown(value: Any) -> str:
    """A figure of the answer: JSON has no word for NaN and Inf, so these come as texts."""
    return value if isinstance(value, str) else number(value)


def _text(row: Answer) -> str:
    return str(row["token_id"]) if row["token"] is None else str(row["token"])


def _weight(row: Answer | None) -> str:
    if row is None:
        return number(None)
    weight = row["weight"]
    return shown(1000 * weight if isinstance(weight, float) else weight) + (" clipped" if row["clipped"] else "")

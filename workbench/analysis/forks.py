"""Forks: children of a run with one thing changed against children left unchanged, compared within their parents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.analysis.stats import clopper_pearson, holm, p_value

if TYPE_CHECKING:
    from workbench.store.reader import Reader

DOWN = ("collapsed", "diverged", "falling")
ROUNDS = 20_000  # permutations where the exact number is larger
ABOUT = (
    "down: children that collapsed, diverged or were falling at their end. saves: how much less often than unchanged, "
    "parents weighted as Mantel and Haenszel do. p: permutation of the arms within each parent; Holm over the arms."
)


def children(reader: Reader, parent: str | None = None) -> pd.DataFrame:
    """Return the finished children of a run, or of all runs: parent, forked_at, arm, draw, down, final_success."""
    found = reader.query(
        "SELECT parent, forked_at, arm, draw, outcome, final_success FROM run SEMI JOIN cell USING (run_id) "
        "WHERE parent IS NOT NULL AND status = 'finished' ORDER BY parent, started_at"
    )
    found = found if parent is None else found[found["parent"] == parent]
    return found.assign(down=found["outcome"].isin(DOWN))


def mantel_haenszel(strata: Sequence[tuple[int, int, int, int]]) -> tuple[float, float]:
    """Return the pooled risk difference a / n - b / m of strata (a, n, b, m), and its standard error.

    RD = sum (a m - b n) / N / sum n m / N, N = n + m; variance by Sato (1989), which holds for few strata and for many.
    """
    a, n, b, m = (np.array(column, dtype=float) for column in zip(*strata, strict=True))
    total = n + m
    weight = (n * m / total).sum()
    difference = ((a * m - b * n) / total).sum() / weight
    p = (n**2 * b - m**2 * a + n * m * (m - n) / 2) / total**2
    q = (a * (m - b) + b * (n - a)) / (2 * total)
    return float(difference), float(np.sqrt(max(0.0, difference * p.sum() + q.sum())) / weight)


def permutation_p(strata: Sequence[tuple[int, int, int, int]], seed: int = 0) -> float:
    """Two-sided p-value of the strata: arms are exchanged within each, in which the number of falls is fixed."""
    stream = np.random.default_rng(seed)
    seen = sum(a - (a + b) * n / (n + m) for a, n, b, m in strata)
    drawn = np.zeros(ROUNDS)
    for a, n, b, m in strata:
        drawn += stream.hypergeometric(a + b, n + m - a - b, n, ROUNDS) - (a + b) * n / (n + m)
    return float((1 + (np.abs(drawn) >= abs(seen) - 1e-9).sum()) / (1 + ROUNDS))


def effects(found: pd.DataFrame, reference: str) -> list[dict[str, Any]]:
    """Return one row per arm: children down, the risk difference with its 95 % interval, p and Holm's p."""
    rows: list[dict[str, Any]] = []
    plain = found[found["arm"] == reference]
    for arm, group in found.groupby("arm", sort=False):
        row: dict[str, Any] = {
            "arm": arm, "parents": group["parent"].nunique(), "draws": len(group), "down": int(group["down"].sum()),
            "final_success": float(group["final_success"].mean()), "saves": None, "low": None, "high": None, "p": None,
        }  # fmt: skip
        strata = []
        for parent, own in group.groupby("parent"):
            base = plain[plain["parent"] == parent]
            if len(base):
                strata.append((int(own["down"].sum()), len(own), int(base["down"].sum()), len(base)))
        if arm != reference and strata:
            difference, error = mantel_haenszel(strata)
            low, high = difference - 1.96 * error, difference + 1.96 * error
            row |= {"saves": -difference, "low": max(-1.0, -high), "high": min(1.0, -low), "p": permutation_p(strata)}
        rows.append(row)
    for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["holm"] = corrected
    return rows


def table(found: pd.DataFrame, reference: str) -> tuple[list[str], list[list[Any]]]:
    """Return the effects as a table in words."""
    columns = ["arm", "parents", "down", "final success", "saves [95 %]", "p", "Holm"]
    rows = []
    for row in effects(found, reference):
        saves = "" if row["saves"] is None else f"{row['saves']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
        rows.append([row["arm"], row["parents"], f"{row['down']}/{row['draws']}", f"{row['final_success']:.2f}", saves,
                     "" if row["p"] is None else p_value(row["p"]),
                     "" if row["holm"] is None else p_value(row["holm"])])  # fmt: skip
    return columns, rows


def sentence(found: pd.DataFrame, reference: str) -> str:
    """Say which changes saved children that fall when nothing is changed, and what is undecided."""
    rows = {row["arm"]: row for row in effects(found, reference)}
    plain = rows.get(reference)
    if plain is None:
        return "No child was left unchanged: nothing can be said."
    said = [f"Unchanged, {plain['down']} of {plain['draws']} are down."]
    if plain["down"] == 0:
        return " ".join([*said, "The fork no longer falls by itself, so no change can be seen to save it."])
    saved = [arm for arm, row in rows.items() if row["holm"] is not None and row["holm"] < 0.05 and row["saves"] > 0]
    worse = [arm for arm, row in rows.items() if row["holm"] is not None and row["holm"] < 0.05 and row["saves"] < 0]
    rest = [arm for arm in rows if arm not in (*saved, *worse, reference)]
    said += [f"{arm} saves: {rows[arm]['down']} of {rows[arm]['draws']}." for arm in saved]
    said += [f"{arm} makes it worse: {rows[arm]['down']} of {rows[arm]['draws']}." for arm in worse]
    if rest:
        counts = ", ".join(f"{arm} ({rows[arm]['down']} of {rows[arm]['draws']})" for arm in rest)
        said.append(f"Undecided at this number of draws: {counts}.")
    return " ".join(said)


def power(draws: int) -> str:
    """Say what so many draws of one parent can show, of a change that saves all children."""
    least = permutation_p([(0, draws, draws, draws)])
    high = clopper_pearson(0, draws)[1]
    return (
        f"Power: with {draws} draws of one parent, a change that saves all children that fall unchanged has "
        f"p = {p_value(least)} before Holm's correction, and may still lose up to {100 * high:.0f} % of them (95 %)."
    )

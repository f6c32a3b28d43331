"""Forks: children of a run with one thing changed against children left unchanged, compared within their
parents.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from sorl.analysis.runs import nested
from sorl.analysis.stats import clopper_pearson, holm, p_value
from sorl.analysis.survival import Z95
from sorl.spec.evidence import ALPHA, Removal
from sorl.spec.settings import DRAW

if TYPE_CHECKING:
    from sorl.store.reader import Reader

ROUNDS = 20_000  # permutations where the exact number is larger
LAST = 4  # steps of a child that its success at the end is the mean of
# arms: the control, and (before a cause's name) what removes a cause
UNCHANGED = "unchanged"
WITHOUT = "without "
FELL = ("collapsed", "diverged", "falling")  # outcomes of a child that fell; one that came back was detected
ABOUT = (
    "down: children that fell (collapsed, diverged, falling at their end). success: mean of a child's last"
    f" {LAST} steps. saves: how much less often than unchanged, parents weighted as Mantel and Haenszel do."
    " p: permutation of the arms within each parent; Holm over the arms. x: down, o: up."
)
_CHILDREN = """
    SELECT run_id, parent, forked_at, arm, draw, outcome, success, config->>'$.iterations' AS until,
           coalesce(list_contains($fell, outcome) OR detection_step >= forked_at, false) AS down
    FROM run SEMI JOIN cell USING (run_id)
    LEFT JOIN (SELECT run_id, avg(success) AS success FROM (
        SELECT run_id, success FROM step
        QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY step DESC) <= $last
    ) GROUP BY run_id) USING (run_id)
    WHERE draw > 0 AND status = 'finished' ORDER BY parent, started_at
"""
_STRATUM = ["parent", "forked_at", "until"]  # children are compared where these are the same


def children(reader: "Reader", parents: Collection[str] | None = None) -> pd.DataFrame:
    """Return the finished children of runs (of all): parent, forked_at, arm, draw, until, down, success."""
    frame = reader.query(_CHILDREN, {"last": LAST, "fell": list(FELL)})
    return frame if parents is None else frame[frame["parent"].isin(parents)]


def of_results(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the same of the runs of a report, from their settings and curves; empty where none is a fork."""
    rows = []
    for run in runs[(runs["status"] == "finished") & runs["config"].notna()].to_dict("records"):
        config = nested(run["config"])
        with suppress(KeyError, TypeError):  # a configuration that is none of ours: a run, and no child
            fork = config["fork"]
            if run["seed"] != fork["seed"]:
                rows.append(_child(run, fork, config))
    return pd.DataFrame(rows)


def _child(run: dict[Hashable, Any], fork: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    down = run["outcome"] in FELL or (run["detected"] or 0) >= fork["at_step"]
    return {
        "run_id": run["run_id"],
        "parent": fork["run"],
        "forked_at": fork["at_step"],
        "arm": run["arm"],
        "draw": (run["seed"] - fork["seed"]) // DRAW,
        "outcome": run["outcome"],
        "down": bool(down),
        "success": float(np.mean(run["success_curve"][-LAST:])),
        "until": str(config["iterations"]),
    }


def tests(reader: "Reader", run: str) -> dict[str, Removal]:
    """Return cause -> what its removal does to children of a run, of the causes that were tested so."""
    frame = children(reader, [run])
    frame = frame[frame["arm"].eq(UNCHANGED) | frame["arm"].str.startswith(WITHOUT)]
    # Only where the causes were tested: other forks of the run leave children unchanged as well.
    places = pd.MultiIndex.from_frame(frame.loc[frame["arm"] != UNCHANGED, _STRATUM])
    frame = frame[pd.MultiIndex.from_frame(frame[_STRATUM]).isin(places)]
    return {
        row["arm"].removeprefix(WITHOUT): Removal(
            row["draws"] - row["down"],
            row["draws"],
            row["plain_draws"] - row["plain_down"],
            row["plain_draws"],
            row["low"],
            row["high"],
            row["holm"],
        )
        for row in effects(frame)
        if row["saves"] is not None
    }


class Interval(NamedTuple):
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def mantel_haenszel(strata: Sequence[tuple[int, int, int, int]]) -> Interval:
    """Return the pooled risk difference a / n - b / m of strata (a, n, b, m), and its 95 % interval.

    RD = sum w (a / n - b / m), w ~ n m / (n + m) (Mantel and Haenszel); Newcombe's interval from Wilson's
    limits of both sums at the effective sizes 1 / sum(w^2 / n) (Yan and Su 2010): with counts of 0 and n it
    is no point.
    """
    a, n, b, m = (np.array(column, dtype=float) for column in zip(*strata, strict=True))
    weight = n * m / (n + m) / (n * m / (n + m)).sum()
    p, low, high = _wilson(weight, a, n)
    q, below, above = _wilson(weight, b, m)
    return Interval(
        p - q,
        p - q - float(np.hypot(p - low, above - q)),
        p - q + float(np.hypot(high - p, q - below)),
    )


def _wilson(weight: np.ndarray, count: np.ndarray, n: np.ndarray) -> Interval:
    """Return sum w count / n and Wilson's 95 % limits of it at the effective size."""
    p = float((weight * count / n).sum())
    size = 1 / float((weight**2 / n).sum())
    square = Z95**2
    middle = p + square / (2 * size)
    half = Z95 * np.sqrt(max(0.0, p * (1 - p)) / size + square / (4 * size**2))
    low, high = ((middle + side * half) / (1 + square / size) for side in (-1, 1))
    return Interval(p, min(p, float(low)), max(p, float(high)))


def permutation_p(strata: Sequence[tuple[int, int, int, int]], seed: int = 0) -> float:
    """Two-sided p-value of the strata: arms are exchanged within each, in which the number of
    falls is fixed.
    """
    stream = np.random.default_rng(seed)
    observed = sum(a - (a + b) * n / (n + m) for a, n, b, m in strata)
    drawn = np.zeros(ROUNDS)
    for a, n, b, m in strata:
        drawn += stream.hypergeometric(a + b, n + m - a - b, n, ROUNDS) - (a + b) * n / (n + m)
    return float((1 + (np.abs(drawn) >= abs(observed) - 1e-9).sum()) / (1 + ROUNDS))


def effects(children: pd.DataFrame, reference: str = UNCHANGED) -> list[dict[str, Any]]:
    """Return one row per arm: children down, the risk difference with its 95 % interval, p and Holm's p."""
    rows: list[dict[str, Any]] = []
    plain = dict(list(children[children["arm"] == reference].groupby(_STRATUM)["down"]))
    for arm, group in children.groupby("arm", sort=False):
        row: dict[str, Any] = {
            "arm": arm,
            "parents": group["parent"].nunique(),
            "draws": len(group),
            "down": int(group["down"].sum()),
            "success": float(group["success"].mean()),
            "saves": None,
            "low": None,
            "high": None,
            "p": None,
        }
        pairs = [(own, plain[place]) for place, own in group.groupby(_STRATUM)["down"] if place in plain]
        strata = [(int(own.sum()), len(own), int(base.sum()), len(base)) for own, base in pairs]
        if arm != reference and strata:
            difference, low, high = mantel_haenszel(strata)
            row |= {
                "strata": strata,
                "saves": -difference,
                "low": -high,
                "high": -low,
                "p": permutation_p(strata),
            }
            row["plain_down"] = sum(plain_down for _, _, plain_down, _ in strata)
            row["plain_draws"] = sum(plain_draws for _, _, _, plain_draws in strata)
        rows.append(row)
    for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["holm"] = corrected
    return rows


def table(children: pd.DataFrame) -> pd.DataFrame:
    """Return the effects as text cells, with a mark a child: x is down, o is up."""
    rows = []
    saves = "{saves:+z.2f} [{low:+z.2f}, {high:+z.2f}]"
    for row in effects(children):
        own = children[children["arm"] == row["arm"]].sort_values(["parent", "draw"])
        families = [_marks(draws) for _, draws in own.groupby("parent")["down"]]
        rows.append(
            {
                "arm": row["arm"],
                "parents": row["parents"],
                "down": f"{row['down']}/{row['draws']}",
                "each draw": " ".join(families),
                "success": f"{row['success']:.2f}",
                "saves [95 %]": "" if row["saves"] is None else saves.format(**row),
                "p": "" if row["p"] is None else p_value(row["p"]),
                "Holm": "" if row["holm"] is None else p_value(row["holm"]),
            }
        )
    return pd.DataFrame(rows)


def _marks(draws: pd.Series) -> str:
    return "".join("x" if down else "o" for down in draws)


def sentence(children: pd.DataFrame) -> str:
    """Say which changes saved children that fall when nothing is changed, and what is undecided."""
    rows = {row["arm"]: row for row in effects(children)}
    plain = rows.pop(UNCHANGED, None)
    if plain is None:
        return "No child was left unchanged: nothing can be said."
    sentences = [f"Unchanged, {plain['down']} of {plain['draws']} fall."]
    if plain["down"] == 0:
        none = (
            "The fork no longer falls by itself, so no change can be seen to save it: fork nearer to the"
            " fall."
        )
        return " ".join([*sentences, none])
    decided = [row for row in rows.values() if row["holm"] is not None and row["holm"] < ALPHA]
    saving = [row for row in decided if row["saves"] > 0]
    harming = [row for row in decided if row["saves"] < 0]
    sentences += [f"{r['arm']} saves {r['draws'] - r['down']} of {r['draws']}." for r in saving]
    sentences += [f"With {r['arm']} more fall: {r['down']} of {r['draws']}." for r in harming]
    undecided = [
        f"{row['arm']} ({row['down']} of {row['draws']} fall)" for row in rows.values() if row not in decided
    ]
    if undecided:
        sentences.append(f"Undecided at this number of draws: {', '.join(undecided)}.")
    return " ".join(sentences)


def power(draws: int, comparisons: int, parents: int = 1) -> str:
    """Say what so many draws of each parent can show, of a change that saves all children."""
    least = permutation_p([(0, draws, draws, draws)] * parents)
    high = clopper_pearson(0, draws * parents)[1]
    whose = "one parent" if parents == 1 else f"each of {parents} parents"
    enough = "" if least * comparisons < ALPHA else " Take more draws, or fewer arms, to show anything."
    return (
        f"Power: with {draws} draws of {whose}, a change that saves all children that fall unchanged has "
        f"p = {p_value(least)} before Holm's correction for {comparisons} arms, and may still lose up to "
        f"{100 * high:.0f} % of them (95 %).{enough}"
    )

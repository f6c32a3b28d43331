"""The table of a grid: one row per arm, seeds as replicates, every figure with its interval and its n."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analysis.runs import runs
from workbench.spec import COLLAPSED, UNDECIDED

if TYPE_CHECKING:
    from workbench.store.reader import Reader

_NAMED = 8  # arms of a sentence


def summary(reader: Reader, experiment: str, run_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per arm: success at its peak and at the end, collapses, onset, clip fraction, gradient norm.

    `runs` counts the arm's runs, `n` those that finished: the figures are over those `n` seeds. `peak` and `final` are
    means over seeds with a 95 % Student-t interval (NULL for one seed), `peak_iqm` and `final_iqm` interquartile means
    with a 95 % bootstrap interval. `stopped` counts finished runs with fewer steps than planned, whose final success is
    that of where they ended; `steps_min`, `steps_max` and `planned` are their steps. `collapsed` of `judged` has a 95 %
    Clopper-Pearson interval of the incidence: it counts runs that diverged or recovered as well; `judged` leaves out
    runs that are too short for the collapse rule or were falling at their end. `recovered`, `falling`, `mild` and
    `no_learning` count those outcomes; `onset` is the median step of the collapses. `clip_frac` and `grad_norm_median`
    are means over seeds of each run's own, `grad_norm_max` is the largest of all updates.
    """
    return summarise(runs(reader, experiment, run_ids))


def summarise(frame: pd.DataFrame) -> pd.DataFrame:
    """The table of `summary` from one row per run; without columns of updates (`outcomes`) theirs are NULL."""
    return pd.DataFrame([_arm(str(arm), rows) for arm, rows in frame.groupby("arm", sort=False)])


def _arm(arm: str, rows: pd.DataFrame) -> dict[str, Any]:
    from workbench.analysis.statistics import clopper_pearson, interquartile_mean, interquartile_mean_interval

    over = rows[rows["status"] == "finished"]
    known = over[over["outcome"].notna()]
    judged = known[~known["outcome"].isin(UNDECIDED)]
    dead = judged[judged["outcome"].isin(COLLAPSED)]
    low, high = clopper_pearson(len(dead), len(judged)) if len(judged) else (None, None)
    peak, final = mean_interval(over["peak_success"]), mean_interval(over["final_success"])
    successes = {name: over[f"{name}_success"].dropna().to_list() for name in ("peak", "final")}
    iqm = {name: (interquartile_mean(v), *interquartile_mean_interval([v])) for name, v in successes.items()}
    stopped = over[over["steps"] < over["planned"]]
    updates = over.reindex(columns=["clip_frac", "grad_norm_median", "grad_norm_max"]).astype(float)
    return {
        "arm": arm,
        "algorithm": rows["algorithm"].iloc[0],
        "runs": len(rows),
        "n": len(over),
        "judged": len(judged),
        **{word: int((known["outcome"] == word).sum()) for word in ("recovered", "falling", "mild", "no_learning")},
        "peak": peak[0], "peak_low": peak[1], "peak_high": peak[2],
        "final": final[0], "final_low": final[1], "final_high": final[2],
        "collapsed": len(dead) if len(judged) else None, "collapsed_low": low, "collapsed_high": high,
        "onset": _or_none(dead["collapse_step"].dropna().median()),
        "clip_frac": _or_none(updates["clip_frac"].mean()),
        "grad_norm_median": _or_none(updates["grad_norm_median"].mean()),
        "grad_norm_max": _or_none(updates["grad_norm_max"].max()),
        "peak_iqm": iqm["peak"][0], "peak_iqm_low": iqm["peak"][1], "peak_iqm_high": iqm["peak"][2],
        "final_iqm": iqm["final"][0], "final_iqm_low": iqm["final"][1], "final_iqm_high": iqm["final"][2],
        "stopped": len(stopped),
        "steps_min": _or_none(stopped["steps"].min()), "steps_max": _or_none(stopped["steps"].max()),
        "planned": _or_none(stopped["planned"].max()),
    }  # fmt: skip


def mean_interval(values: pd.Series, level: float = 0.95) -> tuple[float | None, float | None, float | None]:
    """Mean over seeds and its Student-t interval, cut to [0, 1] because it is a fraction; no interval for one seed."""
    from scipy.stats import t

    measured = [float(v) for v in values.dropna()]
    n = len(measured)
    if not n:
        return None, None, None
    mean = sum(measured) / n
    if n == 1:
        return mean, None, None
    error = math.sqrt(sum((v - mean) ** 2 for v in measured) / (n - 1) / n)
    half = float(t.ppf(0.5 + level / 2, n - 1)) * error
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def _or_none(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def answer(frame: pd.DataFrame) -> str:
    """Which arms collapsed and which stayed up, in plain words, with what so few seeds cannot rule out."""
    rows = frame.to_dict(orient="records")
    judged = [row for row in rows if row["judged"]]
    fell = sorted((row for row in judged if row["collapsed"]), key=lambda r: r["collapsed"] / r["judged"], reverse=True)
    # A run that never rose cannot fall: it is no evidence of stability.
    stood = [row for row in judged if not row["collapsed"] and row["no_learning"] < row["judged"]]
    sentences = []
    if fell:
        each = [f"{row['arm']} in {int(row['collapsed'])} of {row['judged']}{_onset(row)}" for row in fell]
        sentences.append(f"Collapsed{_few(each, '; ')}.")
        if stood:
            sentences.append(f"Did not collapse{_few([str(row['arm']) for row in stood])}.")
    elif stood:
        sentences.append(f"No arm collapsed ({sum(row['judged'] for row in stood)} runs).")
    elif not judged:
        sentences.append("No run can be judged yet, so there is nothing to conclude.")
    if stood:
        fewest = min(stood, key=lambda row: row["judged"])
        seeds = "one seed" if fewest["judged"] == 1 else f"{fewest['judged']} seeds"
        sentences.append(
            f"With {seeds}, an arm that never collapsed may still do so in up to {_percent(fewest['collapsed_high'])} "
            "of runs (95 % Clopper-Pearson)."
        )
    if falling := [f"{row['arm']} {row['falling']} of {row['n']}{_worst(row)}" for row in rows if row["falling"]]:
        sentences.append(
            f"Down at the end, too late for the collapse rule, and left out of these counts{_few(falling)}."
        )
    if never := [f"{row['arm']} in {row['no_learning']} of {row['judged']}" for row in rows if row["no_learning"]]:
        sentences.append(f"Did not rise above their start, which is not stability{_few(never)}.")
    if mild := [f"{row['arm']} in {row['mild']} of {row['judged']}" for row in rows if row["mild"]]:
        sentences.append(f"Lost some success without collapsing{_few(mild)}.")
    if missing := [f"{row['arm']} {row['n']} of {row['runs']}" for row in rows if row["n"] < row["runs"]]:
        sentences.append(f"Not all runs are finished{_few(missing)}.")
    short = [f"{row['arm']} {n}" for row in rows if (n := row["n"] - row["judged"] - row["falling"])]
    if short:
        sentences.append(f"Finished, but too short for the collapse rule{_few(short)}.")
    if stopped := [f"{row['arm']} {row['stopped']} of {row['n']} ({_stop(row)})" for row in rows if row["stopped"]]:
        sentences.append(
            f"Ended early, so that their final success is that of the step they ended at{_few(stopped, '; ')}. "
            "How soon arms collapse is then told by the time to collapse, not by how many did."
        )
    return " ".join(sentences)


def _few(arms: Sequence[str], comma: str = ", ") -> str:
    """`: a, b`; of more arms than fit a sentence how many, and the first of them: the table has the others."""
    if len(arms) <= _NAMED:
        return f": {comma.join(arms)}"
    return f" ({len(arms)} arms): {comma.join(arms[:_NAMED])}{comma}and {len(arms) - _NAMED} more"


def _stop(row: dict[Hashable, Any]) -> str:
    first, last, planned = (int(row[name]) for name in ("steps_min", "steps_max", "planned"))
    return f"after {first if first == last else f'{first} to {last}'} of {planned} steps"


def _onset(row: Mapping[Hashable, Any]) -> str:
    onset, back = row["onset"], row["recovered"]
    said = [] if onset is None or pd.isna(onset) else [f"onset near step {onset:.0f}"]
    said += [f"{back} came back"] if back else []
    return f" ({', '.join(said)})" if said else ""


def _worst(row: Mapping[Hashable, Any]) -> str:
    """What the incidence would be if the falling runs had collapsed."""
    return f" (with them {int(row['collapsed'] or 0) + row['falling']} of {row['judged'] + row['falling']} collapsed)"


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """The summary as text cells: `0.72 [0.65, 0.79]`, `2/3 [9 %, 99 %]`; a dash where nothing was measured."""
    return pd.DataFrame(
        [
            {
                "arm": row["arm"],
                "seeds": str(row["n"]) if row["n"] == row["runs"] else f"{row['n']} of {row['runs']}",
                "peak success": _interval(row["peak"], row["peak_low"], row["peak_high"]),
                "final success": _interval(row["final"], row["final_low"], row["final_high"]),
                "final success, IQM": _interval(row["final_iqm"], row["final_iqm_low"], row["final_iqm_high"]),
                "collapsed": _incidence(row["collapsed"], row["judged"], row["collapsed_low"], row["collapsed_high"]),
                "recovered / falling": f"{row['recovered']} / {row['falling']}",
                "onset step": _number(row["onset"], 0),
                "clip fraction": _number(row["clip_frac"], 3),
                "grad norm median": _number(row["grad_norm_median"], 2),
                "grad norm max": _number(row["grad_norm_max"], 1),
            }
            for row in frame.to_dict(orient="records")
        ]
    )


def _interval(mean: Any, low: Any, high: Any) -> str:
    if mean is None or pd.isna(mean):
        return "-"
    return f"{mean:.2f}" if low is None or pd.isna(low) else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _incidence(count: Any, n: int, low: Any, high: Any) -> str:
    return f"{int(count)}/{n} [{_percent(low)}, {_percent(high)}]" if n else "-"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _number(value: Any, digits: int) -> str:
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"

"""Which correction survives which staleness: each method against token PPO of the same seed and staleness.

`python -m studies.staleness --from experiments/results/staleness/counted.parquet` counts the export of
`sorl report staleness --export FILE.parquet`.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import scipy.stats

from sorl.analysis.stats import Estimate, holm, mean_interval, p_value
from sorl.spec import COLLAPSED, InputError
from sorl.spec.markdown import markdown_table
from studies import Share, stored

EXPORTED = ("arm", "algorithm", "seed", "status", "config", "success", "outcome", "collapse_step")
REFERENCE = "ppo"
LAST = 10  # steps whose mean success is the end
ALPHA = 0.05
POWER = 0.8
MOST_SEEDS = 1000  # a difference that needs more is called none
HEADER = (
    "method",
    "runs",
    "collapsed",
    "collapse-free steps",
    "against ppo",
    "p (Holm)",
    "success at the end",
    "against ppo",
    "p (Holm)",
    "seeds to decide",
)


@dataclass(frozen=True)
class CountedRun:
    """One finished run: how long it stayed up, and how it ended."""

    method: str
    staleness: int
    seed: int
    has_collapsed: bool
    steps_up: int  # to the onset of the collapse, or to the end
    success_at_end: float


class Contrast(NamedTuple):
    """What a method has more than token PPO, by seed: its mean with a t interval, and the seeds it takes."""

    estimate: Estimate
    seeds_to_decide: int | None  # None: more than MOST_SEEDS


def read_runs(file: Path) -> list[CountedRun]:
    """Return the finished runs of an export. Raises InputError for any other file."""
    return [
        _counted(row) for row in stored(file, EXPORTED, "exported results") if row["status"] == "finished"
    ]


def _counted(row: Mapping[str, Any]) -> CountedRun:
    success = pd.Series(row["success"], dtype=float).dropna()
    has_collapsed = row["outcome"] in COLLAPSED
    return CountedRun(
        method=str(row["algorithm"]),
        staleness=int(json.loads(row["config"])["learn"]["staleness"]),
        seed=int(row["seed"]),
        has_collapsed=has_collapsed,
        steps_up=int(row["collapse_step"]) if has_collapsed else len(success),
        success_at_end=float(success.iloc[-LAST:].mean()),
    )


def seeds_to_decide(differences: Sequence[float], comparisons: int) -> int | None:
    """Return the seeds with which a paired t-test finds the mean difference that was seen, with 80 % power at
    alpha .05 over so many comparisons (Bonferroni); None where it would take more than MOST_SEEDS.
    """
    mean = sum(differences) / len(differences)
    spread = float(pd.Series(differences).std(ddof=1))
    if spread == 0.0:
        return 2 if mean else None
    alpha = ALPHA / comparisons
    for seeds in range(3, MOST_SEEDS + 1):
        noncentrality = abs(mean) / spread * math.sqrt(seeds)
        critical = float(scipy.stats.t.ppf(1 - alpha / 2, seeds - 1))
        if float(scipy.stats.nct.sf(critical, seeds - 1, noncentrality)) >= POWER:
            return seeds
    return None


def contrast(
    runs: Mapping[int, CountedRun], reference: Mapping[int, CountedRun], column: str, comparisons: int
) -> Contrast | None:
    """Return a method against token PPO of the same seeds; None with fewer than two in common."""
    seeds = sorted(runs.keys() & reference.keys())
    if len(seeds) < 2:
        return None
    differences = [float(getattr(runs[seed], column) - getattr(reference[seed], column)) for seed in seeds]
    return Contrast(mean_interval(differences), seeds_to_decide(differences, comparisons))


class Compared(NamedTuple):
    """A contrast with its p-value over all methods, or neither."""

    contrast: Contrast | None
    p: float | None  # by Holm


def count_methods(runs: Sequence[CountedRun], staleness: int) -> str:
    """Return Markdown: one row per method at one staleness. Raises InputError without token PPO."""
    by_method: dict[str, dict[int, CountedRun]] = {}
    for run in runs:
        if run.staleness == staleness:
            by_method.setdefault(run.method, {})[run.seed] = run
    if REFERENCE not in by_method:
        raise InputError(f"there is no finished run of '{REFERENCE}' at staleness {staleness}")
    steps = _compare(by_method, "steps_up")
    ends = _compare(by_method, "success_at_end")
    rows = []
    for method, own in by_method.items():
        each = list(own.values())
        collapses = Share(sum(run.has_collapsed for run in each), len(each))
        rows.append(
            [
                method,
                len(each),
                collapses,
                f"{_mean(each, 'steps_up'):.1f}",
                *_cells(steps.get(method), ".1f"),
                f"{_mean(each, 'success_at_end'):.2f}",
                *_cells(ends.get(method), ".2f"),
                _seeds_in_words(steps.get(method)),
            ]
        )
    return markdown_table(HEADER, rows)


def _compare(by_method: Mapping[str, Mapping[int, CountedRun]], column: str) -> dict[str, Compared]:
    """Return every other method against token PPO by one column."""
    others = [method for method in by_method if method != REFERENCE]
    reference = by_method[REFERENCE]
    contrasts = [contrast(by_method[method], reference, column, len(others)) for method in others]
    corrected = holm([None if one is None else one.estimate.p for one in contrasts])
    compared = map(Compared, contrasts, corrected)
    return dict(zip(others, compared, strict=True))


def _mean(runs: Sequence[CountedRun], column: str) -> float:
    return sum(float(getattr(run, column)) for run in runs) / len(runs)


def _cells(compared: Compared | None, form: str) -> list[str]:
    """Return difference and p-value; empty for token PPO itself, a dash where there are too few seeds."""
    if compared is None:
        return ["", ""]
    if compared.contrast is None or compared.contrast.estimate.value is None:
        return ["-", "-"]
    value, low, high, _ = compared.contrast.estimate
    words = f"{value:+{form}}"
    if low is not None and high is not None:
        words += f" [{low:{form}}, {high:{form}}]"
    return [words, p_value(compared.p)]


def _seeds_in_words(compared: Compared | None) -> str:
    if compared is None:
        return ""
    if compared.contrast is None:
        return "-"
    seeds = compared.contrast.seeds_to_decide
    return f"over {MOST_SEEDS:,}" if seeds is None else str(seeds)


def count_all(runs: Sequence[CountedRun]) -> str:
    """Return Markdown: a table for each staleness."""
    parts = []
    for staleness in sorted({run.staleness for run in runs}):
        parts += [f"**Staleness {staleness}**", count_methods(runs, staleness)]
    return "\n\n".join(parts)


def main() -> None:
    """Count from the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="exported", type=Path, metavar="FILE.parquet", required=True)
    asked = parser.parse_args()
    try:
        print(count_all(read_runs(asked.exported)))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

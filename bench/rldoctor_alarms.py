"""What rldoctor says of the runs of a corpus: `python bench/rldoctor_alarms.py CORPUS.parquet OUT.parquet`.

Needs the packages of constraints-rldoctor.txt in an environment of their own (`make bench-rldoctor` makes
one). It gets of each run what it can read of ours, under names that it knows, and is asked three times: with
the whole log, with the log up to the step at which our rule calls a collapse, and after every step, as beside
a run.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rl_doctor import Severity, diagnose, run_from_records

# Ours -> a name that it maps; the first that was logged of each.
NAMES = {
    "reward": ("reward", "success"),
    "entropy": ("entropy",),
    "actor/ppo_kl": ("approx_kl",),
    "grad_norm": ("grad_norm_mean", "grad_norm_max"),
    "actor/pg_clipfrac": ("clip_frac",),
    "response_length/mean": ("response_tokens",),
    "response_length/clip_ratio": ("truncated_frac",),
    "frac_reward_zero_std": ("zero_advantage_frac",),
    "reward_std": ("group_reward_std",),
    "critic/advantages/std": ("advantage_std",),
    "critic/vf_explained_var": ("explained_variance",),
}
FIRST = 8  # steps, before which nothing is asked: every check of it skips


def records(row: dict[str, Any]) -> list[dict[str, float]]:
    """The log of a run, one dict a step."""
    logged = {theirs: next((row[o] for o in ours if row.get(o)), None) for theirs, ours in NAMES.items()}
    found = []
    for i, step in enumerate(row["step"]):
        values = {
            name: series[i] for name, series in logged.items() if series is not None and series[i] is not None
        }
        found.append({"step": step, **values})
    return found


def worst(rows: list[dict[str, float]], config: dict[str, Any]) -> tuple[Severity, list[str]]:
    """The worst severity, and the detectors that warn."""
    done = diagnose(run_from_records(rows, config=config))
    return done.worst, [f.detector for f in done.findings if f.severity >= Severity.WARNING]


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """All that is recorded of a run."""
    group = row["algorithm"] in ("grpo", "so-grpo")
    config = {"algorithm": "grpo" if group else "ppo", "learning_rate": row["lr"]}
    log = records(row)
    whole, named = worst(log, config)
    until = [r for r in log if row["detection"] is None or r["step"] <= row["detection"]]
    ended = worst(until, config)[0] if len(until) >= FIRST else Severity.OK
    first: dict[Severity, int | None] = {Severity.WARNING: None, Severity.CRITICAL: None}
    for i in range(FIRST, len(log) + 1):
        now = worst(log[:i], config)[0]
        for severity, step in first.items():
            if step is None and now >= severity:
                first[severity] = int(log[i - 1]["step"])
        if None not in first.values():
            break
    return {
        "run_id": row["run_id"],
        "whole": whole.name,
        "until_detection": ended.name,
        "detectors": named,
        "first_warning": first[Severity.WARNING],
        "first_critical": first[Severity.CRITICAL],
    }


def main(corpus: str, out: str) -> None:
    """Judge every run of the corpus and write one row each."""
    rows = [judged(row) for row in pq.read_table(corpus).to_pylist()]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"rldoctor": version("rldoctor")})
    pq.write_table(table, out, compression="zstd")
    print(f"{out}: {len(rows)} runs, rldoctor {version('rldoctor')}")


if __name__ == "__main__":
    main(*sys.argv[1:])

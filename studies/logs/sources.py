"""The logs: those of the corpus of real ones, and generated ones."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sorl.diagnosis.log import Log
from studies.logs.answer import Expected
from studies.logs.files import FORMATS, NAMINGS, Named
from studies.logs.truths import Run, all_runs
from studies.real_logs import CORPUS
from studies.scalar_logs import trainers

Row = dict[str, float]

# What a judge calls a cause -> our names for it; any other is called as ours.
JUDGED_CAUSES = {
    "gradient_spikes": ("grad_spikes",),
    "length_growth": ("length_hacking", "length_ceiling"),
    "mismatch": ("mismatch_grows",),
}
NO_CAUSE = "none_visible"
NAMINGS_OF_A_FORMAT = (0, 2)  # offsets in NAMINGS: of five namings two, others for the next run
# Names of TRL -> our columns: what rldoctor is told of a real log.
TOLD = {
    "reward": "step.reward",
    "reward_std": "step.reward_std",
    "frac_reward_zero_std": "step.zero_advantage_frac",
    "entropy": "step.entropy",
    "kl": "step.kl_ref",
    "clip_ratio/region_mean": "step.clip_frac",
    "grad_norm": "minibatch.grad_norm",
    "completions/mean_length": "step.response_tokens",
    "completions/clipped_ratio": "step.truncated_frac",
}


@dataclass(frozen=True)
class Source:
    """A log in a file; `rows` are what rldoctor is told of it, None: what our reader finds."""

    expected: Expected
    path: Path
    rows: list[Row] | None


def real_sources(folder: Path) -> Iterator[Source]:
    """Write the logs of the corpus into files, one after the other."""
    for row in pq.read_table(CORPUS).to_pylist():
        path = folder / row["name"] / row["file"]
        path.parent.mkdir(parents=True)
        path.write_bytes(row["content"])
        yield Source(expected_of_judges(row), path, None)


def expected_of_judges(row: Mapping[str, Any]) -> Expected:
    """What either judge accepts of a log of the corpus."""
    labels = [json.loads(row[name]) for name in ("first_label", "second_label")]
    outcomes: set[str] = set()
    causes: set[str] = set()
    for label in labels:
        outcomes |= set(label["outcomes"])
        causes |= set(label["causes"])
    ours: set[str] = set()
    for cause in causes - {NO_CAUSE}:
        ours |= set(JUDGED_CAUSES.get(cause, (cause,)))
    return Expected(
        log=row["name"],
        part="real",
        split=row["split"],
        format=row["format"],
        naming=row["trainer"],
        truth="",
        noise="",
        rows=int(row["rows"]),
        outcomes=tuple(sorted(outcomes)),
        causes=tuple(sorted(ours)),
        is_healthy=all(label["healthy"] for label in labels),
        is_faulty=NO_CAUSE not in causes,
    )


def generated_sources(folder: Path, runs: Sequence[Run] | None = None) -> Iterator[Source]:
    """Write every run in every format, each under the names of two trainers in turn."""
    for index, run in enumerate(list(all_runs()) if runs is None else runs):
        for format_index, format_name in enumerate(FORMATS):
            for offset in NAMINGS_OF_A_FORMAT:
                naming = list(NAMINGS)[(index + format_index + offset) % len(NAMINGS)]
                yield generated_source(folder, run, format_name, naming)


def generated_source(folder: Path, run: Run, format_name: str, naming: str) -> Source:
    """Write a run as a file. Noise is drawn for each; a simulated fault is the same run in all formats."""
    name = f"{run.truth.name} {run.noise} {run.length} {format_name} {naming}"
    title = hashlib.sha256(name.encode()).hexdigest()[:10]
    drawn_by = f"{run.truth.name} {naming}" if run.truth.variant else name
    number = zlib.crc32(drawn_by.encode())  # the same on every machine
    rows = run.rows(number)
    path = FORMATS[format_name].write(Named.under(naming, rows), folder / title)
    expected = Expected(
        log=title,
        part="generated",
        split="",
        format=format_name,
        naming=naming,
        truth=run.truth.name,
        noise=run.noise,
        rows=len({row["step"] for row in rows}),
        outcomes=run.truth.outcomes,
        causes=run.truth.causes,
        is_healthy=run.truth.is_healthy,
        is_faulty=bool(run.truth.causes),
    )
    return Source(expected, path, [under_names_of_trl(row) for row in rows])


def under_names_of_trl(row: Row) -> Row:
    """A row as rldoctor gets it."""
    return {trainers.NAMES["trl"][metric]: value for metric, value in row.items()}


def rows_of(log: Log) -> list[Row]:
    """What our reader found in a log, under the names of TRL; rldoctor knows these."""
    rows: dict[int, Row] = {}
    for name, place in TOLD.items():
        series = log.series(*place.split(".", 1))
        for step, value in zip(series.index.tolist(), series.tolist(), strict=True):
            rows.setdefault(step, {"step": step})[name] = value
    return [rows[step] for step in sorted(rows)]

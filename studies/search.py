"""`sorl bench search`: what the adaptive search would have run of a full grid, and where it puts the
boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sorl.spec import InputError

if TYPE_CHECKING:
    import pandas as pd

    from sorl.analysis.region import Landscape
    from sorl.analysis.results import Results


def main(runs: Path, experiments: Sequence[str], files: Sequence[Path]) -> str:
    """Return the table of each full grid."""
    from sorl.cli.report import gather

    found = gather(runs, experiments, files)
    if not found:
        raise InputError(
            'name a region with search = "full", or its results: `sorl bench search --from FILE.parquet`'
        )
    return "\n\n".join(page(one) for one in found)


def page(found: Results) -> str:
    """Markdown: one row per column of a full grid, all its runs against those that the search would have
    asked for.

    Raises InputError for an experiment that is no region, or of which some of the full grid is missing.
    """
    from sorl.analysis.region import by_column, from_runs, region_of
    from sorl.analysis.region_words import edge

    file = region_of(found.toml)
    if file is None:
        raise InputError(f"'{found.experiment}' is no experiment of kind region")
    # as the search counts
    full = from_runs(found.runs.assign(started_at=None), file, found.experiment).with_fading()
    asked = replace(full, runs=_asked(full, found.experiment))
    search = {(r["series"], r["slice"], r["y"]): r for r in by_column(asked).to_dict(orient="records")}
    lines = [
        (
            f"| {found.experiment} | runs: full grid | search | boundary: full grid | search | apart,"
            " doublings |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in by_column(full).to_dict(orient="records"):
        part = search[row["series"], row["slice"], row["y"]]
        condition = f"{full.across} {row['y']:g}" if full.across else ""
        name = ", ".join(text for text in (row["series"], row["slice"], condition) if text)
        share = _share(part["runs"], row["runs"])
        apart = math.log2(part["boundary"] / row["boundary"])
        lines.append(f"| {name} | {row['runs']} | {share} | {edge(row)} | {edge(part)} | {apart:+z.2f} |")
    lines.append(f"| all | {len(full.runs)} | {_share(len(asked.runs), len(full.runs))} | | | |")
    return "\n".join(lines)


def _asked(full: Landscape, experiment: str) -> pd.DataFrame:
    """The runs of a full grid that the adaptive search would have asked for, given their outcomes."""
    import pandas as pd

    from sorl.grid.search import Rule, Trial, search

    lattice = full.settings.lattice
    rule = Rule(len(lattice), full.planned, full.settings.probes)
    parts = []
    for (series, _), runs in full.parts.items():
        conditions = sorted(runs["y"].unique())
        seeds = sorted(runs["seed"].unique())
        where = zip(runs["y"], runs["x"], runs["seed"], strict=True)
        trials = [Trial(0, conditions.index(y), lattice.index(x), seeds.index(seed)) for y, x, seed in where]
        _refuse_gaps(len(set(trials)), len(conditions) * len(lattice) * full.planned, experiment, series)
        truth = dict(zip(trials, runs["collapsed"], strict=True))
        neighbours = [None if i == 0 else i - 1 for i in range(len(conditions))]
        done = set(search(1, neighbours, rule, truth.get).done)
        parts.append(runs[[trial in done for trial in trials]])
    return pd.concat(parts, ignore_index=True)


def _refuse_gaps(there: int, everything: int, experiment: str, series: str) -> None:
    if there < everything:
        raise InputError(
            f"of the full grid of '{series}' in '{experiment}' {there} of {everything} runs can be judged; "
            'set search = "full" in its [region] and `sorl run` it to the end'
        )


def _share(part: int, whole: int) -> str:
    return f"{part} = {100 * part / whole:.0f} %"

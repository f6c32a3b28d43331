"""What the shipped results say of each algorithm, in a line; `make docs` writes it to algorithms/measured.toml.

The page of algorithms, the glossary and `sorl algorithms` show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from workbench.analysis.results import Results
    from workbench.spec import GridFile

SHIPPED = Path(__file__).parents[1] / "experiments" / "results"
_FIRST = ("six_by_five", "region_sgd")  # the others by name


def measured(folder: Path = SHIPPED) -> dict[str, str]:
    """Algorithm -> what each results file of the folder that tried it found: runs, seeds, 95 % interval."""
    from workbench.analysis.region import region_of
    from workbench.analysis.results import read

    files = sorted(folder.glob("*.parquet"), key=lambda f: (f.stem not in _FIRST, _rank(f.stem), f.stem))
    told: dict[str, list[str]] = defaultdict(list)
    for file in files:
        found = read(file)
        region = region_of(found.toml)
        lines = _of_grid(found) if region is None else _of_region(found, region)
        for algorithm, line in lines:
            told[algorithm].append(f"`{found.experiment}`{line}")
    return {algorithm: "; ".join(lines) for algorithm, lines in told.items()}


def _rank(stem: str) -> int:
    return _FIRST.index(stem) if stem in _FIRST else len(_FIRST)


def _of_grid(found: Results) -> Iterable[tuple[str, str]]:
    """(algorithm, line) of each arm that is an algorithm as declared, or with the options that the line names."""
    from workbench.analysis.stats import clopper_pearson
    from workbench.spec import COLLAPSED

    runs = _judged(found.runs)
    for arm, mine in runs.groupby("arm", sort=False):
        name, said = _named(str(arm))
        if name is None:
            continue
        n, fell = len(mine), int(mine["outcome"].isin(COLLAPSED).sum())
        low, high = clopper_pearson(fell, n)
        where = f" ({said})" if said else ""
        yield name, f"{where}: {fell} of {n} runs collapsed, {_seeds(mine)}, [{100 * low:.0f}, {100 * high:.0f}] %"


def _of_region(found: Results, file: GridFile) -> Iterable[tuple[str, str]]:
    """(algorithm, line) of each series that is an algorithm as declared: where half of its runs collapse."""
    from workbench.analysis.region import by_column, edge, from_runs

    runs = _judged(found.runs)
    if runs.empty:
        return
    landscape = from_runs(runs.assign(started_at=None), file, found.experiment)
    columns = by_column(landscape)
    for series, piece in landscape.parts:
        mine = columns[(columns["series"] == series) & (columns["slice"] == piece)]
        name, said = _named(series)
        if name is None:
            continue
        runs = landscape.part(series, piece)
        across = landscape.across.rsplit(".", 1)[-1] if landscape.across else ""
        edges = [
            f"{edge(row)} at {across} {row['y']:g}" if across else edge(row) for row in mine.to_dict(orient="records")
        ]
        also = ", ".join(part for part in (said, piece) if part)
        where = f" ({also})" if also else ""
        basis = f"{len(runs)} runs, {_seeds(runs)}"
        yield name, f"{where}: half collapse at {landscape.settings.along} {', '.join(edges)} ({basis})"


def _judged(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with a verdict whose slots are those that their configuration stands for today."""
    import pandas as pd

    from workbench.cli.report import slots

    runs = runs[(runs["status"] == "finished") & runs["outcome"].notna() & runs["config"].notna()]
    today = [slots(str(config)) == told for config, told in zip(runs["config"], runs["slots"], strict=True)]
    return runs[pd.Series(today, runs.index, dtype=bool)]


def _named(arm: str) -> tuple[str | None, str]:
    """The algorithm that an arm of the axes is named by, and what else its name says; None for a named control."""
    from workbench.algorithms import ALGORITHMS

    first, *points = arm.split(" · ")
    name, _, options = first.partition(" (")
    said = [part for part in (options.removesuffix(")"), *points) if part]
    return (name if name in ALGORITHMS else None), ", ".join(said)


def _seeds(runs: pd.DataFrame) -> str:
    seeds: Sequence[int] = sorted({int(seed) for seed in runs["seed"]})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"seeds {seeds[0]} to {seeds[-1]}" if whole else f"seeds {', '.join(map(str, seeds))}"

"""One line per algorithm of what the shipped results say; `make docs` writes them to
algorithms/measured.toml.

The page of algorithms, the glossary and `sorl algorithms` show them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from sorl.analysis.results import Results
    from sorl.spec import GridFile

SHIPPED = Path(__file__).parents[2] / "experiments" / "results"
_FIRST = ("six_by_five", "region_sgd")  # the others by name


def measured(folder: Path = SHIPPED) -> dict[str, str]:
    """Return, for each algorithm, what each results file that tried it found: runs, seeds, 95 % interval."""
    from sorl.analysis.region import region_of
    from sorl.analysis.results import read

    files = sorted(folder.glob("*.parquet"), key=lambda f: (f.stem not in _FIRST, _rank(f.stem), f.stem))
    found_in: dict[str, list[str]] = defaultdict(list)
    for file in files:
        found = read(file)
        region = region_of(found.toml)
        lines = _of_grid(found) if region is None else _of_region(found, region)
        for algorithm, line in lines:
            found_in[algorithm].append(f"`{found.experiment}`{line}")
    return {algorithm: "; ".join(lines) for algorithm, lines in found_in.items()}


def _rank(stem: str) -> int:
    return _FIRST.index(stem) if stem in _FIRST else len(_FIRST)


def _of_grid(found: Results) -> Iterable[tuple[str, str]]:
    """Yield (algorithm, line) of each arm that is an algorithm as declared, or with options that the line
    names.
    """
    from sorl.analysis.stats import clopper_pearson
    from sorl.spec import COLLAPSED

    runs = _judged(found.runs)
    for arm, mine in runs.groupby("arm", sort=False):
        name, options = _named(str(arm))
        if name is None:
            continue
        n = len(mine)
        collapsed = int(mine["outcome"].isin(COLLAPSED).sum())
        low, high = clopper_pearson(collapsed, n)
        where = f" ({options})" if options else ""
        yield (
            name,
            (
                f"{where}: {collapsed} of {n} runs collapsed, {_seeds(mine)}, [{100 * low:.0f},"
                f" {100 * high:.0f}] %"
            ),
        )


def _of_region(found: Results, file: GridFile) -> Iterable[tuple[str, str]]:
    """Yield (algorithm, line) of each series that is an algorithm as declared: where half of its runs
    collapse.
    """
    from sorl.analysis.region import by_column, from_runs
    from sorl.analysis.region_words import edge

    runs = _judged(found.runs)
    if runs.empty:
        return
    landscape = from_runs(runs.assign(started_at=None), file, found.experiment)
    columns = by_column(landscape)
    for (series, piece), runs in landscape.parts.items():
        mine = columns[(columns["series"] == series) & (columns["slice"] == piece)]
        name, options = _named(series)
        if name is None:
            continue
        across = landscape.across.rsplit(".", 1)[-1] if landscape.across else ""
        edges = [
            f"{edge(row)} at {across} {row['y']:g}" if across else edge(row)
            for row in mine.to_dict(orient="records")
        ]
        also = ", ".join(part for part in (options, piece) if part)
        where = f" ({also})" if also else ""
        basis = f"{len(runs)} runs, {_seeds(runs)}"
        yield name, f"{where}: half collapse at {landscape.settings.along} {', '.join(edges)} ({basis})"


def _judged(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a verdict whose configuration still resolves to the same slots; one that was
    falling at its end has none, as in `sorl compare`.
    """
    import pandas as pd

    from sorl.cli.report import slots
    from sorl.spec import UNDECIDED

    judged = runs["outcome"].notna() & ~runs["outcome"].isin(UNDECIDED)
    runs = runs[(runs["status"] == "finished") & judged & runs["config"].notna()]
    same = [
        slots(str(config)) == stored for config, stored in zip(runs["config"], runs["slots"], strict=True)
    ]
    return runs[pd.Series(same, runs.index, dtype=bool)]


def _named(arm: str) -> tuple[str | None, str]:
    """Return the algorithm in the name of an arm and the rest of the name; None as the algorithm of a
    control.
    """
    from sorl.algorithms import ALGORITHMS

    first, *points = arm.split(" · ")
    name, _, options = first.partition(" (")
    rest = [part for part in (options.removesuffix(")"), *points) if part]
    return (name if name in ALGORITHMS else None), ", ".join(rest)


def _seeds(runs: pd.DataFrame) -> str:
    seeds: Sequence[int] = sorted({int(seed) for seed in runs["seed"]})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"seeds {seeds[0]} to {seeds[-1]}" if whole else f"seeds {', '.join(map(str, seeds))}"

"""How often `sorl diff` says that a run of the same settings leaves the band, and that a collapsed one does.

`python -m studies.difference_bands` counts on the shipped corpus of the early-warning study: of each
configuration with healthy seeds, some are the good runs and another one is compared with them; of each
algorithm, collapsed runs are compared with healthy ones of another configuration. The constants of
`workbench/difference/curves.py` were chosen on this corpus, so these counts are no test of them
(docs/diff.md).
"""

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sorl.collapse.band import Band
from sorl.difference.curves import parting

CORPUS = Path(__file__).parents[1] / "experiments" / "results" / "early_warning" / "corpus.parquet"
CONFIGURATION = ["experiment", "algorithm", "optimizer", "staleness", "lr", "max_grad_norm", "fresh"]
NOT_MEASURED = {*CONFIGURATION, "run_id", "outcome", "seed", "onset", "detection", "step"}
COLLAPSED_OF_EACH = 3
GOOD_RUNS = (1, 2, 3, 4)

Row = Mapping[Hashable, Any]


class Pair(NamedTuple):
    """Good runs and the one that is compared with them."""

    good: Sequence[Row]
    other: Row


def is_apart(pair: Pair) -> bool:
    """Whether any column of the run leaves the band of the good ones."""
    columns = [str(name) for name in pair.other if name not in NOT_MEASURED]
    return any(_leaves(pair, column) for column in columns)


def _leaves(pair: Pair, column: str) -> bool:
    rows = [*pair.good, pair.other]
    if any(row[column] is None for row in rows):
        return False
    *good, other = (pd.Series(np.asarray(row[column], float), row["step"]) for row in rows)
    band = Band.of(column, good)
    return band is not None and parting(band, other) is not None


def same_settings(healthy: pd.DataFrame, count: int) -> Iterator[Pair]:
    """Yield disjoint groups of seeds of one configuration: `count` good ones and one more."""
    for _, group in _by_configuration(healthy):
        rows = group.to_dict("records")
        for first in range(0, len(rows) - count, count + 1):
            yield Pair(rows[first : first + count], rows[first + count])


def collapsed(corpus: pd.DataFrame, healthy: pd.DataFrame, count: int) -> Iterator[Pair]:
    """Yield some collapsed runs of each algorithm with healthy ones of one configuration."""
    fell = corpus[corpus["outcome"] == "collapsed"]
    for (experiment, algorithm), group in fell.groupby(["experiment", "algorithm"]):
        same = (healthy["experiment"] == experiment) & (healthy["algorithm"] == algorithm)
        enough = [rows for _, rows in _by_configuration(healthy[same]) if len(rows) >= count]
        if not enough:
            continue
        good = enough[0].to_dict("records")[:count]
        chosen = group.sample(min(COLLAPSED_OF_EACH, len(group)), random_state=0)
        for row in chosen.to_dict("records"):
            yield Pair(good, row)


def _by_configuration(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    names = frame[CONFIGURATION].astype(str).agg("|".join, axis=1)
    for name, rows in frame.groupby(names):
        yield str(name), rows


def main() -> None:
    """Print a row a number of good runs."""
    corpus = pd.read_parquet(CORPUS)
    healthy = corpus[corpus["outcome"] == "healthy"]
    sys.stdout.write(
        "| good runs | healthy runs that part | collapsed runs that part |\n| --- | --- | --- |\n"
    )
    for count in GOOD_RUNS:
        same = [is_apart(pair) for pair in same_settings(healthy, count)]
        fell = [is_apart(pair) for pair in collapsed(corpus, healthy, count)]
        row = f"| {count} | {sum(same)} of {len(same)} | {sum(fell)} of {len(fell)} |\n"
        sys.stdout.write(row)


if __name__ == "__main__":
    main()

"""Where the cells of a grid stand: an arm a row or an algorithm a row, seeds as columns, large grids in parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TALL = 12  # rows of a part of a grid: more than a screen shows
MOST = 300  # cells that are drawn at once
_ACROSS = 20  # cells in a row; an arm with more seeds goes on in the next row
_FEWEST = 5  # columns that a row has room for, so that two seeds are not stretched over a whole screen


def layout(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` (arm, algorithm, seed, in the order of the rows) with `row` and `column` of its cell, of `across` columns.

    Seeds are columns. Where every algorithm was run under every condition (what the arm says besides its algorithm),
    algorithms are rows and each condition is a block of columns named `block`; otherwise every arm is a row.
    """
    cells = runs.assign(condition=[condition(a, b) for a, b in zip(runs["arm"], runs["algorithm"], strict=True)])
    pairs = cells[["algorithm", "condition"]].drop_duplicates()
    algorithms, conditions = cells["algorithm"].unique(), cells["condition"].unique()
    seeds = sorted(cells["seed"].unique())
    width = len(seeds) * len(conditions)
    crossed = len(conditions) > 1 and len(pairs) == len(algorithms) * len(conditions) and width <= _ACROSS
    place = {seed: i for i, seed in enumerate(seeds)}
    if crossed and len(algorithms) > 1:
        block = {c: i for i, c in enumerate(conditions)}
        rows = {name: i for i, name in enumerate(algorithms)}
        return _wide(cells.assign(
            label=cells["algorithm"], block=cells["condition"], row=cells["algorithm"].map(rows),
            column=cells["seed"].map(place) + cells["condition"].map(block) * (len(seeds) + 0.35),
        ))  # fmt: skip
    deep = math.ceil(len(seeds) / _ACROSS)
    rows = {arm: i * deep for i, arm in enumerate(cells["arm"].unique())}
    return _wide(cells.assign(
        label=cells["arm"], block="", row=cells["arm"].map(rows) + cells["seed"].map(place) // _ACROSS,
        column=cells["seed"].map(place) % _ACROSS,
    ))  # fmt: skip


def _wide(cells: pd.DataFrame) -> pd.DataFrame:
    return cells.assign(across=max(float(cells["column"].max()) + 1, _FEWEST))


def parts(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`layout`'s cells by the rows they hold (`1-12`, `13-24`, ...), with rows from 0 and all of one width.

    One part of at most MOST cells; more are parts of TALL rows.
    """
    rows = int(cells["row"].max()) + 1
    if len(cells) <= MOST:
        return {f"1-{rows}": cells}
    return {
        f"{number * TALL + 1}-{min(rows, (number + 1) * TALL)}": part.assign(row=part["row"] % TALL)
        for number, part in cells.groupby(cells["row"] // TALL)
    }


def condition(arm: str, algorithm: str) -> str:
    """What an arm says besides its algorithm: `ppo · staleness 8` is `staleness 8`; empty for the algorithm alone."""
    return arm.removeprefix(algorithm).lstrip(" ·,") if arm.startswith(algorithm) else arm

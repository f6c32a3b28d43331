"""How often the verdict on curves of unknown noise is wrong, and what it finds.

`python bench/unsized_curves.py` prints two Markdown tables, next to the rule that live runs use. The first
counts curves that lose nothing and are called collapsed or recovered; the second counts falls that are called
so. `--bias` prints what the fit that rises, falls and rises does to the noise of AR(1) processes: the
corrections in `sorl.diagnostics.unsized`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from bench.collapse_rule import share, undated
from sorl.diagnostics.collapse import judge
from sorl.diagnostics.unsized import fit_up_down_up, judge_unsized
from sorl.spec.markdown import markdown_table

RUNS = 1000
LENGTHS = (60, 200, 700)  # steps
SEED = 2026
NOISE = 0.1  # standard deviation of a step, where the score is no share of rollouts
WARM_UP = 200  # steps of an AR(1) process before its first that counts
SEVERE = ("collapsed", "recovered")

Draw = Callable[[np.random.Generator, int], np.ndarray]


class Cell(NamedTuple):
    """A kind of curve."""

    name: str
    draw: Draw  # the scores of a run of so many steps


def autoregressive(rng: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    """Normal noise of deviation 1 in which a step is correlated with the one before."""
    fresh = np.sqrt(1 - correlation**2) * rng.standard_normal(steps + WARM_UP)
    noise = np.empty(steps + WARM_UP)
    noise[0] = fresh[0]
    for step in range(1, steps + WARM_UP):
        noise[step] = correlation * noise[step - 1] + fresh[step]
    return noise[WARM_UP:]


def plateau(steps: int, start: float = 0.3, end: float = 0.7) -> np.ndarray:
    """A level that rises in the first quarter and then stays."""
    return start + (end - start) * np.minimum(1, np.arange(steps) / (steps / 4))


def fallen(steps: int, share_lost: float) -> np.ndarray:
    """A plateau that loses a share of its gain in the middle."""
    level = plateau(steps)
    level[steps // 2 :] -= share_lost * 0.4
    return level


def rollouts(level: Callable[[int], np.ndarray], count: int) -> Draw:
    """Success as a share of so many rollouts; the verdict is not told how many."""

    def draw(rng: np.random.Generator, steps: int) -> np.ndarray:
        return rng.binomial(count, level(steps)) / count

    return draw


def correlated(level: Callable[[int], np.ndarray], correlation: float) -> Draw:
    """A level with AR(1) noise of deviation NOISE."""
    return lambda rng, steps: level(steps) + NOISE * autoregressive(rng, steps, correlation)


def heavy_tailed(level: Callable[[int], np.ndarray], deviation: float) -> Draw:
    """A level with noise of Student's t with three degrees of freedom."""
    return lambda rng, steps: level(steps) + deviation * rng.standard_t(3, steps) / np.sqrt(3)


def flat(level: float) -> Callable[[int], np.ndarray]:
    """A level that never changes."""
    return lambda steps: np.full(steps, level)


HEALTHY = (
    *(Cell(f"flat at .5, {count} rollouts", rollouts(flat(0.5), count)) for count in (3, 8, 64)),
    *(Cell(f"flat at .1, {count} rollouts", rollouts(flat(0.1), count)) for count in (3, 8, 64)),
    *(Cell(f"rises from .3 to .7, {count} rollouts", rollouts(plateau, count)) for count in (3, 8, 64)),
    Cell("flat at 0, independent noise", correlated(flat(0.0), 0.0)),
    Cell("flat at 0, AR(1) of .5", correlated(flat(0.0), 0.5)),
    Cell("flat at 0, AR(1) of .9", correlated(flat(0.0), 0.9)),
    Cell("flat at 0, t(3) noise", heavy_tailed(flat(0.0), NOISE)),
    Cell("rises from .3 to .7, independent noise", correlated(plateau, 0.0)),
    Cell("rises from .3 to .7, AR(1) of .5", correlated(plateau, 0.5)),
    Cell("rises from .3 to .7, AR(1) of .9", correlated(plateau, 0.9)),
    Cell("rises from .3 to .7, t(3) noise", heavy_tailed(plateau, NOISE)),
)


def falls() -> tuple[Cell, ...]:
    """Falls by half and by nine tenths of the gain, of 3, 8 and 64 rollouts a step."""
    cells = []
    for lost in (0.5, 0.9):
        for count in (3, 8, 64):
            name = f"loses {100 * lost:.0f} % of the gain, {count} rollouts"
            cells.append(Cell(name, rollouts(partial(fallen, share_lost=lost), count)))
    return tuple(cells)


def is_severe(scores: np.ndarray) -> bool:
    """Whether the verdict on a finished curve is a collapse."""
    return judge_unsized(scores.tolist(), range(len(scores))).outcome in SEVERE


def is_severe_live(scores: np.ndarray) -> bool:
    """Whether the rule of live runs calls a collapse, told as little."""
    with undated:
        return bool(judge(scores.tolist()).outcome in SEVERE)


def is_any_fall(scores: np.ndarray) -> bool:
    """Whether any fall is seen, a mild one too."""
    return judge_unsized(scores.tolist(), range(len(scores))).outcome in (*SEVERE, "mild")


def count_cell(
    cell: Cell, runs: int, rng: np.random.Generator, judges: list[Callable[..., bool]]
) -> list[str]:
    """One row of a table: the share of curves that each judge says yes to, at each length."""
    row = [cell.name]
    for steps in LENGTHS:
        curves = [cell.draw(rng, steps) for _ in range(runs)]
        row += [share(map(judged, curves)) for judged in judges]
    return row


def table(cells: tuple[Cell, ...], judges: dict[str, Callable[..., bool]], runs: int, seed: int) -> str:
    """A table with a row a cell and a column a length and judge."""
    streams = np.random.default_rng(seed).spawn(len(cells))
    rows = [
        count_cell(cell, runs, stream, list(judges.values()))
        for cell, stream in zip(cells, streams, strict=True)
    ]
    columns = ["curve"]
    for steps in LENGTHS:
        columns += [f"{steps} steps{name}" for name in judges]
    return markdown_table(columns, rows)


def bias_table(runs: int, seed: int) -> str:
    """What the fit does to the correlation and the deviation of AR(1) processes."""
    rng = np.random.default_rng(seed)
    rows = []
    for steps in (60, 200):
        for correlation in (0.0, 0.3, 0.5, 0.7, 0.9):
            raw = []
            kept = []
            for _ in range(runs):
                noise = autoregressive(rng, steps, correlation)
                left = noise - fit_up_down_up(noise)
                raw.append(float((left[1:] * left[:-1]).sum() / (left**2).sum()))
                kept.append(float(left.std()))
            rows.append([str(steps), f"{correlation:g}", f"{np.median(raw):.2f}", f"{np.mean(kept):.2f}"])
    return markdown_table(("steps", "correlation", "of the residuals", "deviation left of 1"), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="curves of each kind and length")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--bias", action="store_true", help="what the monotone fit does to the noise")
    options = parser.parse_args()
    if options.bias:
        print(bias_table(options.runs, options.seed))
    else:
        ours = {"": is_severe, ", live rule": is_severe_live}
        print(table(HEALTHY, ours, options.runs, options.seed))
        print()
        finds = {"": is_severe, ", any fall": is_any_fall, ", live rule": is_severe_live}
        print(table(falls(), finds, options.runs, options.seed))

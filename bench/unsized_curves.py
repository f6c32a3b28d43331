"""How often the verdict on curves of unknown noise is wrong, and what it finds.

`python bench/unsized_curves.py` prints five Markdown tables: curves that lose nothing and are called fallen,
falls that are called so, the interval of their first step, the same fall on other scales, and the verdict
step by step, as beside a run. `--output` keeps the counts, from which `sorl bench logs --from` renders the
tables again. `--bias` prints what the fit that rises, falls and rises does to the noise of AR(1) processes:
the corrections in `sorl.collapse.unsized`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.optimize import isotonic_regression

from bench.collapse_rule import undated
from sorl.analysis.stats import clopper_pearson
from sorl.collapse import unsized
from sorl.collapse.rule import Verdict, judge
from sorl.collapse.unsized import FEWEST, fit_up_down_up, judge_unsized
from sorl.spec.markdown import markdown_table

RUNS = 1000
LENGTHS = (60, 200, 700)  # steps
SEED = 2026
NOISE = 0.1  # standard deviation of a step, where the score is no share of rollouts
WARM_UP = 200  # steps of an AR(1) process before its first that counts
SEVERE = ("collapsed", "recovered")
CALLED = (*SEVERE, "falling")  # what a reader takes for a fall
FEW_RUNS = 100  # curves for the live rule, on other scales, and judged again and again as they grow
EVERY = {60: 3, 200: 10, 700: 35}  # steps between two verdicts on a growing curve that loses nothing
EVERY_AFTER_FALL = {60: 1, 200: 2, 700: 5}  # and on one that has fallen
SCALES = {  # zero and width
    "0 to 1": (0.0, 1.0),
    "-1 to 1": (-1.0, 2.0),
    "percent": (0.0, 100.0),
    "-2000 to -500": (-2000.0, 1500.0),
}

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


def falls(counts: Sequence[int] = (3, 8, 64)) -> tuple[Cell, ...]:
    """Falls by half and by nine tenths of the gain, of so many rollouts a step."""
    cells = []
    for lost in (0.5, 0.9):
        for count in counts:
            name = f"loses {100 * lost:.0f} % of the gain, {count} rollouts"
            cells.append(Cell(name, rollouts(partial(fallen, share_lost=lost), count)))
    return tuple(cells)


@dataclass(frozen=True)
class Tally:
    """How many curves of a kind and length get a yes to a question."""

    table: str  # a key of TABLES
    curve: str
    steps: int
    question: str
    hits: int
    curves: int
    median: float | None = None  # steps until the yes, over all curves; infinite where most get none
    ninetieth: float | None = None  # the same, for nine in ten

    @property
    def text(self) -> str:
        """The share with its 95 % Clopper-Pearson interval, in percent."""
        if not self.curves:
            return "-"
        low, high = clopper_pearson(self.hits, self.curves)
        return f"{100 * self.hits / self.curves:.3g} % [{100 * low:.3g}, {100 * high:.3g}]"


def fit_rising(points: np.ndarray) -> np.ndarray:
    """The fit of `unsized.fit_rising`, six times as fast: by SciPy, which the verdict does without."""
    return np.asarray(isotonic_regression(points).x)


faster = patch.object(unsized, "fit_rising", fit_rising)


def verdict_on(scores: np.ndarray) -> Verdict:
    """The verdict on a curve of which only the scores are known."""
    with faster:
        return judge_unsized(scores.tolist(), range(len(scores)))


def is_severe_live(scores: np.ndarray) -> bool:
    """Whether the rule of live runs calls a collapse, told as little."""
    with undated:
        return bool(judge(scores.tolist()).outcome in SEVERE)


def curves_of(cells: Sequence[Cell], runs: int, seed: int) -> Iterator[tuple[Cell, list[np.ndarray]]]:
    """Yield each cell with curves of one length after the other; a cell has random numbers of its own."""
    streams = np.random.default_rng(seed).spawn(len(cells))
    for cell, stream in zip(cells, streams, strict=True):
        for steps in LENGTHS:
            yield cell, [cell.draw(stream, steps) for _ in range(runs)]


def tally_null(runs: int, few: int, seed: int) -> Iterator[Tally]:
    """Curves that lose nothing, and are called fallen all the same."""
    for cell, curves in curves_of(HEALTHY, runs, seed):
        words = [verdict_on(scores).outcome for scores in curves]
        count = partial(Tally, "null", cell.name, len(curves[0]), curves=runs)
        yield count("collapsed", sum(word in SEVERE for word in words))
        yield count("falling", sum(word == "falling" for word in words))
        yield tally_live_rule("null", cell, curves[:few])


def tally_live_rule(table: str, cell: Cell, curves: Sequence[np.ndarray]) -> Tally:
    """What the rule of live runs says of curves, told as little."""
    hits = sum(map(is_severe_live, curves))
    return Tally(table, cell.name, len(curves[0]), "live rule", hits, len(curves))


def tally_falls(runs: int, few: int, seed: int) -> Iterator[Tally]:
    """Falls that are called so, and whether the interval of the onset holds the last step before the fall."""
    for cell, curves in curves_of(falls(), runs, seed):
        steps = len(curves[0])
        verdicts = [verdict_on(scores) for scores in curves]
        words = [verdict.outcome for verdict in verdicts]
        drops = [verdict.drops[0] for verdict in verdicts if verdict.drops]
        last = steps // 2 - 1  # before the fall
        covered = sum(drop.onset_low <= last <= drop.onset_high for drop in drops)
        exact = sum(drop.onset == last for drop in drops)
        count = partial(Tally, "falls", cell.name, steps, curves=runs)
        yield count("collapsed", sum(word in SEVERE for word in words))
        yield count("any fall", sum(word in (*CALLED, "mild") for word in words))
        yield tally_live_rule("falls", cell, curves[:few])
        yield Tally("onset", cell.name, steps, "covered", covered, len(drops))
        yield Tally("onset", cell.name, steps, "exact", exact, len(drops))


def tally_scales(runs: int, seed: int) -> Iterator[Tally]:
    """Falls that get another word where the same scores are written on another scale."""
    for cell, curves in curves_of(falls((8, 64)), runs, seed):
        differing = sum(len(words_by_scale(scores)) > 1 for scores in curves)
        yield Tally("scales", cell.name, len(curves[0]), "another word", differing, runs)


def words_by_scale(scores: np.ndarray) -> set[str | None]:
    """The words that the same curve gets on the scales."""
    return {verdict_on(zero + width * scores).outcome for zero, width in SCALES.values()}


def first_call(scores: np.ndarray, since: int, every: int) -> int | None:
    """The number of steps at which a growing curve is first called fallen, judged every so many."""
    for end in range(since, len(scores) + 1, every):
        if verdict_on(scores[:end]).outcome in CALLED:
            return end
    return None


def tally_live_null(runs: int, seed: int) -> Iterator[Tally]:
    """Growing curves that lose nothing, and are called fallen at any time."""
    for cell, curves in curves_of(HEALTHY, runs, seed):
        steps = len(curves[0])
        calls = [first_call(scores, FEWEST, EVERY[steps]) for scores in curves]
        called = sum(call is not None for call in calls)
        yield Tally("live null", cell.name, steps, "ever", called, runs)


def tally_live_falls(runs: int, seed: int) -> Iterator[Tally]:
    """Growing curves that fall: how many steps it takes until they are called so."""
    for cell, curves in curves_of(falls((64,)), runs, seed):
        steps = len(curves[0])
        every = EVERY_AFTER_FALL[steps]
        fall = steps // 2
        calls = [first_call(scores, fall + every, every) for scores in curves]
        delays = [math.inf if call is None else call - fall for call in calls]
        yield Tally(
            "live falls",
            cell.name,
            steps,
            "called",
            sum(map(math.isfinite, delays)),
            runs,
            median=float(np.quantile(delays, 0.5, method="inverted_cdf")),
            ninetieth=float(np.quantile(delays, 0.9, method="inverted_cdf")),
        )


def all_tallies(runs: int = RUNS, few: int = FEW_RUNS, seed: int = SEED) -> Iterator[Tally]:
    """Yield every count; what takes long is counted on few curves."""
    few = min(few, runs)
    yield from tally_null(runs, few, seed)
    yield from tally_falls(runs, few, seed)
    yield from tally_scales(few, seed)
    yield from tally_live_falls(few, seed)
    yield from tally_live_null(few, seed)


def by_length(tallies: Iterable[Tally], questions: dict[str, str]) -> str:
    """A table with a row a kind of curve, and for each length a column a question under its heading."""
    cells = {(tally.curve, tally.steps, tally.question): tally for tally in tallies}
    columns = ["curve"]
    for steps in LENGTHS:
        columns += [f"{steps} steps{heading}" for heading in questions.values()]
    rows = []
    for curve in dict.fromkeys(curve for curve, _, _ in cells):
        row = [curve]
        for steps in LENGTHS:
            row += [_cell(cells.get((curve, steps, question))) for question in questions]
        rows.append(row)
    return markdown_table(columns, rows)


def _cell(tally: Tally | None) -> str:
    if tally is None:
        return "-"
    if tally.median is None or tally.ninetieth is None:
        return tally.text
    return f"{_delay(tally.median)}, {_delay(tally.ninetieth)}; {tally.text}"


def _delay(steps: float) -> str:
    return "never" if math.isinf(steps) else f"{steps:.0f}"


# Table -> the questions that it counts, with what follows the length in the heading of a column.
TABLES: dict[str, dict[str, str]] = {
    "null": {"collapsed": "", "falling": ", falling", "live rule": ", live rule"},
    "falls": {"collapsed": "", "any fall": ", any fall", "live rule": ", live rule"},
    "onset": {"covered": ": interval holds it", "exact": ": exact"},
    "scales": {"another word": ""},
    "live null": {"ever": ""},
    "live falls": {"called": ": median, 90 %; called"},
}


def table_of(name: str, tallies: Iterable[Tally]) -> str:
    """One of TABLES in Markdown."""
    return by_length([tally for tally in tallies if tally.table == name], TABLES[name])


def sizes(tallies: Iterable[Tally]) -> str:
    """How many curves are behind the cells of the tables, but for those of falls that were found."""
    counts: dict[int, list[str]] = {}
    for tally in tallies:
        name = f"{tally.table}, {tally.question}"
        if tally.table != "onset" and name not in counts.setdefault(tally.curves, []):
            counts[tally.curves].append(name)
    parts = [f"{count:,} curves a cell: {'; '.join(names)}." for count, names in counts.items()]
    return " ".join(parts)


SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("curve", pa.string()),
        ("steps", pa.int64()),
        ("question", pa.string()),
        ("hits", pa.int64()),
        ("curves", pa.int64()),
        ("median", pa.float64()),
        ("ninetieth", pa.float64()),
    ]
)


def table_of_tallies(tallies: Iterable[Tally]) -> pa.Table:
    """The counts, a row each."""
    return pa.Table.from_pylist([asdict(tally) for tally in tallies], schema=SCHEMA)


def tallies_in(table: pa.Table) -> list[Tally]:
    """Return the counts in such a table."""
    return [Tally(**row) for row in table.select(SCHEMA.names).to_pylist()]


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


def main() -> None:
    """Count, print the tables, and keep the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="curves of each kind and length")
    parser.add_argument("--few", type=int, default=FEW_RUNS, help="curves where a count takes long")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, help="keep the counts here, as Parquet")
    parser.add_argument("--bias", action="store_true", help="what the monotone fit does to the noise")
    options = parser.parse_args()
    if options.bias:
        print(bias_table(options.runs, options.seed))
        return
    tallies = list(all_tallies(options.runs, options.few, options.seed))
    if options.output is not None:
        pq.write_table(table_of_tallies(tallies), options.output, compression="zstd")
    print("\n\n".join(f"{name}\n\n{table_of(name, tallies)}" for name in TABLES))


if __name__ == "__main__":
    main()

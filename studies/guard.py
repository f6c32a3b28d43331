"""Does a guard pay: runs that roll themselves back against the same runs left alone, at equal cost.

`python -m studies.guard RUNS FILE.parquet` gathers the cells of guard.toml, guard_rise.toml and
guard_healthy.toml from a runs folder, adds them to what the file holds, and counts.
`python -m studies.guard --from FILE.parquet` only counts.

`python -m studies.guard --live FILE.parquet` judges every finished run of an export as `sorl guard` does
while it trains: again and again, by its score so far.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import pandas as pd

from sorl.analysis.runs import newest
from sorl.analysis.stats import Estimate, holm, mean_interval, p_value
from sorl.collapse.unsized import FEWEST
from sorl.spec import InputError
from sorl.spec.markdown import markdown_table
from sorl.store.reader import Reader
from sorl.store.sync import sync
from sorl.trainers.verl_guard import find_fall
from studies import Share, stored

HEALTHY = "guard_healthy"
EXPERIMENTS = ("guard", "guard_rise", HEALTHY)
REFERENCE = "ppo"  # the arm that is left alone
GUARDED = ", guard"  # in the names of the arms with a guard; a twin's name lacks it
GOAL = 0.6  # held-out success
LIVE_STEPS = 150  # the on-policy runs are longer than the others
LIVE_STRIDE = 3
FELL = ("collapsed", "falling", "diverged")

# The starts of a cell: the newest, and those that a rollback ended (draw 0 is a start after one).
STARTS = """
WITH cell AS (SELECT experiment, arm, seed, config_hash FROM run WHERE run_id = $run),
starts AS (
    SELECT run_id, draw, coalesce(generation, 1) AS generation
    FROM run JOIN cell USING (experiment, arm, seed, config_hash)
)
SELECT run_id FROM starts
WHERE generation >= (SELECT max(generation) FROM starts WHERE draw IS DISTINCT FROM 0)
ORDER BY generation
"""
STEPS = """
SELECT step, tokens_trained AS tokens, coalesce(seconds_total, 0) + coalesce(seconds_record, 0) AS seconds
FROM step WHERE run_id = $run ORDER BY step
"""
EVALUATIONS = """
SELECT step, success FROM evaluation
WHERE run_id = $run AND data NOT LIKE '%-no-search' ORDER BY step
"""


Cost = Literal["tokens", "seconds"]


@dataclass(frozen=True)
class GuardedCell:
    """One cell, all its starts counted: what it cost, and its held-out success along the way."""

    experiment: str
    arm: str
    seed: int
    outcome: str  # of its last start
    rollbacks: int
    steps: int  # trained, those that were given up included
    tokens: int
    seconds: float
    # One entry per evaluation, in the order in which they were made.
    tokens_before: list[int]
    seconds_before: list[float]
    heldout_success: list[float]

    @property
    def final(self) -> float:
        """Return held-out success at the end."""
        return self.heldout_success[-1]

    def success_at(self, cost: Cost, budget: float) -> float:
        """Return held-out success at the last evaluation before a budget of tokens or seconds was spent."""
        spent = self.tokens_before if cost == "tokens" else self.seconds_before
        affordable = [
            success for success, before in zip(self.heldout_success, spent, strict=True) if before <= budget
        ]
        return affordable[-1]

    def tokens_to_goal(self) -> int | None:
        """Return the tokens before the first evaluation at the goal; None where it was never reached."""
        for success, tokens in zip(self.heldout_success, self.tokens_before, strict=True):
            if success >= GOAL:
                return tokens
        return None


Cells = dict[int, GuardedCell]  # by seed


class HealthyTwin(NamedTuple):
    """A run with a guard, and the outcome of the same run without one."""

    rollbacks: int
    outcome: str

    @property
    def is_false_alarm(self) -> bool:
        """Whether the guard went back although the run left alone does not end down."""
        return self.rollbacks > 0 and self.outcome not in FELL


def gather_cells(runs: Path) -> list[GuardedCell]:
    """Return the finished cells of the experiments."""
    sync(runs)
    reader = Reader(runs)
    finished = newest(reader.query("SELECT * FROM run WHERE status = 'finished' ORDER BY run_id"))
    finished = finished[finished["experiment"].isin(EXPERIMENTS)]
    return [_cell(reader, run) for run in finished.to_dict("records")]


def _cell(reader: Reader, run: dict[Any, Any]) -> GuardedCell:
    tokens = 0
    seconds = 0.0
    steps = 0
    tokens_before = list[int]()
    seconds_before = list[float]()
    heldout_success = list[float]()
    starts = reader.query(STARTS, {"run": run["run_id"]})["run_id"].tolist()
    for start in starts:
        trained = reader.query(STEPS, {"run": start})
        evaluations = reader.query(EVALUATIONS, {"run": start})
        for step, success in zip(evaluations["step"], evaluations["success"], strict=True):
            earlier = trained[trained["step"] < step]
            tokens_before.append(tokens + int(earlier["tokens"].sum()))
            seconds_before.append(seconds + float(earlier["seconds"].sum()))
            heldout_success.append(float(success))
        tokens += int(trained["tokens"].sum())
        seconds += float(trained["seconds"].sum())
        steps += len(trained)
    return GuardedCell(
        experiment=run["experiment"],
        arm=run["arm"],
        seed=int(run["seed"]),
        outcome=str(run["outcome"]),
        rollbacks=len(starts) - 1,
        steps=steps,
        tokens=tokens,
        seconds=seconds,
        tokens_before=tokens_before,
        seconds_before=seconds_before,
        heldout_success=heldout_success,
    )


def read_cells(file: Path) -> list[GuardedCell]:
    """Return the cells of a file. Raises InputError for any other file."""
    names = [field.name for field in fields(GuardedCell)]
    cells = []
    for row in stored(file, names, "cells of the guard's grids"):
        for name in ("tokens_before", "seconds_before", "heldout_success"):
            row[name] = list(row[name])
        cells.append(GuardedCell(**row))
    return cells


def write_cells(cells: Sequence[GuardedCell], file: Path) -> list[GuardedCell]:
    """Add cells to those of a file, and return all; a cell that the file has is replaced."""
    by_name = {_name(cell): cell for cell in read_cells(file)} if file.is_file() else {}
    by_name.update({_name(cell): cell for cell in cells})
    merged = [by_name[name] for name in sorted(by_name)]
    pd.DataFrame([asdict(cell) for cell in merged]).to_parquet(file, index=False)
    return merged


class _Name(NamedTuple):
    experiment: str
    arm: str
    seed: int


def _name(cell: GuardedCell) -> _Name:
    return _Name(cell.experiment, cell.arm, cell.seed)


def count_arms(cells: Sequence[GuardedCell]) -> str:
    """Return Markdown: one row per arm, against the arm that is left alone.

    Differences are means over seeds of what an arm has more than the reference of the same seed, with 95 % t
    intervals; p of those at the end, by Holm over the arms. Raises InputError without a reference.
    """
    arms = _by_arm(cells)
    reference = arms.get(REFERENCE)
    if reference is None:
        raise InputError(f"there is no finished run of arm '{REFERENCE}'")
    others = [arm for arm in arms if arm != REFERENCE]
    at_end = {arm: mean_interval(_differences_at_end(arms[arm], reference)) for arm in others}
    corrected = holm([at_end[arm].p for arm in others])
    p_values = dict(zip(others, corrected, strict=True))
    rows = []
    for arm, runs in arms.items():
        row = [arm, len(runs), _estimate([run.final for run in runs.values()])]
        if arm == REFERENCE:
            row += ["", "", "", "", ""]
        else:
            row += [
                _words(at_end[arm]),
                p_value(p_values[arm]),
                _estimate(_differences_at_equal_cost(runs, reference, "tokens")),
                _estimate(_differences_at_equal_cost(runs, reference, "seconds")),
                _estimate(_differences_at_end(_rolled_back(runs), reference)),
            ]
        row += _counts(list(runs.values()))
        rows.append(row)
    return markdown_table(HEADER, rows)


HEADER = (
    "arm",
    "runs",
    "held-out success at the end",
    f"against {REFERENCE}",
    "p (Holm)",
    f"at the tokens of {REFERENCE}",
    f"at the seconds of {REFERENCE}",
    "the same where it rolled back",
    f"reached {GOAL:g} (median tokens)",
    "ended down",
    "rolled back",
    "tokens, mean",
)


def _counts(runs: Sequence[GuardedCell]) -> list[str]:
    """Return the cells of a row that count runs and tokens."""
    costs = [run.tokens_to_goal() for run in runs]
    reached = [cost for cost in costs if cost is not None]
    down = sum(run.outcome in FELL for run in runs)
    rolled_back = sum(run.rollbacks > 0 for run in runs)
    rollbacks = sum(run.rollbacks for run in runs)
    tokens = sum(run.tokens for run in runs) / len(runs)
    return [
        f"{len(reached)} of {len(runs)} ({median(reached):,.0f})" if reached else f"0 of {len(runs)}",
        f"{down} of {len(runs)}",
        f"{rolled_back} of {len(runs)}, {rollbacks} times" if rollbacks else "0",
        f"{tokens:,.0f}",
    ]


def count_false_rollbacks(cells: Sequence[GuardedCell]) -> str:
    """Return a sentence: how many healthy runs a guard rolled back, by their twins without a guard."""
    arms = _by_arm(cells)
    twins = list[HealthyTwin]()
    for arm, runs in arms.items():
        alone = arms.get(arm.removesuffix(GUARDED), {})
        if not arm.endswith(GUARDED):
            continue
        for seed in sorted(runs.keys() & alone.keys()):
            twins.append(HealthyTwin(runs[seed].rollbacks, alone[seed].outcome))
    healthy = [twin for twin in twins if twin.outcome not in FELL]
    false = Share(sum(twin.is_false_alarm for twin in healthy), len(healthy))
    rolled_back = sum(twin.rollbacks > 0 for twin in twins)
    return (
        f"{len(twins)} runs with a guard, {rolled_back} rolled back. Left alone {len(healthy)} of them do not"
        f" end down; of these the guard rolled back {false}."
    )


def _by_arm(cells: Sequence[GuardedCell]) -> dict[str, Cells]:
    """Return cells by arm and seed; the reference comes first."""
    arms: dict[str, Cells] = {}
    for cell in cells:
        arms.setdefault(cell.arm, {})[cell.seed] = cell
    return dict(sorted(arms.items(), key=lambda item: (item[0] != REFERENCE, item[0])))


def _rolled_back(runs: Cells) -> Cells:
    """Return the runs whose guard went back at least once: the others are their twins, step for step."""
    return {seed: run for seed, run in runs.items() if run.rollbacks}


def _differences_at_end(runs: Cells, reference: Cells) -> list[float]:
    """Return by seed what a run has more than the reference when both have ended."""
    return [runs[seed].final - reference[seed].final for seed in sorted(runs.keys() & reference.keys())]


def _differences_at_equal_cost(runs: Cells, reference: Cells, cost: Cost) -> list[float]:
    """Return by seed what a run has more than the reference when it has spent as much, or has ended."""
    differences = []
    for seed in sorted(runs.keys() & reference.keys()):
        budget = reference[seed].tokens if cost == "tokens" else reference[seed].seconds
        differences.append(runs[seed].success_at(cost, budget) - reference[seed].final)
    return differences


def _estimate(values: Sequence[float]) -> str:
    return _words(mean_interval(values))


def _words(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


class Block(NamedTuple):
    """Seeds of an experiment that were planned together, and so are counted together."""

    experiment: str
    first_seed: int
    last_seed: int
    title: str


BLOCKS = (
    Block("guard", 300, 309, "The regime of quickstart, ten seeds as planned"),
    Block("guard", 330, 349, "Twenty more seeds, decided on after the ten had been counted"),
    Block("guard", 300, 349, "All thirty"),
    Block("guard_rise", 30, 39, "The regime of rise_and_fall"),
)


def count_all(cells: Sequence[GuardedCell]) -> str:
    """Return Markdown: a table for each block that was run, and the false rollbacks."""
    parts = []
    for block in BLOCKS:
        own = [cell for cell in cells if is_in(cell, block)]
        if own:
            parts += [f"**{block.title}** (`experiments/{block.experiment}.toml`)", count_arms(own)]
    healthy = [cell for cell in cells if cell.experiment == HEALTHY]
    if healthy:
        parts += [f"**Healthy runs** (`experiments/{HEALTHY}.toml`)", count_false_rollbacks(healthy)]
    return "\n\n".join(parts)


def is_in(cell: GuardedCell, block: Block) -> bool:
    """Whether a cell belongs to a block."""
    return cell.experiment == block.experiment and block.first_seed <= cell.seed <= block.last_seed


def count_live_calls(file: Path) -> str:
    """Return two sentences: how many healthy runs are called collapsed on their way, and how late falls are.

    Every third step is judged, up to step LIVE_STEPS. Raises InputError for another file.
    """
    runs = stored(file, ("outcome", "collapse_step", "success"), "exported results")
    healthy = [run for run in runs if run["outcome"] == "healthy"]
    collapsed = [run for run in runs if run["outcome"] == "collapsed"]
    false = sum(_first_call(run["success"]) is not None for run in healthy)
    calls = [(_first_call(run["success"]), int(run["collapse_step"])) for run in collapsed]
    delays = [call - onset for call, onset in calls if call is not None]
    return (
        f"Of healthy runs {Share(false, len(healthy))} are called collapsed on their way. Of collapsed ones"
        f" {Share(len(delays), len(collapsed))} are, in the median {median(delays):.0f} steps after the"
        " onset."
    )


def _first_call(scores: Sequence[float]) -> int | None:
    """Return the step at which a run is first judged to have collapsed; None where it never is."""
    scored = pd.Series(scores, dtype=float).dropna()
    for steps in range(FEWEST, min(len(scored), LIVE_STEPS) + 1, LIVE_STRIDE):
        fall = find_fall(scored.head(steps))
        if fall is not None:
            return fall.last_step
    return None


def main() -> None:
    """Gather and count from the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="?", help="a runs folder")
    parser.add_argument("output", type=Path, nargs="?", metavar="FILE.parquet")
    parser.add_argument("--live", type=Path, metavar="FILE.parquet", help="an export of sorl report")
    parser.add_argument("--from", dest="shipped", type=Path, metavar="FILE.parquet", help="only count")
    asked = parser.parse_args()
    try:
        if asked.live:
            print(count_live_calls(asked.live))
            return
        if asked.shipped:
            cells = read_cells(asked.shipped)
        elif asked.runs and asked.output:
            cells = write_cells(gather_cells(asked.runs), asked.output)
        else:
            parser.error("name a runs folder and a file, or --from FILE.parquet")
        print(count_all(cells))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

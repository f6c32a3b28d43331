"""Corrections against token PPO at one staleness: pairs by seed, Holm, and the seeds that it would take."""

import json
from pathlib import Path

import pandas as pd
import pytest

from sorl.spec import InputError
from studies.staleness import CountedRun, count_all, count_methods, read_runs, seeds_to_decide


def run(method: str, seed: int, steps_up: int, end: float = 0.0, staleness: int = 4) -> CountedRun:
    return CountedRun(method, staleness, seed, steps_up < 100, steps_up, end)


def row_of(table: str, method: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {method} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture
def runs() -> list[CountedRun]:
    falls = [16, 21, 18]
    stays = [run("topr", seed, 100, 0.7 + 0.01 * seed) for seed in range(3)]
    return [run("ppo", seed, fall) for seed, fall in enumerate(falls)] + stays


def test_a_method_is_compared_with_token_ppo_of_the_same_seed(runs: list[CountedRun]) -> None:
    row = row_of(count_methods(runs, 4), "topr")
    assert row[2].startswith("0/3 = 0 %")
    assert row[4].startswith("+81.7 [")
    assert row[5] == "< 0.001"
    assert row[7].startswith("+0.71 [")


def test_seeds_that_only_one_of_the_two_has_are_left_out(runs: list[CountedRun]) -> None:
    more = [*runs, run("topr", 7, 3), run("ppo", 8, 90)]
    assert row_of(count_methods(more, 4), "topr")[4] == row_of(count_methods(runs, 4), "topr")[4]


def test_one_seed_compares_nothing() -> None:
    table = count_methods([run("ppo", 0, 16), run("tis", 0, 18)], 4)
    assert row_of(table, "tis")[4:6] == ["-", "-"]
    assert row_of(table, "tis")[-1] == "-"


def test_the_seeds_to_decide_grow_with_the_noise_and_with_the_comparisons() -> None:
    clear = seeds_to_decide([80.0, 82.0, 84.0], 1)
    noisy = seeds_to_decide([10.0, -8.0, 12.0, 2.0], 1)
    assert clear is not None
    assert noisy is not None
    assert clear <= 4 < noisy
    several = seeds_to_decide([10.0, -8.0, 12.0, 2.0], 8)
    assert several is not None
    assert several > noisy
    assert seeds_to_decide([1.0, -1.0], 1) is None


def test_each_staleness_has_its_table(runs: list[CountedRun]) -> None:
    page = count_all([*runs, *(run("ppo", seed, 30, staleness=16) for seed in range(2))])
    assert page.index("**Staleness 4**") < page.index("**Staleness 16**")


def test_only_finished_runs_of_an_export_count(tmp_path: Path) -> None:
    row = {
        "arm": "tis · staleness 4",
        "algorithm": "tis",
        "seed": 13,
        "status": "finished",
        "config": json.dumps({"learn": {"staleness": 4}}),
        "success": [0.5] * 30 + [0.0] * 10,
        "outcome": "collapsed",
        "collapse_step": 29,
    }
    file = tmp_path / "counted.parquet"
    pd.DataFrame([row, {**row, "seed": 14, "status": "interrupted"}]).to_parquet(file)
    assert read_runs(file) == [CountedRun("tis", 4, 13, True, 29, 0.0)]


def test_without_token_ppo_nothing_can_be_compared() -> None:
    with pytest.raises(InputError, match="no finished run of 'ppo' at staleness 4"):
        count_methods([run("tis", 0, 18)], 4)

"""Runs out of a file of results: what it held is there again, and a search takes them for its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.cli.test_compare import fell, record
from tests.store.fixture import write_experiment
from workbench.cli.shared import grid_of
from workbench.grid.folder import History

Sorl = Callable[..., Any]


@pytest.fixture
def file(sorl: Sorl, runs: Path, tmp_path: Path) -> Path:
    """The results of two arms of two seeds, of which one collapses."""
    write_experiment(runs, "demo", question="Which of the two?")
    for seed in (0, 1):
        fell(runs, "ppo", seed, 12 + seed, detection_step=17)
        record(runs, "st-ppo", seed)
    assert sorl("report", "demo", "--export", tmp_path / "demo.parquet", runs=runs).exit_code == 0
    return tmp_path / "demo.parquet"


def test_what_a_file_of_results_holds_comes_out_of_the_runs_that_were_made_of_it(
    sorl: Sorl, file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    result = sorl("sync", "--from", file, runs=other)
    assert result.exit_code == 0, result.output
    assert f"demo: 4 runs from {file}" in result.stdout
    assert sorl("report", "demo", "--export", tmp_path / "again.parquet", runs=other).exit_code == 0
    ours, theirs = (pq.read_table(path).sort_by("run_id") for path in (tmp_path / "again.parquet", file))
    different = [name for name in theirs.column_names if str(ours[name]) != str(theirs[name])]
    assert different == []
    assert ours["detected"].to_pylist().count(17) == 2


def test_runs_that_are_there_are_left_alone(sorl: Sorl, file: Path, runs: Path) -> None:
    before = sorted(p for p in runs.rglob("*.parquet"))
    assert "demo: 0 runs" in sorl("sync", "--from", file, runs=runs).stdout
    assert sorted(p for p in runs.rglob("*.parquet")) == before


def test_a_file_that_is_none_of_results_is_one_message(sorl: Sorl, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("hello")
    result = sorl("sync", "--from", tmp_path / "x.parquet", runs=runs)
    assert result.exit_code == 2
    assert "is no Parquet file of results" in result.stderr


def test_a_search_goes_on_from_shipped_results(sorl: Sorl, runs: Path, tmp_path: Path) -> None:
    shipped = pq.read_table("experiments/results/region_sgd.parquet")
    first = pc.and_(pc.match_substring(shipped["arm"], "staleness 0 · policy.lr 0.566"), pc.less(shipped["seed"], 2))
    pq.write_table(shipped.filter(first), tmp_path / "first_round.parquet")
    assert sorl("sync", "--from", tmp_path / "first_round.parquet", runs=runs).exit_code == 0
    region = grid_of(Path("experiments/region_sgd.toml"), [], History(runs)).region
    assert region is not None
    assert (len(region.progress.done), region.progress.rounds) == (12, 1)

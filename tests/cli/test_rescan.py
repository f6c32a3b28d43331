from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from docs.render import ROOT
from tests.store.contents import contents, one
from tests.store.fixture import START, Shape, write_run, write_segment
from workbench.analysis import results
from workbench.diagnostics import CATALOGUE
from workbench.store.reader import Reader
from workbench.store.sync import sync

SHAPE = Shape(trajectories=2, turns=2, epochs=1, steps_per_segment=30)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that collapses and one that stays up, both with events of an older rule."""
    folder = tmp_path_factory.mktemp("older")
    write_run(folder, "demo", "fallen", collapse=15, shape=SHAPE)
    write_run(folder, "demo", "up", seed=1, shape=SHAPE)
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def judged(older: Path, runs: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(older, runs, dirs_exist_ok=True))


def verdict(runs: Path, run: str) -> tuple[Any, ...]:
    return Reader(runs).rows("SELECT outcome, collapse_step, detection_step FROM run WHERE run_id = ?", [run]).rows[0]


def test_rescan_repairs_a_verdict_and_does_nothing_the_second_time(sorl: Any, judged: Path) -> None:
    right = verdict(judged, "fallen")
    assert right[0] == "collapsed"
    folder = judged / "demo" / "fallen"
    row = Reader(judged).rows("SELECT * FROM run WHERE run_id = 'fallen'")

    wrong = dict(zip(row.columns, row.rows[0], strict=True)) | {"outcome": "healthy", "collapse_step": None}
    write_segment(folder, "run", {k: [v] for k, v in wrong.items()})
    sync(judged)
    assert verdict(judged, "fallen")[0] == "healthy"
    result = sorl("rescan", runs=judged)
    assert result.exit_code == 0
    assert "outcome healthy -> collapsed" in result.stdout
    assert verdict(judged, "fallen") == right
    again = sorl("rescan", runs=judged)
    assert (again.stdout, again.stderr) == ("", "2 runs judged, 0 changed\n")


def test_rescan_withdraws_events_that_the_rules_no_longer_see(sorl: Any, judged: Path) -> None:
    count = "SELECT count(*) FROM event WHERE message = 'grad_norm_max is above 20'"
    assert one(judged, count) == 1
    sorl("rescan", runs=judged)
    assert one(judged, count) == 0
    assert one(judged, "SELECT count(*) FROM event WHERE kind = 'collapse'") == 1
    before = contents(judged)
    (judged / "sorl.duckdb").unlink()
    sync(judged, CATALOGUE)
    assert contents(judged) == before


def test_a_dry_run_writes_nothing(sorl: Any, judged: Path) -> None:
    before = contents(judged)
    files = sorted(judged.rglob("*.parquet"))
    result = sorl("rescan", "--dry-run", runs=judged)
    assert "fallen" in result.stdout
    assert "would change" in result.stderr
    assert sorted(judged.rglob("*.parquet")) == files
    assert contents(judged) == before


def test_a_divergence_that_only_the_trainer_saw_stays_one(sorl: Any, judged: Path) -> None:

    rows = {"run_id": ["up"], "step": [29], "kind": ["diverged"], "severity": ["critical"], "diagnostic": [""]}
    write_segment(judged / "demo" / "up", "event", rows | {"message": ["the loss is NaN"], "written_at": [START]})
    sorl("rescan", runs=judged)
    assert verdict(judged, "up")[0] == "diverged"
    assert one(judged, "SELECT count(*) FROM event WHERE kind = 'diverged'") == 1


def test_a_run_that_somebody_trains_is_not_written_to(sorl: Any, judged: Path) -> None:
    folder = judged / "demo" / "fallen"
    files = sorted(folder.rglob("*.parquet"))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = sorl("rescan", "demo", runs=judged)
    assert result.exit_code == 0
    assert "being trained by another process" in result.stderr
    assert sorted(folder.rglob("*.parquet")) == files


def test_a_run_whose_steps_are_gone_keeps_its_verdict(sorl: Any, judged: Path) -> None:
    shutil.rmtree(judged / "demo" / "fallen" / "segments" / "step")
    (judged / "sorl.duckdb").unlink()
    assert "1 runs judged" in sorl("rescan", runs=judged).stderr
    assert verdict(judged, "fallen")[0] == "collapsed"


def test_an_unknown_experiment_is_named(sorl: Any, judged: Path) -> None:
    result = sorl("rescan", "demi", runs=judged)
    assert result.exit_code == 2
    assert "did you mean 'demo'" in result.stderr


def test_results_are_judged_again_in_their_file(sorl: Any, tmp_path: Path) -> None:
    file = tmp_path / "six_by_five.parquet"
    found = results.read(ROOT / "experiments/results/six_by_five.parquet")
    rows = found.table.to_pylist()
    fell = next(row for row in rows if row["outcome"] == "collapsed")
    wrong = [row | ({"outcome": "healthy", "collapse_step": None} if row is fell else {}) for row in rows]
    results.write(results.judged_again(found, wrong), file)
    told = sorl("rescan", "--from", str(file), "--dry-run")
    assert "outcome healthy -> collapsed" in told.stdout
    assert "60 runs judged, 1 would change" in told.stderr
    sorl("rescan", "--from", str(file))
    assert results.read(file).table.to_pylist() == rows

"""Results of experiments: the report, files of results, runs restored from them, verdicts judged again."""

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from docs.generate.render import ROOT
from sorl.analysis import results
from sorl.grid.config import load
from sorl.grid.folder import History
from sorl.spec.files import lock_file
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.cli.command import done, record
from tests.store.contents import contents, one
from tests.store.fixture import Shape, write_experiment, write_run, write_segment


@pytest.fixture
def file(two: Path, tmp_path: Path) -> Path:
    """The results of two arms of two seeds, of which one collapses."""
    path = tmp_path / "demo.parquet"
    assert f"wrote {path}: 4 runs" in done("report", "demo.toml", "--export", path, runs=two).stderr
    return path


def test_a_report_from_the_exported_file_is_the_report_from_the_runs(two, file, tmp_path):
    a = done("report", "demo", "--format", "md", runs=two).stdout
    b = done("report", "--from", file, "--format", "md", runs=tmp_path / "nowhere").stdout
    assert a.replace("sorl report demo", "") == b.replace(f"sorl report --from {file}", "")
    assert "Collapsed: ppo in 2 of 2" in a
    assert done("report", "demo", "-o", tmp_path / "page.html", runs=two).stdout == ""
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "| (b) Turn-level ratios alone help. | not tested here |" in a
    # Runs are added to those of a file.
    part = tmp_path / "part.parquet"
    again = tmp_path / "again.parquet"
    whole = results.read(file)
    results.write(dataclasses.replace(whole, table=whole.table.slice(0, len(whole.table) - 1)), part)
    done("report", "demo", "--from", part, "--export", again, runs=two)
    assert results.read(again).table.equals(whole.table)


def test_the_page_of_findings_names_every_shipped_file():
    shipped = sorted((ROOT / "experiments" / "results").glob("*.parquet"))
    assert shipped
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    for path in shipped:
        assert f"experiments/results/{path.name}" in page
        assert path.stat().st_size < 2**20


def test_what_was_not_measured_stays_null_and_nan_stays_nan(runs, tmp_path):
    write_experiment(runs, "demo")
    folder = record(runs, "ppo", 0, steps=3, seconds=12.5)
    place = {"step": [0, 1, 2]}
    write_segment(
        folder, "step", place | {"success": [0.5, None, 0.25], "entropy": [math.nan, math.inf, 1.0]}
    )
    write_segment(folder, "minibatch", place | {"update": 0, "clip_bias_norm": [None, 0.5, math.nan]})
    path = tmp_path / "demo.parquet"
    done("report", "demo", "--export", path, runs=runs)
    (row,) = pq.read_table(path).to_pylist()
    assert (row["step"], row["success"], row["value_mae"]) == ([0, 1, 2], [0.5, None, 0.25], [None] * 3)
    assert row["seconds"] == 12.5
    assert row["clip_bias_norm"][:2] == [None, 0.5]
    assert math.isnan(row["clip_bias_norm"][2])
    assert math.isnan(row["entropy"][0])
    assert row["entropy"][1:] == [math.inf, 1.0]
    done("report", "--from", path, "--format", "md", runs=runs)


def test_what_a_file_holds_is_in_the_runs_that_are_restored_from_it(file, tmp_path):
    other = tmp_path / "other"
    again = tmp_path / "again.parquet"
    other.mkdir()
    assert f"demo: 4 runs from {file}" in done("sync", "--from", file, runs=other).stdout
    done("report", "demo", "--export", again, runs=other)
    ours, theirs = (pq.read_table(path).sort_by("run_id") for path in (again, file))
    assert [name for name in theirs.column_names if str(ours[name]) != str(theirs[name])] == []
    assert ours["detected"].to_pylist().count(17) == 2
    before = sorted(other.rglob("*.parquet"))
    assert "demo: 0 runs" in done("sync", "--from", file, runs=other).stdout
    assert sorted(other.rglob("*.parquet")) == before, "existing runs are left alone"


def test_a_search_resumes_from_shipped_results(runs, tmp_path):
    shipped = pq.read_table("experiments/results/region_sgd.parquet")
    first = pc.and_(
        pc.match_substring(shipped["arm"], "staleness 0 · policy.lr 0.566"), pc.less(shipped["seed"], 2)
    )
    pq.write_table(shipped.filter(first), tmp_path / "first_round.parquet")
    done("sync", "--from", tmp_path / "first_round.parquet", runs=runs)
    region = load(Path("experiments/region_sgd.toml"), [], History(runs)).region
    assert (len(region.progress.done), region.progress.rounds) == (12, 1)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that collapses and one that stays up, both with events of an older rule."""
    folder = tmp_path_factory.mktemp("older")
    shape = Shape(trajectories=2, turns=2, epochs=1, steps_per_segment=30)
    write_run(folder, "demo", "fallen", collapse=15, shape=shape)
    write_run(folder, "demo", "up", seed=1, shape=shape)
    sync(folder)
    return folder


@pytest.fixture
def judged(older: Path, runs: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(older, runs, dirs_exist_ok=True))


def verdict(runs: Path, run: str) -> tuple[Any, ...]:
    return (
        Reader(runs)
        .rows("SELECT outcome, collapse_step, detection_step FROM run WHERE run_id = ?", [run])
        .rows[0]
    )


def test_rescan_repairs_a_verdict_withdraws_events_and_does_nothing_when_dry_or_a_second_time(judged):
    right = verdict(judged, "fallen")
    assert right[0] == "collapsed"
    row = Reader(judged).rows("SELECT * FROM run WHERE run_id = 'fallen'")
    wrong = dict(zip(row.columns, row.rows[0], strict=True)) | {"outcome": "healthy", "collapse_step": None}
    write_segment(judged / "demo" / "fallen", "run", wrong)
    sync(judged)
    older = "SELECT count(*) FROM event WHERE message = 'grad_norm_max is above 20'"
    assert (verdict(judged, "fallen")[0], one(judged, older)) == ("healthy", 1)
    before = contents(judged)
    files = sorted(judged.rglob("*.parquet"))
    assert "would change" in done("rescan", "--dry-run", runs=judged).stderr
    assert (contents(judged), sorted(judged.rglob("*.parquet"))) == (before, files)
    assert "outcome healthy -> collapsed" in done("rescan", runs=judged).stdout
    assert (verdict(judged, "fallen"), one(judged, older)) == (right, 0)
    assert one(judged, "SELECT count(*) FROM event WHERE kind = 'collapse'") == 1
    again = done("rescan", runs=judged)
    assert (again.stdout, again.stderr) == ("", "2 runs judged, 0 changed\n")
    before = contents(judged)
    (judged / "sorl.duckdb").unlink()
    sync(judged)
    assert contents(judged) == before, "the tables are their segments"


def test_a_divergence_that_only_the_trainer_saw_stays_one(judged):
    row = {"step": 29, "kind": "diverged", "severity": "critical", "message": "the loss is NaN"}
    write_segment(judged / "demo" / "up", "event", row)
    done("rescan", runs=judged)
    assert verdict(judged, "up")[0] == "diverged"
    assert one(judged, "SELECT count(*) FROM event WHERE kind = 'diverged'") == 1


def test_a_run_that_another_process_trains_is_not_written_to_and_one_without_steps_keeps_its_verdict(judged):
    folder = judged / "demo" / "fallen"
    files = sorted(folder.rglob("*.parquet"))
    with lock_file(folder / "lock"):
        assert "being trained by another process" in done("rescan", "demo", runs=judged).stderr
    assert sorted(folder.rglob("*.parquet")) == files
    shutil.rmtree(judged / "demo" / "fallen" / "segments" / "step")
    (judged / "sorl.duckdb").unlink()
    assert "1 runs judged" in done("rescan", runs=judged).stderr
    assert verdict(judged, "fallen")[0] == "collapsed"


def test_results_are_judged_again_in_their_file(tmp_path):
    path = tmp_path / "six_by_five.parquet"
    found = results.read(ROOT / "experiments/results/six_by_five.parquet")
    rows = found.table.to_pylist()
    fell = next(row for row in rows if row["outcome"] == "collapsed")
    wrong = [row | ({"outcome": "healthy", "collapse_step": None} if row is fell else {}) for row in rows]
    results.write(results.judged_again(found, wrong), path)
    dry = done("rescan", "--from", path, "--dry-run")
    assert "outcome healthy -> collapsed" in dry.stdout
    assert "60 runs judged, 1 would change" in dry.stderr
    done("rescan", "--from", path)
    assert results.read(path).table.to_pylist() == rows

"""`sorl diff` and `sorl baseline`: runs, logs and saved baselines by name; messages."""

import json

import pytest

from sorl.diagnosis import log
from sorl.spec import RunSettings
from tests.cli.command import done, grid_file, record, refused, told
from tests.difference.logs import SETTINGS, trl_run


@pytest.fixture
def pair(tmp_path):
    """Two logs of TRL that differ in one option."""
    good = trl_run(tmp_path / "good", 0)
    bad = trl_run(tmp_path / "bad", 1, settings={**SETTINGS, "num_iterations": 8})
    return good, bad


def test_two_logs_of_another_trainer_are_compared(pair, tmp_path):
    text = done("diff", *pair, runs=tmp_path / "nowhere").stdout
    assert text.startswith("good: good, healthy\nbad:  bad, healthy\n\nnum_iterations is 8 in the bad run")
    assert "Settings that differ\n" in text


def test_two_recorded_runs_are_compared_by_their_names(runs):
    fresh = RunSettings(learn={"staleness": 0}).model_dump_json()
    stale = RunSettings(learn={"staleness": 8}).model_dump_json()
    good = record(runs, "fresh", 0, config=fresh)
    bad = record(runs, "stale", 0, config=stale, outcome="collapsed", collapse_step=12)
    found = told("diff", good.name, bad.name, runs=runs)
    assert (found["kind"], found["name"]) == ("setting", "learn.staleness")
    assert found["bad"] == {"run": bad.name, "outcome": "collapsed"}


def test_a_baseline_is_saved_listed_and_compared_with(pair, tmp_path):
    good, bad = pair
    runs = tmp_path / "runs"
    more = [trl_run(tmp_path / f"good{seed}", seed) for seed in (2, 3)]
    said = done("baseline", "save", "usual", good, *more, runs=runs).stdout
    assert said.startswith("baseline usual: 3 runs, ")
    assert "usual" in done("baseline", "ls", runs=runs).stdout
    found = told("diff", "usual", bad, runs=runs)
    assert (found["baseline"], found["name"]) == ("usual", "num_iterations")
    assert len(found["good"]) == 3


def test_a_good_run_that_cannot_be_read_is_named_and_left_out(runs, tmp_path, monkeypatch):
    for seed in (0, 1):
        record(runs, "fresh", seed)
    bad = trl_run(tmp_path / "bad", 1)
    read = log.of_run

    def refuse_seed_1(reader, run_id, folder):
        if run_id.endswith("s1"):
            raise ValueError("its tables are damaged")
        return read(reader, run_id, folder)

    monkeypatch.setattr(log, "of_run", refuse_seed_1)
    result = done("diff", "demo", bad, "--quick", runs=runs)
    assert "f5-s1 is left out, because it cannot be read:" in result.stderr


def test_a_version_that_no_log_says_can_be_given(tmp_path):
    pair = trl_run(tmp_path / "a", 0), trl_run(tmp_path / "b", 1)
    found = told("diff", *pair, "--good-version", "0.18.2", "--bad-version", "0.19.0", runs=tmp_path / "none")
    assert (found["kind"], found["name"]) == ("default", "beta")


def test_mistakes_are_named(pair, tmp_path):
    good, bad = pair
    runs = tmp_path / "runs"
    refused("name those that worked first", "diff", bad, runs=runs)
    (tmp_path / "both").mkdir()
    good.rename(tmp_path / "both" / "good")
    bad.rename(tmp_path / "both" / "bad")
    refused("is 2 runs", "diff", tmp_path / "both" / "good", tmp_path / "both", runs=runs)


def test_a_baseline_that_is_not_there_or_damaged_is_named(pair, tmp_path):
    good, bad = pair
    runs = tmp_path / "runs"
    done("baseline", "save", "usual", good, runs=runs)
    file = runs / ".baselines" / "usual.json"
    file.write_text(file.read_text()[:100])
    refused("baseline 'usual' cannot be read", "diff", "usual", bad, runs=runs)
    file.write_text(json.dumps({"format": "sorl.baseline/99", "runs": [], "bands": []}))
    refused("its format is sorl.baseline/99", "diff", "usual", bad, runs=runs)
    refused("NAME", "baseline", "save", "a/b", good, runs=runs)


@pytest.fixture
def baseline(tmp_path):
    """A runs folder with the baseline `usual` of three logs."""
    runs = tmp_path / "runs"
    good = [trl_run(tmp_path / f"usual{seed}", seed) for seed in (2, 3, 4)]
    done("baseline", "save", "usual", *good, runs=runs)
    return runs


def drop_after_30(step, value):
    return 0.2 * value if step > 30 else value


def left_the_band(runs):
    sql = "SELECT run_id, step, diagnostic FROM event WHERE kind = 'baseline' ORDER BY step"
    return told("sql", sql, runs=runs)


def test_an_imported_log_says_where_it_leaves_the_band_of_a_baseline(baseline, tmp_path):
    good = trl_run(tmp_path / "good", 5)
    bad = trl_run(tmp_path / "bad", 6, changes={"entropy": drop_after_30})
    for folder in (good, bad):
        done("import", folder, "--baseline", "usual", runs=baseline)
    (event,) = left_the_band(baseline)
    assert event["diagnostic"] == "entropy"
    assert event["run_id"].startswith("bad")
    assert 30 < event["step"] <= 36


def test_what_a_baseline_said_stays_when_the_run_is_judged_again(baseline, tmp_path):
    bad = trl_run(tmp_path / "bad", 6, changes={"entropy": drop_after_30})
    done("import", bad, "--baseline", "usual", runs=baseline)
    before = left_the_band(baseline)
    done("rescan", runs=baseline)
    assert left_the_band(baseline) == before != []


def test_a_baseline_that_is_not_saved_is_refused_before_anything_is_read_or_trained(baseline, tmp_path):
    says = "no baseline 'usua' (did you mean 'usual'?)"
    refused(says, "import", tmp_path, "--baseline", "usua", runs=baseline)
    grid = grid_file(tmp_path, base='iterations = 3\nrecord.baseline = "usua"')
    refused(says, "run", grid, runs=baseline)
    assert not (baseline / "demo").exists()


def test_a_grid_copies_the_baseline_into_the_folders_of_its_runs(baseline, tmp_path):
    grid = grid_file(tmp_path, base='iterations = 3\nrecord.baseline = "usual"', seeds="[0]")
    done("run", grid, runs=baseline)
    copies = list((baseline / "demo").glob("*/baseline.json"))
    assert len(copies) == 2
    assert copies[0].read_text() == (baseline / ".baselines" / "usual.json").read_text()

"""`sorl import`: a log becomes a run, once; a folder with a bar; a log that still grows; broken and hostile
ones.
"""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sorl.cli import import_
from sorl.cli.import_ import Importer
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.cli.command import done, refused, sorl, told
from tests.importing.test_formats import unpacked


def rows(steps: range, scale: float = 1.0) -> str:
    same = {"actor/grad_norm": 0.5, "actor/lr": 1e-6}
    return "".join(
        json.dumps({"step": i, "reward": scale * i / 64, "mine/own": i} | same) + "\n" for i in steps
    )


def asked(runs: Path, query: str) -> list[tuple[Any, ...]]:
    sync(runs)
    return [tuple(row) for row in Reader(runs).rows(query).rows]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a configuration beside it; its name says a seed, and tries to act on the terminal."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"max_grad_norm": 0.2, "num_generations": 8, "max_steps": 100})
    )
    path = folder / "grpo\x1b[2J<b>-s3.jsonl"
    path.write_text(rows(range(40)))
    return path


def test_a_log_becomes_a_run_and_what_became_of_its_metrics_is_said(log, runs):
    text = done("import", log, "--name", "mine", runs=runs).stdout
    assert "step.reward          reward" in text
    assert "kept as columns of table step: mine_own" in text
    assert "learn.policy.max_grad_norm = 0.2" in text
    assert "note: success: the log has none; the reward (reward) is used instead" in text
    assert "\x1b" not in text
    ((run_id, *row),) = asked(
        runs, "SELECT run_id, experiment, algorithm, seed, status, steps, config FROM run"
    )
    assert run_id.startswith("grpo-2J-b--s3-")
    assert row[:5] == ["mine", "unknown", 3, "finished", 40]
    config = {"iterations": 100, "learn": {"policy": {"max_grad_norm": 0.2}, "group_size": 8}}
    assert json.loads(row[5]) == config
    sums = "SELECT count(*), sum(success), sum(reward), sum(mine_own) FROM step"
    assert asked(runs, sums) == [(40, 12.1875, 12.1875, 780)]
    assert asked(runs, "SELECT count(*), max(grad_norm) FROM minibatch") == [(40, 0.5)]
    assert told("diagnose", run_id, runs=runs)[0]["steps"] == 40
    assert "The log has no success; its reward is used." in done("diagnose", run_id, runs=runs).stdout


def test_a_source_that_has_not_changed_is_not_read_again_and_one_that_has_replaces_its_run(log, runs):
    done("import", log, runs=runs)
    files = {file: file.stat().st_mtime_ns for file in runs.rglob("*.parquet")}
    again = done("import", log, runs=runs).stdout
    assert again == "0 runs imported as experiment imported; 1 source unchanged since the last import\n"
    assert {file: file.stat().st_mtime_ns for file in runs.rglob("*.parquet")} == files
    asked(runs, "SELECT 1")
    log.write_text(rows(range(50), 0.5))
    done("import", log, runs=runs)
    assert asked(runs, "SELECT count(*), max(reward) FROM step") == [(50, 0.5 * 49 / 64)]
    assert asked(runs, "SELECT DISTINCT steps FROM run") == [(50,)]


def test_every_run_of_a_folder_is_imported_and_a_file_that_is_no_log_is_told(runs, tmp_path):
    folder = tmp_path / "logs"
    for i in range(20):
        (folder / f"ppo-s{i}").mkdir(parents=True)
        (folder / f"ppo-s{i}" / "metrics.jsonl").write_text(rows(range(5)))
    (folder / "other.csv").write_text("a,b\n1,2\n")
    result = done("import", folder, "--name", "grid", runs=runs)
    assert result.stdout == "20 runs imported as experiment grid\n"
    assert "other' has no metric that is known" in result.stderr
    assert (
        "20 sources unchanged since the last import"
        in done("import", folder, "--name", "grid", runs=runs).stdout
    )
    assert asked(runs, "SELECT count(*), count(DISTINCT seed), count(DISTINCT arm) FROM run") == [(20, 20, 1)]


def test_the_runs_of_a_database_are_runs(runs, tmp_path):
    done("import", unpacked("trackio", tmp_path), runs=runs)
    assert asked(runs, "SELECT arm, steps FROM run ORDER BY 1") == [("p/other", 13), ("p/run", 13)]


# Live


@pytest.fixture
def following(log: Path, runs: Path) -> Importer:
    """It has looked once at the log, which may grow."""
    importer = Importer(log, runs / "live", live=True)
    importer.look(say=False)
    return importer


def test_a_log_that_grows_is_followed_and_its_last_step_waits_for_the_next(log, runs, following):
    count = "SELECT count(*), max(step) FROM step"
    assert asked(runs, count) == [(39, 38)]
    assert asked(runs, "SELECT status FROM run") == [("running",)]
    first = {file.name for file in (runs / "live").rglob("step/*.parquet")}
    with log.open("a") as file:
        file.write('{"step": 39, "eval_reward": 0.25}\n' + rows(range(40, 45)) + '{"step": 45, "rew')
    following.look(say=False)
    assert asked(runs, count) == [(44, 43)]
    assert asked(runs, "SELECT heldout_success, reward FROM step WHERE step = 39") == [(0.25, 39 / 64)]
    now = {file.name for file in (runs / "live").rglob("step/*.parquet")}
    assert first < now, "what was there is not written again"
    with log.open("a") as file:
        file.write('ard": 1}\n')
    following.end()
    assert asked(runs, count) == [(46, 45)]
    assert asked(runs, "SELECT status, outcome FROM run") == [("finished", "healthy")]


def test_a_restart_of_the_trainer_replaces_the_tail_of_a_followed_run(log, runs, following):
    asked(runs, "SELECT 1")
    with log.open("a") as file:
        file.write(rows(range(20, 30), 0.5))
    following.look(say=False)
    following.end()
    assert asked(runs, "SELECT count(*), max(step), arg_max(reward, step) FROM step") == [
        (30, 29, 0.5 * 29 / 64)
    ]


def test_follow_reads_on_until_ctrl_c(log, runs, monkeypatch):
    looks = threading.Event()

    def sleep(seconds: float) -> None:
        if looks.is_set():
            raise KeyboardInterrupt
        looks.set()
        with log.open("a") as file:
            file.write(rows(range(40, 60)))

    monkeypatch.setattr(import_.time, "sleep", sleep)
    result = sorl("import", log, "--follow", runs=runs)
    assert result.exit_code == 0, result.output
    ended = "SELECT count(*), any_value(status) FROM step JOIN run USING (run_id)"
    assert asked(runs, ended) == [(60, "finished")]


def test_ctrl_c_in_the_middle_of_a_write_leaves_every_step_once(log, runs, following, monkeypatch):
    with log.open("a") as file:
        file.write(rows(range(40, 60)))
    row = following._row

    def interrupted(*words: Any) -> Any:
        monkeypatch.setattr(following, "_row", row)
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        following.look(say=False)
    following.end()
    assert asked(runs, "SELECT count(*), count(DISTINCT step) FROM step") == [(60, 60)]


# Mistakes


def test_what_is_no_log_is_refused_in_one_line(log, runs, tmp_path):
    refused("there is no file or folder", "import", tmp_path / "nothing", runs=runs)
    for name in ("../x", ".x"):
        refused("is no name of a folder", "import", log, "--name", name, runs=runs)
    (tmp_path / "x.jsonl").write_text('{"step": 1}\nnot json\n{}\n')
    for verb in ("import", "diagnose"):
        refused("line 2", verb, tmp_path / "x.jsonl", runs=runs)
    assert not [*runs.rglob("*.parquet")]


def test_diagnose_reads_a_folder_of_logs_without_keeping_it(tmp_path):
    folder = unpacked("mlflow", tmp_path)
    assert [one["steps"] for one in told("diagnose", folder, runs=tmp_path / "nowhere")] == [12, 12]
    assert not (tmp_path / "nowhere").exists()

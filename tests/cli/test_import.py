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
from sorl.spec import InputError
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
    text = done("diagnose", run_id, runs=runs).stdout
    assert "reward: reward): Healthy: the reward rises" in text


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


def test_one_log_may_be_in_two_experiments(log, runs):
    done("import", log, "--name", "a", runs=runs)
    done("import", log, "--name", "b", runs=runs)
    assert asked(
        runs, "SELECT experiment, count(*) FROM run JOIN step USING (run_id) GROUP BY 1 ORDER BY 1"
    ) == [
        ("a", 40),
        ("b", 40),
    ]
    assert "grpo" in done("ls", "b", runs=runs).stdout


def test_a_seed_that_is_no_number_is_none(log, runs):
    (log.parent / "config.json").write_text('{"seed": true}')
    done("import", log, runs=runs)
    assert asked(runs, "SELECT seed FROM run") == [(0,)]


def test_what_was_left_out_is_said_by_import_and_by_every_later_diagnosis(log, runs):
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:20], *["damaged"] * 10, *lines[20:]]) + "\n")
    sentence = "10 of 50 rows left out: not a JSON object, first in line 21"
    assert f"warning: {sentence}" in done("import", log, runs=runs).stdout
    ((run_id,),) = asked(runs, "SELECT run_id FROM run")
    for words in (["diagnose", run_id], ["diagnose", log], ["diagnose", run_id, "--format", "md"]):
        text = done(*words, runs=runs).stdout
        assert text.lstrip("*").startswith(f"Warning: {sentence}"), text
    for name in (run_id, log):
        (found,) = told("diagnose", name, runs=runs)
        assert (found["reading"]["rows"], found["reading"]["left_out"]) == (50, 10)


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


def test_a_bad_line_costs_a_followed_log_that_line_alone(log, runs, following, capsys):
    with log.open("a") as file:
        file.write("no JSON\n" + rows(range(40, 60)))
    following.look(say=False)
    following.end()
    assert asked(runs, "SELECT count(*), max(step) FROM step") == [(60, 59)]
    assert "1 of 61 rows left out: not a JSON object, first in line 41" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["renamed", "truncated"])
def test_a_log_that_is_rotated_keeps_its_first_part(how, log, runs, following):
    if how == "renamed":
        log.rename(log.with_suffix(".1"))
    log.write_text("")
    with pytest.raises(InputError, match="it is empty"):
        following.look(say=False)
    log.write_text(rows(range(40, 50)))
    following.look(say=False)
    with log.open("a") as file:
        file.write(rows(range(50, 60)))
    following.look(say=False)
    following.end()
    assert asked(runs, "SELECT count(*), min(step), max(step), sum(mine_own) FROM step") == [
        (60, 0, 59, 59 * 30)
    ]
    assert asked(runs, "SELECT count(*) FROM minibatch") == [(60,)]


def test_a_log_that_is_not_there_yet_or_empty_is_waited_for(tmp_path, runs, monkeypatch):
    late = tmp_path / "late.jsonl"
    waits = iter(["", rows(range(5)), None])

    def sleep(seconds: float) -> None:
        content = next(waits)
        if content is None:
            raise KeyboardInterrupt
        late.write_text(content)

    monkeypatch.setattr(import_.time, "sleep", sleep)
    result = sorl("import", late, "--follow", runs=runs)
    assert result.exit_code == 0, result.output
    assert "waiting: there is no file or folder" in result.stderr
    assert "it is empty" in result.stderr
    assert "5 steps of JSON lines" in result.stdout
    assert asked(runs, "SELECT count(*), any_value(status) FROM step JOIN run USING (run_id)") == [
        (5, "finished")
    ]


def test_ctrl_c_before_anything_came_says_so(tmp_path, runs, monkeypatch):
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_.time, "sleep", sleep)
    result = sorl("import", tmp_path / "never.jsonl", "--follow", runs=runs)
    assert "nothing was imported" in result.stderr


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
    (tmp_path / "x.jsonl").write_text("[1]\nnot json\n")
    for verb in ("import", "diagnose"):
        refused("its first line is '[1]'", verb, tmp_path / "x.jsonl", runs=runs)
    assert not [*runs.rglob("*.parquet")]


def test_diagnose_reads_a_folder_of_logs_without_keeping_it(tmp_path):
    folder = unpacked("mlflow", tmp_path)
    assert [one["steps"] for one in told("diagnose", folder, runs=tmp_path / "nowhere")] == [12, 12]
    assert not (tmp_path / "nowhere").exists()

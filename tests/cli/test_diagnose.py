"""`sorl diagnose`: a run, an experiment, a folder, a foreign log; text, Markdown, JSON; exit codes."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sorl.cli.diagnose import _name_of, logs
from sorl.spec import InputError
from studies import diagnosis as score
from tests.cli.command import done, refused, sorl, told
from tests.studies.test_diagnosis import FOUND


def written(path: Path, jump: float) -> Path:
    same = {"entropy": 0.5, "reward": 0.4, "grad_norm": 0.3}
    rows = [same | {"step": i, "learning_rate": 1e-6 if i < 20 else 1e-6 * jump} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A log of TRL whose learning rate jumps; its name tries to act on the terminal."""
    return written(tmp_path / "evil\x1b[2J<b>.jsonl", 100)


def test_the_runs_of_an_experiment_are_diagnosed_one_after_the_other(grid):
    names = [one["log"] for one in told("diagnose", "demo", runs=grid)]
    assert len(names) == len(set(names)) == 8
    alone = told("diagnose", grid / "demo" / names[0], runs=grid)
    assert [one["log"] for one in alone] == names[:1]
    assert _name_of((grid / "demo").resolve(), grid.resolve()) == "demo"


def test_a_foreign_log_is_diagnosed_without_a_runs_folder(foreign, tmp_path):
    text = done("diagnose", foreign, runs=tmp_path / "nowhere").stdout
    assert "1. The learning rate is not the one that was set  [learning_rate: critical" in text
    assert "from step 20 on the optimizer's learning rate is 0.0001, where it began with 1e-06" in text
    assert "Not looked at, as the log has no column that is known to hold it:" in text
    assert "\x1b" not in text
    marked = done("diagnose", foreign, "--format", "md").stdout
    assert marked.startswith("### evil\\u001b[2J&lt;b>.jsonl\n")
    assert "\x1b" not in marked


def test_a_pasted_log_is_diagnosed_with_the_names_that_are_given(foreign, monkeypatch):
    text = (foreign / "run.jsonl").read_text() if foreign.is_dir() else foreign.read_text()
    pasted = io.TextIOWrapper(io.BytesIO(text.replace('"reward"', '"zork"').encode()))
    monkeypatch.setattr("sorl.importing.standard_input.sys.stdin", pasted)
    said = list(logs(Path("runs"), "-", {}, ["reward=zork"]))
    assert [log.name for log in said] == ["standard input"]
    assert said[0].reading.reward_metric == "zork"


@pytest.mark.parametrize(("size", "says"), [(0, "standard input is empty"), (11, "holds more than")])
def test_standard_input_of_another_size_is_refused(size, says, monkeypatch):
    monkeypatch.setattr("sorl.importing.standard_input.LARGEST", 10)
    monkeypatch.setattr("sorl.importing.standard_input.sys.stdin", io.TextIOWrapper(io.BytesIO(bytes(size))))
    with pytest.raises(InputError, match=says):
        list(logs(Path("runs"), "-", {}))


def test_a_terminal_is_no_log(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sorl.importing.standard_input.sys.stdin", Terminal())
    with pytest.raises(InputError, match="is a terminal"):
        list(logs(Path("runs"), "-", {}))


def test_a_map_without_a_log_is_refused():
    refused("give its file or folder too", "diagnose", "--map", "reward=a")


def test_fail_on_sets_the_exit_code(foreign, tmp_path):
    for level in ("info", "warning", "critical"):
        assert sorl("diagnose", foreign, "--fail-on", level).exit_code == 1
    done("diagnose", foreign)
    clean = done("diagnose", written(tmp_path / "clean.jsonl", 1), "--fail-on", "info")
    assert "No known cause shows." in clean.stdout


def test_bench_diagnose_counts_shipped_cases_each_run_once(tmp_path):
    one, more, both = (tmp_path / f"{name}.parquet" for name in ("one", "more", "both"))
    score.write(FOUND, one)
    assert "| all | 1/4 = 25 %" in done("bench", "diagnose", "--from", one).stdout
    score.write([FOUND[0], *[replace(case, run_id=f"{case.run_id}-more") for case in FOUND]], more)
    joined = done("bench", "diagnose", "--from", one, "--from", more, "--output", both)
    assert "| all | 2/8 = 25 %" in joined.stdout
    assert len(score.read(both)) == 2 * len(FOUND)

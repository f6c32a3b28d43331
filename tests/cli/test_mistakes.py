"""A mistake of the user is one message that names the nearest word or what to type, and exit code 2."""

import shlex
import socket
import sys
from pathlib import Path

import pytest

from tests.cli.command import grid_file, refused
from workbench.cli import app as verb
from workbench.cli import run as training

NAME = "name an experiment (`sorl ls` lists them), or a file"
MISTAKES = [
    ("lss", "did you mean 'ls'"),
    ("ls dem", "no experiment 'dem' (did you mean 'demo'?)"),
    ("show ppo", "is the prefix of 2 runs: ppo-s0-aaaa0000, ppo-s1-aaaa0001"),
    ("show ppo-s3-aaaa0000", "did you mean 'ppo-s"),
    ("sql turm", "did you mean 'turn'"),
    ("sql --saved ratio_by_tern", "did you mean 'ratio_by_turn'"),
    ("sql 'SELECT * FROM runn'", 'Did you mean "run"'),
    ("sql 'DROP TABLE run'", "only one SELECT"),
    ("sql 'SELECT 1; SELECT 2'", "2 statements: only one SELECT"),
    ("sql 'SELECT 1' --format tsv", "allowed: table, csv, json, parquet"),
    ("sql 'SELECT 1' --format parquet", "add --output FILE.parquet"),
    ("sql 'SELECT 1' --saved worst_turns", "give only one"),
    ("sql 'SELECT 1' --output /no/such/folder/x.csv", "cannot write '/no/such/folder/x.csv'"),
    ("sql 'SELECT 1' --output no/x.parquet --format parquet", "cannot write 'no/x.parquet'"),
    ("sql 'SELECT count(*) FROM range(1000000000) a, range(1000) b' --seconds 0.2", "stopped after 0.2 s"),
    ("compare dema", "no experiment 'dema' (did you mean 'demo'?)"),
    ("compare demo --format jsn", "did you mean 'json'?"),
    ("compare demo --against st-pp", "--against 'st-pp': demo has no such arm (did you mean 'st-ppo'?)"),
    ("compare demo --export no/such.csv", "cannot write 'no/such.csv'"),
    ("diagnose nothing", "no run 'nothing'"),
    ("diagnose nowhere.jsonl", "there is no file 'nowhere.jsonl'"),
    ("diagnose demo --format html", "--format 'html' is unknown"),
    ("diagnose demo --fail-on worst", "--fail-on 'worst' is unknown"),
    ("replay nobody --step 4", "no run 'nobody'"),
    ("report", NAME),
    ("report dem", "no experiment 'dem' (did you mean 'demo'?)"),
    ("report demo --format pdf", "--format 'pdf' is unknown; allowed: html, md"),
    ("report --from nowhere.parquet", "no file 'nowhere.parquet'; `sorl report EXPERIMENT --export FILE.parquet`"),
    ("report demo --format md -o no/such/page.md", "cannot write 'no/such/page.md'"),
    ("report demo --export no/such/file.parquet", "cannot write 'no/such/file.parquet'"),
    ("rescan demi", "did you mean 'demo'"),
    ("run nothing.toml", "no grid file nothing.toml"),
    ("plan nothing.toml", "no grid file nothing.toml"),
    ("run demo.toml --set learn.epoch=2", "did you mean 'learn.epochs'?"),
    ("run demo.toml --executor rya", "did you mean 'ray'?"),
    ("run demo.toml --set 'axes.algorithm=[\"pp\"]'", "unknown algorithm 'pp'"),
    ("run demo.toml --set 'axes.algorithm=[\"grpo\"]' --set learn.episodes=12", "groups of 8"),
    ("run demo.toml --set slots.clip.hihg=0.3", "did you mean 'high'?"),
    ("run demo.toml --memory 0", "--memory 0 is no size; write GiB, for example --memory 4"),
    ("run demo.toml --memory -1", "--memory -1 is no size"),
    ("run demo.toml --memory inf", "--memory inf is no size"),
    ("run demo.toml --retries -1", "Invalid value for '--retries'"),
    ("run demo.toml --hang-seconds -3", "Invalid value for '--hang-seconds'"),
    ("plan demo.toml --format yaml", "--format 'yaml' is unknown"),
    ("plan demo.toml --hazard-ratio 1", "--hazard-ratio 1 is no effect"),
    ("plan demo.toml --hazard-ratio -0.2", "above 0"),
    ("plan demo.toml --power 80", "--power 80 is not between 0.05 and 1"),
    ("plan demo.toml --incidence 0", "--incidence 0 is not between 0 and 1"),
    ("algorithms grop", "did you mean 'grpo'?"),
    ("algorithms diff ppo", "sorl algorithms diff ppo st-ppo"),
    ("diagnostics grad_nrm", "did you mean 'grad_norm'?"),
    ("retriever serve --corpus none.jsonl", "no corpus file"),
    ("retriever serve --corpus none.jsonl --kind bm52", "did you mean 'bm25'"),
    ("app --port 8999 --host 192.0.2.1", "cannot listen on 192.0.2.1"),
    ("bench speed", "'speed' is unknown"),
    ("bench diagnose fault_lab", "takes no experiment"),
    ("bench diagnose", "experiments/fault_lab.toml"),
]


@pytest.mark.parametrize(("line", "says"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_message_and_nothing_starts(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    grid_file(tmp_path)
    before = sorted(grid.rglob("*"))
    refused(says, *shlex.split(line), runs=None if line.startswith("retriever") else grid)
    assert sorted(grid.rglob("*")) == before


def test_a_missing_runs_folder_is_named_and_not_made(tmp_path: Path) -> None:
    for line in ("ls", "show x", "sql 'SELECT 1'", "sync", "rescan"):
        refused("sorl: no runs folder '", *shlex.split(line), runs=tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()


def test_a_taken_port_is_refused_and_a_missing_extra_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(f"cannot listen on 127.0.0.1 port {port}", "app", "--port", port, runs=tmp_path)
    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    refused("`sorl app` needs streamlit, which is not installed: run `pip install 'sorl[app]'`", "app", runs=tmp_path)


def test_a_missing_package_comes_with_the_extra_that_installs_it(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lifelines", None)
    refused(
        "`sorl compare` needs lifelines, which is not installed: run `pip install 'sorl[analysis]'`",
        "compare",
        "demo",
        runs=grid,
    )
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    refused(
        "`sorl run` needs torch, which is not installed: run `pip install 'sorl[train]'`",
        "run",
        "experiments/quickstart.toml",
        runs=grid,
    )


def test_a_run_folder_of_another_runs_folder_comes_with_the_command_that_reads_it(grid: Path, runs: Path) -> None:
    refused(f"--runs {grid} diagnose demo", "diagnose", grid / "demo", runs=runs)


def test_one_results_file_holds_one_experiment(two: Path, tmp_path: Path) -> None:
    other, both = "experiments/results/six_by_five.parquet", tmp_path / "both.parquet"
    says = "--export writes one experiment to a file, not 2 (six_by_five, demo)"
    refused(says, "report", "demo", "--from", other, "--export", both, runs=two)

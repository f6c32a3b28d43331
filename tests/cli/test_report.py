from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from docs.render import ROOT
from tests.cli.test_compare import fell, record
from tests.store.fixture import START, write_experiment, write_segment
from workbench.analysis import results

Sorl = Callable[..., Any]


@pytest.fixture
def demo(runs: Path) -> Path:
    """Two arms of two seeds, of which one collapses."""
    write_experiment(runs, "demo", question="Which of the two?")
    for seed in (0, 1):
        fell(runs, "ppo", seed, 12 + seed)
        record(runs, "st-ppo", seed)
    return runs


def test_the_page_is_written_where_it_is_asked_for(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    result = sorl("report", "demo", "-o", tmp_path / "page.html", runs=demo)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert f"wrote {tmp_path / 'page.html'}" in result.stderr
    source = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert source.startswith("<!doctype html>")
    assert "Which of the two?" in source


def test_a_report_from_the_exported_file_is_the_report_from_the_runs(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    file = tmp_path / "demo.parquet"
    result = sorl("report", "demo.toml", "--export", file, runs=demo)
    assert result.exit_code == 0, result.output
    assert f"wrote {file}: 4 runs" in result.stderr
    one = sorl("report", "demo", "--format", "md", runs=demo).stdout
    other = sorl("report", "--from", file, "--format", "md", runs=tmp_path / "nowhere").stdout
    assert one.replace("sorl report demo", "") == other.replace(f"sorl report --from {file}", "")
    assert "Collapsed: ppo in 2 of 2" in one
    assert "| (b) Turn-level ratios alone help. | not tested here |" in one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name an experiment (`sorl ls` lists them), or a file"),
        (("dem",), "no experiment 'dem' (did you mean 'demo'?)"),
        (("demo", "--format", "pdf"), "--format 'pdf' is unknown; allowed: html, md"),
        (("--from", "nowhere.parquet"), "no file 'nowhere.parquet'; `sorl report EXPERIMENT --export FILE.parquet`"),
        (("demo", "--format", "md", "-o", "no/such/page.md"), "cannot write 'no/such/page.md'"),
        (("demo", "--export", "no/such/file.parquet"), "cannot write 'no/such/file.parquet'"),
    ],
)
def test_wrong_input_is_one_message(sorl: Sorl, demo: Path, words: tuple[str, ...], message: str) -> None:
    result = sorl("report", *words, runs=demo)
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.stderr)
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_an_experiment_that_has_no_run_yet_is_unknown(sorl: Sorl, runs: Path) -> None:
    write_experiment(runs, "demo")
    result = sorl("report", "demo", runs=runs)
    assert result.exit_code == 2
    assert "no experiment 'demo'" in result.stderr


def test_one_file_holds_one_experiment(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    other = "experiments/results/six_by_five.parquet"
    result = sorl("report", "demo", "--from", other, "--export", tmp_path / "both.parquet", runs=demo)
    assert result.exit_code == 2
    assert "--export writes one experiment to a file, not 2 (six_by_five, demo)" in result.stderr


def test_runs_are_added_to_those_of_a_file(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    whole, part, again = (tmp_path / f"{name}.parquet" for name in ("whole", "part", "again"))
    sorl("report", "demo", "--export", whole, runs=demo)
    runs = results.read(whole)
    results.write(dataclasses.replace(runs, table=runs.table.slice(0, len(runs.table) - 1)), part)
    assert sorl("report", "demo", "--from", part, "--export", again, runs=demo).exit_code == 0
    assert results.read(again).table.equals(runs.table)


def test_the_shipped_results_say_what_the_page_of_findings_says() -> None:
    shipped = sorted((ROOT / "experiments" / "results").glob("*.parquet"))
    assert shipped
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    for file in shipped:
        assert f"experiments/results/{file.name}" in page
        assert file.stat().st_size < 2**20


def test_what_was_not_measured_stays_null_and_nan_stays_nan(sorl: Sorl, runs: Path, tmp_path: Path) -> None:
    write_experiment(runs, "demo")
    folder = record(runs, "ppo", 0, steps=3)
    place = {"run_id": [folder.name] * 3, "step": [0, 1, 2], "written_at": [START] * 3}
    write_segment(folder, "step", place | {"success": [0.5, None, 0.25], "entropy": [math.nan, math.inf, 1.0]})
    write_segment(folder, "minibatch", place | {"update": [0] * 3, "clip_bias_norm": [None, 0.5, math.nan]})
    file = tmp_path / "demo.parquet"
    assert sorl("report", "demo", "--export", file, runs=runs).exit_code == 0
    (row,) = pq.read_table(file).to_pylist()
    assert row["step"] == [0, 1, 2]
    assert row["success"] == [0.5, None, 0.25]
    assert row["value_mae"] == [None] * 3
    assert row["clip_bias_norm"][:2] == [None, 0.5]
    assert math.isnan(row["clip_bias_norm"][2])
    assert math.isnan(row["entropy"][0])
    assert row["entropy"][1:] == [math.inf, 1.0]
    page = sorl("report", "--from", file, "--format", "md", runs=runs)
    assert page.exit_code == 0, page.output

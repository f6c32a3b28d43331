"""`sorl bench search`: the search of a region against the full grid, where the right answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.analysis.frames import arm, down, frame, up
from workbench.analysis.results import results, write
from workbench.cli.main import app

RATES = tuple(float(f"{0.1 * 2**i:.3g}") for i in range(9))
FILE = """
kind = "region"
question = "How large a learning rate does each survive?"
seeds = [0, 1, 2, 3, 4]
[axes]
algorithm = ["ppo"]
"learn.staleness" = [0, 3]
[region]
low = 0.1
high = 25.6
points = 9
search = "full"
"""


def full_grid(file: Path, most: dict[int, float], seeds: int = 5) -> Path:
    """Results of token PPO that collapses above the learning rate that it survives at each staleness."""
    rows = []
    for staleness, survived in most.items():
        for rate in RATES:
            learn = {"epochs": 4, "staleness": staleness, "policy": {"lr": rate}}
            label = f"ppo · staleness {staleness} · policy.lr {rate:g}"
            rows.append(arm(label, down(seeds) if rate > survived else up(seeds), "ppo", learn=learn))
    write(results(frame(*rows), {"experiment": "demo", "question": "How large?", "toml": FILE}), file)
    return file


def sorl(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output + str(done.exception or "")


def test_the_search_finds_the_boundary_of_the_full_grid_with_fewer_runs(tmp_path: Path) -> None:
    code, told = sorl("bench", "search", "--from", full_grid(tmp_path / "demo.parquet", {0: 6.4, 3: 0.4}))
    assert code == 0, told
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:]] for line in told.splitlines()[2:]}
    assert set(rows) == {"ppo, learn.staleness 0", "ppo, learn.staleness 3", "all"}
    for name, edge in (("ppo, learn.staleness 0", 9.05), ("ppo, learn.staleness 3", 0.566)):
        runs, asked, whole, found, apart, _ = rows[name]
        assert runs == "45"
        assert int(asked.split(" = ")[0]) < 45
        assert [float(told.split()[0]) for told in (whole, found)] == pytest.approx([edge, edge], rel=0.1)
        assert abs(float(apart)) < 0.1
    asked = {name: int(row[1].split(" = ")[0]) for name, row in rows.items()}
    assert rows["all"][0] == "90"
    assert asked.pop("all") == sum(asked.values()) < 45


def test_a_grid_with_gaps_is_refused(tmp_path: Path) -> None:
    code, told = sorl("bench", "search", "--from", full_grid(tmp_path / "demo.parquet", {0: 6.4, 3: 0.4}, seeds=4))
    assert code != 0
    assert "of the full grid of 'ppo' in 'demo' 72 of 90 runs can be judged" in told
    assert 'search = "full"' in told


def test_what_is_no_region_is_refused(tmp_path: Path) -> None:
    code, told = sorl("--runs", tmp_path, "bench", "search")
    assert code != 0
    assert 'name a region with search = "full"' in told
    code, told = sorl("bench", "search", "--from", "experiments/results/controls.parquet")
    assert code != 0
    assert "'controls' is no experiment of kind region" in told

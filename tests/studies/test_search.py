"""`sorl bench search`: the search of a region against the full grid, where the right answer is known."""

from pathlib import Path

import pytest

from sorl.analysis.results import write
from tests.cli.command import done, refused
from tests.studies.runs import region


def full_grid(file: Path, seeds: int = 5) -> Path:
    """Results of token PPO that survives less at a staleness of 3."""
    write(region(9, {"ppo": {0: 6.4, 3: 0.4}}, seeds, search="full"), file)
    return file


def test_the_search_finds_the_boundary_of_the_full_grid_with_fewer_runs(tmp_path: Path) -> None:
    told = done("bench", "search", "--from", full_grid(tmp_path / "demo.parquet")).stdout
    rows = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:]] for line in told.splitlines()[2:]
    }
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


def test_a_grid_with_gaps_and_what_is_no_region_are_refused(tmp_path: Path) -> None:
    gaps = full_grid(tmp_path / "demo.parquet", seeds=4)
    for words, says in (
        (
            ["--from", gaps],
            "of the full grid of 'ppo' in 'demo' 72 of 90 runs can be judged; set search = \"full\"",
        ),
        ([], 'name a region with search = "full"'),
        (["--from", "experiments/results/controls.parquet"], "'controls' is no experiment of kind region"),
    ):
        refused(says, "bench", "search", *words, runs=tmp_path)

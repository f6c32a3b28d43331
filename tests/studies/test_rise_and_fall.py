"""The search for a regime: what counts as promising, who goes on, and that it resumes where it was."""

from pathlib import Path

import pandas as pd
import pytest
import tomli_w

from studies.diagnosis import Case
from studies.rise_and_fall import arms, curve, page, promise, search, survivors
from studies.routes import FAULT, named_first, named_wrongly
from tests.learn.tiny import TINY

UP = [0.2] * 5 + [0.6] * 25
DOWN = [0.2] * 5 + [0.6] * 15 + [0.0] * 10
FLAT = [0.2] * 30


def rows(**curves: list[float]) -> pd.DataFrame:
    return pd.DataFrame([{"setting": name, **curve(values)} for name, values in curves.items()])


def test_only_a_run_that_first_rose_and_then_fell_is_promising():
    assert promise(rows(up=UP)) == promise(rows(flat=FLAT)) == 0.0
    assert promise(rows(down=DOWN)) == pytest.approx(0.15)
    assert curve(DOWN) == pytest.approx({"start": 0.2, "peak": 0.6, "gain": 0.4, "end": 0.0})


def test_a_run_rose_when_thirty_iterations_in_a_row_are_well_above_the_warm_start():
    def run(arm: str, success: list[float], outcome: str, status: str = "finished") -> dict[str, object]:
        return {
            "arm": arm,
            "status": status,
            "success": success,
            "outcome": outcome,
            "collapse_step": None,
            "config": '{"policy": {}}',
        }

    rose = [0.5] + [0.7] * 30 + [0.0] * 10
    brief = [0.3] + [0.7] * 10 + [0.1] * 30
    never = [0.4] + [0.5] * 40
    found = arms(
        pd.DataFrame(
            [
                run("a", rose, "collapsed"),
                run("a", brief, "collapsed"),
                run("b", rose, "recovered"),
                run("b", never, "healthy"),
                run("b", never, "collapsed", "running"),
            ]
        )
    ).set_index("arm")
    # the first iterations of all finished runs
    assert found["warm_start"].tolist() == pytest.approx([0.425] * 2)
    assert found.loc["a", ["runs", "rose", "collapsed", "rose_and_collapsed"]].tolist() == [2, 1, 2, 1]
    assert found.loc["b", ["runs", "rose", "collapsed", "rose_and_collapsed"]].tolist() == [2, 1, 0, 0]
    assert found["recovered"].tolist() == [0, 1]


def test_the_page_has_a_row_an_arm_with_its_collapses():
    run = {"arm": "a", "status": "finished", "success": [0.4] * 40, "config": '{"policy": {}}'}
    collapsed = run | {"outcome": "collapsed", "collapse_step": 7}
    never = run | {"outcome": "no_learning", "collapse_step": None}
    lines = page(pd.DataFrame([collapsed, never])).splitlines()
    assert lines[2:] == ["| a | 0.40 | 0.40 | 0.40 | 0 | 1/2 = 50 % [1, 99] | 0 | 1 | 7 |"]


def test_the_better_half_goes_on_in_the_order_of_the_table():
    table = rows(flat=FLAT, up=UP, down=DOWN)
    assert survivors(table, ["flat", "up", "down"]) == ["flat", "down"]
    assert survivors(table, ["down"]) == ["down"]


def test_a_search_ends_with_a_row_for_every_run_and_repeats_none(tmp_path: Path):
    table = tmp_path / "settings.toml"
    output = tmp_path / "rows.parquet"
    base = {**TINY, "algorithm": "grpo"}
    base.pop("iterations")
    settings = {"calm": {}, "wild": {"learn.policy.lr": 1.0}}
    rungs = [{"seeds": [0], "iterations": 4}, {"seeds": [1], "iterations": 6}]
    table.write_text(tomli_w.dumps({"rungs": rungs, "base": base, "settings": settings}))
    first = search(tmp_path / "runs", output, table)
    assert sorted(zip(first["rung"], first["iterations"], strict=True)) == [(0, 4), (0, 4), (1, 6)]
    assert {"setting", "seed", "gain", "end", "verdict", "moved_first", "seconds"} <= set(first.columns)
    began = {path: path.stat().st_mtime for path in (tmp_path / "runs").rglob("config.toml")}
    again = search(tmp_path / "runs", output, table)
    assert (
        again["seconds"].tolist() == first["seconds"].tolist() == pd.read_parquet(output)["seconds"].tolist()
    )
    assert {path: path.stat().st_mtime for path in (tmp_path / "runs").rglob("config.toml")} == began


def test_routers_are_counted_as_named_wrongly_in_every_other_run():
    def case(fault: str, *named: str) -> Case:
        return Case("r", "moe_lab", "a", "grpo", 1, fault, None, "healthy", named, None)

    found = [
        case(FAULT, FAULT),
        case(FAULT, "off_policy", FAULT),
        case(""),
        case("stale_weights", "off_policy", FAULT),
    ]
    assert (named_first(found).k, named_first(found).n) == (1, 2)
    assert (named_wrongly(found).k, named_wrongly(found).n) == (1, 2)

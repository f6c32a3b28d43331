"""A run that its guard rolled back, on the screen Run: what was kept and given up, and what that cost."""

import json
from pathlib import Path

import pandas as pd
import pytest

from sorl.app.queries import Store
from sorl.app.sentences.run import rollback_sentence
from sorl.store.sync import sync
from tests.app.conftest import SMALL, Open, Read, Visit
from tests.store.fixture import write_experiment, write_run, write_status

FIRST = "ppo-s0-aaaa0000"
NAMES = (FIRST, f"{FIRST}-g2", f"{FIRST}-g3")


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """Three starts of a cell: the second goes on from step 4 of the first, the third from step 6 of that."""
    return write_starts(tmp_path / "runs", parents=(None, FIRST, NAMES[1]), forked_at=(None, 4, 6))


def write_starts(runs: Path, parents: tuple[str | None, ...], forked_at: tuple[int | None, ...]) -> Path:
    write_experiment(runs, "demo")
    for generation, (name, parent, step) in enumerate(zip(NAMES, parents, forked_at, strict=True), 1):
        folder = write_run(runs, "demo", name, shape=SMALL)
        fork = {"experiment": "demo", "run": parent, "at_step": step}
        config = json.dumps({} if parent is None else {"fork": fork})
        draw = None if parent is None else 0
        told = {"parent": parent, "forked_at": step, "draw": draw, "generation": generation}
        write_status(folder, status="finished", outcome="healthy", config=config, **told)
    sync(runs)
    return runs


def names_of(app: Visit) -> list[str]:
    return [trace.get("name", "") for trace in app.figures[0]["data"]]


def test_the_curve_shows_what_was_kept_and_what_was_given_up(open_screen: Open, chain: Path) -> None:
    starts = Store(chain).query("starts", run=NAMES[2])
    counts = starts.groupby(["start", "abandoned"]).size().to_dict()
    assert counts == {(NAMES[0], False): 4, (NAMES[0], True): 8, (NAMES[1], False): 6, (NAMES[1], True): 6}
    traces = open_screen("run", chain, run=NAMES[2]).figures[0]["data"]
    shown = [trace["name"] for trace in traces if trace.get("showlegend") is not False and "name" in trace]
    assert shown.count("before a rollback") == shown.count("given up at a rollback") == 1


def test_a_start_that_was_given_up_whole_is_counted(tmp_path: Path) -> None:
    runs = write_starts(tmp_path / "runs", parents=(None, FIRST, FIRST), forked_at=(None, 4, 4))
    starts = Store(runs).query("starts", run=NAMES[2])
    counts = starts.groupby(["start", "abandoned"]).size().to_dict()
    assert counts == {(NAMES[0], False): 4, (NAMES[0], True): 8, (NAMES[1], False): 4, (NAMES[1], True): 8}


def test_a_cell_that_was_started_from_nothing_again_has_no_earlier_start(tmp_path: Path) -> None:
    runs = write_starts(tmp_path / "runs", parents=(None, None, NAMES[1]), forked_at=(None, None, 4))
    starts = Store(runs).query("starts", run=NAMES[2])
    assert set(starts["start"]) == {NAMES[1]}


def test_the_screen_says_where_it_goes_on_and_what_was_given_up(open_screen: Open, chain: Path) -> None:
    text = Read(open_screen("run", chain, run=NAMES[2]).source).text
    assert f"After a rollback it goes on from step 6 of {NAMES[1]}" in text
    assert "After 2 rollbacks: 14 steps (" in text


def test_an_earlier_start_can_be_opened_and_says_that_it_was_given_up(open_screen: Open, chain: Path) -> None:
    app = open_screen("run", chain, run=FIRST)
    text = Read(app.source).text
    assert app.selectbox(key="run").value == FIRST
    assert "Ignored in the address" not in text
    assert f"An earlier start, which was given up; what became of it: {NAMES[2]}" in text
    newest = open_screen("run", chain)
    assert newest.selectbox(key="run").options == ["ppo, seed 0: healthy"]
    assert "An earlier start" not in Read(newest.source).text


def test_a_run_without_a_rollback_has_no_earlier_start(open_screen: Open, grid: Path) -> None:
    app = open_screen("run", grid)
    assert "before a rollback" not in names_of(app)
    assert "rollback" not in Read(app.source).text


def test_the_sentence_counts_only_what_was_given_up() -> None:
    starts = pd.DataFrame(
        {"start": ["a"] * 4, "abandoned": [False, False, True, True], "seconds": [9.0, 9.0, 2.0, 3.0]}
    )
    assert rollback_sentence(starts) == "After 1 rollback: 2 steps (5 s) were given up and trained again."

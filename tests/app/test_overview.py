"""Overview: what to look at first, the table of runs, what differs between those picked, notes, and falling now."""

import fcntl
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE, Open, Patch, Read, Visit, assert_literal
from tests.store.fixture import write_experiment, write_segment, write_status
from workbench.app.run_table import differing, matching, rows
from workbench.app.screens.overview import worst
from workbench.spec.files import lock_file
from workbench.store.notes import Notes, read, write
from workbench.store.reader import Reader
from workbench.store.sync import sync


def frame(*found: dict[str, Any]) -> pd.DataFrame:
    usual = {"arm": "ppo", "seed": 0, "outcome": "healthy", "status": "finished", "collapse_step": None, "reason": None,
             "onset_low": None, "peak_success": 0.5, "final_success": 0.5, "steps": 36, "seconds": 60.0, "slump": None,
             "config": "{}"}  # fmt: skip
    return pd.DataFrame([{"run_id": f"r{number}", **usual, **one} for number, one in enumerate(found)])


def test_the_worst_runs_come_first_by_how_they_stand_then_by_what_they_lost() -> None:
    each = frame(
        {}, {"outcome": "mild"}, {"outcome": "collapsed", "final_success": 0.2}, {"outcome": "no_learning"},
        {"outcome": "collapsed", "final_success": 0.1}, {"outcome": None, "status": "running", "slump": 9.0},
    )  # fmt: skip
    assert worst(each)["run_id"].tolist() == ["r4", "r2", "r5"]
    assert worst(each[each["outcome"].isin(["healthy", "no_learning"])]).empty, "a run that never rose lost nothing"
    assert worst(frame({"outcome": None, "status": "failed"}, {"outcome": "diverged"}))["run_id"].tolist() == [
        "r1",
        "r0",
    ]


CONFIGS = [json.dumps({"seed": n, "learn": {"staleness": s, "policy": {"lr": lr}}}) for n, (s, lr) in
           enumerate([(0, 0.1), (8, 0.1), (16, 0.1)])]  # fmt: skip


def test_a_table_has_the_settings_that_differ_and_is_filtered_by_words_and_conditions() -> None:
    each = frame(*({"config": config, "seed": n} for n, config in enumerate(CONFIGS)))
    assert list(differing(each)) == ["learn.staleness"], "neither the seed nor what is the same"
    assert differing(each.assign(config=None)).empty
    table = rows(each, {"r1": Notes("look", ("odd", "late"))})
    for asked, left in {
        "": "r0 r1 r2", "staleness > 4": "r1 r2", "learn.staleness <= 8, seed != 0": "r1", "odd": "r1",
        "ODD": "r1", "outcome = healthy": "r0 r1 r2", "staleness = 16": "r2", "tags != ": "", "nothing": "", ".*": "",
        "onset > 0": "", "hidden = no, LATE": "r1",
    }.items():  # fmt: skip
        found, unknown = matching(table, asked)
        assert (" ".join(found.index), unknown) == (left, []), asked
    assert matching(table, "stalenes > 4")[1] == ["stalenes"]


@pytest.fixture
def mine(grid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grid, tmp_path / "runs"))


def runs_of(app: Visit) -> list[str]:
    return re.findall(r'data-key="([^"]+)"', app.drawings[0])


def test_what_is_looked_at_first_is_what_the_database_says(grid: Path, open_screen: Open) -> None:
    source = open_screen("overview").source.split("Look at these first")[1].split("Arms")[0]
    asked = "SELECT run_id, arm, seed, collapse_step, onset_low, onset_high FROM run WHERE outcome = 'collapsed'"
    fell = Reader(grid).query(asked)
    found = Read(source)
    assert len(found.all("a")) <= 3
    named = [re.search("run=(.*)", link["href"])[1] for link in found.all("a")]  # type: ignore[index]
    assert set(named[: len(fell)]) == set(fell["run_id"])
    for run in fell.itertuples():
        low, high = run.onset_low, run.onset_high
        when = f"after step {low}" + (f" to {high} (95 %)" if high > low else "")
        assert f"{run.arm}, seed {run.seed}: collapsed, down {when}. " in found.text


def test_picked_runs_are_in_the_address_compared_and_annotated(mine: Path, open_screen: Open) -> None:
    app = open_screen("overview", mine)
    first, other = sorted(runs_of(app))[0], sorted(runs_of(app))[-1]
    app = open_screen("overview", mine, picked=[first, other, "nobody"])
    assert app.query_params["picked"] == [first, other]
    assert "column" not in app.query_params, "what is always shown makes no link longer"
    assert f"runs={first}&amp;runs={other}" in app.source
    assert "What differs between them" in app.source
    arms = Reader(mine).query("SELECT run_id, arm FROM run").drop_duplicates().set_index("run_id")["arm"]
    assert f"arm={arms[first]}" in app.source
    app = open_screen("overview", mine, picked=[first])
    assert "What differs" not in app.source
    app.text_area[0].set_value(f"It fell. {HOSTILE[0]}")
    app.text_input[-1].set_value("keep, keep, late")
    app.button[-1].click().run()
    assert read(mine, "demo", first) == Notes(f"It fell. {HOSTILE[0]}", ("keep", "late"), False)
    again = open_screen("overview", mine)
    assert again.drawings[0].count("✎") == 1
    assert "&lt;script&gt;" in again.drawings[0]
    assert_literal(again)


def test_a_run_of_which_only_curves_were_recorded_is_said_to_be_so(tmp_path: Path, open_screen: Open) -> None:
    folder, curve = write_experiment(tmp_path, "curves") / "r1", [0.6] * 8 + [0.0] * 12
    write_segment(folder, "step", {"run_id": ["r1"] * 20, "step": list(range(20)), "success": curve})
    write_status(folder, status="finished", outcome="collapsed", collapse_step=8)
    sync(tmp_path)
    source = open_screen("overview", tmp_path).source.split("Look at these first")[1]
    assert "Only curves are logged, and causes need the updates and the turn ledger." in source
    assert "None of the known causes" not in source


def test_hidden_runs_are_left_out_and_counted_and_can_be_found_again(mine: Path, open_screen: Open) -> None:
    every = runs_of(open_screen("overview", mine))
    write(mine, "demo", every[0], Notes(hidden=True))
    app = open_screen("overview", mine)
    assert runs_of(app) == every[1:]
    assert (
        "1 hidden run is left out of all that is shown and counted here; `sorl compare` counts every run." in app.source
    )
    assert "1 hidden run is left out" in open_screen("compare", mine).source
    assert len(app.dataframe[0].value) == len(every), "the table still has it"
    for run in every:
        write(mine, "demo", run, Notes(hidden=True))
    assert "shown all the same: no other is left" in open_screen("overview", mine).source


def test_notes_that_cannot_be_kept_are_a_sentence(mine: Path, open_screen: Open, monkeypatch: Patch) -> None:
    run = runs_of(open_screen("overview", mine))[0]
    app = open_screen("overview", mine, picked=[run])
    shutil.rmtree(mine / "demo" / run)
    app.text_area[0].set_value("too late")
    app.button[-1].click().run()
    assert f"cannot keep notes of &#x27;{run}&#x27;" in app.source or f"cannot keep notes of '{run}'" in app.source


def test_a_live_run_that_is_down_is_falling_now_by_its_rows(tmp_path: Path, open_screen: Open, patience: None) -> None:
    folder = write_experiment(tmp_path, "demo") / "r1"
    curve = [0.6] * 8 + [0.1] * 4
    write_segment(folder, "step", {"run_id": ["r1"] * 12, "step": list(range(12)), "success": curve})
    write_status(folder, status="running", outcome=None, ended_at=None, collapse_step=None, peak_success=None)
    with lock_file(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sync(tmp_path)
        app = open_screen("overview", tmp_path)
        assert "Falling now: ppo, seed 0, since step 9. Success is 55 % or more below its best: about one" in app.source
        assert "falling since 9" in app.drawings[0]
        assert app.session_state["sorl address"].shown[0] == "▼ 1 falling", "and so does the title of the tab"
    write_status(folder, status="finished", outcome="healthy")
    sync(tmp_path)
    assert "Falling now" not in open_screen("overview", tmp_path).source

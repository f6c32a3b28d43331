import re
import shutil
import time
from pathlib import Path

import pytest

from tests.app.conftest import SMALL, Patch
from tests.store.fixture import write_experiment, write_run, write_status
from workbench.app import store
from workbench.app.store import QUERIES, BackgroundSync, Store
from workbench.diagnostics import CATALOGUE
from workbench.spec import InputError
from workbench.store.connect import Busy, writer
from workbench.store.reader import Reader
from workbench.store.sync import SyncReport, sync


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one_run")
    write_run(folder, "demo", "a", shape=SMALL)
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def runs(one_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one_run, tmp_path, dirs_exist_ok=True))


def ids(reader: Reader) -> list[str]:
    return [row[0] for row in reader.rows("SELECT run_id FROM run ORDER BY 1").rows]


def test_a_question_is_asked_once_until_new_rows_or_no_more_room(runs: Path, monkeypatch: Patch) -> None:
    asked: list[int] = []
    answers = Store(runs)
    for _ in range(3):
        assert answers.computed("ids", lambda reader: asked.append(1) or ids(reader)) == ["a"]
    assert len(asked) == 1
    given = {"runs": ["a"], "origins": [0], "first": 0, "last": 11, "column": "success", "table": "step"}
    assert [len(answers.query("series", width=width, **given)) for width in (1, 6)] == [12, 2]
    write_run(runs, "demo", "b", shape=SMALL, seed=1)
    sync(runs, CATALOGUE)
    assert answers.computed("ids", ids) == ["a", "b"]
    monkeypatch.setattr(store, "_REMEMBERED", 2 * store._RECORDS)
    small, asked = Store(runs), []
    for number in (1, 2, 3, 1):
        small.computed(number, lambda reader: asked.append(1) or 0)
    assert len(asked) == 4


def test_while_the_database_is_held_the_last_answer_is_given(runs: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(store, "_WAIT", 0.05)
    answers = Store(runs)
    known = answers.computed("ids", ids)
    with writer(runs, 1.0) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1 AS x")
        connection.execute("CHECKPOINT")
        assert answers.computed("ids", ids) == known
        with pytest.raises(Busy):
            answers.computed("another", ids)


@pytest.mark.parametrize("name", sorted(file.stem for file in QUERIES.glob("*.sql")))
def test_every_named_query_states_its_grain_and_runs(one_run: Path, name: str) -> None:
    given = {
        "runs": ["a"], "origins": [0], "first": 0, "last": 11, "width": 2, "points": 5, "table": "step",
        "column": "ratio_geo" if name in ("heat", "cell") else "updates", "run": "a", "step": 3, "trajectory": 0,
        "turn": 1, "arms": [0], "log": False, "lowest": False,
    }  # fmt: skip
    grain, text = store.sql(name)
    assert grain.startswith("One row")
    used = {k: v for k, v in given.items() if re.search(rf"\${k}\b", text)}
    assert len(Store(one_run).query(name, **used).columns) > 0


def test_a_held_lock_delays_no_screen_and_the_next_look_syncs(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(store, "_LOCK", 0.05)
    write_run(tmp_path, "demo", "a", shape=SMALL)
    syncing = BackgroundSync(tmp_path)
    with writer(tmp_path, 1.0):
        began = time.monotonic()
        syncing.look(0.0)
        assert time.monotonic() - began < 1
        syncing.look(30.0)
        assert "not up to date" in syncing.notes[0]
    syncing.look(30.0)
    assert syncing.notes == []
    assert Reader(tmp_path).rows("SELECT count(*) FROM step").rows[0][0] == 12


def test_nothing_new_costs_no_sync_and_every_new_segment_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(store, "sync", lambda runs, **_: calls.append(runs) or SyncReport())
    monkeypatch.setattr(store, "_PERIOD", 0.0)
    run = write_run(tmp_path, "demo", "a", shape=SMALL)
    syncing = BackgroundSync(tmp_path)
    for _ in range(20):
        syncing.look(30.0)
    assert len(calls) == 1
    for number, write in enumerate((
        lambda: write_status(run, status="finished"),
        lambda: write_experiment(tmp_path, "demo"),
        lambda: write_run(tmp_path, "demo", "b", shape=SMALL),
        lambda: (tmp_path / "other" / "c").mkdir(parents=True),
    )):  # fmt: skip
        write()
        syncing.look(30.0)
        assert len(calls) == number + 2


def test_a_missing_folder_or_database_is_a_sentence_that_says_what_to_type(tmp_path: Path) -> None:
    syncing = BackgroundSync(tmp_path / "nowhere")
    syncing.look(30.0)
    assert "no runs folder" in syncing.notes[0]
    with pytest.raises(InputError, match="sorl sync"):
        Store(tmp_path).query("experiments")
    assert Store(tmp_path).state() == ()

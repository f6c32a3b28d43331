from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.store.fixture import Shape, write_run
from workbench.app import data
from workbench.app.data import QUERIES, Store
from workbench.diagnostics import CATALOGUE
from workbench.spec import InputError
from workbench.store.connect import Busy, writer
from workbench.store.reader import Reader
from workbench.store.sync import sync

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


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


def test_a_question_is_asked_once_while_nothing_changes(runs: Path) -> None:
    store = Store(runs)
    asked = []
    for _ in range(3):
        store.computed("ids", lambda reader: asked.append(1) or ids(reader))
    assert len(asked) == 1


def test_an_answer_is_asked_for_again_after_new_rows(runs: Path) -> None:
    store = Store(runs)
    before = store.computed("ids", ids)
    write_run(runs, "demo", "b", shape=SMALL, seed=1)
    sync(runs, CATALOGUE)
    assert (before, store.computed("ids", ids)) == (["a"], ["a", "b"])


def test_other_parameters_are_another_question(runs: Path) -> None:
    store = Store(runs)
    asked = {"runs": ["a"], "origins": [0], "first": 0, "last": 11, "column": "success", "table": "step"}
    assert len(store.query("series", width=1, **asked)) == 12
    assert len(store.query("series", width=6, **asked)) == 2


def test_while_somebody_holds_the_database_the_last_answer_stands_in(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "_WAIT", 0.05)
    store = Store(runs)
    known = store.computed("ids", ids)
    with writer(runs, 1.0) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1 AS x")
        connection.execute("CHECKPOINT")
        assert store.computed("ids", ids) == known
        with pytest.raises(Busy):
            store.computed("another", ids)


def test_old_answers_make_room(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_REMEMBERED", 2048)
    store = Store(runs)
    asked = []
    for number in (1, 2, 3, 1):
        store.computed(number, lambda reader: asked.append(1) or 0)
    assert len(asked) == 4


def test_no_database_is_an_input_error_that_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sorl sync"):
        Store(tmp_path).query("experiments")
    assert Store(tmp_path).state() == ()


@pytest.mark.parametrize("name", sorted(file.stem for file in QUERIES.glob("*.sql")))
def test_every_named_query_states_its_grain_and_runs(runs: Path, name: str) -> None:
    given = {
        "runs": ["a"], "origins": [0], "first": 0, "last": 11, "width": 2, "points": 5, "table": "step",
        "column": "updates", "run": "a", "step": 3, "trajectory": 0, "turn": 1, "arms": [0], "log": False,
        "lowest": False,
    }  # fmt: skip
    if name in ("heat", "cell"):
        given |= {"column": "ratio_geo"}
    grain, text = data.sql(name)
    assert grain.startswith("One row")
    frame = Store(runs).query(name, **{k: v for k, v in given.items() if re.search(rf"\${k}\b", text)})
    assert len(frame.columns) > 0


def test_the_baseline_is_the_median_of_the_first_finite_points(runs: Path) -> None:
    reader = Reader(runs)
    values = [row[0] for row in reader.rows("SELECT grad_norm_max FROM step ORDER BY step LIMIT 5").rows]
    found = Store(runs).query("baseline", runs=["a"], points=5, column="grad_norm_max")
    assert found["baseline"].tolist() == [sorted(values)[2]]
    assert Store(runs).query("baseline", runs=["a"], points=13, column="grad_norm_max").empty

"""A cell whose guard rolls it back: its next starts, resumed at any point, and one row in the end."""

import json
import shutil

import pytest

from sorl.analysis.runs import replicate
from sorl.grid.config import load
from sorl.grid.folder import folder_of
from sorl.learn.run import settings_of
from sorl.spec import InputError, RunSettings
from sorl.spec.rollback import NAME, Rollback
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.grid.harness import (
    Tape,
    go,
    grid_file,
    kinds,
    put_scripted_trainer,
    row,
    script,
    scripted_file,
    starts,
)

GUARDED = """
seeds = [0]
[base]
iterations = 6
[base.guard]
changes = [{ "learn.epochs" = 2 }, { "learn.staleness" = 0, "slots.ratio" = "turn" }]
[axes]
algorithm = ["ppo"]
"""


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    put_scripted_trainer(monkeypatch)


def begun(path):
    """The run folders of the cell, in the order of their starts."""
    return sorted(
        (path.parent / "runs" / "demo").glob("ppo-*"), key=lambda folder: (len(folder.name), folder.name)
    )


def test_a_start_whose_folder_was_only_begun_is_begun_again(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={"alarm_at": 3})
    (result,) = go(load(path))
    first, second, third = begun(path)
    for file in second.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    shutil.rmtree(third)
    (again,) = go(load(path))
    assert again.folder == result.folder
    assert settings_of(second).fork.run == first.name


def test_each_rollback_is_a_start_from_the_checkpoint_with_one_more_change(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={"alarm_at": 3})
    tape = Tape()
    (result,) = go(load(path), tape)
    first, second, third = begun(path)
    assert (second.name, third.name) == (f"{first.name}-g2", f"{first.name}-g3")
    assert (result.status, result.folder) == ("finished", third)
    settings = [settings_of(folder) for folder in (first, second, third)]
    assert [one.learn.epochs for one in settings] == [1, 2, 2]
    assert [one.learn.staleness for one in settings][-1] == 0
    assert settings[2].slots == {"ratio": "turn"}
    assert [one.fork and (one.fork.run, one.fork.at_step) for one in settings] == [
        None,
        (first.name, 1),
        (second.name, 1),
    ]
    assert [one.guard and one.guard.done for one in settings] == [0, 1, 2]
    assert len(tape.replacements) == 2
    assert "back to step 1 with learn.epochs = 2" in tape.replacements[0]


def test_the_newest_start_is_the_row_of_the_cell_and_all_of_them_are_replicates(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={"alarm_at": 3})
    go(load(path))
    runs = path.parent / "runs"
    sync(runs)
    reader = Reader(runs)
    ((newest,),) = reader.rows("SELECT run_id FROM cell").rows
    assert newest == begun(path)[-1].name
    configs = [config for (config,) in reader.rows("SELECT config FROM run").rows]
    assert len(configs) == 3
    assert len({json.dumps(replicate(config), sort_keys=True) for config in configs}) == 1


def test_the_same_command_again_trains_nothing(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={"alarm_at": 3})
    go(load(path))
    (result,) = go(load(path))
    assert (result.skipped, result.folder) == (True, begun(path)[-1])
    assert [starts(folder) for folder in begun(path)] == [1, 1, 1]


def test_a_trainer_that_is_killed_in_the_middle_of_a_rollback_repeats_it(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={"alarm_at": 3, "dies_then": True})
    (result,) = go(load(path))
    assert result.status == "finished"
    assert "killed" in kinds(begun(path)[0])
    assert len(begun(path)) == 3


def test_a_grid_that_died_after_the_decision_goes_on_with_the_next_start(tmp_path):
    path = scripted_file(tmp_path, GUARDED.replace("[{", "[{").replace("6", "4"), ppo={})
    grid = load(path)
    go(grid)
    folder = folder_of(path.parent / "runs", grid.cells[0])
    Rollback("demo", folder.name, 1, 3, "collapse at step 3", {"learn.epochs": 2}, 1, 2).write(folder)
    (result,) = go(load(path))
    assert result.folder.name == f"{folder.name}-g2"
    assert row(result.folder)["status"] == "finished"
    assert settings_of(result.folder).learn.epochs == 2


def test_a_damaged_decision_is_named(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={})
    grid = load(path)
    go(grid)
    (folder_of(path.parent / "runs", grid.cells[0]) / NAME).write_text("{")
    with pytest.raises(InputError, match=f"{NAME}' cannot be read"):
        go(load(path))


def test_a_fresh_start_has_no_change_of_a_guard(tmp_path):
    path = scripted_file(tmp_path, GUARDED, ppo={"alarm_at": 3})
    go(load(path))
    script(tmp_path, ppo={})
    (result,) = go(load(path), fresh=True)
    settings = settings_of(result.folder)
    assert result.folder.name.endswith("-g4")
    assert (settings.learn.epochs, settings.fork, settings.guard and settings.guard.done) == (1, None, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('{ "world.max_turns" = 2 }', "change 1 of the guard' changes world.max_turns, which cannot change"),
        ('{ "learn.epochs" = 0 }', "change 1 of the guard: learn.epochs"),
        ('{ "learn.epoch" = 1 }', "change 1 of the guard"),
        ('{ algorithm = "grpo" }', "has other groups than the parent"),
    ],
)
def test_a_change_that_a_run_cannot_go_on_with_is_refused_before_anything_trains(tmp_path, change, says):
    text = GUARDED.replace('{ "learn.epochs" = 2 }', change)
    with pytest.raises(InputError) as refused:
        load(grid_file(tmp_path, text))
    assert says in str(refused.value)


def test_a_guard_that_rolls_back_needs_changes():
    with pytest.raises(ValueError, match="needs changes, one table a rollback"):
        RunSettings(guard={"on": ["collapse"]})
    assert RunSettings(guard={"do": "stop"}).guard is not None

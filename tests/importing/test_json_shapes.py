"""Records in JSON of any shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from sorl.importing.logs import Imported, sources
from sorl.spec import InputError

STEPS = 20
REWARD = [step / STEPS for step in range(STEPS)]
LOSS = [1.0 - step / STEPS for step in range(STEPS)]
RECORDS = [{"step": step, "reward": REWARD[step], "my_loss": LOSS[step]} for step in range(STEPS)]
BARE = [{"reward": REWARD[step], "my_loss": LOSS[step]} for step in range(STEPS)]
COLUMNS = {"step": list(range(STEPS)), "reward": REWARD, "my_loss": LOSS}
ROWS = [[step, REWARD[step], LOSS[step]] for step in range(STEPS)]
HEADING = ["step", "reward", "my_loss"]


def runs_in(folder: Path, value: Any, name: str = "log.json", indent: int | None = None) -> list[Imported]:
    path = folder / name
    path.write_text(json.dumps(value, indent=indent))
    return list(sources(path)[0].runs())


def nested(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"step": row["step"], "metrics": {"train": row}} for row in steps]


def by_row(values: list[Any]) -> dict[str, Any]:
    return {str(row): value for row, value in enumerate(values)}


SHAPES = {
    "list of records": RECORDS,
    "columns": COLUMNS,
    "columns and a name": {"name": "a", "lr": 0.1} | COLUMNS,
    "columns one level down": {"metrics": COLUMNS},
    "steps beside columns": {"step": COLUMNS["step"], "metrics": {"reward": REWARD, "my_loss": LOSS}},
    "history": {"history": RECORDS},
    "history, deep": {"run": {"result": {"training": RECORDS}}, "version": 3},
    "records by step": {str(row["step"]): row for row in RECORDS},
    "records by named step": {f"step_{step}": BARE[step] for step in range(STEPS)},
    "records by step, one level down": {"log": {str(step): BARE[step] for step in range(STEPS)}},
    "lists below a heading": [HEADING, *ROWS],
    "columns and data": {"columns": HEADING, "data": ROWS},
    "columns by row": dict(zip(COLUMNS, map(by_row, COLUMNS.values()), strict=True)),
    "nested records": nested(RECORDS),
    "W&B": [{"_step": row["step"], "_runtime": 1.0, "_timestamp": 2.0} | row for row in RECORDS],
    "log_history": {"log_history": RECORDS, "global_step": 3, "stateful_callbacks": {"a": {"args": {}}}},
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_records_are_found_by_their_shape(shape: str, indent: int | None, tmp_path: Path) -> None:
    (run,) = runs_in(tmp_path, SHAPES[shape], indent=indent)
    assert run.tables["step"]["reward"].tolist() == REWARD
    assert list(run.steps) == list(range(STEPS))
    assert len(run.kept) >= 1


@pytest.mark.parametrize("shape", ["columns", "history", "records by step"])
def test_one_line_of_json_lines_may_hold_all_records(shape: str, tmp_path: Path) -> None:
    (run,) = runs_in(tmp_path, SHAPES[shape], "log.jsonl")
    assert run.tables["step"]["reward"].tolist() == REWARD


def lower(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"reward": row["reward"] / 2} for row in records]


SEVERAL = {
    "records by run": {"a": RECORDS, "b": lower(RECORDS)},
    "columns by run": {"a": COLUMNS, "b": COLUMNS | {"reward": [value / 2 for value in REWARD]}},
    "history by run": {"runs": {"a": {"history": RECORDS}, "b": {"history": lower(RECORDS)}}},
    "list of runs": [{"name": "a", "history": RECORDS}, {"name": "b", "history": lower(RECORDS)}],
}


@pytest.mark.parametrize("shape", SEVERAL)
def test_several_runs_are_read_as_several(shape: str, tmp_path: Path) -> None:
    first, second = runs_in(tmp_path, SEVERAL[shape], "sweep.json")
    assert (first.name, second.name) == ("sweep/a", "sweep/b")
    assert first.tables["step"]["reward"].tolist() == REWARD
    assert second.tables["step"]["reward"].tolist() == [value / 2 for value in REWARD]


def test_an_evaluation_beside_the_training_is_no_run(tmp_path: Path) -> None:
    evaluation = [{"step": step, "reward": 1.0} for step in range(0, STEPS, 5)]
    (run,) = runs_in(tmp_path, {"train": RECORDS, "eval": evaluation})
    assert run.tables["step"]["reward"].tolist() == REWARD
    assert run.read["step.heldout_success"] == "eval/reward"


def test_a_nested_evaluation_does_not_replace_the_reward(tmp_path: Path) -> None:
    rows = [{"step": n, "train": {"reward": REWARD[n]}, "eval": {"reward": 1.0}} for n in range(STEPS)]
    (run,) = runs_in(tmp_path, rows)
    assert run.tables["step"]["reward"].tolist() == REWARD


def test_statistics_of_several_metrics_keep_their_names(tmp_path: Path) -> None:
    rows = [{"step": n, "reward": {"mean": REWARD[n], "std": 0.1}, "len": {"mean": 9}} for n in range(STEPS)]
    (run,) = runs_in(tmp_path, rows)
    assert run.tables["step"]["reward"].tolist() == REWARD
    assert run.read["step.reward_std"] == "reward/std"


def test_columns_of_another_length_are_named(tmp_path: Path) -> None:
    (run,) = runs_in(tmp_path, {"reward": REWARD, "my_loss": LOSS, "checkpoints": [5, 10]})
    note = "'checkpoints' was left out: it has 2 values, and most columns have 20"
    assert note in run.reading.notes


def test_what_stands_beside_the_records_is_the_configuration(tmp_path: Path) -> None:
    (run,) = runs_in(tmp_path, {"config": {"learning_rate": 0.5, "num_generations": 8}, "rows": RECORDS})
    assert run.settings["learn.policy.lr"] == 0.5
    assert run.reading.options["learn.group_size"] == ("config.num_generations", 8)


def test_the_first_line_may_hold_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [{"type": "config", "learning_rate": 0.5, "num_generations": 8}, *RECORDS]
    path.write_text("\n".join(map(json.dumps, lines)))
    (run,) = sources(path)[0].runs()
    assert run.settings["learn.policy.lr"] == 0.5
    assert len(run.steps) == STEPS


@pytest.mark.parametrize(
    "value",
    [
        {"model_type": "llama", "hidden_size": 64, "eos_token_id": [1, 2]},
        {"name": "x", "dependencies": {"a": "^1.0"}},
        {"model": {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]}},
        [],
        [["a", "b"], ["c", "d"]],
    ],
)
def test_what_holds_no_records_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no records? of"):
        runs_in(tmp_path, value, indent=1)


def test_a_value_of_many_levels_is_refused_at_once(tmp_path: Path) -> None:
    value: Any = RECORDS
    for _ in range(40):
        value = {"a": value, "b": [value]} if not isinstance(value, dict) else {"a": value}
    with pytest.raises(InputError):
        runs_in(tmp_path, value, indent=1)

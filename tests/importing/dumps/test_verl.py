"""verl's texts with scores: rows without tokens, and no other folder of numbered files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sorl.importing.dumps.rows import DumpStep, Sampler
from sorl.importing.dumps.verl import VerlDump
from sorl.spec import InputError
from studies.dump_samples.episodes import episodes
from studies.dump_samples.verl import STEPS, truth, uid

SAMPLES = Path(__file__).parent / "samples" / "verl"


def dump_of(folder: Path) -> VerlDump:
    return VerlDump(folder, Sampler())


def folder_with(entry: dict[str, Any], tmp_path: Path) -> Path:
    (tmp_path / "1.jsonl").write_text(json.dumps(entry) + "\n")
    return tmp_path


ENTRY = {"input": "2+2?", "output": "4", "gts": "4", "score": 1.0, "step": 1, "uid": "u_0_0"}


@pytest.mark.parametrize("number", STEPS)
def test_rewards_groups_and_trajectories_are_those_of_the_rollouts(number: int) -> None:
    steps: dict[int, DumpStep] = {step.number: step for step in dump_of(SAMPLES / "v1").steps(-1)}
    rows = steps[number].rows
    assert len(rows) == len(truth(number)) == 7
    for row, named in zip(rows, truth(number), strict=True):
        assert row.reward == named.episode.reward
        assert row.group == uid(number, named.episode.group)
        assert row.trajectory == named.name.rsplit("_", 1)[0]


def test_rows_have_no_tokens() -> None:
    for step in dump_of(SAMPLES / "v1").steps(-1):
        assert not any(row.is_measured or row.columns or len(row.tokens) for row in step.rows)


def test_rows_of_one_session_are_one_trajectory() -> None:
    [step] = dump_of(SAMPLES / "v1").steps(1)
    assert step.rows[0].trajectory == step.rows[1].trajectory
    assert len({row.trajectory for row in step.rows}) == 6


def test_padding_is_left_out_and_counted_over_steps() -> None:
    dump = dump_of(SAMPLES / "v1")
    assert [len(step.rows) for step in dump.steps(-1)] == [7, 7]
    assert [note for note in dump.notes if "fill up" in note] == [
        "4 rows that only fill up a batch were left out."
    ]


def test_a_note_says_what_texts_allow_and_what_to_switch_on() -> None:
    dump = dump_of(SAMPLES / "v1")
    list(dump.steps(-1))
    [note] = [note for note in dump.notes if "texts and scores" in note]
    assert "plugin" in note
    assert "skip.rollout_tq" in note


def test_rows_of_the_older_trainer_are_grouped_by_their_prompt() -> None:
    dump = dump_of(SAMPLES / "legacy")
    [step] = dump.steps(-1)
    groups = [row.group for row in step.rows]
    assert groups == [groups[0]] * 3 + [groups[3]] * 3
    assert groups[0] != groups[3]
    assert len({row.trajectory for row in step.rows}) == 6
    assert [row.reward for row in step.rows] == [rollout.reward for rollout in episodes(1)]
    assert any("same prompt" in note for note in dump.notes)


def test_a_step_that_may_be_unfinished_waits(tmp_path: Path) -> None:
    shutil.copyfile(SAMPLES / "v1" / "1.jsonl", tmp_path / "1.jsonl")
    assert list(dump_of(tmp_path).steps(-1, is_live=True)) == []
    shutil.copyfile(SAMPLES / "v1" / "2.jsonl", tmp_path / "2.jsonl")
    assert [step.number for step in dump_of(tmp_path).steps(-1, is_live=True)] == [1]


@pytest.mark.parametrize("trainer", ["v1", "legacy"])
def test_a_folder_of_rollouts_is_known(trainer: str) -> None:
    assert VerlDump.is_in(SAMPLES / trainer)


def test_validation_is_not_taken_for_training() -> None:
    assert not VerlDump.is_in(SAMPLES / "validation")


FOREIGN = {
    "instructions": '{"input": "2+2?", "output": "4"}\n',
    "scores of an evaluation": '{"input": "2+2?", "output": "4", "score": 1.0}\n',
    "another step": '{"input": "2+2?", "output": "4", "score": 1.0, "step": 7}\n',
    "other keys": '{"prompt": "2+2?", "step": 1}\n',
    "no JSON": '{"input": 2+2\n',
    "a list": "[1]\n",
    "nothing": "",
    "brackets": '{"input": ' + "[" * 100_000,
}


@pytest.mark.parametrize("case", FOREIGN)
def test_numbered_files_of_something_else_are_not_claimed(case: str, tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(FOREIGN[case])
    assert not VerlDump.is_in(tmp_path)


BROKEN = {
    "no score": ("score", None, "row 0: score is no number"),
    "a score that is a text": ("score", "1.0", "row 0: score is no number"),
    "a score that is a truth": ("score", True, "row 0: score is no number"),
    "another step": ("step", 2, "row 0: it is of another step than its file, 1"),
    "an input that is no text": ("input", ["2+2?"], "row 0: input is no text"),
    "a name that is no text": ("uid", {"a": 1}, "row 0: uid is no text"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_value_is_told_with_file_and_row(case: str, tmp_path: Path) -> None:
    key, value, problem = BROKEN[case]
    with pytest.raises(InputError) as error:
        list(dump_of(folder_with({**ENTRY, key: value}, tmp_path)).steps(-1))
    assert f"1.jsonl', {problem}" in str(error.value)


def test_a_missing_key_is_told(tmp_path: Path) -> None:
    entry = {key: value for key, value in ENTRY.items() if key != "score"}
    with pytest.raises(InputError, match=r"1\.jsonl', row 0: there is no score"):
        list(dump_of(folder_with(entry, tmp_path)).steps(-1))


def test_a_score_that_is_nan_is_unknown(tmp_path: Path) -> None:
    dump = dump_of(folder_with({**ENTRY, "score": float("nan")}, tmp_path))
    [step] = dump.steps(-1)
    assert step.rows[0].reward is None
    assert "Some scores are NaN or infinite and count as unknown." in dump.notes


def test_a_name_in_no_known_form_is_its_own_group(tmp_path: Path) -> None:
    [step] = dump_of(folder_with({**ENTRY, "uid": "only"}, tmp_path)).steps(-1)
    assert (step.rows[0].group, step.rows[0].trajectory) == ("only", "only")


def test_a_prompt_with_half_a_character_is_grouped(tmp_path: Path) -> None:
    entry = {key: value for key, value in ENTRY.items() if key != "uid"}
    (tmp_path / "1.jsonl").write_text(json.dumps({**entry, "input": "\ud800"}) + "\n")
    [step] = dump_of(tmp_path).steps(-1)
    assert step.rows[0].group


def test_a_file_that_was_cut_off_gives_its_complete_rows_and_a_note(tmp_path: Path) -> None:
    content = (SAMPLES / "v1" / "1.jsonl").read_bytes()
    (tmp_path / "1.jsonl").write_bytes(content[:-20])
    dump = dump_of(tmp_path)
    [step] = dump.steps(-1)
    assert len(step.rows) == 6
    assert any("ends within a line" in note for note in dump.notes)

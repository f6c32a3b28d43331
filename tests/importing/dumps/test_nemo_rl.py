"""NeMo-RL's training data: what its own writer wrote is read as it was made, and broken files are told."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sorl.importing.dumps.nemo_rl import NemoRlDump
from sorl.importing.dumps.rows import DumpStep, Sampler
from sorl.spec import InputError
from studies.dump_samples.episodes import Episode
from studies.dump_samples.nemo_rl import truth

SAMPLES = Path(__file__).parent / "samples" / "nemo_rl"
NAME = "train_data_step1.jsonl"


def dump_of(folder: Path, sampler: Sampler | None = None) -> NemoRlDump:
    return NemoRlDump(folder, sampler or Sampler())


def steps_of(folder: Path) -> dict[int, DumpStep]:
    return {step.number: step for step in dump_of(folder).steps(-1)}


def lines(name: str = NAME) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / name).read_text().splitlines()]


def folder_with(rows: list[dict[str, Any]], tmp_path: Path, name: str = NAME) -> Path:
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture(scope="module")
def steps() -> dict[int, DumpStep]:
    return steps_of(SAMPLES)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_tokens_masks_and_rewards_are_those_of_the_rollouts(steps: dict[int, DumpStep], number: int) -> None:
    rollouts: list[Episode] = truth()[number]
    assert len(steps[number].rows) == len(rollouts)
    for row, rollout in zip(steps[number].rows, rollouts, strict=True):
        assert row.tokens.tolist() == rollout.tokens
        assert row.prompt_length == len(rollout.prompt)
        assert row.written.tolist() == [flag == 1 for flag in rollout.written]
        assert row.reward == rollout.reward
        assert row.version is None


def test_columns_are_those_of_the_rollouts(steps: dict[int, DumpStep]) -> None:
    for row, rollout in zip(steps[1].rows, truth()[1], strict=True):
        assert row.columns.keys() == {"log_prob_behaviour", "log_prob_old", "advantages"}
        assert row.columns["log_prob_behaviour"].tolist() == rollout.behaviour
        assert row.columns["log_prob_old"].tolist() == rollout.old


def test_the_advantage_that_is_spread_over_observations_is_no_data_there(steps: dict[int, DumpStep]) -> None:
    for row, rollout in zip(steps[1].rows, truth()[1], strict=True):
        assert row.columns["advantages"].tolist() == rollout.spread(rollout.advantage)


def test_a_row_that_the_loss_leaves_out_has_no_trained_token(steps: dict[int, DumpStep]) -> None:
    trained = [bool(row.mask.any()) for row in steps[1].rows]
    assert trained == [True, True, True, True, False, True]
    assert steps[1].rows[4].written.any()


def test_rollouts_with_equal_prompts_are_one_group(steps: dict[int, DumpStep]) -> None:
    groups = [row.group for row in steps[1].rows]
    assert groups[:3] == [groups[0]] * 3
    assert groups[3:] == [groups[3]] * 3
    assert groups[0] != groups[3]


def test_rewards_of_dynamic_sampling_are_the_filtered_ones(steps: dict[int, DumpStep]) -> None:
    unfiltered = [line["rewards"][0] for line in lines("train_data_step2.jsonl")]
    assert [row.reward for row in steps[2].rows] == [rollout.reward for rollout in truth()[2]] != unfiltered


def test_old_log_probs_that_are_zero_everywhere_are_absent_with_a_note() -> None:
    dump = dump_of(SAMPLES)
    placeholder, real = dump.steps(1)
    assert all("log_prob_old" not in row.columns for row in placeholder.rows)
    assert all("log_prob_old" in row.columns for row in real.rows)
    assert any(note.startswith("prev_logprobs is 0 everywhere") for note in dump.notes)


def test_an_assistant_message_of_the_prompt_that_ppo_trains_on_stays_in_the_prompt() -> None:
    dump = dump_of(SAMPLES)
    [step] = dump.steps(2)
    rollouts = truth()[3]
    assert [row.prompt_length for row in step.rows] == [len(rollout.prompt) for rollout in rollouts]
    assert any("assistant messages of some prompts" in note for note in dump.notes)


def test_a_certain_first_turn_is_no_history_of_the_prompt(tmp_path: Path) -> None:
    rows = lines()
    for row in rows:
        start = row["token_loss_mask"][0].index(1)
        row["generation_logprobs"][0][start : start + 2] = [0.0, 0.0]
        row["prev_logprobs"][0][start : start + 2] = [-1e-6, -1e-6]
    [step] = dump_of(folder_with(rows, tmp_path)).steps(-1)
    assert [row.prompt_length for row in step.rows] == [len(rollout.prompt) for rollout in truth()[1]]


def test_updates_are_unknown_without_a_configuration(steps: dict[int, DumpStep]) -> None:
    assert steps[1].updates == []


def test_a_configuration_next_to_the_dump_tells_the_updates(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / NAME, tmp_path)
    (tmp_path / "config.yaml").write_text("policy:\n  train_global_batch_size: 4\nppo:\n  ppo_epochs: 2\n")
    [step] = dump_of(tmp_path).steps(-1)
    assert [list(update.rows) for update in step.updates] == [[0, 1, 2, 3], [4, 5]] * 2
    assert [update.epoch for update in step.updates] == [0, 0, 1, 1]


def test_only_steps_after_the_given_one_are_read() -> None:
    assert [step.number for step in dump_of(SAMPLES).steps(1)] == [2, 3]


def test_a_step_that_may_be_unfinished_waits_for_the_next(tmp_path: Path) -> None:
    shutil.copyfile(SAMPLES / NAME, tmp_path / NAME)
    dump = dump_of(tmp_path)
    assert list(dump.steps(-1, is_live=True)) == []
    shutil.copyfile(SAMPLES / "train_data_step2.jsonl", tmp_path / "train_data_step2.jsonl")
    assert [step.number for step in dump.steps(-1, is_live=True)] == [1]


def test_sampling_leaves_out_tokens_of_whole_groups() -> None:
    for size in (1, 4000, 6000, 8000):
        [step] = [step for step in dump_of(SAMPLES, Sampler(size)).steps(-1) if step.number == 1]
        measured = [row.is_measured for row in step.rows]
        assert measured in ([False] * 6, [True] * 3 + [False] * 3, [False] * 3 + [True] * 3, [True] * 6)
        assert [row.reward for row in step.rows] == [rollout.reward for rollout in truth()[1]]
    assert not any(row.is_measured for row in next(iter(dump_of(SAMPLES, Sampler(1)).steps(-1))).rows)


def test_rewards_beyond_the_batch_make_no_rows(tmp_path: Path) -> None:
    beyond = {key: [] for key in lines()[0]} | {"rewards": [1.0], "idx": 6}
    dump = dump_of(folder_with([*lines(), beyond, beyond], tmp_path))
    [step] = dump.steps(-1)
    assert len(step.rows) == 6
    assert "2 rewards without a row were left out." in dump.notes


def test_a_reward_that_is_nan_is_unknown(tmp_path: Path) -> None:
    rows = lines()
    rows[0]["rewards"] = [float("nan")]
    [step] = dump_of(folder_with(rows, tmp_path)).steps(-1)
    assert [row.reward is None for row in step.rows] == [True] + [False] * 5


def test_a_log_prob_that_is_nan_or_null_stays_nan(tmp_path: Path) -> None:
    rows = lines()
    place = rows[0]["token_loss_mask"][0].index(1)
    rows[0]["prev_logprobs"][0][place] = float("nan")
    rows[1]["prev_logprobs"][0][rows[1]["token_loss_mask"][0].index(1)] = None
    [step] = dump_of(folder_with(rows, tmp_path)).steps(-1)
    for row in step.rows[:2]:
        assert np.isnan(row.columns["log_prob_old"]).tolist() == [True] + [False] * (len(row.written) - 1)


def test_a_file_that_was_cut_off_gives_its_complete_rows_and_a_note(tmp_path: Path) -> None:
    content = (SAMPLES / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[:-100])
    dump = dump_of(tmp_path)
    [step] = dump.steps(-1)
    assert len(step.rows) == 5
    assert any("ends within a line" in note for note in dump.notes)


def test_a_file_without_a_complete_row_is_no_step(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"content": ')
    dump = dump_of(tmp_path)
    assert list(dump.steps(-1)) == []
    assert f"{NAME} has no complete row and is left out." in dump.notes


def test_a_dump_before_v0_6_is_refused_with_the_version_that_writes_tokens(tmp_path: Path) -> None:
    rows = lines()
    for row in rows:
        del row["token_ids"], row["token_loss_mask"], row["advantages"], row["sample_loss_mask"]
    folder = folder_with(rows, tmp_path)
    assert NemoRlDump.is_in(folder)
    with pytest.raises(InputError, match=r"train_data_step1.jsonl', row 0: there are no token_ids.*v0\.6\.0"):
        list(dump_of(folder).steps(-1))


BROKEN = {
    "null for a token": ("token_ids", [[None] * 24], "token_ids of row 1"),
    "a token id that is none": (
        "token_ids",
        [[-5] * 24],
        "token_ids of row 1 holds a number that is no token",
    ),
    "a huge token id": ("token_ids", [[10**30] * 24], "token_ids of row 1"),
    "a text for tokens": ("token_ids", ["1 2 3"], "token_ids of row 1"),
    "tokens that are not wrapped": ("token_ids", [1, 2, 3], "row 1: token_ids is no list of length 1"),
    "tokens wrapped twice": ("token_ids", [[[1, 2, 3]]], "token_ids of row 1 has 2 axes"),
    "a shorter column": ("prev_logprobs", [[-1.0]], "row 1: columns of different lengths"),
    "a longer row than its tokens": ("input_lengths", [10**12], "row 1: input_lengths is beyond its"),
    "a negative length": ("input_lengths", [-1], "row 1: input_lengths is no count"),
    "a length that is no number": ("input_lengths", [None], "row 1: input_lengths is no count"),
    "no reward": ("rewards", [None], "row 1: rewards is no number"),
    "a reward that is a text": ("rewards", ["1"], "row 1: rewards is no number"),
    "a mask of objects": ("token_loss_mask", [[{}] * 24], "token_loss_mask of row 1 is no list of numbers"),
    "a table for a log-prob": (
        "generation_logprobs",
        [[[0.0]] * 24],
        "generation_logprobs of row 1 has 2 axes",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_value_is_told_with_file_and_row(case: str, tmp_path: Path) -> None:
    key, value, problem = BROKEN[case]
    rows = lines()
    rows[1][key] = value
    with pytest.raises(InputError) as error:
        list(dump_of(folder_with(rows, tmp_path)).steps(-1))
    assert NAME in str(error.value)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_line_that_is_no_object_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[1, 2]\n")
    with pytest.raises(InputError, match=r"train_data_step1\.jsonl': line 1 is no JSON object"):
        list(dump_of(tmp_path).steps(-1))


def test_a_dump_is_known_by_name_and_first_key(tmp_path: Path) -> None:
    assert NemoRlDump.is_in(SAMPLES)
    assert not NemoRlDump.is_in(tmp_path)
    (tmp_path / "val_data_step1.jsonl").write_text('{"content": [[]], "rewards": [1.0], "idx": 0}\n')
    (tmp_path / "train_data_step1.jsonl").write_text('{"text": "a corpus cut in steps"}\n')
    assert not NemoRlDump.is_in(tmp_path)

"""SkyRL's training batches: what its own code wrote is read without it, and nothing of a file is run."""

import os
import pickle
import random
import shutil
import struct
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sorl.importing.dumps import skyrl_batch
from sorl.importing.dumps.rows import DumpStep, Sampler
from sorl.importing.dumps.skyrl import SkyRlDump
from sorl.importing.dumps.skyrl_batch import read_contents
from sorl.spec import InputError
from studies.dump_samples.skyrl import GROUPS_0_4, PAD_ROWS, RETURN, VALUE, truth, turn_rows

SAMPLES = Path(__file__).parent / "samples" / "skyrl"
NEWEST = SAMPLES / "0.4.0"
STEP_WISE = SAMPLES / "0.3.0"
LEFT_ALIGNED = SAMPLES / "skyrl_train-v0.4.0"
NAME = "global_step_1_training_input.pkl"
MODULE = "skyrl.backends.skyrl_train.training_batch"


def dump_of(folder: Path, sampler: Sampler | None = None) -> SkyRlDump:
    return SkyRlDump(folder, sampler or Sampler())


def first_step(folder: Path) -> DumpStep:
    return next(iter(dump_of(folder).steps(-1)))


@pytest.mark.parametrize("folder", [NEWEST, LEFT_ALIGNED], ids=lambda folder: folder.name)
def test_tokens_and_masks_are_those_of_the_rollouts(folder: Path) -> None:
    rows = first_step(folder).rows
    assert len(rows) == len(truth()) == 6
    for row, rollout in zip(rows, truth(), strict=True):
        assert row.tokens.tolist() == rollout.tokens
        assert row.prompt_length == len(rollout.prompt)
        assert row.mask.tolist() == [flag == 1 for flag in rollout.trained]
        assert row.columns["log_prob_old"].tolist() == rollout.old


def test_columns_of_a_step_are_those_of_the_rollouts() -> None:
    for row, rollout in zip(first_step(NEWEST).rows, truth(), strict=True):
        assert row.columns.keys() == {"log_prob_behaviour", "log_prob_old", "log_prob_ref", "advantages"}
        assert row.columns["log_prob_behaviour"].tolist() == rollout.behaviour
        assert row.columns["log_prob_ref"].tolist() == rollout.reference
        assert row.columns["advantages"].tolist() == rollout.spread(rollout.advantage)


def test_a_critic_in_bfloat16_is_read_and_skipped_old_log_probs_are_absent_with_a_note() -> None:
    dump = dump_of(NEWEST)
    [step] = dump.steps(1)
    for row, rollout in zip(step.rows, truth(2), strict=True):
        assert row.columns.keys() == {"log_prob_behaviour", "values_old", "returns", "advantages"}
        assert row.columns["values_old"].tolist() == [VALUE] * len(rollout.response)
        assert row.columns["returns"].tolist() == [RETURN] * len(rollout.response)
    assert any(note.startswith("The loss used the sampler's log-probs") for note in dump.notes)


def test_a_row_that_the_loss_leaves_out_is_kept_with_no_trained_token() -> None:
    row = first_step(NEWEST).rows[4]
    assert not row.mask.any()
    assert row.written.tolist() == [flag == 1 for flag in truth()[4].written]


def test_rows_that_only_fill_up_the_batch_are_dropped_and_counted() -> None:
    dump = dump_of(NEWEST)
    assert [len(step.rows) for step in dump.steps(-1)] == [6, 6]
    assert f"{2 * PAD_ROWS} rows that only fill up a batch were left out." in dump.notes


def test_groups_and_updates_are_those_of_the_metadata() -> None:
    step = first_step(NEWEST)
    assert [row.group for row in step.rows] == ["1-0"] * 3 + ["1-1"] * 3
    assert [list(update.rows) for update in step.updates] == [list(range(*pair)) for pair in GROUPS_0_4]


def test_a_file_without_groups_is_grouped_by_equal_prompts_and_says_no_updates() -> None:
    dump = dump_of(LEFT_ALIGNED)
    [step] = dump.steps(-1)
    groups = [row.group for row in step.rows]
    assert groups == [groups[0]] * 3 + [groups[3]] * 3
    assert groups[0] != groups[3]
    assert step.updates == []
    assert any("same prompt tokens" in note for note in dump.notes)
    assert any("before 0.3.0" in note for note in dump.notes)


def test_rewards_are_unknown_with_a_note() -> None:
    dump = dump_of(NEWEST)
    [step] = dump.steps(1)
    assert all(row.reward is None for row in step.rows)
    assert any("rewards are unknown" in note for note in dump.notes)


def test_turns_in_rows_of_their_own_are_one_trajectory_where_they_continue_each_other() -> None:
    dump = dump_of(STEP_WISE)
    [step] = dump.steps(-1)
    rows = turn_rows()
    assert len(step.rows) == len(rows) > 6
    assert [row.trajectory for row in step.rows] == [f"1-{row.episode}" for row in rows]
    for row, turn in zip(step.rows, rows, strict=True):
        assert row.tokens.tolist() == turn.prompt + turn.response
        assert row.columns["log_prob_behaviour"].tolist() == turn.behaviour
        assert row.group == f"1-{turn.episode // 3}"
    assert any("later turns of its episode" in note for note in dump.notes)


def test_whole_episodes_are_a_trajectory_each() -> None:
    assert [row.trajectory for row in first_step(NEWEST).rows] == [f"1-{number}" for number in range(6)]


def test_only_later_steps_are_read_and_an_unfinished_one_waits(tmp_path: Path) -> None:
    assert [step.number for step in dump_of(NEWEST).steps(1)] == [2]
    for file in NEWEST.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    assert [step.number for step in dump_of(tmp_path).steps(-1, is_live=True)] == [1]


def test_sampling_leaves_out_the_tokens() -> None:
    [step] = dump_of(NEWEST, Sampler(1)).steps(1)
    assert not any(row.is_measured or row.columns for row in step.rows)
    assert [row.group for row in step.rows] == ["2-0"] * 3 + ["2-1"] * 3


def test_a_dump_is_known_by_name_and_first_byte(tmp_path: Path) -> None:
    assert SkyRlDump.is_in(NEWEST)
    (tmp_path / NAME).write_text("a text")
    (tmp_path / "other.pkl").write_bytes(pickle.dumps(1))
    assert not SkyRlDump.is_in(tmp_path)


# Broken and hostile files


def batch_of(**changes: Any) -> dict[str, Any]:
    """The encoded state of a batch with two rows of two prompt and two response tokens."""

    def table(values: Any, dtype: str) -> dict[str, Any]:
        array = np.asarray(values, dtype)
        return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": dtype}

    batch = {
        "sequences": table([[1, 2, 3, 4], [1, 2, 5, 6]], "int64"),
        "attention_mask": table(np.ones((2, 4)), "int64"),
        "response_mask": table(np.ones((2, 2)), "int64"),
        "loss_mask": table(np.ones((2, 2)), "float32"),
        "action_log_probs": table(-np.ones((2, 2)), "float32"),
        "advantages": table(np.ones((2, 2)), "float32"),
    }
    metadata = {"policy_prompt_boundaries": [(0, 2)], "policy_mini_batch_boundaries": [(0, 2)]}
    for key, value in changes.items():
        (metadata if key in (*metadata, "pad_size") else batch)[key] = value
    return {"batch_dict": batch, "batch_size": 2, "device": None, "metadata": metadata}


def pickled(state: Any, module: str = MODULE) -> bytes:
    """A pickle as SkyRL writes it, without SkyRL."""
    place = b"\x8c" + bytes([len(module)]) + module.encode()
    names = place + b"\x8c\x15_rebuild_tensor_batch\x93" + place + b"\x8c\x12TrainingInputBatch\x93"
    body = pickle.dumps(state, protocol=3)[2:-1]  # without its protocol and its stop
    return b"\x80\x04" + names + body + b"\x86R."


def error_of(content: bytes, tmp_path: Path) -> str:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(InputError) as error:
        list(dump_of(tmp_path).steps(-1))
    assert NAME in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_batch_made_here_is_read(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(pickled(batch_of()))
    step = first_step(tmp_path)
    assert [row.tokens.tolist() for row in step.rows] == [[1, 2, 3, 4], [1, 2, 5, 6]]


class Hostile:
    """Runs a command where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_code_in_a_pickle_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    error = error_of(pickle.dumps(Hostile(mark)), tmp_path)
    assert "posix.system" in error
    assert "is not opened" in error
    assert not mark.exists()


def test_code_in_the_metadata_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    state = batch_of()
    state["metadata"]["metrics"] = Hostile(mark)
    assert "posix.system" in error_of(pickled(state), tmp_path)
    assert not mark.exists()


def test_a_refused_name_is_told_in_one_printable_line(tmp_path: Path) -> None:
    name = "a\n\x1b[31mb"
    content = b"\x80\x04\x8c" + bytes([len(name)]) + name.encode() + b"\x8c\x01c\x93."
    assert "holds a??[31mb.c, which" in error_of(content, tmp_path)


@pytest.mark.parametrize("name", ["builtins eval", "builtins getattr", "skyrl.train.trainer RayPPOTrainer"])
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    module, attribute = name.split()
    content = f"c{module}\n{attribute}\n.".encode()
    assert f"holds {module}.{attribute}, which is more than" in error_of(content, tmp_path)


def test_a_pickle_cannot_change_the_stand_ins(tmp_path: Path) -> None:
    """BUILD with a pair sets attributes of whatever it gets, a class as well."""
    before = dict(vars(skyrl_batch._Batch))
    content = f"\x80\x02c{MODULE}\nTrainingInputBatch\nN}}X\x05\x00\x00\x00stateK\x01s\x86b.".encode(
        "latin-1"
    )
    error_of(content, tmp_path)
    assert dict(vars(skyrl_batch._Batch)) == before


def test_a_file_that_was_cut_off_is_told(tmp_path: Path) -> None:
    content = (NEWEST / NAME).read_bytes()
    for size in (1, 2, 30, 500, len(content) // 2, len(content) - 1):
        assert "cannot be read" in error_of(content[:size], tmp_path)


HUGE = {
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**50) + b"abc.",
    "a text": b"\x80\x04\x8d" + struct.pack("<Q", 2**50) + b"abc.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 2**50) + b"N.",
    "a number": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"abc.",
}


@pytest.mark.parametrize("case", HUGE)
def test_a_huge_claimed_size_takes_no_memory(case: str, tmp_path: Path) -> None:
    assert "the pickle claims more bytes than the file has" in error_of(HUGE[case], tmp_path)


def test_a_huge_index_of_the_memo_takes_no_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        error_of(b"\x80\x04Nr\xff\xff\xff\xff.", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def table(**changes: Any) -> dict[str, Any]:
    encoded = batch_of()["batch_dict"]["advantages"]
    return {**encoded, **changes}


BROKEN = {
    "no batch": (b"\x80\x04K\x01.", "holds no batch of SkyRL"),
    "a state that is none": (pickled(3), "holds no batch of SkyRL"),
    "a batch that is a list": (pickled({"batch_dict": []}), "holds no batch of SkyRL"),
    "no sequences": (pickled(batch_of(sequences=None)), "has no sequences"),
    "no advantages": (pickled(batch_of(advantages=None)), "has no advantages"),
    "a list for a table": (pickled(batch_of(advantages=[1.0])), "advantages is no table of numbers"),
    "an unknown encoding": (
        pickled(batch_of(advantages=table(format="tensor_list"))),
        "advantages is no table",
    ),
    "an object for a dtype": (
        pickled(batch_of(advantages=table(dtype="O"))),
        "advantages has a dtype that is not read",
    ),
    "a list for a dtype": (
        pickled(batch_of(advantages=table(dtype=["f4"]))),
        "advantages has a dtype that is not read",
    ),
    "a huge shape": (
        pickled(batch_of(advantages=table(shape=(2**40, 2)))),
        "advantages has a shape that is none",
    ),
    "another shape": (pickled(batch_of(advantages=table(shape=(1, 4)))), "advantages has the shape (1, 4)"),
    "one axis": (pickled(batch_of(advantages=table(shape=(4,)))), "advantages has the shape (4,)"),
    "too few bytes": (pickled(batch_of(advantages=table(data=b"1234"))), "advantages has 4 bytes"),
    "a torch file that is none": (
        pickled(batch_of(advantages=table(format="torch", data=b"no zip"))),
        NAME,
    ),
    "too much padding": (pickled(batch_of(pad_size=3)), "pad_size is no number of its 2 rows"),
    "padding of 5,000 digits": (pickled(batch_of(pad_size=10**5000)), "pad_size is no number of its 2 rows"),
    "padding that is no number": (pickled(batch_of(pad_size=None)), "pad_size is no number of its 2 rows"),
    "groups beyond the rows": (
        pickled(batch_of(policy_prompt_boundaries=[(0, 2**40)])),
        "entry 0 of policy_prompt_boundaries is no stretch",
    ),
    "groups that overlap": (
        pickled(batch_of(policy_prompt_boundaries=[(0, 2), (1, 2)])),
        "entry 1 of policy_prompt_boundaries is no stretch",
    ),
    "groups with a gap": (pickled(batch_of(policy_prompt_boundaries=[(1, 2)])), "row 0: policy_prompt"),
    "groups that are numbers": (
        pickled(batch_of(policy_prompt_boundaries=[0, 2])),
        "is no stretch of its rows",
    ),
    "updates that are a number": (pickled(batch_of(policy_mini_batch_boundaries=2)), "is no list"),
    "updates with null": (
        pickled(batch_of(policy_mini_batch_boundaries=[(0, None)])),
        "is no stretch of its rows",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_batch_is_told(case: str, tmp_path: Path) -> None:
    content, problem = BROKEN[case]
    assert problem in error_of(content, tmp_path)


def test_a_tensor_that_claims_more_values_than_it_stores_is_told(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    stream = BytesIO()
    torch.save(torch.ones(1, dtype=torch.bfloat16).expand(2**30, 2**10), stream)
    values = table(format="torch", data=stream.getvalue())
    assert "advantages is no table of numbers" in error_of(pickled(batch_of(advantages=values)), tmp_path)


def test_more_response_than_tokens_is_told_with_the_row(tmp_path: Path) -> None:
    attention = np.zeros((2, 4), np.int64)
    encoded = {"format": "numpy", "data": attention.tobytes(), "shape": (2, 4), "dtype": "int64"}
    error = error_of(pickled(batch_of(attention_mask=encoded)), tmp_path)
    assert "row 0: 2 tokens of the response, but 0 in all" in error


def test_negative_tokens_are_told(tmp_path: Path) -> None:
    encoded = batch_of()["batch_dict"]["sequences"]
    encoded["data"] = np.full((2, 4), -1).tobytes()
    error = error_of(pickled(batch_of(sequences=encoded)), tmp_path)
    assert "sequences of row 0 holds a number that is no token id" in error


def test_log_probs_that_are_nan_stay_nan(tmp_path: Path) -> None:
    encoded = table(data=np.full((2, 2), np.nan, np.float32).tobytes())
    (tmp_path / NAME).write_bytes(pickled(batch_of(action_log_probs=encoded)))
    assert np.isnan(first_step(tmp_path).rows[0].columns["log_prob_old"]).all()


@pytest.mark.parametrize("folder", [NEWEST, LEFT_ALIGNED], ids=lambda folder: folder.name)
def test_bytes_changed_at_random_give_a_batch_or_an_input_error(folder: Path, tmp_path: Path) -> None:
    content = (folder / NAME).read_bytes()
    file = tmp_path / NAME
    chance = random.Random(1)
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(3):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        changed[chance.randrange(200)] = chance.randrange(256)
        file.write_bytes(changed)
        try:
            list(dump_of(tmp_path).steps(-1))
        except InputError:
            continue


def test_an_end_of_sequence_that_skyrl_appended_is_noted(tmp_path: Path) -> None:
    behaviour = table(data=np.array([[-1, 0], [-1, -1]], np.float32).tobytes())
    (tmp_path / NAME).write_bytes(pickled(batch_of(rollout_logprobs=behaviour)))
    dump = dump_of(tmp_path)
    list(dump.steps(-1))
    assert any("appends an end of sequence" in note for note in dump.notes)


def test_contents_have_no_padding() -> None:
    contents = read_contents(NEWEST / NAME)
    assert contents.row_count == 6
    assert contents.pad_count == PAD_ROWS

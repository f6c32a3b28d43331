import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from sorl.importing.dumps.rows import Sampler
from sorl.importing.dumps.tinker import TinkerCapture
from sorl.importing.dumps.tinker_summaries import TinkerSummaries
from sorl.spec import InputError
from studies.dump_samples.tinker import (
    NEW_LOG_PROBS,
    NEW_PROMPT,
    NEW_TURN,
    TEMPERATURE,
    truth,
)

SAMPLES = Path(__file__).parent / "samples" / "tinker"
RECORDS = Path("capture") / "sample.jsonl"
SOURCES = pytest.mark.parametrize("source", ["files", "store"])


def read(folder, reader=TinkerCapture, **options):
    return list(reader(folder, Sampler()).steps(-1, **options))


def copy(source, tmp_path):
    shutil.copytree(SAMPLES / source, tmp_path / source)
    return tmp_path / source


def records():
    return [json.loads(line) for line in (SAMPLES / "files" / RECORDS).read_text().splitlines()]


def write(folder, lines):
    file = folder / RECORDS
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def by_tokens(step):
    return {tuple(row.tokens): row for row in step.rows}


# What is in the dumps


def test_each_form_is_known_by_its_reader():
    assert TinkerCapture.is_in(SAMPLES / "files")
    assert TinkerCapture.is_in(SAMPLES / "store")
    assert TinkerSummaries.is_in(SAMPLES / "files")
    assert not TinkerSummaries.is_in(SAMPLES / "store")
    assert not TinkerCapture.is_in(SAMPLES)


@SOURCES
def test_turns_that_go_on_from_each_other_are_one_row(source):
    steps = read(SAMPLES / source)
    assert [step.number for step in steps] == list(truth())
    for step in steps:
        rows = by_tokens(step)
        for rollout in truth()[step.number]:
            episode = rollout.episode
            row = rows[tuple(episode.tokens)]
            mask = np.array(episode.written, bool)
            assert row.trajectory == f"{step.number}-{episode.group}-{rollout.trajectory}"
            assert row.group == f"{step.number}-{episode.group}"
            assert row.prompt_length == len(episode.prompt)
            assert row.written.tolist() == mask.tolist()
            assert row.columns.keys() == {"log_prob_behaviour"}
            np.testing.assert_allclose(row.columns["log_prob_behaviour"], episode.behaviour, atol=1e-6)


@SOURCES
def test_the_weights_that_sampled_a_row_are_told(source):
    for step in read(SAMPLES / source):
        rows = by_tokens(step)
        for rollout in truth()[step.number]:
            row = rows[tuple(rollout.episode.tokens)]
            assert row.version == row.newest_version == rollout.version


@SOURCES
def test_a_turn_with_another_history_is_a_second_row_of_its_rollout(source):
    rows = [row for row in read(SAMPLES / source)[1].rows if row.trajectory == "2-0-0"]
    assert len(rows) == 2
    assert rows[1].tokens.tolist() == NEW_PROMPT + NEW_TURN
    assert rows[1].prompt_length == len(NEW_PROMPT)
    np.testing.assert_allclose(rows[1].columns["log_prob_behaviour"], NEW_LOG_PROBS)


def test_turns_are_numbered_by_calls():
    step = read(SAMPLES / "files")[0]
    rows = by_tokens(step)
    for rollout in truth()[1]:
        row = rows[tuple(rollout.episode.tokens)]
        start = 0
        for number, end in enumerate(rollout.episode.turn_ends, 1):
            turns = row.turn[start:end][row.written[start:end]]
            assert set(turns.tolist()) == {number}
            start = end


def test_rewards_come_from_the_summaries_of_the_same_scope():
    for step in read(SAMPLES / "files"):
        rows = by_tokens(step)
        for rollout in truth()[step.number]:
            assert rows[tuple(rollout.episode.tokens)].reward == rollout.episode.reward


def test_without_summaries_there_are_no_rewards_and_that_is_noted():
    dump = TinkerCapture(SAMPLES / "store", Sampler())
    steps = list(dump.steps(-1))
    assert all(row.reward is None for row in steps[0].rows)
    assert "Rollouts that no summary gives a reward: 19." in dump.notes


def test_summaries_alone_have_rewards_groups_and_lengths_of_turns():
    steps = read(SAMPLES / "files", TinkerSummaries)
    assert [step.number for step in steps] == list(truth())
    for step in steps:
        for row, rollout in zip(step.rows, truth()[step.number], strict=True):
            assert not row.is_measured
            assert len(row.tokens) == 0
            assert row.reward == rollout.episode.reward
            assert row.group == f"{step.number}-{rollout.episode.group}"
            assert row.version == rollout.version
            assert list(row.turn_lengths) == [len(call.tokens) for call in rollout.calls()]


def test_summaries_in_one_folder_are_read(tmp_path):
    for iteration in truth():
        file = SAMPLES / "files" / f"iteration_{iteration:06d}" / "train_rollout_summaries.jsonl"
        shutil.copy(file, tmp_path / f"train_iteration_{iteration:06d}_rollout_summaries.jsonl")
    assert TinkerSummaries.is_in(tmp_path)
    assert [step.number for step in read(tmp_path, TinkerSummaries)] == list(truth())


@SOURCES
def test_calls_of_evaluations_are_left_out_and_counted(source):
    dump = TinkerCapture(SAMPLES / source, Sampler())
    list(dump.steps(-1))
    assert "Calls of evaluations: 1; they are left out." in dump.notes


def test_of_a_store_with_several_runs_the_newest_is_read():
    dump = TinkerCapture(SAMPLES / "store", Sampler())
    steps = list(dump.steps(-1))
    assert [len(step.rows) for step in steps] == [6, 7, 6]
    assert "The capture holds other runs as well; the one read is run-a." in dump.notes


def test_the_settings_are_those_of_the_sampler():
    dump = TinkerCapture(SAMPLES / "files", Sampler())
    list(dump.steps(-1))
    assert dump.settings["temperature"] == TEMPERATURE


# Without scopes


def unscoped():
    return [
        record | {"scope": {"run_id": "run-a"}} for record in records() if "purpose" not in record["scope"]
    ]


def test_without_scopes_rows_are_found_by_their_tokens_and_steps_by_their_weights(tmp_path):
    write(tmp_path, unscoped())
    steps = read(tmp_path)
    rollouts = truth()[1] + truth()[2] + truth()[3]
    for step in steps:
        sampled = [rollout for rollout in rollouts if rollout.version == step.number]
        rows = by_tokens(step)
        assert {tuple(rollout.episode.tokens) for rollout in sampled} <= rows.keys()
        for rollout in sampled:
            mates = [row for row in step.rows if row.group == rows[tuple(rollout.episode.tokens)].group]
            assert len(mates) == 3


def test_without_names_of_weights_each_client_is_a_step(tmp_path):
    lines = []
    for record in unscoped():
        path = record.pop("model_path")
        lines.append(record | {"sampling_session_id": f"session {path}"})
    write(tmp_path, lines)
    steps = read(tmp_path)
    assert [step.number for step in steps] == [0, 1, 2, 3]
    assert all(row.version is None for row in steps[0].rows)


def test_several_samples_of_a_call_are_several_rollouts(tmp_path):
    first = records()[0]
    first["samples"] = [{"tokens": [n], "logprobs": [-0.5], "stop_reason": "length"} for n in (7, 8)]
    follow = records()[0] | {"prompt_tokens": [*first["prompt_tokens"], 8, 9], "seq_id": 1}
    follow["samples"] = [{"tokens": [4], "logprobs": [-0.25], "stop_reason": "stop"}]
    del follow["scope"]["traj_idx"]
    first["num_samples"] = 2
    write(tmp_path, [first, follow])
    rows = read(tmp_path)[0].rows
    prompt = first["prompt_tokens"]
    assert [row.tokens.tolist() for row in rows] == [[*prompt, 7], [*prompt, 8, 9, 4]]
    assert len({row.trajectory for row in rows}) == 2
    assert [row.ended for row in rows] == ["max_tokens", None]


# Following and sampling


def test_a_growing_capture_yields_a_step_once_later_ones_have_come(tmp_path):
    lines = records()
    file = write(tmp_path, lines[:5])
    dump = TinkerCapture(tmp_path, Sampler())
    assert list(dump.steps(-1, is_live=True)) == []
    with file.open("a") as handle:
        handle.write("".join(json.dumps(line) + "\n" for line in lines[5:]) + '{"kind": "sample", "sco')
    assert [step.number for step in dump.steps(-1, is_live=True)] == [1]
    assert list(dump.steps(-1, is_live=True)) == []
    assert [len(step.rows) for step in dump.steps(-1)] == [7, 6]


def test_calls_that_come_too_late_are_counted(tmp_path):
    lines = records()
    write(tmp_path, [*lines[1:], lines[0]])
    dump = TinkerCapture(tmp_path, Sampler())
    list(dump.steps(-1))
    assert "Calls that were written after their step had been read: 1; they are left out." in dump.notes


def test_of_two_attempts_at_an_iteration_the_last_counts(tmp_path):
    lines = records()
    attempt = {"run_attempt": 1}
    again = [
        line | {"scope": line["scope"] | attempt, "seq_id": line["seq_id"] + 1}
        for line in lines
        if line["scope"]["iteration"] == 2
    ]
    write(tmp_path, [*lines, *again])
    dump = TinkerCapture(tmp_path, Sampler())
    assert [len(step.rows) for step in dump.steps(-1)] == [6, 7, 6]
    expected = f"of an attempt that a restart did again: {len(again)};"
    assert any(expected in note for note in dump.notes)


@SOURCES
def test_sampling_keeps_what_is_known_of_the_groups_that_it_leaves_out(source):
    dump = TinkerCapture(SAMPLES / source, Sampler(bytes_a_step=1))
    for step in dump.steps(-1):
        assert all(not row.is_measured and row.group is not None for row in step.rows)


@SOURCES
def test_steps_after_a_number_alone_are_read(source):
    dump = TinkerCapture(SAMPLES / source, Sampler())
    assert [step.number for step in dump.steps(2)] == [3]


# Hostile input


def set_in(*path, value):
    def change(record):
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("scope", value=[1]),
        set_in("scope", "iteration", value="one"),
        set_in("scope", "iteration", value=-1),
        set_in("scope", "group_idx", value=1.5),
        set_in("samples", value={"a": 1}),
        set_in("samples", 0, value=3),
        set_in("samples", 0, "tokens", value="abc"),
        set_in("samples", 0, "tokens", 0, value=-1),
        set_in("samples", 0, "tokens", 0, value=2**33),
        set_in("samples", 0, "tokens", 0, value=None),
        set_in("samples", 0, "logprobs", value=[-0.5]),
        set_in("samples", 0, "logprobs", value=[["a"]]),
        set_in("prompt_tokens", value=[[1]]),
        set_in("prompt_tokens", value="ab"),
    ],
)
def test_a_record_in_another_form_is_refused(tmp_path, change):
    lines = records()
    change(lines[0])
    file = write(tmp_path, lines)
    with pytest.raises(InputError) as error:
        read(tmp_path)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change", [set_in("prompt_tokens", value=None), set_in("samples", 0, "tokens", value=None)]
)
def test_a_call_without_tokens_is_left_out_and_counted(tmp_path, change):
    lines = records()
    change(lines[0])
    write(tmp_path, lines)
    dump = TinkerCapture(tmp_path, Sampler())
    list(dump.steps(-1))
    # The other one is the call that failed.
    assert any(note.startswith("Calls without tokens") and ": 2;" in note for note in dump.notes)


def test_a_row_with_a_turn_without_log_probs_has_none(tmp_path):
    lines = records()
    lines[0]["samples"][0]["logprobs"] = None
    write(tmp_path, lines)
    row = read(tmp_path)[0].rows[0]
    assert row.columns == {}
    assert row.written.any()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt_tokens", "[1, 2"),
        ("prompt_tokens", "[-1]"),
        ("sampled_tokens", '"abc"'),
        ("logprobs", "[0.5]"),
        ("metadata", "[]"),
        ("sampled_tokens", b"\x80\x81"),
        ("logprobs", 7),
        ("iteration", "twelve"),
    ],
)
def test_a_row_of_the_store_in_another_form_is_refused(tmp_path, column, value):
    folder = copy("store", tmp_path)
    with sqlite3.connect(folder / "capture.sqlite") as connection:
        connection.execute(f"UPDATE wire_rows SET {column} = ? WHERE run_id = 'run-a'", (value,))
    connection.close()
    with pytest.raises(InputError) as error:
        read(folder)
    assert str(folder / "capture.sqlite") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [20, 4096, 20_000])
def test_a_store_that_is_cut_off_is_refused(tmp_path, size):
    folder = copy("store", tmp_path)
    file = folder / "capture.sqlite"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(InputError) as error:
        read(folder)
    assert str(file) in str(error.value)


def test_a_store_without_its_table_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "capture.sqlite")
    connection.execute("CREATE TABLE other (value)")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="no such table"):
        read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        set_in("iteration", value=9),
        set_in("group_idx", value=None),
        set_in("traj_idx", value="0"),
        set_in("total_reward", value="high"),
        set_in("sampling_client_step", value=-1),
        set_in("steps", value=None),
        set_in("steps", 0, value=1),
        set_in("steps", 0, "ac_len", value=None),
    ],
)
def test_a_summary_in_another_form_is_refused(tmp_path, change):
    folder = copy("files", tmp_path)
    file = folder / "iteration_000001" / "train_rollout_summaries.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines[0])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="row 0") as error:
        read(folder, TinkerSummaries)
    assert str(file) in str(error.value)

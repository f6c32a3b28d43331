"""slime's `--dump-details`, in both formats of train_data: what its own code wrote is read back."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sorl.importing.dumps.megatron_dump import WeightVersions
from sorl.importing.dumps.miles import MilesDump
from sorl.importing.dumps.rows import Sampler
from sorl.importing.dumps.slime import SlimeDump
from sorl.spec import InputError
from studies.dump_samples.megatron_rows import ONE_UPDATE, SEVERAL_ROWS, STEPS, truth
from tests.importing.dumps.dump_details import (
    SAMPLES,
    assert_rows_are,
    change,
    copy_of,
    only_step,
    updates_of,
)

GATHERED = SAMPLES / "slime" / "gathered"
RANKS = SAMPLES / "slime" / "ranks"


def dump_of(folder: Path, sampler: Sampler | None = None) -> SlimeDump:
    return SlimeDump(folder, sampler or Sampler())


def test_every_row_of_every_step_is_as_it_was_written() -> None:
    steps = list(dump_of(GATHERED).steps(-1))
    assert [step.number for step in steps] == list(STEPS)
    for step in steps:
        assert_rows_are(step.rows, truth(step.number))


def test_updates_are_those_of_the_micro_batches_of_all_shards() -> None:
    for step in dump_of(GATHERED).steps(-1):
        expected = updates_of(truth(step.number))
        assert [list(update.rows) for update in step.updates] == expected
        assert len(expected) == (1 if step.number == ONE_UPDATE else 2)


def test_log_probs_are_of_the_policy_at_the_update_only_where_there_is_one_update() -> None:
    dump = dump_of(GATHERED)
    for step in dump.steps(-1):
        for row, sample in zip(step.rows, truth(step.number), strict=True):
            assert ("log_prob" in row.columns) == (step.number == ONE_UPDATE)
            if step.number == ONE_UPDATE:
                assert row.columns["log_prob"].tolist() == sample.old
    notes = " ".join(dump.notes)
    assert "--keep-old-actor" in notes
    assert "--use-rollout-logprobs" in notes


def test_rows_of_one_rollout_share_its_trajectory() -> None:
    *_, step = dump_of(GATHERED).steps(-1)
    assert step.number == SEVERAL_ROWS
    assert [row.trajectory for row in step.rows[:2]] == ["rollout-1000", "rollout-1000"]
    assert step.rows[0].tokens.tolist() == step.rows[1].tokens[: len(step.rows[0].tokens)].tolist()


def test_a_row_that_the_loss_leaves_out_is_kept_with_no_trained_token() -> None:
    step = next(dump_of(GATHERED).steps(-1))
    assert [number for number, row in enumerate(step.rows) if not row.mask.any()] == [4]
    assert step.rows[4].written.sum() == 12


def test_question_answer_and_end_are_the_samples() -> None:
    row = next(dump_of(GATHERED).steps(-1)).rows[1]
    assert (row.question, row.answer, row.ended) == ("question 0", "turn of 4 ", "answer")


def test_rows_have_the_number_of_their_sample_also_without_tokens() -> None:
    for folder in (GATHERED, RANKS):
        for step in dump_of(folder).steps(-1):
            assert all(isinstance(row.sample, int) for row in step.rows)
            assert [row.without_tokens().sample for row in step.rows] == [row.sample for row in step.rows]


def test_all_trained_tokens_find_their_rollout() -> None:
    for step in dump_of(GATHERED).steps(-1):
        assert step.coverage is not None
        assert step.coverage.tokens == sum(sum(row.trained) for row in truth(step.number))
        assert step.coverage.joined == step.coverage.tokens


def test_the_tokenizer_beside_the_dump_is_told() -> None:
    assert dump_of(GATHERED).tokenizer == GATHERED / "tokenizer"
    assert dump_of(RANKS).tokenizer is None


def test_only_steps_after_the_last_one_are_read() -> None:
    dump = dump_of(GATHERED)
    assert [step.number for step in dump.steps(0)] == [1, 2]
    assert list(dump.steps(2)) == []


def test_slices_of_context_parallel_ranks_are_put_together_and_copies_dropped() -> None:
    dump = dump_of(RANKS)
    step = only_step(dump)
    assert_rows_are(step.rows, truth(0))
    assert step.updates == []
    assert any(note.startswith("18 rows of train_data are copies") for note in dump.notes)
    assert any("which rows each update trains on" in note for note in dump.notes)
    assert not any("log_prob" in row.columns for row in step.rows)


def test_ranks_without_log_probs_are_ignored_where_another_has_them(tmp_path: Path) -> None:
    folder = copy_of("slime/ranks", tmp_path)
    for rank in (0, 2):  # the first stage of a pipeline

        def drop(pack: Any) -> None:
            for key in ("log_probs", "ref_log_probs", "advantages", "returns"):
                del pack["rollout_data"][key]

        change(folder / "train_data" / f"0_{rank}.pt", drop)
    assert_rows_are(only_step(dump_of(folder)).rows, truth(0))


def test_a_column_whose_slices_do_not_fit_together_is_left_out(tmp_path: Path) -> None:
    folder = copy_of("slime/ranks", tmp_path)
    for rank in (2, 3):
        (folder / "train_data" / f"0_{rank}.pt").unlink()
    dump = dump_of(folder)
    columns = [row.columns for row in only_step(dump).rows]
    assert not any("log_prob_old" in names and len(names["log_prob_old"]) == 0 for names in columns)
    assert "log_prob_old" not in columns[0]
    assert any("log_probs do not fit together" in note for note in dump.notes)


@pytest.mark.parametrize("folder", [GATHERED, RANKS], ids=lambda folder: folder.name)
def test_a_dump_of_slime_is_none_of_miles(folder: Path) -> None:
    assert SlimeDump.is_in(folder)
    assert not MilesDump.is_in(folder)


def test_folders_of_other_things_are_no_dump(tmp_path: Path) -> None:
    assert not SlimeDump.is_in(tmp_path)
    assert not SlimeDump.is_in(GATHERED / "train_data")
    other = tmp_path / "train_data"
    other.mkdir()
    (other / "0.pt").write_bytes(b"rollout_id, and no zip")
    assert not SlimeDump.is_in(tmp_path)
    torch.save({"weights": torch.zeros(2)}, other / "0.pt")
    assert not SlimeDump.is_in(tmp_path)


def test_sampling_keeps_rewards_groups_and_versions_and_leaves_out_tokens() -> None:
    step = next(dump_of(GATHERED, Sampler(bytes_a_step=1)).steps(-1))
    for row, sample in zip(step.rows, truth(0), strict=True):
        assert not row.is_measured
        assert len(row.tokens) == 0
        assert (row.reward, row.group, row.version) == (sample.reward, str(sample.group), 0)
    assert step.coverage is not None
    assert step.coverage.joined == sum(sum(row.trained) for row in truth(0))


def test_sampling_keeps_whole_groups_of_ranks() -> None:
    size = sum(file.stat().st_size for file in RANKS.rglob("*.pt"))
    kept = set()
    for percent in range(0, 100, 10):
        sampler = Sampler(bytes_a_step=size * percent // 100)
        rows = only_step(dump_of(RANKS, sampler)).rows
        kept.add("".join("x" if row.is_measured else "." for row in rows))
    assert kept - {"......", "xxxxxx"} in ({"xxx..."}, {"...xxx"})


def test_a_live_step_waits_until_its_file_is_settled(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    for file in folder.rglob("*.pt"):
        os.utime(file)
    dump = dump_of(folder)
    assert [step.number for step in dump.steps(-1, is_live=True)] == [0, 1]
    settled = time.time() - 60
    for file in folder.rglob("*.pt"):
        os.utime(file, (settled, settled))
    assert [step.number for step in dump.steps(1, is_live=True)] == [2]


def test_a_live_run_that_has_not_trained_yet_yields_nothing(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    (folder / "train_data").rename(tmp_path / "later")
    assert list(dump_of(folder).steps(-1, is_live=True)) == []


def test_rollouts_alone_are_rows_without_the_trainers_columns(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    (folder / "train_data").rename(tmp_path / "none")
    dump = dump_of(folder)
    step = next(dump.steps(-1))
    assert [row.columns.keys() for row in step.rows] == [{"log_prob_behaviour"}] * 6
    assert step.coverage is None
    assert step.rows[4].mask.sum() == 0
    assert any("no train_data" in note for note in dump.notes)


def test_sampled_steps_that_were_never_trained_on_are_noted(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    (folder / "train_data" / "2.pt").unlink()
    dump = dump_of(folder)
    assert [step.number for step in dump.steps(-1)] == [0, 1]
    assert any("have no train_data" in note for note in dump.notes)


def test_without_rollout_data_training_rows_stand_alone(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    (folder / "rollout_data" / "2.pt").unlink()
    dump = dump_of(folder)
    *_, step = dump.steps(1)
    assert step.coverage is not None
    assert step.coverage.joined == 0
    assert step.coverage.reasons == {"the step has no rollout_data file": step.coverage.tokens}
    assert step.rows[0].trajectory == step.rows[1].trajectory != step.rows[2].trajectory
    assert step.rows[0].group is None
    assert step.rows[0].reward == truth(2)[0].reward


def test_refused_rollout_data_is_gone_without_and_named(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)

    def put_in_array(pack: Any) -> None:
        pack["samples"][0]["rollout_routed_experts"] = np.zeros(2)

    change(folder / "rollout_data" / "0.pt", put_in_array)
    dump = dump_of(folder)
    step = next(dump.steps(-1))
    assert step.rows[0].columns["log_prob_old"].tolist() == truth(0)[0].old
    assert step.coverage is not None
    [reason] = step.coverage.reasons
    assert "numpy" in reason
    assert any("numpy" in note and "train_data alone" in note for note in dump.notes)


def test_tokens_that_differ_from_their_rollout_are_not_joined(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)

    def swap(pack: Any) -> None:
        pack["samples"][0]["tokens"][0] += 1

    change(folder / "rollout_data" / "0.pt", swap)
    step = next(dump_of(folder).steps(-1))
    assert step.coverage is not None
    assert step.coverage.reasons == {
        "rollout_data has other tokens for the same sample": sum(truth(0)[0].trained)
    }


def test_a_reward_that_is_a_dict_is_read_from_train_data(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)

    def make_dict(pack: Any) -> None:
        for sample in pack["samples"]:
            sample["reward"] = {"score": sample["reward"]}

    change(folder / "rollout_data" / "0.pt", make_dict)
    step = next(dump_of(folder).steps(-1))
    assert [row.reward for row in step.rows] == [sample.reward for sample in truth(0)]


@pytest.mark.parametrize("reward", [float("nan"), 10**400, "good", None, [1.0]])
def test_a_reward_that_is_no_finite_number_is_that_of_train_data(reward: object, tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    change(folder / "rollout_data" / "0.pt", set_in_sample("reward", reward))
    change(folder / "train_data" / "0.pt", lambda pack: pack["raw_reward"].__setitem__(2, reward))
    rows = next(dump_of(folder).steps(-1)).rows
    assert rows[1].reward == truth(0)[1].reward
    assert rows[2].reward == truth(0)[2].reward


def test_a_mask_that_is_none_means_that_all_tokens_were_written(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)

    def forget(pack: Any) -> None:
        pack["samples"][0]["loss_mask"] = None

    change(folder / "rollout_data" / "0.pt", forget)
    row = next(dump_of(folder).steps(-1)).rows[0]
    assert row.written.tolist() == [True] * len(truth(0)[0].response)
    assert row.mask.tolist() == [flag == 1 for flag in truth(0)[0].written]


def test_bfloat16_columns_are_read(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)

    def shorten(pack: Any) -> None:
        pack["samples"][0]["log_probs"] = pack["samples"][0]["log_probs"].bfloat16()

    change(folder / "train_data" / "0.pt", shorten)
    values = next(dump_of(folder).steps(-1)).rows[0].columns["log_prob_old"]
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, truth(0)[0].old, rtol=0.01)


def test_a_log_prob_that_is_not_finite_is_kept_and_noted(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)

    def break_one(pack: Any) -> None:
        pack["samples"][0]["log_probs"][1] = float("nan")

    change(folder / "train_data" / "0.pt", break_one)
    dump = dump_of(folder)
    assert np.isnan(next(dump.steps(-1)).rows[0].columns["log_prob_old"][1])
    assert any("log_prob_old that is not finite" in note for note in dump.notes)


def test_versions_count_from_the_start_of_the_trainer_process() -> None:
    versions = WeightVersions()
    assert [versions.offset(step, newest=step + 1) for step in range(3)] == [-1, -1, -1]
    # Restarted at step 3 and asynchronous: its first two steps have version 1.
    assert [versions.offset(step, newest) for step, newest in ((3, 1), (4, 1), (5, 2))] == [2, 2, 2]


def test_an_asynchronous_run_is_a_step_stale_from_its_second_step_on() -> None:
    versions = WeightVersions()
    staleness = []
    for step, newest in ((0, 1), (1, 1), (2, 2), (3, 3)):
        staleness.append(step - newest - versions.offset(step, newest))
    assert staleness == [0, 1, 1, 1]


def set_versions(folder: Path, step: int, version: str) -> None:
    def set_all(pack: Any) -> None:
        for sample in pack["samples"]:
            sample["weight_versions"] = [version]

    change(folder / "rollout_data" / f"{step}.pt", set_all)


def test_versions_that_run_ahead_of_the_steps_are_left_out(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    set_versions(folder, 0, "7")
    dump = dump_of(folder)
    assert {row.version for row in next(dump.steps(-1)).rows} == {None}
    assert any("run ahead" in note for note in dump.notes)


def test_a_version_that_is_no_number_is_none(tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    set_versions(folder, 0, "default")
    assert {row.version for row in next(dump_of(folder).steps(-1)).rows} == {None}


def set_in_sample(key: str, value: object) -> Callable[[Any], None]:
    def edit(pack: Any) -> None:
        pack["samples"][1][key] = value

    return edit


BROKEN_ROWS = {
    "tokens no list": ("tokens", "text", "tokens is no list of numbers"),
    "tokens null": ("tokens", None, "tokens is missing"),
    "null token": ("tokens", [1, None, 2], "tokens is no list of numbers"),
    "token too large": ("tokens", torch.full((12,), 2**40), "no token id"),
    "negative token": ("tokens", [-1] * 12, "no token id"),
    "nested tokens": ("tokens", [[1, 2], [3, 4]], "2 axes"),
    "length null": ("response_lengths", None, "response_lengths is missing"),
    "length no number": ("response_lengths", 2.5, "response_lengths is no whole number"),
    "length negative": ("response_lengths", -1, "a response of -1 tokens"),
    "length huge": ("response_lengths", 10**15, "a response of 1000000000000000 tokens"),
    "mask short": ("loss_masks", torch.ones(1), "loss_masks has 1 entries"),
    "column short": ("log_probs", torch.ones(1), "log_probs has 1 entries"),
    "column of text": ("log_probs", ["a"] * 4, "log_probs is no list of numbers"),
    "column claims": ("log_probs", torch.zeros(1).expand(10**12), "log_probs is no list of numbers"),
    "position no number": ("rollout_position", "1", "rollout_position is no whole number"),
    "total differs": ("total_lengths", 3, "total_lengths is 3"),
    "wrong nesting": ("advantages", {"a": 1}, "advantages is no list of numbers"),
}


@pytest.mark.parametrize(("key", "value", "problem"), BROKEN_ROWS.values(), ids=BROKEN_ROWS.keys())
def test_a_broken_row_is_named(key: str, value: object, problem: str, tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    change(folder / "train_data" / "0.pt", set_in_sample(key, value))
    with pytest.raises(InputError, match=problem) as error:
        next(dump_of(folder).steps(-1))
    assert "train_data/0.pt" in str(error.value)
    assert "\n" not in str(error.value)


BROKEN_FILES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda pack: [1], "it has no samples"),
    "no samples": (lambda pack: {"rollout_id": 0}, "it has no samples"),
    "samples no list": (lambda pack: {**pack, "samples": 3}, "samples is no list of dicts"),
    "samples of lists": (lambda pack: {**pack, "samples": [[1]]}, "samples is no list of dicts"),
    "format 3": (lambda pack: {**pack, "format_version": 3}, "format_version is 3"),
    "shards no list": (lambda pack: {**pack, "dp_shards": 1}, "dp_shards is no list of dicts"),
    "shard names no row": (
        lambda pack: {
            **pack,
            "dp_shards": [{"partition": [0], "num_microbatches": [1], "micro_batch_indices": [[4]]}],
        },
        "dp_shards name a row that is not in samples",
    ),
    "shard of text": (
        lambda pack: {
            **pack,
            "dp_shards": [{"partition": [0], "num_microbatches": ["x"], "micro_batch_indices": [[0]]}],
        },
        "num_microbatches is no whole number",
    ),
}


@pytest.mark.parametrize(("edit", "problem"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_a_broken_file_is_named(edit: Callable[[Any], Any], problem: str, tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    change(folder / "train_data" / "0.pt", edit)
    with pytest.raises(InputError, match=problem):
        next(dump_of(folder).steps(-1))


@pytest.mark.parametrize("folder", ["train_data", "rollout_data"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_file_is_named(folder: str, share: float, tmp_path: Path) -> None:
    file = copy_of("slime/gathered", tmp_path) / folder / "0.pt"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError, match=f"{folder}/0.pt' cannot be read"):
        next(dump_of(file.parents[1]).steps(-1))


class Trap:
    """What runs a command when an unguarded pickle is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_in_train_data_is_refused_and_not_run(is_zip: bool, tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    mark = tmp_path / "executed"
    file = folder / "train_data" / "0.pt"
    if is_zip:
        torch.save({"samples": [Trap(mark)]}, file)
    else:
        file.write_bytes(pickle.dumps({"samples": [Trap(mark)]}))
    with pytest.raises(InputError, match=r"train_data/0.pt'"):
        next(dump_of(folder).steps(-1))
    assert not mark.exists()


@pytest.mark.parametrize("key", ["index", "group_index", "rollout_id"])
def test_an_id_of_a_sample_that_is_no_number_is_named(key: str, tmp_path: Path) -> None:
    folder = copy_of("slime/gathered", tmp_path)
    change(folder / "rollout_data" / "0.pt", set_in_sample(key, "x"))
    with pytest.raises(InputError, match=f"rollout_data/0.pt', row 1: {key} is no whole number"):
        next(dump_of(folder).steps(-1))

"""miles' `--dump-details`: rows of ranks put together, and each update's log-probs found among the calls."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sorl.importing.dumps.megatron_ranks import RankedRow, cp_spans
from sorl.importing.dumps.megatron_rows import RowPlace, TrainingRow
from sorl.importing.dumps.miles import MilesDump
from sorl.importing.dumps.rows import DumpStep, Sampler
from sorl.importing.dumps.slime import SlimeDump
from sorl.spec import InputError
from studies.dump_samples.megatron_rows import ONE_UPDATE, SEVERAL_ROWS, truth
from studies.dump_samples.miles import RUN_STEPS, SLICED_ROWS
from tests.importing.dumps.dump_details import (
    SAMPLES,
    assert_rows_are,
    change,
    copy_of,
    only_step,
    updates_of,
)

RUN = SAMPLES / "miles" / "run"
SLICED = SAMPLES / "miles" / "sliced"


def dump_of(folder: Path, sampler: Sampler | None = None) -> MilesDump:
    return MilesDump(folder, sampler or Sampler())


def new_log_probs(step: DumpStep) -> dict[int, list[float]]:
    """Of all updates, by row."""
    values: dict[int, list[float]] = {}
    for update in step.updates:
        assert update.log_prob.keys() <= set(update.rows)
        values |= {row: column.tolist() for row, column in update.log_prob.items()}
    return values


def test_every_row_of_every_step_is_as_it_was_written() -> None:
    steps = list(dump_of(RUN).steps(-1))
    assert [step.number for step in steps] == list(RUN_STEPS)
    for step in steps:
        assert_rows_are(step.rows, truth(step.number))
        assert step.coverage is not None
        assert (
            step.coverage.joined
            == step.coverage.tokens
            == sum(sum(row.trained) for row in truth(step.number))
        )


def test_each_update_has_the_log_probs_of_its_own_calls() -> None:
    for step in dump_of(RUN).steps(-1):
        expected = truth(step.number)
        assert [list(update.rows) for update in step.updates] == updates_of(expected)
        assert new_log_probs(step) == {number: row.new for number, row in enumerate(expected)}


def test_slices_of_context_parallel_ranks_are_put_together_in_calls_too() -> None:
    dump = dump_of(SLICED)
    step = only_step(dump)
    expected = truth(ONE_UPDATE)[:SLICED_ROWS]
    assert_rows_are(step.rows, expected)
    assert new_log_probs(step) == {number: row.new for number, row in enumerate(expected)}
    assert any(note.startswith("3 samples of rollout_data are not in train_data") for note in dump.notes)


@pytest.mark.parametrize("cp_size", [2, 3, 4, 8])
@pytest.mark.parametrize("prompt_length", [1, 7, 40])
def test_pieces_of_all_ranks_cover_the_response_once(cp_size: int, prompt_length: int) -> None:
    for length in range(1, 30):
        tokens = np.zeros(prompt_length + length, np.int32)
        row = TrainingRow(RowPlace(Path("x"), 0), tokens, prompt_length, np.ones(length, bool))
        covered: list[int] = []
        for rank in range(cp_size):
            for start, stop in cp_spans(RankedRow(row, cp_size, None, True), rank, cp_size):
                covered += range(start, stop)
        assert sorted(covered) == list(range(length))


def test_copies_of_a_tensor_parallel_rank_are_dropped(tmp_path: Path) -> None:
    folder = copy_of("miles/sliced", tmp_path)
    for rank, copy in ((0, 2), (1, 3)):
        shutil.copy(folder / "train_data" / f"1_{rank}.pt", folder / "train_data" / f"1_{copy}.pt")
        for call in range(2):
            calls = folder / "policy_loss_debug"
            shutil.copy(calls / f"rank_{rank}_call_{call}.pt", calls / f"rank_{copy}_call_{call}.pt")
    dump = dump_of(folder)
    step = only_step(dump)
    assert_rows_are(step.rows, truth(ONE_UPDATE)[:SLICED_ROWS])
    assert new_log_probs(step)[2] == truth(ONE_UPDATE)[2].new
    assert any(note.startswith("9 rows of train_data are copies") for note in dump.notes)


def test_a_first_stage_of_a_pipeline_without_calls_is_ignored(tmp_path: Path) -> None:
    folder = copy_of("miles/sliced", tmp_path)
    for rank, stage in ((0, 2), (1, 3)):
        file = folder / "train_data" / f"1_{stage}.pt"
        shutil.copy(folder / "train_data" / f"1_{rank}.pt", file)

        def drop(pack: Any) -> None:
            for key in ("log_probs", "ref_log_probs", "advantages", "returns"):
                del pack["rollout_data"][key]

        change(file, drop)
    step = only_step(dump_of(folder))
    assert_rows_are(step.rows, truth(ONE_UPDATE)[:SLICED_ROWS])
    assert len(new_log_probs(step)) == SLICED_ROWS


def test_a_missing_context_parallel_rank_leaves_its_columns_out(tmp_path: Path) -> None:
    folder = copy_of("miles/sliced", tmp_path)
    (folder / "train_data" / "1_1.pt").unlink()
    dump = dump_of(folder)
    step = only_step(dump)
    assert [row.columns for row in step.rows] == [{}] * SLICED_ROWS
    assert new_log_probs(step) == {}
    assert any("do not fit together" in note for note in dump.notes)


def test_calls_are_found_again_after_a_restart_overwrote_the_first(tmp_path: Path) -> None:
    # The run was resumed before step 2: its calls 0, 1, 2 are of that step, and those of step 1 are gone.
    folder = copy_of("miles/run", tmp_path)
    calls = folder / "policy_loss_debug"
    for rank in range(2):
        for call in range(2, 5):
            (calls / f"rank_{rank}_call_{call}.pt").rename(calls / f"rank_{rank}_call_{call - 2}.pt")
    dump = dump_of(folder)
    first, second = dump.steps(-1)
    assert new_log_probs(first) == {}
    assert any("policy_loss_debug of some steps does not match" in note for note in dump.notes)
    assert new_log_probs(second) == {number: row.new for number, row in enumerate(truth(SEVERAL_ROWS))}


def test_calls_of_a_later_step_are_found_without_the_steps_before() -> None:
    [step] = dump_of(RUN).steps(ONE_UPDATE)
    assert new_log_probs(step) == {number: row.new for number, row in enumerate(truth(SEVERAL_ROWS))}


def test_calls_whose_old_log_probs_are_of_other_rows_are_left_out_of_the_whole_step(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)

    def shift(pack: Any) -> None:
        pack["samples"][0]["old_log_probs"] += 0.5

    change(folder / "policy_loss_debug" / "rank_1_call_1.pt", shift)
    dump = dump_of(folder)
    first, second = dump.steps(-1)
    assert new_log_probs(first) == {}
    assert [list(update.rows) for update in first.updates] == updates_of(truth(ONE_UPDATE))
    assert new_log_probs(second)[0] == truth(SEVERAL_ROWS)[0].new
    assert any("policy_loss_debug of some steps does not match" in note for note in dump.notes)


def edit_all(folder: Path, pattern: str, edit: Callable[[Any], None]) -> None:
    for file in folder.glob(pattern):
        change(file, edit)


def test_without_a_schedule_calls_are_matched_by_their_contents(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)

    def forget(pack: Any) -> None:
        del pack["rollout_data"]["num_microbatches"], pack["rollout_data"]["micro_batch_indices"]

    edit_all(folder, "train_data/*.pt", forget)
    dump = dump_of(folder)
    for step in dump.steps(-1):
        assert step.updates == []
        for row, sample in zip(step.rows, truth(step.number), strict=True):
            assert row.columns["log_prob"].tolist() == sample.new
    assert any("which rows each update trains on" in note for note in dump.notes)


def test_where_the_ratio_compares_with_the_sampler_old_is_the_samplers(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)

    def use_sampler(pack: Any) -> None:
        for sample in pack["samples"]:
            sample["old_log_probs"] = sample["rollout_log_probs"]

    edit_all(folder, "policy_loss_debug/*.pt", use_sampler)
    dump = dump_of(folder)
    step = next(dump.steps(-1))
    assert step.rows[0].columns["log_prob_old"].tolist() == truth(ONE_UPDATE)[0].behaviour
    assert new_log_probs(step)[0] == truth(ONE_UPDATE)[0].new
    assert any("--use-rollout-logprobs" in note for note in dump.notes)


def test_where_no_forward_came_before_the_update_old_is_new(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)

    def skip_forward(pack: Any) -> None:
        for sample in pack["samples"]:
            sample["old_log_probs"] = sample["train_log_probs"]

    def drop_log_probs(pack: Any) -> None:
        del pack["rollout_data"]["log_probs"]

    edit_all(folder, "policy_loss_debug/*.pt", skip_forward)
    edit_all(folder, "train_data/*.pt", drop_log_probs)
    dump = dump_of(folder)
    step = next(dump.steps(-1))
    assert step.rows[0].columns["log_prob_old"].tolist() == truth(ONE_UPDATE)[0].new
    assert new_log_probs(step)[0] == truth(ONE_UPDATE)[0].new
    assert any("--skip-actor-forward-only" in note for note in dump.notes)


def test_without_calls_the_old_log_probs_serve_where_there_is_one_update(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)
    shutil.rmtree(folder / "policy_loss_debug")
    dump = dump_of(folder)
    first, second = dump.steps(-1)
    assert first.rows[0].columns["log_prob"].tolist() == truth(ONE_UPDATE)[0].old
    assert not any("log_prob" in row.columns for row in second.rows)
    assert any("no policy_loss_debug" in note for note in dump.notes)


def test_texts_are_those_of_the_conversations_where_there_are_any() -> None:
    rows = next(dump_of(RUN).steps(-1)).rows
    assert (rows[0].question, rows[0].answer) == ("question 2", "answer 100")
    assert (rows[1].question, rows[1].answer) == ("question 2", "response 101")


def test_a_dump_of_miles_is_none_of_slime(tmp_path: Path) -> None:
    assert MilesDump.is_in(RUN)
    assert not SlimeDump.is_in(RUN)
    folder = copy_of("miles/run", tmp_path)
    for name in ("policy_loss_debug", "trajectory"):
        shutil.rmtree(folder / name)
    assert MilesDump.is_in(folder)  # by the metadata before the samples
    assert not SlimeDump.is_in(folder)


def test_sampled_out_rows_have_no_log_probs_at_the_update() -> None:
    step = next(dump_of(RUN, Sampler(bytes_a_step=1)).steps(-1))
    assert not any(row.is_measured for row in step.rows)
    assert new_log_probs(step) == {}


def test_weight_versions_come_from_train_data_where_rollout_data_is_refused(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)

    def put_in_array(pack: Any) -> None:
        pack["samples"][0]["rollout_indexer_topk"] = np.zeros(2)

    change(folder / "rollout_data" / "1.pt", put_in_array)
    step = next(dump_of(folder).steps(-1))
    assert [row.version for row in step.rows] == [row.steps[0] for row in truth(ONE_UPDATE)]
    assert step.coverage is not None
    assert step.coverage.joined == 0


def set_column(key: str, value: object) -> Callable[[Any], None]:
    def edit(pack: Any) -> None:
        pack["rollout_data"][key] = value

    return edit


def set_top(key: str, value: object) -> Callable[[Any], None]:
    def edit(pack: Any) -> None:
        pack[key] = value

    return edit


BROKEN_TRAINING: dict[str, tuple[Callable[[Any], None], str]] = {
    "no columns": (set_top("rollout_data", [1]), "it has no rollout_data"),
    "tokens null": (set_column("tokens", None), "tokens is no list"),
    "tokens missing": (set_column("tokens", []), "has 3 entries for 0 rows"),
    "column short": (set_column("log_probs", [torch.ones(3)]), "log_probs has 1 entries for 3 rows"),
    "column long": (set_column("log_probs", [torch.ones(99)] * 3), "log_probs has 99 entries"),
    "column scalar": (set_column("advantages", 1.0), "advantages has None entries for 3 rows"),
    "column of text": (set_column("log_probs", ["x"] * 3), "log_probs is no list of numbers"),
    "index text": (set_column("sample_indices", ["x"] * 3), "sample_indices is no whole number"),
    "schedule of text": (
        set_column("micro_batch_indices", [["x"]]),
        "micro_batch_indices is no whole number",
    ),
    "schedule names no row": (set_column("micro_batch_indices", [[0], [9]]), "row that is not there"),
    "cp_size text": (set_top("cp_size", "2"), "cp_size is no whole number"),
    "cp_size huge": (set_top("cp_size", 10**12), "cp_rank 0 of cp_size 1000000000000"),
    "cp_rank beyond": (set_top("cp_rank", 5), "cp_rank 5 of cp_size 1"),
    "array": (set_column("rollout_mask_sums", np.zeros(3)), "numpy"),
}


@pytest.mark.parametrize(("edit", "problem"), BROKEN_TRAINING.values(), ids=BROKEN_TRAINING.keys())
def test_broken_train_data_is_named(edit: Callable[[Any], None], problem: str, tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)
    change(folder / "train_data" / "1_0.pt", edit)
    with pytest.raises(InputError, match=problem) as error:
        next(dump_of(folder).steps(-1))
    assert "train_data/1_0.pt" in str(error.value)
    assert "\n" not in str(error.value)


def set_in_call(key: str, value: object) -> Callable[[Any], None]:
    def edit(pack: Any) -> None:
        pack["samples"][0][key] = value

    return edit


BROKEN_CALLS: dict[str, tuple[Callable[[Any], None], str]] = {
    "no samples": (set_top("samples", None), "samples is no list of dicts"),
    "empty": (set_top("samples", []), "samples is empty"),
    "new missing": (set_in_call("train_log_probs", None), "train_log_probs is missing"),
    "new of text": (set_in_call("train_log_probs", "x"), "train_log_probs is no list of numbers"),
    "length of two": (set_in_call("total_length", torch.ones(2)), "total_length is no whole number"),
    "old nested": (set_in_call("old_log_probs", [[1.0]]), "old_log_probs has 2 axes"),
}


@pytest.mark.parametrize(("edit", "problem"), BROKEN_CALLS.values(), ids=BROKEN_CALLS.keys())
def test_a_broken_call_is_named(edit: Callable[[Any], None], problem: str, tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)
    change(folder / "policy_loss_debug" / "rank_0_call_0.pt", edit)
    with pytest.raises(InputError, match=problem) as error:
        next(dump_of(folder).steps(-1))
    assert "rank_0_call_0.pt" in str(error.value)


def test_a_truncated_call_is_named(tmp_path: Path) -> None:
    file = copy_of("miles/run", tmp_path) / "policy_loss_debug" / "rank_0_call_0.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"rank_0_call_0.pt' cannot be read"):
        next(dump_of(file.parents[1]).steps(-1))


def test_a_broken_line_of_a_conversation_is_named(tmp_path: Path) -> None:
    folder = copy_of("miles/run", tmp_path)
    (folder / "trajectory" / "1.jsonl").write_text("{}\nnot json\n")
    with pytest.raises(InputError, match=r"trajectory/1.jsonl': line 2 is no JSON"):
        next(dump_of(folder).steps(-1))

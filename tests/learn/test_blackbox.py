"""What a real run leaves in its black box."""

from pathlib import Path

import numpy as np
import pytest

from tests.learn.tiny import MakeRun, rows, train
from workbench.store import batches


def test_a_stored_batch_is_what_the_ledger_was_measured_on(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(learn={"minibatches": 4, "epochs": 2})
    assert train(folder, cache) == 0
    assert batches.steps(folder) == list(range(6))
    batch = batches.read(folder, 4, weights=True)
    told = rows(folder, "trajectory").query("step == 4")
    np.testing.assert_allclose(batch.score, told["reward"])
    assert list(batch.group) == list(told["prompt_group"])
    minibatch = rows(folder, "minibatch").query("step == 4").reset_index(drop=True)
    assert len(batch.updates) == len(minibatch) == 8
    for update in batch.updates:
        logged = minibatch.iloc[update.index]
        assert (update.epoch, update.rollout_step) == (logged["epoch"], logged["rollout_step"])
        assert update.scalars["policy_loss"] == logged["policy_loss"]
        assert update.scalars["grad_norm"] == logged["grad_norm"]
        mask = batch.mask[update.rows]
        moved = np.exp((update.log_prob - batch.log_prob_old[update.rows])[mask].astype(float))
        assert moved.max() == pytest.approx(logged["ratio_max"], rel=1e-6)
    turns = rows(folder, "turn").query("step == 4 and epoch == 0")
    assert len(turns) == sum(len(set(row[row > 0])) for row in batch.turn)
    assert batch.meta["model"]["hidden_size"] == 32
    assert {name.split(".")[0] for name in batch.weights} == {"policy", "critic"}
    again = batches.read(folder, 5, weights=True).weights
    assert any((batch.weights[name] != again[name]).any() for name in again)


def test_a_black_box_that_is_off_or_cannot_be_written_stops_no_run(new_run: MakeRun, cache: Path) -> None:
    blocked, off = new_run("blocked", iterations=2), new_run("off", iterations=2, record={"batches": {"mb": 0}})
    (blocked / "batches").write_text("in the way")
    for folder in (blocked, off):
        assert train(folder, cache) == 0
        assert len(rows(folder, "step")) == 2
        assert batches.steps(folder) == []
    assert not (off / "batches").exists()


def test_weights_beyond_their_limit_and_dropped_sequences_are_told_apart(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(
        algorithm="grpo", iterations=2, slots={"select": {"kind": "zero_var"}},
        record={"batches": {"weights_mb": 0}},
    )  # fmt: skip
    assert train(folder, cache) == 0
    batch = batches.read(folder, 1, weights=True)
    assert batch.weights == {}
    assert "model" not in batch.meta
    assert batch.values is None
    flat = [np.ptp(batch.score[batch.group == g]) == 0 for g in batch.group]
    assert (batch.mask_sampled.any(1)).all()
    np.testing.assert_array_equal(batch.mask.any(1), ~np.array(flat))

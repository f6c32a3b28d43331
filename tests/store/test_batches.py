"""Stored batches: read as they were written, and refused with what to type where they cannot be."""

import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from sorl.batch import turn_ids
from sorl.spec import InputError
from sorl.store import batches
from tests.store.stored_batch import write_batch

B = 8
T = 30


@pytest.fixture
def run(tmp_path):
    write_batch(tmp_path, 7)
    return tmp_path


def test_a_batch_comes_back_as_it_was_written(tmp_path):
    update = {
        "epoch": 0,
        "rollout_step": 3,
        "passes": [4],
        "scalars": {"grad_norm": math.nan, "value_loss": None},
    }
    order = np.array([2, 0, 3, 1, 7, 6, 5, 4], np.int32)
    changes = {"values": None, "update.rows": order, "policy.w": np.ones(3, np.float32)}
    stored = load_file(write_batch(tmp_path, 7, arrays=changes, updates=[update, update]))
    found = batches.read(tmp_path, 7)
    for name in ("tokens", "mask", "group", "score", "log_prob_old", "advantages"):
        np.testing.assert_array_equal(getattr(found, name), stored[name])
    np.testing.assert_array_equal(found.mask_sampled, found.mask)
    np.testing.assert_array_equal(found.turn, turn_ids(torch.from_numpy(found.mask)))
    assert (found.values, found.weights, found.meta["algorithm"]) == (None, {}, "ppo")
    assert list(batches.read(tmp_path, 7, weights=True).weights) == ["policy.w"]
    first, second = found.updates
    assert [*first.rows, *second.rows] == [*order]
    np.testing.assert_array_equal(second.log_prob, stored["update.log_prob"][4:])
    assert math.isnan(first.scalars["grad_norm"])
    assert first.scalars["value_loss"] is None


def test_stored_steps_are_listed_and_a_step_that_is_not_stored_names_them(run, tmp_path):
    for step in (8, 9, 20):
        write_batch(run, step)
    (run / "batches" / ".000013.writing").write_bytes(b"half")
    assert batches.steps(run) == [7, 8, 9, 20]
    with pytest.raises(InputError, match=r"stored are 7-9, 20; the nearest is --step 20"):
        batches.read(run, 17)
    assert batches.steps(tmp_path / "nothing") == []
    with pytest.raises(InputError, match=r"no stored batches.*record\.batches\.mb = 0"):
        batches.read(tmp_path / "nothing", 1)


@pytest.mark.parametrize("size", [0, 4, 100, 900, -1])
def test_a_truncated_file_and_one_of_somebody_else_are_refused(run, size):
    file = run / "batches" / "000007.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(InputError, match="cannot be read"):
        batches.read(run, 7)
    save_file({"x": np.zeros(3)}, file)
    with pytest.raises(InputError, match="does not say that it is a batch"):
        batches.read(run, 7)


@pytest.mark.parametrize(
    ("arrays", "meta", "said"),
    [
        ({"advantages": None}, {}, "lacks advantages"),
        ({"values": np.zeros((B, T + 1), np.float32)}, {}, r"values has shape \(8, 31\), expected \(8, 30\)"),
        ({"mask": np.zeros((B, T), np.int32)}, {}, "mask holds int32, expected bool"),
        ({"update.rows": np.full(B, B, np.int32)}, {}, "rows that it does not have"),
        ({"update.size": np.array([4, 5], np.int32)}, {}, "rows that it does not have"),
        ({"length": np.full(B, T + 1, np.int32)}, {}, "lengths do not fit"),
        ({"tokens": np.zeros(3, np.int32)}, {}, "other axes"),
        ({}, {"updates": []}, "cannot be read"),
        ({}, {"updates": [{}, {}]}, "cannot be read"),
        ({}, {"updates": None}, "cannot be read"),
        ({}, {"format": "x"}, "does not say that it is a batch"),
        ({}, {"format": 2}, "newer sorl"),
    ],
)
def test_arrays_and_metadata_that_do_not_fit_are_refused(run, arrays, meta, said):
    write_batch(run, 7, arrays=arrays, **meta)
    with pytest.raises(InputError, match=said):
        batches.read(run, 7)

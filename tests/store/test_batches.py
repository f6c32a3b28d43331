"""Stored batches: read as they were written, and refused with what to type where they cannot be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from workbench.spec import InputError
from workbench.store import batches

B, T = 3, 6


def arrays() -> dict[str, np.ndarray]:
    """Three sequences of six tokens; two updates, of rows (2, 0) and (1,)."""
    dense = np.arange(B * T, dtype=np.float32).reshape(B, T)
    mask = np.array([[0, 1, 1, 0, 1, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 1, 1, 1]], bool)
    row = np.arange(B, dtype=np.int32)
    return {
        "tokens": dense.astype(np.int32), "response": mask | np.roll(mask, 1, 1), "mask": mask,
        "length": np.array([6, 5, 6], np.int32), "group": row, "trajectory": row, "score": dense[:, 0],
        "log_prob_behaviour": -dense, "log_prob_old": -dense - 1, "advantages": dense - 4,
        "update.size": np.array([2, 1], np.int32), "update.rows": np.array([2, 0, 1], np.int32),
        "update.log_prob": np.stack([-dense[2], -dense[0], -dense[1]]) - 2,
        "policy.w": np.ones(3, np.float32),
    }  # fmt: skip


def meta(**changes: Any) -> dict[str, Any]:
    update = {"epoch": 0, "rollout_step": 3, "passes": [2], "scalars": {"grad_norm": float("nan"), "value_loss": None}}
    told = {"format": 1, "step": 7, "algorithm": "ppo", "updates": [update, {**update, "passes": [1]}]}
    return told | changes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write(tmp_path, 7)
    return tmp_path


def write(folder: Path, step: int, told: dict[str, Any] | None = None, **changes: np.ndarray | None) -> Path:
    (folder / "batches").mkdir(exist_ok=True)
    file = folder / "batches" / f"{step:06d}.safetensors"
    changed = {name: array for name, array in (arrays() | changes).items() if array is not None}
    save_file(changed, file, {"sorl": json.dumps(told or meta())})
    return file


def test_a_batch_comes_back_as_it_was_written(run):
    found = batches.read(run, 7)
    np.testing.assert_array_equal(found.tokens, arrays()["tokens"])
    np.testing.assert_array_equal(found.mask_sampled, found.mask)
    assert found.values is None
    assert found.weights == {}
    assert list(batches.read(run, 7, weights=True).weights) == ["policy.w"]
    assert found.meta["algorithm"] == "ppo"
    first, second = found.updates
    assert list(first.rows) == [2, 0]
    np.testing.assert_array_equal(second.log_prob, arrays()["update.log_prob"][2:])
    assert np.isnan(first.scalars["grad_norm"] or 0.0)
    assert first.scalars["value_loss"] is None
    np.testing.assert_array_equal(found.turn, [[0, 1, 1, 0, 2, 0], [0, 1, 0, 2, 0, 0], [0, 0, 1, 1, 1, 1]])


def test_stored_steps_are_listed_and_a_step_that_is_not_stored_names_them(run, tmp_path):
    for step in (8, 9, 20):
        write(run, step)
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
    ("arrays", "told", "said"),
    [
        ({"advantages": None}, {}, "lacks advantages"),
        ({"values": np.zeros((B, T + 1), np.float32)}, {}, r"values has shape \(3, 7\), expected \(3, 6\)"),
        ({"mask": np.zeros((B, T), np.int32)}, {}, "mask holds int32, expected bool"),
        ({"update.rows": np.array([2, 0, 3], np.int32)}, {}, "rows that it does not have"),
        ({"update.size": np.array([2, 2], np.int32)}, {}, "rows that it does not have"),
        ({"length": np.array([6, 7, 6], np.int32)}, {}, "lengths do not fit"),
        ({"tokens": np.zeros(3, np.int32)}, {}, "other axes"),
        ({}, {"updates": []}, "cannot be read"),
        ({}, {"updates": [{}, {}]}, "cannot be read"),
        ({}, {"updates": None}, "cannot be read"),
        ({}, {"format": "x"}, "does not say that it is a batch"),
        ({}, {"format": 2}, "newer sorl"),
    ],
)
def test_arrays_and_metadata_that_do_not_fit_are_refused(run, arrays, told, said):
    write(run, 7, meta(**told), **arrays)
    with pytest.raises(InputError, match=said):
        batches.read(run, 7)

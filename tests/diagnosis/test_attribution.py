"""From a spike to the turn and the tokens that carry it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.diagnosis.attribution import FLOOR, Culprit, attribute
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.report import as_dict, markdown, ranking, text
from sorl.diagnosis.sentences import spot
from sorl.store import batches
from sorl.store.batches import StoredBatch
from tests.diagnosis.logs import AT, healthy, log
from tests.store.stored_batch import write_batch


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> StoredBatch:
    """A batch whose policy has moved by a hundredth of a nat."""
    folder = tmp_path_factory.mktemp("runs") / "demo" / "ppo-s0"
    draw = np.random.default_rng(0)
    write_batch(folder, 0)
    stored = batches.read(folder, 0)
    moved = [stored.log_prob_old[u.rows] + draw.normal(0, 0.01, u.log_prob.shape) for u in stored.updates]
    return replace(
        stored, updates=tuple(replace(u, log_prob=x) for u, x in zip(stored.updates, moved, strict=True))
    )


def spoiled(stored: StoredBatch, row: int, at: Any, nats: float) -> StoredBatch:
    """The old log-probs of these tokens are `nats` too low."""
    old = stored.log_prob_old.copy()
    old[row, at] -= nats
    return replace(stored, log_prob_old=old)


@pytest.mark.parametrize("nats", [6.0, np.nan, np.inf, -np.inf])
def test_one_wrong_token_is_named_with_its_turn_its_place_and_its_size(
    quiet: StoredBatch, nats: float
) -> None:
    at = int(np.flatnonzero(quiet.turn[3] == 2)[1])
    first = attribute(spoiled(quiet, 3, [at], nats))[0]
    assert (first.trajectory, first.turn, first.first, first.last) == (3, 2, at, at)
    assert first.stands_out
    assert not np.isfinite(nats) or abs(first.value) == pytest.approx(6.0, abs=0.1)


def test_a_turn_that_is_off_throughout_is_named_nearly_whole(quiet: StoredBatch) -> None:
    at = np.flatnonzero(quiet.turn[5] == 1)
    first = attribute(spoiled(quiet, 5, at, 1.0))[0]
    assert (first.trajectory, first.turn) == (5, 1)
    assert len(set(range(first.first, first.last + 1)) & set(at)) >= 0.8 * len(at)


def test_where_nothing_is_wrong_no_turn_stands_out(quiet: StoredBatch) -> None:
    assert not any(one.stands_out for one in attribute(quiet))


@given(st.floats(0.0, 0.9 * FLOOR), st.integers(0, 99))
@settings(max_examples=10)
def test_what_two_kernels_disagree_by_is_no_mismatch(quiet: StoredBatch, size: float, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(-size, size, quiet.mask.shape)
    found = attribute(replace(quiet, log_prob_behaviour=quiet.log_prob_old + noise))
    assert all(one.quantity == "log_ratio" for one in found)


def test_the_order_of_the_rows_says_nothing(quiet: StoredBatch) -> None:
    wrong = spoiled(quiet, 3, [int(np.flatnonzero(quiet.turn[3] == 2)[1])], 2.0)
    order = np.random.default_rng(0).permutation(len(wrong.tokens))
    names = ("tokens", "mask", "mask_sampled", "trajectory", "log_prob_old", "log_prob_behaviour")
    back = np.argsort(order)
    updates = tuple(replace(u, rows=back[u.rows]) for u in wrong.updates)
    mixed = replace(wrong, **{name: getattr(wrong, name)[order] for name in names}, updates=updates)
    assert attribute(mixed) == attribute(wrong)


def test_a_batch_on_which_nothing_was_trained_has_no_culprit(quiet: StoredBatch) -> None:
    assert attribute(replace(quiet, mask=np.zeros_like(quiet.mask))) == []


def test_a_finding_says_who_carries_its_step_where_the_batch_is_stored(quiet: StoredBatch) -> None:
    tables = healthy()
    rows = tables["minibatch"]
    rows.loc[2 * AT, ["mismatch_max", "mismatch"]] = [8.0, 8.0 / rows["tokens"][2 * AT]]
    here = log(tables)
    bare = diagnose(here)
    assert bare.findings[0].cause.name == "corrupt_log_prob"
    assert bare.carriers == {}
    at = int(np.flatnonzero(quiet.turn[3] == 2)[1])
    here.batch = lambda step: spoiled(quiet, 3, [at], 8.0)  # type: ignore[method-assign]
    found = diagnose(here)
    assert found.carriers[AT][0].trajectory == 3
    assert f"carried: in step {AT} by turn 2 of trajectory 3, token {at}" in text(found)
    assert as_dict(found)["findings"][0]["carried_by"][0]["turn"] == 2
    assert "turn 2 of trajectory 3" in markdown(found)


def test_the_text_of_a_span_is_made_harmless() -> None:
    hostile = Culprit(0, 1, 4, 5, "log_ratio", 3.0, 30.0, 1e-9, "\x1b[2J<b>")
    assert "\x1b" not in spot(hostile)
    assert "\x1b" not in ranking("run", 0, [hostile], 5)


def test_a_batch_that_cannot_be_read_or_has_no_folder_is_none_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "ppo-s0"
    write_batch(folder, 0).write_bytes(b"cut")
    assert log(healthy()).batch(0) is None
    assert [replace(log(healthy()), folder=folder).batch(step) for step in (0, 1)] == [None, None]

"""Replay of a stored batch: equal to what the trainer logged, and honest about what a batch cannot say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sorl.algorithms import ALGORITHMS, resolve
from sorl.replay import tables
from sorl.replay.networks import Networks
from sorl.replay.play import gradients, play
from sorl.replay.tables import Replay
from sorl.store import batches
from sorl.store.batches import StoredBatch
from tests.learn.tiny import merged, rows, train
from tests.store.stored_batch import write_batch

MakeRun = Callable[..., Path]
STEP = 2  # with a staleness of 1 and a large step the ratios have left 1 by then
SETTINGS: dict[str, Any] = {
    "iterations": 3,
    "learn": {"staleness": 1, "policy": {"lr": 0.3}},
    "record": {"tokens": 16},
    "evaluation": {"every": 0, "episodes": 2},
}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"learn": {"micro_batch": 4}},
    "turn-ppo": {},
    "s-ppo": {"slots": {"stabilise": {"tau": 1.0}}, "learn": {"micro_batch": 4}},
    "st-ppo": {"slots": {"stabilise": {"tau": 1.0, "scope": "global"}}, "learn": {"micro_batch": 2}},
    "grpo": {"slots": {"kl": {"kind": "loss", "beta": 0.05}, "select": {"kind": "zero_var"}}},
    "so-grpo": {"slots": {"stabilise": {"tau": 1.0}}, "compute": {"micro_batch_tokens": 120}},
    "dr-grpo": {"learn": {"policy": {"kind": "adamw", "lr": 0.01}}},
    "seeupo": {},
    "dppo": {"learn": {"old_log_prob": "update"}},
    "vespo": {"learn": {"old_log_prob": "update"}},
}
# Beyond the core: AdamW and a horizon, turns trained one after the other, ratios against the sampler.
FURTHER = ("dr-grpo", "seeupo", "vespo")
LOGGED = (
    "policy_loss",
    "kl_loss",
    "stabiliser_ratio",
    "stabiliser_factor",
    "clipped_rms",
    "unclipped_rms",
    "ratio_max",
    "unit_ratio_mean",
    "unit_ratio_max",
    "unit_ratio_min",
    "approx_kl",
    "ess_frac",
    "clip_frac",
    "clip_low_frac",
    "clip_high_frac",
    "dual_clip_frac",
    "out_of_range_frac",
)


def replayed(stored: StoredBatch, *labels: str, **options: Any) -> Replay:
    """The run's own algorithm and the named ones, in float64."""
    own = resolve(stored.meta["algorithm"], stored.meta["slots"])
    algorithms = {label: resolve(label) for label in labels} | {"own": own}
    return play(stored, algorithms, "own", dtype=torch.float64, **options)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(a, marks=pytest.mark.slow if a in FURTHER else ()) for a in RUNS]
)
def test_the_algorithm_that_ran_gets_the_numbers_that_the_trainer_logged(new_run, cache, algorithm):
    folder = new_run(algorithm=algorithm, **merged(SETTINGS, RUNS[algorithm]))
    assert train(folder, cache) == 0
    replay = replayed(batches.read(folder, STEP))
    found = pd.DataFrame(tables.summary(replay))
    logged = rows(folder, "minibatch").query("step == @STEP").set_index("update")
    clipped = logged["clip_frac"].sum() + logged["out_of_range_frac"].sum()
    assert clipped > 0 or algorithm == "vespo", "nothing was clipped: nothing is shown"
    for update, row in found.query("source == 'replayed' and update.notna()").set_index("update").iterrows():
        for name in LOGGED:
            told = logged.loc[update, name]
            assert pd.isna(row[name]) == pd.isna(told), name
            assert pd.isna(told) or row[name] == pytest.approx(told, rel=1e-6, abs=1e-6), name
    if algorithm != "seeupo":
        assert replay.advantage_gap is not None
        assert replay.advantage_gap < 2e-6, "advantages made again are those that were trained on"

    the_true_gradients_are_those_of_the_trainer(batches.read(folder, STEP, weights=True), logged, algorithm)

    told = rows(folder, "turn").query("step == @STEP and epoch == 1").set_index(["trajectory", "turn_index"])
    late = [p.cells for p in replay.played if replay.stored.updates[p.update].epoch == 1]
    for cells in late:
        (whole,) = tables.rows_of(tables.folded(cells))
        for cell in tables.rows_of(cells):
            key = cell["trajectory"], cell["turn_index"]
            made = tables.measures(cell, whole)
            share = told.loc[key, "gradient_share"]
            assert made["gradient_share"] == (
                None if pd.isna(share) else pytest.approx(share, rel=1e-5, abs=1e-6)
            )
            assert made["advantage"] == pytest.approx(told.loc[key, "advantage"], rel=1e-6, abs=1e-6)
            assert made["n_tokens"] == told.loc[key, "n_tokens"]
    if algorithm in ("ppo", "st-ppo", "so-grpo"):
        the_weight_of_every_token_is_the_gradient_that_the_trainer_took(folder, replay.stored)


def the_true_gradients_are_those_of_the_trainer(
    stored: StoredBatch, logged: pd.DataFrame, algorithm: str
) -> None:
    own = resolve(stored.meta["algorithm"], stored.meta["slots"])
    other = resolve("reinforce")
    algorithms = {"own": own} if algorithm == "seeupo" else {"own": own, "reinforce": other}
    done = play(stored, algorithms, "own")
    taken, reason = gradients(stored, algorithms, done, Networks(stored))
    updates = len(logged)
    assert not reason, "the optimizer's state is stored with the weights"
    for update in range(updates):
        found = taken["own", update]
        told = logged.loc[update]
        assert found["grad_norm"] == pytest.approx(told["grad_norm"], rel=1e-6, abs=1e-6)
        assert found["gradient_cosine"] is None or found["gradient_cosine"] == pytest.approx(1.0)
        if pd.notna(told["clip_bias_norm"]):
            assert found["clip_bias_norm"] == pytest.approx(told["clip_bias_norm"], rel=1e-6, abs=1e-6)
        if len(algorithms) > 1:
            cosine = taken["reinforce", update]["gradient_cosine"]
            assert cosine is None or abs(cosine) < 1.0


def the_weight_of_every_token_is_the_gradient_that_the_trainer_took(
    folder: Path, stored: StoredBatch
) -> None:
    last = rows(folder, "token").query("step == @STEP").set_index("trajectory")
    found = pd.DataFrame(tables.tokens(replayed(stored, trajectory=5)))
    found = found[found["update"] == found["update"].max()]
    weight = np.asarray(last.loc[5, "gradient_weight"], float)
    np.testing.assert_allclose(found["weight"], weight[stored.mask[5][: len(weight)]], rtol=1e-5, atol=1e-8)
    assert list(found["token"]) == [
        t for t, m in zip(last.loc[5, "token"], stored.mask[5], strict=False) if m
    ]
    assert list(found["turn_index"]) == list(stored.turn[5][stored.mask[5]])
    assert (found["clipped"].to_numpy() <= (found["weight"] == 0).to_numpy()).all()


@pytest.fixture
def stored(tmp_path: Path) -> StoredBatch:
    """A batch of made-up numbers, in one update."""
    write_batch(tmp_path, 3)
    found = batches.read(tmp_path, 3)
    first, second = found.updates
    log_prob = np.concatenate([first.log_prob, second.log_prob])
    return replace(found, updates=(replace(first, rows=found.trajectory, log_prob=log_prob, passes=(8,)),))


def test_every_named_algorithm_has_an_answer_or_a_reason(stored: StoredBatch) -> None:
    replay = replayed(stored, *ALGORITHMS)
    found = pd.DataFrame(tables.summary(replay))
    answered = found["policy_loss"].notna()
    assert (answered != found["reason"].notna()).all()
    assert set(found["algorithm"]) == {*ALGORITHMS, "own"}
    lacks_input = {name for name, algorithm in ALGORITHMS.items() if algorithm.inputs}
    assert {"a-3po", "mt-grpo", "otb", "simpletir"} < lacks_input
    assert set(found[~answered]["algorithm"]) == {"seeupo", "sspo", "ppo-ewma", *lacks_input}
    for name in ("gradient_share", "unit_ratio_mass_frac"):
        shares = pd.DataFrame(tables.turns(replay)).groupby("algorithm")[name].sum()
        assert shares.to_numpy() == pytest.approx(1.0)


def test_what_only_some_algorithms_read_is_replayed_where_the_run_kept_it(stored: StoredBatch) -> None:
    turn = stored.turn
    kept = replace(
        stored,
        staleness=np.arange(8) % 4,
        void=(turn == 1) & (np.arange(8) == 3)[:, None],
        turn_reward=np.where(turn == 1, 1.0, 0.0),
        squared_probs=np.full(stored.log_prob_old.shape, 0.5),
    )
    names = [name for name, algorithm in ALGORITHMS.items() if algorithm.inputs]
    found = pd.DataFrame(tables.summary(replayed(kept, *names)))
    assert found["policy_loss"].notna().all(), found["reason"].dropna().tolist()
    without = pd.DataFrame(tables.summary(replayed(stored, "mt-grpo"))).set_index("algorithm")
    assert "it needs a process reward of each turn" in without["reason"]["mt-grpo"]


def test_a_batch_without_values_or_with_one_rollout_a_prompt_answers_with_a_reason(
    stored: StoredBatch,
) -> None:
    bare = replace(stored, values=None, group=stored.trajectory, meta={"algorithm": "reinforce", "slots": {}})
    replay = replayed(bare, "ppo", "grpo")
    assert set(replay.reasons) == {"ppo", "grpo"}
    assert "critic" in replay.reasons["ppo"]
    assert "one rollout a prompt" in replay.reasons["grpo"]
    row = pd.DataFrame(tables.summary(replay)).set_index("algorithm").loc["ppo"]
    assert row[["policy_loss", "clip_frac"]].isna().all()


def test_a_variant_with_wider_bounds_clips_nothing_and_pulls_harder(stored: StoredBatch) -> None:
    own = resolve("ppo")
    wide = resolve({"base": "ppo", "clip": {"low": 0.999, "high": 1e6}})
    a, b = (p for p in play(stored, {"a": own, "b": wide}, "a", dtype=torch.float64).played)
    assert a.cells["low"].sum() + a.cells["high"].sum() > 0
    assert b.cells["low"].sum() + b.cells["high"].sum() == 0
    assert b.cells["weight_abs"].sum() > a.cells["weight_abs"].sum()


def test_float32_says_the_same_as_float64(stored: StoredBatch) -> None:
    own = {"own": resolve("ppo"), "so-grpo": resolve("so-grpo")}
    one, two = (play(stored, own, "own", dtype=dtype) for dtype in (torch.float32, torch.float64))
    for a, b in zip(one.played, two.played, strict=True):
        assert a.scalars["policy_loss"] == pytest.approx(b.scalars["policy_loss"], rel=1e-4, abs=1e-6)
        for name in a.cells:
            np.testing.assert_allclose(a.cells[name], b.cells[name], rtol=1e-4, atol=1e-5)


def test_nan_in_a_log_prob_is_told_and_its_turn_comes_first(stored: StoredBatch) -> None:
    update = stored.updates[0]
    row, column = np.argwhere(stored.mask)[40]
    log_prob = update.log_prob.copy()
    log_prob[row, column] = np.nan
    broken = replace(stored, updates=(replace(update, log_prob=log_prob),))
    worst = pd.DataFrame(tables.culprits(replayed(broken), 3)).iloc[0]
    assert (worst["trajectory"], worst["turn_index"]) == (row, stored.turn[row, column])
    assert np.isnan(worst["ratio_max"])

"""What a correction leaves of a stored batch: equal to the loss with it, and worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sorl.algorithms import ALGORITHMS
from sorl.objective.ratio import Tis
from sorl.replay.corrections import PRESETS, acting, caveats, tables, weigh_corrections
from sorl.replay.play import Loaded, weigh
from sorl.spec import InputError
from sorl.store import batches
from tests.store.stored_batch import write_batch

OWN = {"grpo": ALGORITHMS["grpo"]}


@pytest.fixture
def stored(tmp_path):
    """Eight trajectories; the sampler is .8 nats off at a token, so that corrections act."""
    write_batch(tmp_path, 3)
    found = batches.read(tmp_path, 3)
    gap = np.random.default_rng(0).normal(-0.3, 0.8, found.mask.shape) * found.mask
    return replace(found, log_prob_behaviour=(found.log_prob_old - gap).astype(np.float32))


def answered(stored, algorithms=OWN, **options):
    own = next(iter(algorithms))
    weighed = weigh_corrections(stored, algorithms, own, dtype=torch.float64, **options)
    return tables(weighed, stored)


def row_of(rows, name):
    (found,) = [row for row in rows if row["correction"] == name]
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_left_is_the_gradient_of_the_loss_with_the_correction(stored, name):
    loaded = Loaded(stored, OWN["grpo"], torch.float64)
    pulls = []
    for correction in (PRESETS[name], OWN["grpo"].correction):
        algorithm = replace(OWN["grpo"], correction=correction)
        weights = [weigh(algorithm, loaded.minibatch(loaded.own, u), loaded, u)[1] for u in stored.updates]
        pulls.append(sum(float(w.abs().sum()) for w in weights))
    found = row_of(answered(stored)["corrections"], name)
    assert found["gradient_left"] == pytest.approx(pulls[0] / pulls[1], rel=1e-9)
    assert found["shrinks"] == pytest.approx(pulls[1] / pulls[0], rel=1e-9)


def test_weights_of_one_sequence_are_those_worked_by_hand(stored):
    token = stored.mask[0]
    gap = (stored.log_prob_old - stored.log_prob_behaviour).astype(float)
    omega = np.exp(gap[0][token])
    one = replace(stored.updates[0], rows=np.array([0]), log_prob=stored.updates[0].log_prob[:1], passes=(1,))
    found = answered(replace(stored, updates=(one,)))["corrections"]
    tis = row_of(found, "tis")
    assert tis["omega_mean"] == pytest.approx(omega.mean(), rel=1e-5)
    assert tis["omega_max"] == pytest.approx(omega.max(), rel=1e-5)
    assert tis["weight_mean"] == pytest.approx(np.minimum(omega, 2).mean(), rel=1e-5)
    assert tis["capped_frac"] == pytest.approx((omega > 2).mean())
    assert row_of(found, "mis")["masked_frac"] == pytest.approx((omega > 2).mean())
    assert row_of(found, "tis, sequence")["omega_mean"] == pytest.approx(
        np.exp(gap[0][token].sum()), rel=1e-4
    )
    kept = np.minimum(omega, 2)
    assert tis["ess_frac"] == pytest.approx(kept.sum() ** 2 / (len(kept) * (kept**2).sum()), rel=1e-5)


def test_turns_and_parts_add_up_to_the_whole(stored):
    found = answered(stored)
    whole = row_of(found["corrections"], "mis")
    for table in ("correction_turns", "correction_positions"):
        rows = [r for r in found[table] if r["correction"] == "mis"]
        assert sum(r["n_tokens"] for r in rows) == whole["n_tokens"]
        masked = sum(r["n_tokens"] * r["masked_frac"] for r in rows)
        assert masked == pytest.approx(whole["n_tokens"] * whole["masked_frac"])


def test_the_correction_of_the_run_stands_first_and_those_of_variants_are_asked(stored):
    own = OWN["grpo"].but(name="own", correction=Tis(cap=1.5))
    found = answered(stored, {"own": own, "free": own.but(name="free", correction=Tis(cap=None))})
    assert [(r["correction"], r["own"]) for r in found["corrections"]][:3] == [
        ("own", True),
        ("free", False),
        ("tis", False),
    ]


def long_batch(tmp_path, gap_of):
    """Thirty-two trajectories of eight prompts, 10 to 320 tokens; `gap_of` makes nats of lengths."""
    lengths = np.random.default_rng(1).permutation(np.arange(1, 33)) * 10
    b = len(lengths)
    mask = np.arange(321) < lengths[:, None] + 1
    mask[:, 0] = False
    draw = np.random.default_rng(2)
    old = (-draw.random(mask.shape) * mask).astype(np.float32)
    arrays = {
        "tokens": np.ones(mask.shape, np.int32),
        "response": mask,
        "mask": mask,
        "length": (lengths + 1).astype(np.int32),
        "group": (np.arange(b) // 4).astype(np.int32),
        "trajectory": np.arange(b, dtype=np.int32),
        "score": (np.arange(b) % 2).astype(np.float32),
        "log_prob_behaviour": (old - gap_of(mask, draw) * mask).astype(np.float32),
        "log_prob_old": old,
        "advantages": np.where(np.arange(b) % 2, 1.0, -1.0)[:, None].astype(np.float32) * mask,
        "values": None,
        "update.size": np.array([b], np.int32),
        "update.rows": np.arange(b, dtype=np.int32),
        "update.log_prob": old,
    }
    updates = [{"epoch": 0, "rollout_step": 3, "passes": [b], "scalars": {}}]
    write_batch(tmp_path, 3, arrays=arrays, algorithm="grpo", updates=updates)
    return batches.read(tmp_path, 3)


def test_weights_of_sequences_silence_the_long_ones_and_weights_of_tokens_nobody(tmp_path):
    found = answered(long_batch(tmp_path, lambda mask, draw: draw.normal(-0.03, 0.25, mask.shape)))
    sequence = row_of(found["silenced"], "tis, sequence")
    assert sequence["silenced"] > 5
    assert sequence["left_longest"] < 0.5 * sequence["left_shortest"]
    assert sequence["tokens_least"] > sequence["tokens_most"]
    assert sequence["tokens_p"] < 0.01
    assert sequence["reward_p"] > 0.05
    assert len(sequence["trajectories"].split()) == min(10, sequence["silenced"])
    token = row_of(found["silenced"], "tis")
    assert token["silenced"] == 0
    assert token["tokens_p"] is None or token["tokens_p"] > 0.05
    assert row_of(found["corrections"], "tis, sequence")["shrinks"] > 2


def test_a_sampler_that_agrees_leaves_all_as_it_is(stored):
    found = answered(replace(stored, log_prob_behaviour=stored.log_prob_old))
    assert acting(found["corrections"]) == set()
    assert all(row["gradient_left"] == pytest.approx(1) for row in found["corrections"])
    assert all(row["tokens_p"] is None for row in found["silenced"])


def test_a_batch_without_two_log_probs_is_refused_and_one_without_advantages_says_so(stored):
    with pytest.raises(InputError, match="kept none"):
        answered(replace(stored, log_prob_behaviour=None))
    with pytest.raises(InputError, match="before the updates"):
        answered(replace(stored, meta={**stored.meta, "absent": ["log_prob_old"]}))
    bare = replace(stored, meta={**stored.meta, "absent": ["advantages"]}, advantages=0 * stored.advantages)
    assert any("every token pulls alike" in caveat for caveat in caveats(bare, "grpo"))
    left = row_of(answered(bare)["corrections"], "tis")
    assert left["gradient_left"] == pytest.approx(left["weight_mean"])

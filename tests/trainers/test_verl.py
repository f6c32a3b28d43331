"""The plugin for verl: what it records equals verl's own tensors and metrics, and its losses are those of our
loop.
"""

import logging
import sys
from collections import Counter
from importlib import reload

import numpy as np
import pytest
import torch

from sorl.algorithms import resolve
from sorl.spec import InputError
from sorl.store import batches
from sorl.trainers import verl, verl_mode, verl_recorder
from sorl.trainers.loss import feedable
from tests.recording.local import Local, read
from tests.trainers.fake_verl import Config, FakeVerl, actor
from tests.trainers.test_loss import ours, whole

NAMES = {
    "log_prob_old": "old_log_probs",
    "log_prob_ref": "ref_log_prob",
    "log_prob_behaviour": "rollout_log_probs",
}


@pytest.fixture
def fake(monkeypatch):
    """The plugin as verl loads it."""
    monkeypatch.delenv("SORL_RECORD", raising=False)
    monkeypatch.setattr(verl_recorder, "Ledger", Local)
    found = FakeVerl(monkeypatch)
    verl_mode.loss_of.cache_clear()
    verl.install()
    return found


@pytest.fixture
def recorded(fake, tmp_path):
    """Train under the recorder with a loss mode; returns the worker's engine and the run's folder."""

    def train(loss="vanilla", change=lambda rows: rows):
        query = "&" if "?" in loss else "?"
        mode = f"sorl:{loss}{query}record={tmp_path}/runs/mine&tokens=16"
        engine = fake.train(actor(policy_loss=Config(loss_mode=mode)), change)
        return engine, engine.sorl_recorder.ledger.folder

    return train


def mode_of(loss):
    return actor(policy_loss=Config(loss_mode=loss))


def test_clip_fraction_kl_entropy_loss_and_gradient_norm_are_what_verl_logs(fake, recorded):
    _, folder = recorded()
    rows = sorted(read(folder, "minibatch"), key=lambda row: (row["step"], row["update"]))
    logged = {
        key: [x for line in fake.told["log"] for x in line[key]] for key in fake.told["log"][0] if key != "lr"
    }
    for ours_, theirs in {"entropy": "actor/entropy_loss", "policy_loss": "actor/pg_loss"}.items():
        assert [row[ours_] for row in rows] == pytest.approx(logged[theirs], abs=1e-6)
    assert [row["grad_norm"] for row in rows] == pytest.approx(logged["grad_norm"], abs=1e-6)
    assert [row["grad_norm_after"] for row in rows] == pytest.approx(
        [min(n, 1.0) for n in logged["grad_norm"]]
    )
    assert [(row["epoch"], row["lr"]) for row in rows] == [(0, 3e-3), (0, 3e-3), (1, 3e-3), (1, 3e-3)] * 2
    # verl averages over micro-batches, the ledger over tokens: both from what the ledger kept of each
    # sequence.
    for step in batches.steps(folder):
        stored = batches.read(folder, step)
        for update in stored.updates:
            per_micro = []
            count = []
            for micro in np.split(np.arange(len(update.rows)), np.cumsum(update.passes)[:-1]):
                at = update.rows[micro]
                mask = stored.mask[at]
                apart = (update.log_prob[micro] - stored.log_prob_old[at]).astype(float)
                a = stored.advantages[at]
                ratio = np.exp(apart)
                stopped = ((ratio > 1.25) & (a > 0)) | ((ratio < 0.8) & (a < 0))
                per_micro.append((stopped[mask].mean(), -apart[mask].mean()))
                count.append(mask.sum())
            i = 4 * step + update.index
            by_verl = np.mean(per_micro, axis=0)
            by_ledger = np.average(per_micro, axis=0, weights=count)
            assert by_verl == pytest.approx(
                [logged[f"actor/{x}"][i] for x in ("pg_clipfrac", "ppo_kl")], abs=1e-6
            )
            assert by_ledger == pytest.approx([rows[i][x] for x in ("clip_frac", "approx_kl")], abs=1e-6)
    assert max(row["clip_frac"] for row in rows) > 0.2


def test_every_ratio_gradient_and_sampler_log_prob_is_that_of_verls_own_tensors(fake, recorded):
    _, folder = recorded()
    real = [row for row in range(16) if any(fake.sampled[0]["response_mask"][row])]
    assert len(real) == 15  # the sixteenth fills up the batch
    place = {row: i for i, row in enumerate(real)}
    tokens = 0
    seen = {}
    for number, micro in enumerate(fake.micro):
        for i, row in enumerate(micro["row"].tolist()):
            if row in place:
                seen[number // 8, place[row]] = {
                    k: micro[k][i].double() for k in micro if k not in ("row", "loss")
                }
    for row in read(folder, "token"):
        micro = seen[row["step"], row["trajectory"]]
        mask = micro["response_mask"].bool()

        def written(name, row=row):
            return [x for x, trained in zip(row[name], row["trained"], strict=True) if trained]

        moved = (micro["log_prob"] - micro["old_log_probs"])[mask].tolist()
        assert written("log_ratio") == pytest.approx(moved, abs=1e-6)
        assert written("gradient_weight") == pytest.approx(micro["gradient"][mask].tolist(), abs=1e-7)
        assert written("log_prob_behaviour") == pytest.approx(
            micro["rollout_log_probs"][mask].tolist(), abs=1e-6
        )
        tokens += int(mask.sum())
    assert tokens == sum(int(seen[key]["response_mask"].sum()) for key in seen)


def test_turns_groups_rewards_and_texts_are_those_of_the_batch_without_the_rows_that_fill_it_up(
    fake, recorded
):
    _, folder = recorded()
    rows = [row for row in read(folder, "trajectory") if row["step"] == 0]
    assert sorted(row["trajectory"] for row in rows) == list(range(15))
    groups = Counter(row["prompt_group"] for row in rows)
    assert sorted(groups.values()) == [3, 4, 4, 4]
    sampled = fake.sampled[0]
    assert [row["reward"] for row in rows] == [sum(x) for x in sampled["rm_scores"][:15]]
    mask = [np.array(x) for x in sampled["response_mask"][:15]]
    assert [row["n_turns"] for row in rows] == [int((np.diff(np.r_[0, m]) == 1).sum()) for m in mask]
    assert [row["n_tokens"] for row in rows] == [int(m.sum()) for m in mask]
    token = next(row for row in read(folder, "token") if row["step"] == 0)
    i = token["trajectory"]
    assert token["token_id"] == sampled["prompts"][i] + sampled["responses"][i]
    assert token["token"][0] == f"w{sampled['prompts'][i][0]}"
    run = read(folder, "run")[-1]
    assert (run["status"], run["experiment"], run["algorithm"]) == ("finished", "mine", "vanilla")
    found = resolve(batches.read(folder, 0).meta["algorithm"])
    assert [found.clip.low, found.clip.high] == pytest.approx([0.2, 0.25])
    assert found.aggregate.kind == "token_mean"


@pytest.mark.parametrize(
    ("loss", "passes"),
    [
        ("st-ppo?stabilise.scope=global&stabilise.tau=1.0", 16),
        ("bapo?clip.share=0.9", 16),
        ("turn-ppo", 0),
        ("s-ppo", 0),
        ("so-grpo", 0),
        ("gspo", 0),
        ("tis", 0),
        ("ppo?aggregate.scope=micro", 0),
    ],
)
def test_a_loss_of_ours_has_the_gradient_of_our_loop_over_the_whole_update(fake, recorded, loss, passes):
    engine, folder = recorded(loss)
    asked = verl_mode.Mode.of(f"sorl:{loss}")
    algorithm = resolve(asked.name, dict(asked.slots)).within(64)
    assert engine.forwards == passes  # of the statistics that compare a whole update
    for update in (slice(start, start + 2) for start in range(0, 16, 2)):
        parts = fake.micro[update]
        mask = whole(parts, "response_mask").bool()
        micros = torch.arange(len(mask)).split([len(p["row"]) for p in parts])
        given = {"mask": mask} | {ours_: whole(parts, theirs) * mask for ours_, theirs in NAMES.items()}
        given["advantages"] = torch.where(mask, whole(parts, "advantages"), 0).sum(1) / mask.sum(1).clamp(
            min=1
        )
        _, gradient = ours(algorithm, given, whole(parts, "log_prob"), micros)
        found = whole([{"gradient": g} for g in engine.gradients[update]], "gradient")
        torch.testing.assert_close(found, gradient, rtol=2e-5, atol=1e-8)
    rows = sorted(read(folder, "minibatch"), key=lambda row: (row["step"], row["update"]))
    assert len(rows) == 8
    assert max(row["clip_frac"] for row in rows) > 0
    factors = [row["stabiliser_factor"] for row in rows]
    if "st-ppo" in loss:
        assert factors[0] == 1.0
        assert min(factors) < 0.9
        assert all((row["stabiliser_ratio"] > 1.0) == (row["stabiliser_factor"] < 1.0) for row in rows)
    else:
        assert (None in factors) == (algorithm.stabilise.kind == "none")


def test_a_loss_mode_says_the_slots_and_what_to_record(monkeypatch):
    monkeypatch.delenv("SORL_RECORD", raising=False)
    mode = verl_mode.Mode.of("sorl:dapo?select=none&clip.high=0.3&record=/data/runs/x&every=10")
    assert (mode.name, mode.slots) == ("dapo", {"select": "none", "clip": {"high": 0.3}})
    assert mode.knobs == {"record": "/data/runs/x", "every": 10}
    assert verl_mode.Mode.of("vanilla").knobs == {}
    assert verl_mode.Mode.of("sorl:vanilla").knobs == {"record": "runs/verl"}
    monkeypatch.setenv("SORL_RECORD", "runs/all&every=5")
    assert verl_mode.Mode.of("gspo").knobs == {"record": "runs/all", "every": 5}
    assert verl_mode.Mode.of("sorl:st-ppo").knobs == {"record": "runs/all", "every": 5}
    with pytest.raises(InputError, match=r"verl's own loss has no slot 'clip\.low'"):
        verl_mode.Mode.of("sorl:vanilla?clip.low=0.1")


def test_every_algorithm_that_a_loss_can_carry_is_registered_and_a_variant_when_it_is_configured(fake):
    assert set(fake.losses) == {"vanilla", "sorl:vanilla", *(f"sorl:{name}" for name in feedable())}
    fake.config.__post_init__(mode_of("sorl:st-ppo?stabilise.scope=global"))
    assert "sorl:st-ppo?stabilise.scope=global" in fake.losses
    fake.config.__post_init__(mode_of("gspo"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (mode_of("sorl:dapo"), "leave it out with select = 'none'"),
        (mode_of("sorl:st-ppoo"), "did you mean 'st-ppo'"),
        (mode_of("sorl:dr-grpo"), r"verl: actor\.loss_scale_factor"),
        (mode_of("sorl:ppo?stabilise=cnorm"), "needs a second backward pass"),
        (mode_of("sorl:grpo?kl=loss"), r"set actor\.use_kl_loss=true.*kl_loss_coef=0"),
        (
            mode_of("sorl:grpo?kl=loss") | {"use_kl_loss": True},
            r"kl_loss_coef=0, which switches its term off",
        ),
        (mode_of("sorl:ppo?aggregate.scope=micro") | {"use_dynamic_bsz": True}, r"aggregate\.scope=global"),
    ],
)
def test_what_verl_cannot_feed_is_refused_with_its_configuration(fake, config, said):
    with pytest.raises(InputError, match=said):
        fake.config.__post_init__(Config(config))


@pytest.mark.parametrize("name", ["dppo", "vespo", "tis"])
def test_a_batch_of_verl_without_the_samplers_log_probs_is_refused_where_the_algorithm_needs_them(fake, name):
    def unscored(rows):
        del rows.rows["rollout_log_probs"]
        return rows

    with pytest.raises(
        InputError, match=rf"of '{name}' needs the sampler's.*rollout\.calculate_log_probs=true"
    ):
        fake.train(mode_of(f"sorl:{name}"), unscored)


def test_what_depends_on_the_split_is_said_once_where_the_loss_mode_is_configured(fake, caplog):
    for mode in ("sorl:s-ppo", "sorl:s-ppo", "sorl:bapo"):
        fake.config.__post_init__(mode_of(mode))
    notes = [r.message for r in caplog.records if "is split differently" in r.message]
    assert len(notes) == 1
    assert "'s-ppo'" in notes[0]
    assert "slot stabilise, with scope = 'global'" in notes[0]


def test_weights_of_verls_rollout_correction_are_refused_and_so_is_a_loss_outside_of_its_engines(fake):
    config = mode_of("sorl:st-ppo")
    one = torch.zeros(1, 1)
    call = {
        "old_log_prob": one,
        "log_prob": one,
        "advantages": one,
        "response_mask": one.bool(),
        "config": config,
    }
    with pytest.raises(InputError, match="rollout_is: set it to null"):
        fake.losses["sorl:st-ppo"](**call, rollout_is_weights=one)
    with pytest.raises(InputError, match=r"needs the engines of verl 0\.9"):
        fake.losses["sorl:st-ppo"](**call)


def test_a_batch_that_cannot_be_recorded_costs_its_rows_and_one_line(recorded, caplog):
    def unscored(rows):
        del rows.rows["rm_scores"]
        return rows

    engine, folder = recorded(change=unscored)
    assert engine.place == 16
    lines = [r.message for r in caplog.records if "could not be recorded" in r.message]
    assert len([line for line in lines if "neither rm_scores nor token_level_scores" in line]) == 1
    assert read(folder, "step") == []


def test_without_a_folder_nothing_is_recorded_and_without_verl_the_plugin_says_so(fake, monkeypatch, caplog):
    engine = fake.train(mode_of("sorl:turn-ppo"))
    assert not hasattr(engine, "sorl_recorder")
    monkeypatch.delitem(sys.modules, "verl.trainer.ppo.core_algos")
    with caplog.at_level(logging.ERROR):
        reload(verl)
    assert "sorl's plugin for verl was not loaded" in caplog.text

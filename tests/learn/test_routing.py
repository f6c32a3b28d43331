"""Mixtures of experts: recorded routes, routing replay, what is measured of both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sorl.agent.draws import generator
from sorl.agent.engines.hf import HFEngine, decoder_of
from sorl.agent.episode import collate
from sorl.agent.routing import differing, experts_of, load, routed, routers
from sorl.agent.worlds.facts import Facts
from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import Batch
from sorl.grid.cell import merge
from sorl.learn import networks
from sorl.learn.networks import scored
from sorl.learn.update import Learner
from sorl.objective import prepare
from sorl.spec import (
    ComputeSettings,
    EngineSettings,
    InputError,
    LearnSettings,
    PolicySettings,
    WorldSettings,
)
from sorl.store import batches
from tests.learn.tiny import TINY, MakeRun, Session, assert_same_rows, resumed, rows

WORLD = Facts(WorldSettings(entities=8, relations=4, hops=(0.0, 1.0, 0.0), max_turns=3))
# The architectures: gates normalised over the top 2, over all experts with one chosen, and with a shared
# expert.
MIXTURES = {
    "top-2": {"family": "mixtral"},
    "top-2 of Qwen3": {"family": "qwen3_moe"},
    "top-1": {"family": "qwen2_moe", "experts_per_token": 1},
    "shared expert": {"family": "qwen2_moe"},
}
MOE = {"policy": merge(TINY["policy"], {"family": "mixtral", "layers": 2, "experts": 4}), "algorithm": "grpo"}


def policy(**changes: object) -> torch.nn.Module:
    settings = {"hidden": 32, "layers": 2, "heads": 2, "mlp": 32, "experts": 4, "family": "mixtral"} | changes
    return networks.create(PolicySettings.model_validate(settings), WORLD.tokenizer(), seed=3)


def sampled(model: torch.nn.Module, **engine: object) -> Batch:
    """Episodes of several turns and lengths, as a batch with advantages."""
    questions = [q for q in WORLD.questions("train", 0, 0, 8) for _ in range(2)]
    sampler = HFEngine(model, WORLD.tokenizer(), EngineSettings.model_validate(engine))
    episodes = sampler.rollout(WORLD, questions, [i // 2 for i in range(16)], generator(0))
    episodes = [replace(e, reward=float(i % 2)) for i, e in enumerate(episodes)]
    return collate(episodes, WORLD.tokenizer().pad_token_id)


def with_old(model: torch.nn.Module, batch: Batch, routing: str, **compute: object) -> tuple[Batch, Learner]:
    algorithm = resolve("grpo", {"routing": routing})
    settings = ComputeSettings.model_validate(compute)
    old, routes = scored(model, batch, 1.0, settings, algorithm.routing.replayed(batch))
    learn = LearnSettings.model_validate({"policy": {"lr": 0.1}, "clip_bias_every": 1})
    learner = Learner(algorithm, learn, model, None, compute=settings)
    return prepare(algorithm, replace(batch, log_prob_old=old, routes_old=routes)), learner


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_sampler_records_the_experts_that_the_trainer_finds_by_its_own_forward(kind):
    model = policy(**MIXTURES[kind])
    batch = sampled(model)
    _, routes = scored(model, batch, 1.0, ComputeSettings())
    known = batch.inside
    known[:, 0] = False  # no pass predicts the first token
    assert batch.turn.max() > 1
    assert len(batch.length.unique()) > 1
    assert torch.equal(batch.routes_behaviour[batch.mask], routes[batch.mask])
    # What a packed pass leaves unread has no route: the last layer where nothing is predicted, and a row's
    # end.
    unread = routes == 4
    assert torch.equal(
        batch.routes_behaviour[known], torch.where(unread, batch.routes_behaviour, routes)[known]
    )
    assert not unread[batch.mask].any()
    assert batch.routes_behaviour.dtype == torch.uint8, "layers x k x 1 byte a token"
    assert routes.shape[2] == len(routers(model)) * routers(model)[0].top_k


def test_the_router_of_a_sampler_in_bfloat16_stays_in_float32():
    model = policy(family="qwen2_moe")
    rounded = decoder_of(model, EngineSettings(dtype="bfloat16"))._model
    assert {r.weight.dtype for r in routers(rounded)} == {torch.float32}
    assert rounded.lm_head.weight.dtype == torch.bfloat16
    assert sampled(model, dtype="bfloat16").routes_behaviour is not None


@pytest.mark.parametrize("compute", [{}, {"micro_batch_tokens": 200}], ids=["whole", "micro-batches"])
@pytest.mark.parametrize("routing", ["r2", "r3"])
@pytest.mark.parametrize("kind", MIXTURES)
def test_with_replayed_experts_and_unchanged_weights_the_ratio_is_one(kind, routing, compute):
    model = policy(**MIXTURES[kind])
    batch = sampled(policy(**MIXTURES[kind] | {"hidden": 36}))  # a sampler that routes otherwise
    batch, learner = with_old(model, batch, routing, **compute)
    seen = learner.update(batch, 0, 0)
    moved = torch.where(seen.mask, seen.log_prob - seen.log_prob_old, 0)
    assert moved.abs().max() < 1e-5


@pytest.mark.parametrize("kind", MIXTURES)
def test_replayed_experts_change_the_log_probs_and_pass_a_gradient_to_the_router(kind):
    model = policy(**MIXTURES[kind])
    tokens = torch.randint(0, len(WORLD.tokenizer()), (3, 12), generator=generator(2))
    with routed(model) as seen:
        own = networks.log_probs(model, tokens)[0]
    other = (seen.routes + 1) % 4
    with routed(model, other) as seen:
        replayed = networks.log_probs(model, tokens)[0]
    assert (own - replayed).abs().max() > 1e-3
    replayed.sum().backward()
    assert all(bool(r.weight.grad.abs().sum() > 0) for r in routers(model))


def test_the_gates_of_replayed_experts_are_those_of_the_present_router():
    """Mixtral's gate of a replayed expert by hand: its probability over those of the two that
    are replayed.
    """
    router = routers(policy())[0]
    hidden = torch.randn(6, 32, generator=generator(4))
    given = torch.tensor([[0, 1], [1, 3], [3, 2], [2, 0], [0, 3], [1, 2]])
    with routed(torch.nn.ModuleList([router]), given[None]):
        _, gates, index = router(hidden)
    p = (hidden @ router.weight.T).softmax(-1)
    assert torch.equal(index, given)
    assert torch.allclose(gates, p.gather(1, given) / p.gather(1, given).sum(1, keepdim=True), atol=1e-6)


def test_a_dense_model_has_no_routes_and_replay_changes_nothing(trained: MakeRun):
    model = policy(family="llama")
    assert routers(model) == []
    assert sampled(model).routes_behaviour is None
    plain = trained(algorithm="grpo", iterations=4)
    for routing in ("r2", "r3"):
        assert_same_rows(plain, trained(algorithm="grpo", iterations=4, slots={"routing": routing}))
    frame = rows(plain, "minibatch")
    measured = ["route_mismatch_frac", "route_shift_frac", "router_entropy", "expert_load_max"]
    assert frame[measured].isna().all().all()


def test_the_measured_shares_equal_a_count_by_hand():
    sampler = policy()
    model = policy(hidden=32)
    batch = sampled(sampler)
    with torch.no_grad():
        for router in routers(model):
            router.weight.add_(0.3 * torch.randn(router.weight.shape, generator=generator(5)))
    batch, learner = with_old(model, batch, "none")
    with torch.no_grad():
        for router in routers(model):
            router.weight.add_(0.1 * torch.randn(router.weight.shape, generator=generator(6)))
    _, now = scored(model, batch, 1.0, ComputeSettings())
    seen = learner.update(batch, 0, 0)

    def by_hand(one: torch.Tensor, other: torch.Tensor) -> float:
        apart = [
            set(one[i, t, 2 * k : 2 * k + 2].tolist()) != set(other[i, t, 2 * k : 2 * k + 2].tolist())
            for i, t in batch.mask.nonzero().tolist()
            for k in range(2)
        ]
        return sum(apart) / len(apart)

    for column, pair in {
        "route_mismatch": (batch.routes_behaviour, batch.routes_old),
        "route_shift": (batch.routes_old, now),
    }.items():
        assert 0 < by_hand(*pair) < 1
        assert getattr(seen, column)[0][batch.mask].mean().item() == pytest.approx(by_hand(*pair), abs=1e-6)
    taken = now[batch.mask].view(-1, 2, 2)
    counts = [[int((taken[:, k] == e).sum()) for e in range(4)] for k in range(2)]
    assert seen.scalars["expert_load_max"] == [pytest.approx(max(map(max, counts)) / sum(counts[0]) * 4)]


def test_experts_in_another_order_are_the_same_experts_and_unknown_ones_count_for_no_load():
    one = torch.tensor([[[0, 1, 2, 3]]], dtype=torch.uint8)
    other = torch.tensor([[[1, 0, 2, 1]]], dtype=torch.uint8)
    assert differing(one, other, 2).tolist() == [[0.5]]
    assert load(torch.tensor([[0, 1], [0, 4]]), 1, 4).tolist() == [[2.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("routing", ["none", "r2", "r3"])
def test_an_interrupted_mixture_resumes_bit_equal_with_the_routes_of_its_queue(
    routing, cache, new_run, trained
):
    changes = MOE | {"slots": {"routing": routing}}
    parts = resumed(new_run(**changes), cache, 3, **changes)
    kept = load_file(next((parts / "checkpoints").rglob("rollout-0.safetensors")))
    assert {"routes", "routes_old"} <= set(kept)
    assert_same_rows(trained(**changes), parts)


def test_a_stored_batch_carries_the_routes_and_its_gradients_are_found_again(tmp_path: Path, cache: Path):
    from sorl.replay.networks import Networks
    from sorl.replay.play import gradients, play

    session = Session(tmp_path, cache, **MOE, slots={"routing": "r2"}, iterations=3)
    session.train()
    session.recorder.close()
    stored = batches.read(tmp_path, 2, weights=True)
    assert stored.routes_old.shape == (*stored.tokens.shape, 4)
    assert stored.routes_behaviour.dtype == np.uint8
    algorithms = {"own": session.trainer.algorithm, "gspo": ALGORITHMS["gspo"]}
    replay = play(stored, algorithms, "own")
    found, reason = gradients(stored, algorithms, replay, Networks(stored))
    logged = stored.updates[-1].scalars["grad_norm"]
    assert reason == ""
    assert found["own", len(stored.updates) - 1]["grad_norm"] == pytest.approx(logged, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": {"routing": "r2"}, "learn": {"old_log_prob": "behaviour"}}, "old_log_prob"),
        ({"slots": {"routing": "r3"}, "compute": {"gradient_checkpointing": True}}, "gradient_checkpointing"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_by_name(changes, words, tmp_path, cache):
    with pytest.raises(InputError, match=words):
        Session(tmp_path, cache, **merge(MOE, changes))


def test_a_router_that_chooses_in_steps_is_refused_by_its_name():
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "deepseek_v3",
        vocab_size=20,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=32,
        num_hidden_layers=1,
        first_k_dense_replace=0,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tokens = torch.arange(12).view(2, 6)
    with routed(model) as seen:
        model(input_ids=tokens)
    assert seen.routes.shape == (2, 6, 2)
    with pytest.raises(InputError, match="DeepseekV3TopkRouter"), routed(model, seen.routes):
        model(input_ids=tokens)


def test_a_load_balancing_loss_evens_the_load_and_without_an_advantage_nothing_else_moves():
    def balance(coefficient: float) -> list[float]:
        """The loss (1: even) of all real tokens before and after updates without an advantage."""
        model = policy()
        batch, learner = with_old(model, sampled(model), "none")
        learner.settings = learner.settings.model_copy(update={"balance_coef": coefficient})
        batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
        found = []
        for i in range(31):
            if i % 30 == 0:
                with routed(model) as seen:
                    networks.log_probs(model, batch.tokens)
                found.append(float(seen.balance(batch.inside[:, 1:]).detach()))
            learner.update(batch, 0, i)
        return found

    before, after = balance(1.0)
    assert after < 1 + 0.9 * (before - 1)
    assert balance(0.0) == [before, before]


def test_a_mixture_has_the_active_width_of_the_dense_policy():
    for kind, shared in (("mixtral", 0), ("qwen2_moe", 1)):
        model = policy(family=kind, mlp=64)
        assert model.config.moe_intermediate_size if shared else model.config.intermediate_size
        width = model.model.layers[0].mlp.experts.down_proj.shape[2]
        assert 64 <= width * (2 + shared) < 64 + 8 * (2 + shared)
        assert experts_of(routers(model)[0]) == 4

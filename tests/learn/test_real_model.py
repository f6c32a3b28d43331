from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sorl.agent.engines import engine_for
from sorl.agent.episode import Episode
from sorl.agent.worlds.facts import Facts
from sorl.algorithms import resolve
from sorl.learn import networks
from sorl.learn.networks import Critic, critic_values
from sorl.learn.rollout import Rollout, batch_of
from sorl.learn.update import Learner
from sorl.learn.warmstart import locate, tokenizer_of
from sorl.objective.pipeline import prepare
from sorl.spec import (
    ComputeSettings,
    EngineSettings,
    InputError,
    LearnSettings,
    RunSettings,
    WorldSettings,
)
from tests.learn import real_model
from tests.learn.tiny import rows
from tests.vllm_here import NEEDS_VLLM

WORLD = WorldSettings(max_turns=2, max_turn_tokens=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_model.write(tmp_path_factory.mktemp("model") / "qwen2")


@pytest.fixture(scope="module")
def episodes(folder: Path) -> list[Episode]:
    return sampled(folder, EngineSettings())


def sampled(folder: Path, settings: EngineSettings) -> list[Episode]:
    world = Facts(WORLD)
    tokenizer = tokenizer_of(folder)
    engine = engine_for(networks.load(folder), tokenizer, settings, "search-r1")
    return engine.rollout(world, world.questions("train", 0, 0, 6), [0] * 6, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["hf", pytest.param("vllm", marks=NEEDS_VLLM)])
def test_prompt_and_answers_are_search_r1s_in_the_chat_template(folder, kind):
    tokenizer = tokenizer_of(folder)
    model = networks.load(folder)
    for episode in sampled(folder, EngineSettings(kind=kind, cache_gib=1 / 32)):
        text = tokenizer.decode(episode.tokens[: episode.prompt_length])
        assert text.startswith(
            "<|im_start|>user\nAnswer the given question. You must conduct reasoning inside <think>"
        )
        assert text.endswith(f"Question: {episode.question}\n<|im_end|>\n<|im_start|>assistant\n")
        assert tokenizer.convert_tokens_to_ids("<|im_start|>") == episode.tokens[0]
        observed = tokenizer.decode(episode.stretches[2])
        assert observed.startswith("\nMy previous action is invalid. If I want to search,")
        assert [t for s in episode.stretches for t in s] == episode.tokens
        ours = networks.log_probs(model, torch.tensor([episode.tokens]))[0][0].detach()
        theirs = torch.tensor(episode.log_prob)
        assert (ours - theirs)[torch.tensor(episode.written)].abs().max() < 1e-4


@pytest.mark.parametrize(
    "compute",
    [{}, {"micro_batch_tokens": 400, "gradient_checkpointing": True, "dtype": "bfloat16"}],
    ids=["plain", "lean"],
)
def test_a_folder_of_a_published_model_trains_through_the_same_command(trained, folder, compute):
    run = trained(
        iterations=2,
        model=str(folder),
        warmstart={"steps": 0},  # imitation of a model: test_warm_start_of_a_model.py
        compute=compute,
        evaluation={"every": 0, "episodes": 2},
        world={"max_turns": 2, "max_turn_tokens": 24},
        learn={"episodes": 4, "staleness": 0, "entropy_coef": 0.01},
    )
    assert rows(run, "step").token_mismatches.tolist() == [0, 0]
    assert rows(run, "minibatch").grad_norm.gt(0).all()
    assert rows(run, "token").token.iloc[0][0] == "<|im_start|>"
    assert (run / "checkpoints" / "000002" / "policy" / "model.safetensors").is_file()


def test_dropout_is_off_and_padding_has_a_token(folder):
    model = networks.load(folder, ComputeSettings(gradient_checkpointing=True))
    assert model.training
    assert model.is_gradient_checkpointing
    assert model.config.attention_dropout == 0.0
    tokens = torch.randint(3, 1000, (2, 20), generator=torch.Generator().manual_seed(0))
    first, again, plain = (networks.log_probs(m, tokens)[0] for m in (model, model, networks.load(folder)))
    assert torch.equal(first, again)
    torch.testing.assert_close(first, plain)


def gradients(folder: Path, episodes: list[Episode], compute: ComputeSettings) -> Iterator[torch.Tensor]:
    """What one update does to both networks, and the old log-probs that it starts from."""
    model = networks.load(folder, compute)
    algorithm = resolve("st-ppo")
    critic = Critic(model)
    torch.nn.init.constant_(critic.head.weight, 0.1)
    batch = batch_of(Rollout(0, 0, episodes), pad_id=0)
    old, _ = networks.scored(model, batch, 1.0, compute)
    noise = 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(0))
    scored = replace(batch, log_prob_old=torch.where(batch.mask, old + noise, 0), score=torch.arange(6.0) % 2)
    made = prepare(algorithm, replace(scored, values=critic_values(critic, batch, compute)))
    learner = Learner(algorithm, LearnSettings(entropy_coef=0.1), model, critic, compute=compute)
    seen = learner.update(made, 0, 0)
    assert sorted(seen.trajectory[0].tolist()) == [0, 1, 2, 3, 4, 5]
    order = seen.trajectory[0].argsort()
    yield old
    yield torch.where(seen.mask, seen.log_prob, 0)[0][order]
    yield seen.gradient_weight[0][order]
    names = ("grad_norm", "critic_grad_norm", "policy_loss", "value_loss")
    yield torch.tensor([seen.scalars[name][0] for name in names])
    for network in (model, critic):
        yield from (p.grad for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "compute",
    [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 500}, {"gradient_checkpointing": True}],
    ids=["row by row", "two or three rows", "checkpointing"],
)
def test_what_saves_memory_changes_no_gradient(folder, episodes, compute):
    assert len({len(e.tokens) for e in episodes}) > 1
    plain, lean = (
        gradients(folder, episodes, settings) for settings in (ComputeSettings(), ComputeSettings(**compute))
    )
    for a, b in zip(plain, lean, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_a_model_that_is_nowhere_is_a_mistake_of_the_user(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="no folder '/nowhere/at all' for model"):
        locate("/nowhere/at all")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        InputError, match="model 'nobody/nothing' is no folder here, and the Hugging Face hub did not"
    ):
        locate("nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no tokenizer in"):
        tokenizer_of(tmp_path / "empty")
    with pytest.raises(ValueError, match="split the same minibatch"):
        RunSettings.model_validate({"learn": {"micro_batch": 4}, "compute": {"micro_batch_tokens": 400}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="torch sees no GPU"):
        networks.device_of(ComputeSettings(device="cuda"))

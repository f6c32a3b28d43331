from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from sorl.agent.engines import StaleWeights, engine_for
from sorl.agent.worlds.facts import Facts
from sorl.spec import EngineSettings
from tests.agent.fakes import build
from tests.vllm_here import NEEDS_VLLM

pytestmark = NEEDS_VLLM


class Scene:
    """A policy, a vLLM of it, and questions to ask."""

    def __init__(self, tied: bool, tokenizer: PreTrainedTokenizerFast, world: Facts) -> None:
        self.model = build(
            hidden_size=64, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied
        )
        self.engine = engine_for(self.model, tokenizer, EngineSettings(kind="vllm", cache_gib=1 / 32))
        self.world = world
        self.weights = self.engine.weights

    def roll(self) -> None:
        questions = self.world.questions("train", 0, 0, 8)
        self.engine.rollout(self.world, questions, [0] * 8, torch.Generator().manual_seed(0))

    def train(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def made(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, world: Facts) -> Scene:
    return Scene(request.param, tokenizer, world)


@pytest.fixture
def scene(made: Scene) -> Iterator[Scene]:
    before = deepcopy(made.model.state_dict())
    yield made
    made.model.load_state_dict(before)


def test_after_every_update_vllm_computes_with_the_trainers_weights(scene: Scene) -> None:
    for _ in range(3):
        scene.train()
        scene.roll()
        assert scene.weights.error is not None
        assert scene.weights.error < 1e-4
        assert scene.weights.stale() == []


def test_a_skipped_sync_is_caught_by_the_next_rollout(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.roll()
    monkeypatch.setattr(scene.weights, "push", lambda: None)
    scene.train()
    with pytest.raises(
        StaleWeights, match=r"nats off .*stale in vLLM: model\.embed_tokens\.weight.* more$"
    ) as stale:
        scene.roll()
    assert stale.value.error > stale.value.tolerance == 1e-4


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.v_proj.bias",
    ],
)
def test_the_one_weight_that_is_stale_is_named(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scene.roll()
    monkeypatch.setattr(scene.weights, "push", lambda: None)
    with torch.no_grad():
        dict(scene.model.named_parameters())[name].mul_(1.5).add_(0.2)
    with pytest.raises(StaleWeights, match=f"stale in vLLM: {name}$"):
        scene.roll()


def test_a_tied_head_that_was_not_packed_again_is_named(tokenizer, world, monkeypatch):
    scene = Scene(True, tokenizer, world)
    scene.roll()
    monkeypatch.setattr("sorl.agent.engines.vllm._pack_embeddings", lambda engine: None)
    scene.train()
    with pytest.raises(StaleWeights, match=r"stale in vLLM: lm_head\.weight$"):
        scene.roll()

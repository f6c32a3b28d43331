from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2ForCausalLM

from bench.generate import GenerateEngine
from tests.agent.fakes import SMALL, build, imitate, training_log_prob
from tests.vllm_here import NEEDS_VLLM
from workbench.agent.engines import Engine, NonFinite, engine_for, hf
from workbench.agent.engines.hf import HFEngine, TransformersDecoder
from workbench.agent.episode import Episode, collate
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question, Retrieved
from workbench.agent.worlds.facts import Facts
from workbench.spec import EngineSettings, InputError, WorldSettings

Make = Callable[..., Engine]  # (model, tokenizer, **settings); by default the apprentice and the embedded tokenizer


class Plain(HFEngine):
    """Decodes through transformers whatever the size of the model."""

    def _decoder(self) -> TransformersDecoder:
        return TransformersDecoder(hf.in_dtype(self._model, getattr(torch, self._settings.dtype)))


def vllm(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: EngineSettings) -> Engine:
    return engine_for(model, tokenizer, settings.model_copy(update={"kind": "vllm", "cache_gib": 1 / 32}))


ENGINES: dict[str, Any] = {"fused": HFEngine, "transformers": Plain, "generate": GenerateEngine, "vllm": vllm}


@pytest.fixture(params=[name if name != "vllm" else pytest.param(name, marks=NEEDS_VLLM) for name in ENGINES])
def make(request: pytest.FixtureRequest, apprentice: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Make:
    def made(model: Any = apprentice, tokenizer: Any = tokenizer, **settings: Any) -> Engine:
        return ENGINES[request.param](model, tokenizer, EngineSettings(**settings))

    return made


def mismatch(model: PreTrainedModel, episodes: list[Episode], temperature: float = 1.0) -> torch.Tensor:
    """Nats between training's log-probs and the sampler's at each written token."""
    batch = collate(episodes, pad_id=0)
    return (training_log_prob(model, batch, temperature) - batch.log_prob_behaviour)[batch.mask].abs()


def roll(engine: Engine, world: Facts, n: int = 24, seed: int = 0, greedy: bool = False) -> list[Episode]:
    questions = world.questions("train", 0, 0, n)
    return engine.rollout(world, questions, [q.id // 2 for q in questions], torch.Generator().manual_seed(seed), greedy)


class Counted(Facts):
    """Facts behind a retriever that answers several queries in one request."""

    def __init__(self, settings: WorldSettings) -> None:
        super().__init__(settings)
        self.searches, self.requests, self._answered = 0, 0, Counter[str]()

    def search_ahead(self, queries: Sequence[str]) -> None:
        """Answer all of them in one request."""
        self.requests += bool(queries)
        self._answered.update(queries)

    def search(self, question: Question, query: str, turn: int) -> Retrieved:
        """The answer to one query: a request of its own unless it was asked for ahead."""
        self.searches += 1
        self.requests += self._answered[query] == 0
        self._answered -= Counter([query])
        return super().search(question, query, turn)


def test_searches_that_fall_together_are_one_request(make: Make) -> None:
    world = Counted(WorldSettings())
    engine = make()
    assert roll(engine, world, 0) == []
    roll(engine, world)
    assert 0 < world.requests < 0.8 * world.searches


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_log_probs_are_those_of_the_training_forward(make, apprentice, world, temperature):
    episodes = roll(make(temperature=temperature), world, 48)
    assert len({len(e.tokens) for e in episodes}) > 10  # ragged, or the test shows nothing
    assert len({e.turns for e in episodes}) > 2
    batch = collate(episodes, pad_id=0)
    assert mismatch(apprentice, episodes, temperature).max() < 1e-4
    assert (batch.log_prob_behaviour[batch.mask] < 0).float().mean() > 0.9
    assert (batch.log_prob_behaviour[~batch.mask] == 0).all()


def test_episodes_keep_to_the_protocol(make: Make, tokenizer: PreTrainedTokenizerFast, world: Facts) -> None:
    codec = Codec(tokenizer)
    questions = world.questions("train", 0, 0, 48)
    for question, episode in zip(questions, roll(make(), world, 48), strict=True):
        assert episode.question_id == question.id
        assert episode.group == question.id // 2
        assert episode.tokens[: episode.prompt_length] == codec.encode(question.text)
        assert 1 <= episode.turns == len(episode.turn_status) <= world.max_turns
        assert episode.ended == ("max_turns" if episode.answer is None else "answer")
        turn = collate([episode], pad_id=0).turn[0]
        assert int(turn.max()) == episode.turns
        for k, status in enumerate(episode.turn_status, start=1):
            text = codec.decode([t for t, i in zip(episode.tokens, turn.tolist(), strict=True) if i == k])
            ids = codec.encode(text)
            assert len(ids) <= world.max_turn_tokens
            assert not codec.closers & set(ids[:-1])
            assert ids[-1] in codec.closers or len(ids) == world.max_turn_tokens
            assert (status == "invalid") or text.endswith(f"</{status}>")
        assert episode.success == (episode.answer == question.gold) == bool(episode.reward)


def test_the_generator_decides_the_episodes_and_nothing_else(make, apprentice, world):
    engine = make()
    torch.manual_seed(1)
    first = roll(engine, world)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # the global generator was not touched
    assert roll(engine, world) == first
    assert roll(engine, world, seed=1) != first
    group = engine.rollout(world, world.questions("train", 0, 0, 1) * 8, [0] * 8, torch.Generator().manual_seed(0))
    assert len({tuple(e.tokens) for e in group}) > 1, "rollouts of one question differ"


def test_greedy_episodes_do_not_depend_on_seed_or_company(make: Make, world: Facts) -> None:
    engine = make()
    many = roll(engine, world, 24, seed=0, greedy=True)
    assert [e.tokens for e in roll(engine, world, 24, seed=9, greedy=True)] == [e.tokens for e in many]
    assert [e.tokens for e in roll(engine, world, 3, greedy=True)] == [e.tokens for e in many[:3]]


@pytest.mark.parametrize(
    ("weight", "value", "said"),
    [("lm_head.weight", float("nan"), "24 of 24 rows"), ("model.embed_tokens.weight", float("inf"), "diverged")],
)
def test_a_policy_that_has_diverged_is_named_not_sampled(make, apprentice, world, weight, value, said):
    broken = deepcopy(apprentice)
    broken.get_parameter(weight).data[3:, 0] = value
    with pytest.raises(NonFinite, match=said):
        roll(make(broken), world)


def test_weights_are_read_at_every_rollout_and_the_model_stays_in_its_mode(make, apprentice, world):
    model = deepcopy(apprentice)
    engine = make(model)
    before = roll(engine, world, 8, greedy=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    for training in (True, False):
        model.train(training)
        assert mismatch(model, roll(engine, world, 8)).max() < 1e-4
        assert model.training is training
    assert before != roll(engine, world, 8, greedy=True)
    (model(torch.tensor([[3, 4]])).logits.sum()).backward()  # nothing of the rollout is left in the graph
    assert model.lm_head.weight.grad is not None


def test_half_precision_rollouts_differ_from_the_training_forward_but_little(make, apprentice, world):
    difference = mismatch(apprentice, roll(make(dtype="bfloat16"), world, 24))
    assert 1e-3 < difference.max() < 0.5
    assert difference.mean() < 0.03
    assert apprentice.dtype == torch.float32


@pytest.mark.parametrize("positions", [14, 30, 41])
def test_an_episode_that_fills_the_context_ends_there(make: Make, world: Facts, positions: int) -> None:
    model = build(SMALL, positions=positions)
    episodes = roll(make(model), world, 16)
    assert all(len(e.tokens) <= positions for e in episodes)
    full = [e for e in episodes if e.ended == "max_tokens"]
    assert len(full) > 8
    assert max(len(e.tokens) for e in full) == positions
    assert all(e.written[-1] for e in full if len(e.tokens) > e.prompt_length)
    difference = mismatch(model, episodes)
    assert not len(difference) or difference.max() < 1e-4
    with pytest.raises(InputError, match="a prompt has 13 tokens"):
        roll(make(build(SMALL, positions=13)), world)


@pytest.mark.parametrize(
    "said", ["<answer> a </answer>", "<answer> a </answer>."], ids=["at its end", "inside a token"]
)
def test_tags_of_many_tokens_end_turns_too(make: Make, spelling: PreTrainedTokenizerFast, said: str) -> None:
    world = Facts(WorldSettings(max_turn_tokens=40, max_turns=3))
    torch.manual_seed(0)
    model = build(SMALL, vocabulary=len(spelling))
    codec = Codec(spelling)
    assert len(codec.encode(">.")) == 1  # the tag and what follows it are one token, which the turn keeps whole
    questions = world.questions("train", 0, 0, 1)
    prompt, text = codec.encode(world.prompt(questions[0])), codec.encode(said)
    tokens, labels = torch.tensor([prompt + text]), torch.tensor([[-100] * len(prompt) + text])
    imitate(model, ((tokens, labels) for _ in range(80)))  # one continuation, by heart
    episode = make(model, spelling).rollout(world, questions, [0], torch.Generator(), greedy=True)[0]
    assert codec.decode(episode.tokens) == questions[0].text + said
    assert (episode.ended, episode.answer, episode.turn_status) == ("answer", "a", ["answer"])


@pytest.mark.parametrize("kind", [HFEngine, Plain])
def test_dropping_finished_rows_changes_no_episode(apprentice, tokenizer, world, monkeypatch, kind):
    engine = kind(apprentice, tokenizer, EngineSettings())
    seen = []
    for keep in (0.0, 0.5, 1.0):
        monkeypatch.setattr(hf, "_KEEP", keep)
        seen.append([e.tokens for e in roll(engine, world, 24, greedy=True)])
    assert seen[0] == seen[1] == seen[2]

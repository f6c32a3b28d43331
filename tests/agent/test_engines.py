"""The engines: decoding, the draw of a token and its randomness, and what holds for the episodes of each."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2ForCausalLM

from bench.generate import GenerateEngine
from sorl.agent.draws import Stream, draw, uniform
from sorl.agent.engines import Engine, NonFinite, continuous, engine_for, hf
from sorl.agent.engines.hf import FusedDecoder, HFEngine, TransformersDecoder, sample, supports
from sorl.agent.episode import Episode, collate
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import Retrieved, World
from sorl.agent.worlds.facts import Facts
from sorl.learn.networks import scored
from sorl.spec import EngineSettings, InputError, WorldSettings
from tests.agent.fakes import build, imitate
from tests.vllm_here import NEEDS_VLLM


def small(family: str, **changes: object) -> PreTrainedModel:
    sizes = {"vocab_size": 50, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4}
    return build(family, **sizes | changes).eval()


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, grouped queries": ("Qwen2", {"num_key_value_heads": 2}),
    "llama": ("Llama", {}),
    "llama, one key head and biases": (
        "Llama",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, wide heads": ("Llama", {"head_dim": 24}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    family, changes = MODELS[request.param]
    model = small(family, **changes)
    with torch.no_grad():  # fresh models have unit gains and zero biases, which would hide a wrong fold
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@torch.inference_mode()
def test_the_written_out_step_gives_the_logits_of_the_model(model: PreTrainedModel) -> None:
    assert supports(model)
    tokens = torch.randint(50, (6, 150))
    expected = model(tokens).logits
    first = FusedDecoder(model, torch.float32).feed(tokens[:, :1])  # one token is a valid start
    torch.testing.assert_close(first, expected[:, 0], atol=2e-4, rtol=1e-4)
    decoder = FusedDecoder(model, torch.float32)
    plain = TransformersDecoder(model)
    rows = torch.arange(6)
    at = 0
    # past the first 64 and 128 columns of the cache
    for n in (5, 1, 1, 1, 3, 1, *[1] * 20, 40, *[1] * 30, 7, 1, 1):
        got = decoder.feed(tokens[rows, at : at + n])
        plain.feed(tokens[rows, at : at + n])
        assert plain.routes is None if decoder.routes is None else torch.equal(decoder.routes, plain.routes)
        at += n
        torch.testing.assert_close(got, expected[rows, at - 1], atol=2e-4, rtol=1e-4)
        if at in (7, 60):
            keep = torch.tensor([0, 2, 3]) if at == 60 else torch.tensor([5, 1, 0, 4])
            decoder.keep(keep)
            plain.keep(keep)
            rows = rows[keep]
    assert at > 100


@torch.inference_mode()
def test_half_precision_is_as_far_from_the_truth_as_the_model_itself_in_half_precision() -> None:
    model = small("Qwen2")
    tokens = torch.randint(50, (4, 30))
    truth = torch.log_softmax(model(tokens).logits[:, -1], -1)
    decoder = FusedDecoder(model, torch.bfloat16)
    decoder.feed(tokens[:, :-1])
    ours = torch.log_softmax(decoder.feed(tokens[:, -1:]).float(), -1)
    theirs = torch.log_softmax(model.to(torch.bfloat16)(tokens).logits[:, -1].float(), -1)
    assert 0 < (ours - truth).abs().mean() < 3 * (theirs - truth).abs().mean()


@torch.inference_mode()
def test_other_architectures_go_through_transformers() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)
    ).eval()
    others = (
        small("Qwen2", hidden_act="gelu"),
        small("Qwen2", **sliding),
        small("Llama", rope_parameters=dynamic),
    )
    for other in (model, *others):
        assert not supports(other)
    tokens = torch.randint(50, (4, 12))
    expected = model(tokens).logits
    decoder = TransformersDecoder(model)
    decoder.feed(tokens[:, :5])
    decoder.keep(torch.tensor([3, 1]))
    for at, end in ((5, 9), (9, 10)):
        found = decoder.feed(tokens[[3, 1], at:end])
        torch.testing.assert_close(found, expected[[3, 1], end - 1], atol=1e-5, rtol=1e-5)


def test_tokens_come_as_often_as_their_probability_at_the_temperature_says() -> None:
    probability = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    logits = probability.log().expand(40_000, -1)
    token, log_prob = sample(logits, 1.0, torch.Generator().manual_seed(0), greedy=False, position=0)
    share = torch.bincount(token, minlength=7) / len(token)
    assert (share - probability).abs().max() < 0.012  # five standard errors
    assert (share[probability == 0] == 0).all()
    torch.testing.assert_close(log_prob, probability.log()[token])
    logits = torch.tensor([[0.0, 1.0]]).expand(20_000, -1)
    expected = torch.log_softmax(torch.tensor([0.0, 2.0]), 0)
    token, log_prob = sample(logits, 0.5, torch.Generator().manual_seed(0), greedy=False, position=0)
    assert token.float().mean() == pytest.approx(expected[1].exp().item(), abs=0.012), (
        "temperature sharpens the draw"
    )
    torch.testing.assert_close(log_prob, expected[token])


def test_greedy_takes_the_most_likely_and_needs_no_luck() -> None:
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    token, log_prob = sample(torch.tensor([[1.0, 3.0, 2.0]]), 1.0, generator, greedy=True, position=0)
    assert token.tolist() == [1]
    torch.testing.assert_close(log_prob, torch.log_softmax(torch.tensor([1.0, 3.0, 2.0]), 0)[1:2])
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_row_without_a_distribution_is_named_and_minus_infinity_rules_a_token_out(
    bad: float, greedy: bool
) -> None:
    logits = torch.zeros(5, 4)
    logits[2, 1] = bad
    with pytest.raises(NonFinite, match="1 of 5 rows at token 17"):
        sample(logits, 1.0, torch.Generator(), greedy, position=17)
    token, log_prob = sample(torch.tensor([[float("-inf"), 0.0]]), 1.0, torch.Generator(), False, position=0)
    assert (token.tolist(), log_prob.tolist()) == ([1], [0.0])


def test_draws_are_the_same_in_every_process_uniform_and_uncorrelated() -> None:
    assert draw(1, 2, 3) == 7702586659592502839
    assert draw(1, 2, 3) != draw(1, 3, 2) != draw(1, 2)
    u = torch.tensor([uniform(7, i) for i in range(20_000)], dtype=torch.float64)
    assert u.mean().item() == pytest.approx(0.5, abs=0.01)
    assert u.var().item() == pytest.approx(1 / 12, abs=0.003)
    assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].item()) < 0.03
    first = torch.bincount(torch.tensor([Stream(3, i).shuffled(5)[0] for i in range(5000)]), minlength=5)
    assert (first / 5000 - 0.2).abs().max() < 0.03, "a stream shuffles fairly"


# (model, tokenizer, **settings); by default the apprentice and the embedded tokenizer
Make = Callable[..., Engine]


class Plain(HFEngine):
    """Decodes through transformers whatever the size of the model."""

    def rollout(self, *arguments: Any, **options: Any) -> list[Episode]:
        with pytest.MonkeyPatch.context() as patch:
            decoder = TransformersDecoder(hf.in_dtype(self._model, getattr(torch, self._settings.dtype)))
            patch.setattr(hf, "decoder_of", lambda *_: decoder)
            patch.setattr(hf.ragged, "supports", lambda _: False)
            return super().rollout(*arguments, **options)


class Continuous(HFEngine):
    """Decodes in passes without padding whatever the size of the model."""

    def rollout(self, *arguments: Any, **options: Any) -> list[Episode]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hf, "_is_fused", lambda _: False)
            return super().rollout(*arguments, **options)


def vllm(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: EngineSettings) -> Engine:
    return engine_for(model, tokenizer, settings.model_copy(update={"kind": "vllm", "cache_gib": 1 / 32}))


ENGINES: dict[str, Any] = {
    "fused": HFEngine,
    "transformers": Plain,
    "continuous": Continuous,
    "generate": GenerateEngine,
    "vllm": vllm,
}


@pytest.fixture(params=[name if name != "vllm" else pytest.param(name, marks=NEEDS_VLLM) for name in ENGINES])
def make(
    request: pytest.FixtureRequest, apprentice: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> Make:
    def made(model: Any = apprentice, tokenizer: Any = tokenizer, **settings: Any) -> Engine:
        return ENGINES[request.param](model, tokenizer, EngineSettings(**settings))

    return made


def mismatch(model: PreTrainedModel, episodes: list[Episode], temperature: float = 1.0) -> torch.Tensor:
    """Nats between training's log-probs and the sampler's at each written token."""
    batch = collate(episodes, pad_id=0)
    found, _ = scored(model, batch, temperature)
    return (found - batch.log_prob_behaviour)[batch.mask].abs()


def roll(engine: Engine, world: Facts, n: int = 24, seed: int = 0, greedy: bool = False) -> list[Episode]:
    questions = world.questions("train", 0, 0, n)
    return engine.rollout(
        world, questions, [q.id // 2 for q in questions], torch.Generator().manual_seed(seed), greedy
    )


class Counted(Facts):
    """Facts behind a retriever that finds nothing; counts the requests."""

    search = World.search
    requests = 0

    def _ask(self, queries: list[str]) -> dict[str, Retrieved]:
        self.requests += 1
        return super()._ask(queries)


def test_searches_that_fall_together_are_one_request(make: Make) -> None:
    world = Counted(WorldSettings())
    engine = make()
    assert roll(engine, world, 0) == []
    searches = sum(e.searches for e in roll(engine, world))
    assert 0 < world.requests < 0.8 * searches


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
    group = engine.rollout(
        world, world.questions("train", 0, 0, 1) * 8, [0] * 8, torch.Generator().manual_seed(0)
    )
    assert len({tuple(e.tokens) for e in group}) > 1, "rollouts of one question differ"


def test_greedy_episodes_do_not_depend_on_seed_or_company(make: Make, world: Facts) -> None:
    engine = make()
    many = roll(engine, world, 24, seed=0, greedy=True)
    assert [e.tokens for e in roll(engine, world, 24, seed=9, greedy=True)] == [e.tokens for e in many]
    assert [e.tokens for e in roll(engine, world, 3, greedy=True)] == [e.tokens for e in many[:3]]


@pytest.mark.parametrize(
    ("weight", "value", "said"),
    [
        ("lm_head.weight", float("nan"), "24 of 24 rows"),
        ("model.embed_tokens.weight", float("inf"), "diverged"),
    ],
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
    model = build(max_position_embeddings=positions)
    episodes = roll(make(model), world, 16)
    assert all(len(e.tokens) <= positions for e in episodes)
    full = [e for e in episodes if e.ended == "max_tokens"]
    assert len(full) > 8
    assert max(len(e.tokens) for e in full) == positions
    assert all(e.written[-1] for e in full if len(e.tokens) > e.prompt_length)
    difference = mismatch(model, episodes)
    assert not len(difference) or difference.max() < 1e-4
    with pytest.raises(InputError, match="a prompt has 13 tokens"):
        roll(make(build(max_position_embeddings=13)), world)


@pytest.mark.parametrize(
    "said", ["<answer> a </answer>", "<answer> a </answer>."], ids=["at its end", "inside a token"]
)
def test_tags_of_many_tokens_end_turns_too(make: Make, spelling: PreTrainedTokenizerFast, said: str) -> None:
    world = Facts(WorldSettings(max_turn_tokens=40, max_turns=3))
    model = build(vocab_size=len(spelling))
    codec = Codec(spelling)
    # the tag and what follows it are one token, which the turn keeps whole
    assert len(codec.encode(">.")) == 1
    questions = world.questions("train", 0, 0, 1)
    prompt = codec.encode(questions[0].text)
    text = codec.encode(said)
    tokens = torch.tensor([prompt + text])
    labels = torch.tensor([[-100] * len(prompt) + text])
    imitate(model, ((tokens, labels) for _ in range(80)))  # one continuation, by heart
    episode = make(model, spelling).rollout(world, questions, [0], torch.Generator(), greedy=True)[0]
    assert codec.decode(episode.tokens) == questions[0].text + said
    assert (episode.ended, episode.answer, episode.turn_status) == ("answer", "a", ["answer"])


def test_a_prompt_is_read_once_for_all_of_its_group(apprentice, tokenizer, world, monkeypatch):
    reads: list[int] = []
    feed = continuous.ContinuousDecoder.feed

    def counted(decoder: continuous.ContinuousDecoder, unread: list[list[int]]) -> torch.Tensor:
        reads.append(sum(map(len, unread)))
        return feed(decoder, unread)

    monkeypatch.setattr(continuous.ContinuousDecoder, "feed", counted)
    engine = Continuous(apprentice, tokenizer, EngineSettings())
    questions = world.questions("train", 0, 0, 2)
    asked = [questions[0]] * 8 + [questions[1]] * 8
    episodes = engine.rollout(world, asked, [0] * 8 + [1] * 8, torch.Generator().manual_seed(0))
    assert reads[0] == sum(episodes[8 * i].prompt_length for i in range(2))
    # the last token of an episode is never read
    assert sum(reads[1:]) == sum(len(e.tokens) - e.prompt_length - 1 for e in episodes)


@pytest.mark.parametrize("kind", [HFEngine, Plain])
def test_dropping_finished_rows_changes_no_episode(apprentice, tokenizer, world, monkeypatch, kind):
    engine = kind(apprentice, tokenizer, EngineSettings())
    seen = []
    for keep in (0.0, 0.5, 1.0):
        monkeypatch.setattr(hf, "_KEEP", keep)
        seen.append([e.tokens for e in roll(engine, world, 24, greedy=True)])
    assert seen[0] == seen[1] == seen[2]

"""The parts of the engine that samples in the trainer's process: decoding, the draw of a token, and its randomness."""

import pytest
import torch
import transformers as hf
from transformers import PreTrainedModel

from workbench.agent.draws import Stream, draw, uniform
from workbench.agent.engines import NonFinite
from workbench.agent.engines.hf import FusedDecoder, TransformersDecoder, sample, supports

SIZE: dict[str, object] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip


def qwen2(**changes: object) -> PreTrainedModel:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**{**SIZE, **changes})).eval()


def llama(**changes: object) -> PreTrainedModel:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**SIZE, **changes})).eval()


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MODELS = {
    "qwen2": (qwen2, {}),
    "qwen2, tied": (qwen2, {"tie_word_embeddings": True}),
    "qwen2, grouped queries": (qwen2, {"num_key_value_heads": 2}),
    "llama": (llama, {}),
    "llama, one key head and biases": (llama, {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": (llama, {"head_dim": 24}),
    "llama 3 rope": (llama, {"rope_parameters": LLAMA3}),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    make, changes = MODELS[request.param]
    model = make(**changes)
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
    rows, at = torch.arange(6), 0
    for n in (5, 1, 1, 1, 3, 1, *[1] * 20, 40, *[1] * 30, 7, 1, 1):  # past the first 64 and 128 columns of the cache
        got = decoder.feed(tokens[rows, at : at + n])
        at += n
        torch.testing.assert_close(got, expected[rows, at - 1], atol=2e-4, rtol=1e-4)
        if at in (7, 60):
            keep = torch.tensor([0, 2, 3]) if at == 60 else torch.tensor([5, 1, 0, 4])
            decoder.keep(keep)
            rows = rows[keep]
    assert at > 100


@torch.inference_mode()
def test_half_precision_is_as_far_from_the_truth_as_the_model_itself_in_half_precision() -> None:
    torch.manual_seed(0)
    model = qwen2()
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
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)).eval()
    for other in (model, qwen2(hidden_act="gelu"), qwen2(**sliding), llama(rope_parameters=dynamic)):
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
    logits, expected = torch.tensor([[0.0, 1.0]]).expand(20_000, -1), torch.log_softmax(torch.tensor([0.0, 2.0]), 0)
    token, log_prob = sample(logits, 0.5, torch.Generator().manual_seed(0), greedy=False, position=0)
    assert token.float().mean() == pytest.approx(expected[1].exp().item(), abs=0.012), "temperature sharpens the draw"
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
def test_a_row_without_a_distribution_is_named_and_minus_infinity_rules_a_token_out(bad: float, greedy: bool) -> None:
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


def test_a_stream_shuffles_fairly() -> None:
    first = torch.bincount(torch.tensor([Stream(3, i).shuffled(5)[0] for i in range(5000)]), minlength=5)
    assert (first / 5000 - 0.2).abs().max() < 0.03
    assert sorted(Stream(1).shuffled(30)) == list(range(30))

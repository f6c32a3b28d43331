import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from workbench.agent.engines.decode import FusedDecoder, supports
from workbench.agent.engines.hf import TransformersDecoder

SIZE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def qwen2(**changes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZE, "num_attention_heads": 4, "num_key_value_heads": 4, **changes}))


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**SIZE, "num_attention_heads": 4, "num_key_value_heads": 4, **changes}))


MODELS = {
    "qwen2": lambda: qwen2(),
    "qwen2, tied": lambda: qwen2(tie_word_embeddings=True),
    "qwen2, grouped queries": lambda: qwen2(num_key_value_heads=2),
    "llama": lambda: llama(),
    "llama, one key head and biases": lambda: llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "llama, wide heads": lambda: llama(head_dim=24),
    "llama 3 rope": lambda: llama(
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    ),
}  # fmt: skip


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = MODELS[request.param]().eval()
    with torch.no_grad():  # fresh models have unit gains and zero biases, which would hide a wrong fold
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@torch.inference_mode()
def test_the_written_out_step_gives_the_logits_of_the_model(model: PreTrainedModel) -> None:
    assert supports(model)
    tokens = torch.randint(50, (6, 150))
    expected = model(tokens).logits
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
def test_a_first_token_alone_is_a_valid_start(model: PreTrainedModel) -> None:
    tokens = torch.randint(50, (2, 3))
    decoder = FusedDecoder(model, torch.float32)
    got = torch.stack([decoder.feed(tokens[:, t : t + 1]) for t in range(3)], 1)
    torch.testing.assert_close(got, model(tokens).logits, atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_half_precision_is_as_far_from_the_truth_as_the_model_itself_in_half_precision() -> None:
    torch.manual_seed(0)
    model = qwen2().eval()
    tokens = torch.randint(50, (4, 30))
    truth = torch.log_softmax(model(tokens).logits[:, -1], -1)
    decoder = FusedDecoder(model, torch.bfloat16)
    decoder.feed(tokens[:, :-1])
    ours = torch.log_softmax(decoder.feed(tokens[:, -1:]).float(), -1)
    theirs = torch.log_softmax(model.to(torch.bfloat16)(tokens).logits[:, -1].float(), -1)
    assert 0 < (ours - truth).abs().mean() < 3 * (theirs - truth).abs().mean()


@pytest.mark.parametrize(
    "model",
    [
        GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)),
        qwen2(hidden_act="gelu"),
        qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=0),
        llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    ],
    ids=["gpt2", "gelu", "sliding window", "dynamic rope"],
)
def test_other_architectures_go_through_transformers(model: PreTrainedModel) -> None:
    assert not supports(model)


@torch.inference_mode()
def test_the_transformers_decoder_runs_an_architecture_that_is_not_written_out() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)).eval()
    tokens = torch.randint(50, (4, 12))
    expected = model(tokens).logits
    decoder = TransformersDecoder(model)
    decoder.feed(tokens[:, :5])
    decoder.keep(torch.tensor([3, 1]))
    torch.testing.assert_close(decoder.feed(tokens[[3, 1], 5:9]), expected[[3, 1], 8], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(decoder.feed(tokens[[3, 1], 9:10]), expected[[3, 1], 9], atol=1e-5, rtol=1e-5)

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

from workbench.agent.engines.hf import FusedDecoder, TransformersDecoder, supports

SIZE: dict[str, object] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip


def qwen2(**changes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZE, **changes})).eval()


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**SIZE, **changes})).eval()


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)).eval()


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
    model = gpt2()
    for other in (model, qwen2(hidden_act="gelu"), qwen2(**sliding), llama(rope_parameters=dynamic)):
        assert not supports(other)
    tokens = torch.randint(50, (4, 12))
    expected = model(tokens).logits
    decoder = TransformersDecoder(model)
    decoder.feed(tokens[:, :5])
    decoder.keep(torch.tensor([3, 1]))
    torch.testing.assert_close(decoder.feed(tokens[[3, 1], 5:9]), expected[[3, 1], 8], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(decoder.feed(tokens[[3, 1], 9:10]), expected[[3, 1], 9], atol=1e-5, rtol=1e-5)

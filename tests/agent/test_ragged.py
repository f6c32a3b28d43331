"""Packed passes: what each row is alone, whatever stands before and behind it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.agent import ragged
from tests.agent.fakes import build

HALF_SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 6,
    "query_pre_attn_scalar": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
FAMILIES = {
    "Gemma3": HALF_SLIDING,
    "Qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "Qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    "Llama": {"num_attention_heads": 2, "num_key_value_heads": 2},
    "Mistral": {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 5},
}
VOCABULARY = 50


def model_of(family: str):
    name = "Gemma3Text" if family == "Gemma3" else family
    changes = {"vocab_size": VOCABULARY, **FAMILIES[family]}
    return (build_gemma(**changes) if name == "Gemma3Text" else build(name, **changes)).eval()


def build_gemma(**changes):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    from tests.agent.fakes import SMALL

    torch.manual_seed(0)
    return Gemma3ForCausalLM(Gemma3TextConfig(**SMALL | changes))


def alone(backbone, rows):
    """The last hidden states of each row in a padded pass of its own, by transformers' own attention."""
    before = backbone.config._attn_implementation
    backbone.config._attn_implementation = "eager"
    try:
        with torch.no_grad():
            return [backbone(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows]
    finally:
        backbone.config._attn_implementation = before


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request):
    return model_of(request.param).base_model


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_packed_row_is_what_it_is_alone(backbone, data):
    counts = data.draw(st.lists(st.integers(1, 15), min_size=1, max_size=5))
    tokens = torch.from_numpy(np.random.default_rng(sum(counts)).integers(0, VOCABULARY, sum(counts)))
    assert ragged.supports(backbone)
    with torch.no_grad():
        packed = ragged.hidden_states(backbone, tokens, counts)
    wanted = torch.cat(alone(backbone, tokens.split(counts)))
    assert (packed - wanted).abs().max() < 1e-5


def read_in_pieces(backbone, rows, pieces):
    """The hidden states of each row, of which every pass reads the next so many tokens."""
    cache = ragged.Cache(len(rows))
    read = [0] * len(rows)
    seen = [[] for _ in rows]
    with torch.no_grad():
        for counts in pieces:
            fresh = [row[start : start + n] for row, start, n in zip(rows, read, counts, strict=True)]
            places = cache.extend(np.array(counts))
            found = ragged.run(backbone, torch.cat(fresh), places, cache).last_hidden_state[0]
            for i, part in enumerate(found.split(counts)):
                seen[i].append(part)
            read = [start + n for start, n in zip(read, counts, strict=True)]
    return [torch.cat(parts) for parts in seen]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_that_are_read_in_pieces_are_what_they_are_alone(backbone, data):
    count = data.draw(st.integers(1, 4))
    piece = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    pieces = data.draw(st.lists(piece, min_size=1, max_size=5))
    generator = np.random.default_rng(count)
    rows = [torch.from_numpy(generator.integers(0, VOCABULARY, 50)) for _ in range(count)]
    assert ragged.supports(backbone)
    found = read_in_pieces(backbone, rows, pieces)
    wanted = alone(backbone, [row[: len(states)] for row, states in zip(rows, found, strict=True)])
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-4


def test_kept_rows_go_on_and_may_be_several(backbone):
    assert ragged.supports(backbone)
    first = torch.arange(7)
    second = torch.arange(20, 25)
    cache = ragged.Cache(2)
    with torch.no_grad():
        ragged.run(backbone, torch.cat([first, second]), cache.extend(np.array([7, 5])), cache)
        cache.keep(torch.tensor([1, 0, 1]))
        added = torch.tensor([3, 4, 5])
        found = ragged.run(backbone, added, cache.extend(np.array([1, 1, 1])), cache).last_hidden_state[0]
    rows = [torch.cat([row, added[i : i + 1]]) for i, row in enumerate([second, first, second])]
    for i, wanted in enumerate(alone(backbone, rows)):
        assert (found[i] - wanted[-1]).abs().max() < 1e-5


def test_gradients_are_those_of_padded_rows(backbone):
    assert ragged.supports(backbone)
    tokens = torch.arange(30) % VOCABULARY
    counts = [17, 4, 9]
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    packed = ragged.hidden_states(backbone, tokens, counts)
    weight = torch.linspace(-1, 1, packed.numel()).view_as(packed)
    found = torch.autograd.grad((packed * weight).sum(), parameters)
    rows = [
        backbone(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in tokens.split(counts)
    ]
    wanted = torch.autograd.grad((torch.cat(rows) * weight).sum(), parameters)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max().clamp(min=1.0)


def test_models_whose_attention_cannot_be_replaced_are_left_as_they_are():
    for model in (build("Mixtral"), build("Gemma2", head_dim=32)):
        before = model.config._attn_implementation
        assert not ragged.supports(model.base_model)
        assert model.config._attn_implementation == before
    assert not ragged.supports(None)

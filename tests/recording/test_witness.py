"""Fingerprints of weights: what changes them and what does not, whatever the names, formats and layouts."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sorl.recording.witness import (
    MOST_ENTRIES,
    Marks,
    Sharded,
    Witness,
    describe,
    layer_of,
    layers_of,
    row_checksum,
)

SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**31)


def network(seed, size=8):
    torch.manual_seed(seed)
    return nn.ModuleDict(
        {
            "embed_tokens": nn.Embedding(11, size),
            "layers": nn.ModuleList([nn.Linear(size, size), nn.Linear(size, size)]),
            "norm": nn.LayerNorm(size),
            "lm_head": nn.Linear(size, 11),
        }
    )


def rows_of(named, after=None):
    """The rows of a step that changes the weights to those of `after`."""
    named = list(named)
    witness = Witness("policy")
    witness.start(named)
    if after is not None:
        with torch.no_grad():
            for (_, tensor), (_, changed) in zip(named, after, strict=True):
                tensor.copy_(changed)
        witness.finish(named)
    return {row["layer"]: row for row in witness.rows()}


@given(SEEDS, SIZES, st.data())
@settings(deadline=None, max_examples=25)
def test_a_change_of_any_entry_that_is_looked_at_changes_the_fingerprint_of_its_layer_alone(seed, size, data):
    model = network(seed, size)
    before = rows_of(model.named_parameters())
    name, tensor = data.draw(st.sampled_from(list(model.named_parameters())))
    place = data.draw(st.integers(0, tensor.numel() - 1))
    with torch.no_grad():
        tensor.view(-1)[place] += 0.25
    after = rows_of(model.named_parameters())
    changed = {layer for layer in before if differs(before[layer], after[layer])}
    assert changed == {layer_of(name)}


def differs(before, after):
    return abs(before["fingerprint_start"] - after["fingerprint_start"]) > 1e-6


@given(SEEDS, SIZES, st.permutations(range(9)))
@settings(deadline=None, max_examples=25)
def test_neither_the_order_of_the_parameters_nor_their_wrappers_matter(seed, size, order):
    model = network(seed, size)
    named = list(model.named_parameters())
    shuffled = [named[i] for i in order]
    wrapped = [(f"module._orig_mod.{name}", tensor) for name, tensor in shuffled]
    plain = rows_of(named)
    for layer, row in rows_of(wrapped).items():
        assert row["fingerprint_start"] == pytest.approx(plain[layer]["fingerprint_start"], rel=1e-12)
        assert row["parameters"] == plain[layer]["parameters"]


@given(SEEDS)
@settings(deadline=None, max_examples=10)
def test_formats_and_layouts_do_not_matter(seed):
    stream = torch.Generator().manual_seed(seed)
    weight = torch.randn(40, 30, generator=stream).bfloat16()
    transposed = weight.t().contiguous().t()
    expected = rows_of([("layers.0.w", weight)])["layer 0"]
    for other in (weight.float(), weight.double(), transposed, transposed.float()):
        found = rows_of([("layers.0.w", other)])["layer 0"]
        assert found["fingerprint_start"] == expected["fingerprint_start"]
        assert found["fingerprint_bfloat16"] == expected["fingerprint_start"]
        assert found["weight_norm"] == pytest.approx(expected["weight_norm"], rel=1e-6)


def test_places_and_signs_are_the_same_on_every_machine():
    small = Marks.of("layers.0.w", 12, torch.device("cpu"))
    assert small.places is None
    assert small.signs.tolist() == [1, -1, -1, -1, -1, 1, -1, -1, -1, -1, -1, -1]
    large = Marks.of("embed.weight", 1_000_000, torch.device("cpu"))
    assert large.places[:4].tolist() == [21, 121, 165, 188]
    assert (large.places[1:] >= large.places[:-1]).all()
    assert int(large.places[-1]) < 1_000_000


def test_how_far_a_large_tensor_moved_is_estimated_without_bias():
    torch.manual_seed(0)
    weight = torch.randn(MOST_ENTRIES * 2 + 77)
    moved = weight + 0.01 * torch.randn(len(weight))
    row = rows_of([("w", weight.clone())], [("w", moved)])["rest"]
    assert row["sampled"] == MOST_ENTRIES < row["parameters"]
    assert row["moved"] == pytest.approx(float((moved - weight).norm()), rel=0.02)
    assert row["moved_least"] < row["moved"]
    assert row["weight_norm"] == pytest.approx(float(weight.norm()), rel=1e-6)


def test_how_far_a_small_tensor_moved_is_exact():
    model = network(0)
    model.requires_grad_(False)
    after = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    rows = rows_of(copy.deepcopy(model).named_parameters(), after.named_parameters())
    for layer, row in rows.items():
        own = [name for name, _ in model.named_parameters() if layer_of(name) == layer]
        pairs = [(after.get_parameter(name), model.get_parameter(name)) for name in own]
        length = math.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in pairs))
        assert row["moved"] == row["moved_least"] == pytest.approx(length, rel=1e-9)


def test_a_tied_head_counts_once():
    model = network(0)
    model["lm_head"].weight = model["embed_tokens"].weight
    layers = layers_of([*model.named_parameters(), ("lm_head.weight", model["lm_head"].weight)])
    assert layers["embedding"].parameters == 88
    assert list(layers["head"].tensors) == ["lm_head.bias"]


def test_layers_are_told_by_their_names():
    names = {
        "model.layers.12.mlp.up_proj.weight": "layer 12",
        "transformer.h.3.attn.c_attn.weight": "layer 3",
        "gpt_neox.layers.0.input_layernorm.bias": "layer 0",
        "transformer.wte.weight": "embedding",
        "model.embed_tokens.weight": "embedding",
        "embed_out.weight": "head",
        "lm_head.weight": "head",
        "v_head.summary.weight": "head",
        "model.norm.weight": "rest",
    }
    assert {name: layer_of(name) for name in names} == names


def test_what_is_spread_over_ranks_is_refused():
    with pytest.raises(Sharded, match="spread over ranks"):
        layers_of([("w", torch.zeros(3, device="meta"))])
    with pytest.raises(Sharded, match="not witnessed"):
        layers_of([("_fsdp_wrapped_module._flat_param", torch.zeros(3))])


def test_the_steps_of_an_optimizer_are_counted_with_what_can_move_each_layer():
    model = network(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    witness = Witness("policy")
    witness.watch(optimizer)
    witness.start(model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model["layers"][0](torch.ones(8)).sum().backward()
        optimizer.step()
    witness.finish(model.named_parameters())
    rows = {row["layer"]: row for row in witness.rows()}
    length = 2 * 0.5 * math.sqrt(72)
    assert rows["layer 0"]["gradient_path"] == pytest.approx(length)
    assert rows["layer 0"]["moved"] == pytest.approx(length, rel=1e-6)
    assert rows["layer 1"]["gradient_path"] == rows["layer 1"]["moved"] == 0.0
    assert {row["optimizer_steps"] for row in rows.values()} == {2}
    assert {row["lr_sum"] for row in rows.values()} == {1.0}
    assert '"kind": "SGD"' in describe(optimizer)


def test_an_optimizer_with_copies_of_the_weights_says_nothing_of_them():
    model = network(0)
    copies = copy.deepcopy(model)
    witness = Witness("policy")
    witness.watch(torch.optim.SGD(copies.parameters(), lr=0.5))
    witness.start(model.named_parameters())
    witness.finish(model.named_parameters())
    assert all("optimizer_steps" not in row for row in witness.rows())


def test_other_tensors_at_the_end_of_a_step_are_refused():
    witness = Witness("policy")
    witness.start([("w", torch.ones(3))])
    with pytest.raises(ValueError, match="other tensors"):
        witness.finish([("w", torch.ones(3))])


def test_weights_that_are_not_numbers_are_a_fact():
    row = rows_of([("w", torch.tensor([1.0, math.nan]))])["rest"]
    assert math.isnan(row["fingerprint_start"])
    assert math.isnan(row["weight_norm"])


@given(st.lists(st.tuples(st.integers(0, 2**17), st.booleans()), min_size=1, max_size=30), st.data())
def test_a_checksum_sees_every_token_and_mask_up_to_the_last_that_is_trained(row, data):
    tokens = np.array([token for token, _ in row])
    mask = np.array([trained for _, trained in row])
    mask[0] = True
    before = row_checksum(tokens, mask)
    last = int(np.flatnonzero(mask)[-1])
    place = data.draw(st.integers(0, last))
    other = tokens.copy()
    other[place] += 1
    assert row_checksum(other, mask) != before
    assert row_checksum(np.append(tokens[: last + 1], 7), np.append(mask[: last + 1], False)) == before
    moved = mask.copy()
    moved[place] = not moved[place]
    assert row_checksum(tokens, moved) != before
    assert 0 <= before < 2**48

"""What a step of a model is expected to cost, from files alone, and the probe of a machine."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from sorl.agent.demonstrations import demonstrations
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds.facts import Facts
from sorl.grid import machine as machine_module
from sorl.grid.cell import estimate, rough
from sorl.grid.config import load
from sorl.grid.cost import Network, Tokens, evaluation_seconds, network_of, warm_start_seconds
from sorl.grid.machine import REFERENCE, Machine, probe, probe_model
from sorl.learn import speed
from sorl.learn.warmstart import tokenizer_of
from sorl.spec import RunSettings
from tests.grid.harness import grid_file
from tests.learn import real_model

BIG = Machine(small_seconds=0.0, product_seconds=1e-11, weight_seconds=1e-9)


@pytest.fixture
def folder(tmp_path):
    """A model folder whose weights are in two files; what is no number of the network does not count."""
    made = tmp_path / "model"
    made.mkdir()
    config = {"hidden_size": 10, "vocab_size": 50, "num_hidden_layers": 3}
    (made / "config.json").write_text(json.dumps({"text_config": config}))
    save_file({"embed": np.zeros((50, 10), np.float32)}, made / "one.safetensors")
    rest = {"layers": np.zeros((30, 100), np.float16), "positions": np.zeros(7, np.int64)}
    save_file(rest, made / "two.safetensors", metadata={"format": "pt"})
    return made


def test_the_size_of_a_model_is_read_from_its_headers(folder, tmp_path):
    assert network_of(str(folder)) == Network(parameters=3500, vocabulary=500)
    assert network_of(str(folder)).body == 3000
    assert network_of(str(tmp_path / "none")) is None
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    assert network_of(str(tmp_path / "broken")) is None


def test_a_model_costs_what_its_parameters_and_tokens_ask_for_and_says_so(folder, tmp_path):
    text = f'[base]\nalgorithm = "grpo"\niterations = 10\nmodel = "{folder}"\n'
    (cell,) = load(grid_file(tmp_path, text)).cells
    (doubled,) = load(grid_file(tmp_path, text + "learn.epochs = 2\n")).cells
    once, twice = (rough(one.settings, one.resolved, BIG) for one in (cell, doubled))
    tokens = Tokens.of(cell.settings)
    learn = cell.settings.learn
    forward = learn.episodes * (tokens.all * 3000 + tokens.written * 500) * BIG.product_seconds
    steps = learn.minibatches * 10 * 3500 * BIG.weight_seconds
    assert twice - once == pytest.approx(forward * (3 + 2 / learn.clip_bias_every) + steps)
    decoding = tokens.longest * 3500 * BIG.weight_seconds
    assert once > decoding
    network = network_of(str(folder))
    assert evaluation_seconds(cell.settings, network, BIG) > 4 * decoding
    probed = estimate([cell], machine=BIG)
    assert "0.0035 M parameters" in probed.basis
    assert f"{float(f'{64 * tokens.all:.2g}'):,.0f} tokens a step and a probe of this machine" in probed.basis
    assert probed.as_dict()["is_probed"]
    assert "not a probe" in estimate([cell]).basis


def test_a_model_that_imitates_is_estimated_from_demonstrations_cut_by_its_own_tokenizer(tmp_path):
    made = real_model.write(tmp_path / "qwen2")
    told = {"model": str(made), "prompt": "plain", "world": {"max_turns": 3, "max_turn_tokens": 48}}
    untrained = RunSettings.model_validate(told)
    imitating = RunSettings.model_validate({**told, "warmstart": {"steps": 2, "noise": 0.0}})
    shown = demonstrations(Facts(imitating.world), 32, 0.0, 0, codec=Codec(tokenizer_of(made), "plain"))
    counted = Tokens.of(imitating)
    assert counted.all == pytest.approx(np.mean([len(episode.tokens) for episode in shown]))
    assert counted.written == pytest.approx(np.mean([sum(episode.written) for episode in shown]))
    assert counted.longest == max(sum(episode.written) for episode in shown)
    assert Tokens.of(untrained).written == Tokens.of(untrained).longest == 3 * 48


def test_an_estimate_asks_no_retriever_and_counts_no_demonstrations_of_a_data_set(tmp_path):
    made = real_model.write(tmp_path / "qwen2")
    dead = {"kind": "http", "url": "http://127.0.0.1:9/retrieve"}
    told = {"model": str(made), "warmstart": {"steps": 2}}
    own, served, asked = (
        RunSettings.model_validate({**told, "world": world})
        for world in (
            {"kind": "atlas"},
            {"kind": "atlas", "retriever": dead},
            {"kind": "dataset", "data": "x.jsonl", "retriever": dead},
        )
    )
    assert Tokens.of(served) == Tokens.of(own)
    assert Tokens.of(asked).written == asked.world.completion_budget


def test_the_imitation_of_a_model_costs_what_its_size_asks_for(folder):
    network = network_of(str(folder))
    steps = [
        RunSettings.model_validate({"model": str(folder), "warmstart": {"steps": steps}}) for steps in (1, 3)
    ]
    one, three = (warm_start_seconds(each, network, BIG) for each in steps)
    tokens = Tokens.of(steps[0])
    products = 3 * (tokens.all * 3000 + tokens.written * 500) * BIG.product_seconds
    assert (three - one) / 2 == pytest.approx(24 * products + 10 * 3500 * BIG.weight_seconds)
    embedded = RunSettings()
    assert warm_start_seconds(embedded, None, REFERENCE) == pytest.approx(240 * 0.14)


def test_a_probe_measures_this_machine_and_without_torch_there_is_none(monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    probe.cache_clear()
    measured = probe(1)
    assert measured.is_probed
    assert 0.01 < measured.slowness < 1000
    probe.cache_clear()
    monkeypatch.setattr(machine_module, "find_spec", lambda name: None)
    assert probe(1) == REFERENCE
    probe.cache_clear()


def test_the_layers_of_a_model_are_timed_where_the_machine_was_probed(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    model = real_model.write(tmp_path / "qwen2")
    settings = RunSettings(model=str(model), threads=1).model_dump_json()
    timed = probe_model(BIG, model, settings, 4, 30.0, 10.0)
    assert timed.small_seconds == BIG.small_seconds
    assert 1e-13 < timed.product_seconds < 1e-6
    assert timed.product_seconds != BIG.product_seconds
    assert 1e-12 < timed.weight_seconds < 1e-4
    assert timed.weight_seconds != BIG.weight_seconds
    assert probe_model(REFERENCE, model, settings, 4, 30.0, 10.0) is REFERENCE


def test_a_model_that_cannot_be_built_is_estimated_from_the_machine_alone(folder):
    settings = RunSettings(model=str(folder), threads=1).model_dump_json()
    assert probe_model(BIG, folder, settings, 4, 30.0, 10.0) is BIG

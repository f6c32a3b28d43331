import pytest
import torch
from transformers import AutoTokenizer

from workbench.agent.tokenizer import build_tokenizer
from workbench.learn import networks, warmstart
from workbench.spec import InputError, PolicySettings, RunSettings

TINY = RunSettings(policy={"hidden": 16, "layers": 1, "heads": 2, "mlp": 16}, warmstart={"steps": 3, "batch": 8})


def test_the_warm_start_is_made_once_and_found_again_with_its_tokenizer(tmp_path):
    folder = warmstart.ensure(TINY, tmp_path)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert warmstart.ensure(TINY, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert not list(folder.parent.glob(".making-*"))
    text = "who is the mentor of kofi ? <think> got kofi need mentor </think> <search> kofi mentor </search>"
    assert AutoTokenizer.from_pretrained(folder)(text).input_ids == build_tokenizer()(text).input_ids


def test_two_warm_starts_with_one_seed_are_bit_equal(tmp_path):
    first, second = (networks.load(warmstart.ensure(TINY, tmp_path / name)) for name in ("a", "b"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_cache_key_knows_what_shapes_the_weights_and_nothing_else():
    assert warmstart.key(TINY) == warmstart.key(TINY.model_copy(update={"seed": 7, "algorithm": "grpo"}))
    other = TINY.model_copy(update={"policy": PolicySettings(hidden=32, layers=1, heads=2, mlp=16)})
    assert warmstart.key(TINY) != warmstart.key(other)


def test_a_missing_checkpoint_is_named_and_weights_that_can_run_code_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no model at '.*nowhere'.*config\.json"):
        networks.load(tmp_path / "nowhere")
    folder = warmstart.ensure(TINY, tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no safetensors weights"):
        networks.load(folder)

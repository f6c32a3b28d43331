"""A pretrained model that imitates demonstrations before it is trained."""

import json
from pathlib import Path

import pytest
import torch

from sorl.agent.demonstrations import demonstrations
from sorl.agent.episode import collate
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds.facts import Facts
from sorl.learn import networks, warmstart
from sorl.learn.warmstart import ensure, is_cached, key, result_of, tokenizer_of
from sorl.spec import InputError, RunSettings
from tests.learn import real_model

WORLD = {"max_turns": 3, "max_turn_tokens": 48}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_model.write(tmp_path_factory.mktemp("model") / "qwen2")


def settings_with(folder: Path, **warm: object) -> RunSettings:
    told = {"model": str(folder), "prompt": "plain", "world": WORLD}
    return RunSettings.model_validate({**told, **({"warmstart": warm} if warm else {})})


def test_a_model_imitates_nothing_unless_it_is_told_to(folder: Path, tmp_path: Path) -> None:
    plain = settings_with(folder)
    assert (plain.warmstart.steps, plain.warmstart.lr, plain.warmstart.batch) == (0, 5e-5, 24)
    assert is_cached(plain, tmp_path)
    assert ensure(plain, tmp_path) == folder
    assert result_of(folder) is None
    assert RunSettings().warmstart.steps == 240
    stored = RunSettings.model_validate_json(plain.model_dump_json())
    assert stored == plain


def loss_of(folder: Path) -> float:
    """Nats a written token of demonstrations that were not imitated."""
    tokenizer = tokenizer_of(folder)
    world = Facts(settings_with(folder).world)
    shown = demonstrations(world, 8, 0.0, seed=99, codec=Codec(tokenizer, "plain"))
    batch = collate(shown, tokenizer.pad_token_id)
    with torch.no_grad():
        log_probs, _ = networks.log_probs(networks.load(folder), batch.tokens, where=batch.mask)
    return float(-log_probs[batch.mask].mean())


def test_imitation_is_made_once_kept_and_examined(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmstart, "HELD_OUT", 6)
    settings = settings_with(folder, steps=40, batch=6, lr=3e-3)
    assert not is_cached(settings, tmp_path)
    warm = ensure(settings, tmp_path)
    assert is_cached(settings, tmp_path)
    assert ensure(settings, tmp_path) == warm
    assert loss_of(warm) < 0.7 * loss_of(folder)
    assert tokenizer_of(warm).get_vocab() == tokenizer_of(folder).get_vocab()
    told = result_of(warm)
    assert told is not None
    assert (told.steps, told.questions) == (40, 6)
    assert told.greedy[1] <= told.greedy[0] <= told.greedy[2]
    assert told.sentence.startswith("after 40 steps of imitation: ")


def test_other_weights_or_another_wording_are_another_warm_start(folder: Path, tmp_path: Path) -> None:
    settings = settings_with(folder, steps=2)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    moved = settings.model_copy(update={"model": str(copy)})
    assert key(moved) == key(settings), "the content counts, and not the place"
    assert key(settings.model_copy(update={"prompt": "search-r1"})) != key(settings)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rope_theta": 5.0}))
    assert key(moved) != key(settings)


def test_a_bound_on_a_pass_of_imitation_changes_no_gradient(folder: Path) -> None:
    settings = settings_with(folder, steps=1, batch=6)
    tokenizer = tokenizer_of(folder)
    world = Facts(settings.world)
    shown = demonstrations(world, 6, 0.3, seed=7, codec=Codec(tokenizer, "plain"))
    longest = max(len(episode.tokens) for episode in shown)
    gradients = []
    counts = []
    for budget in (None, 2 * longest, 1):
        compute = settings.compute.model_copy(update={"micro_batch_tokens": budget})
        bounded = settings.model_copy(update={"compute": compute})
        model = networks.load(folder)
        warmstart._imitate_batch(bounded, model, shown, tokenizer.pad_token_id)
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
        counts.append(len(warmstart._parts(bounded, shown)))
    assert counts[0] == 2
    assert 3 <= counts[1] < 6
    assert counts[2] == 6
    for bounded_gradient in gradients[1:]:
        torch.testing.assert_close(bounded_gradient, gradients[0], rtol=1e-4, atol=1e-6)


def test_a_data_set_has_nothing_to_imitate(folder: Path, tmp_path: Path) -> None:
    settings = settings_with(folder, steps=2)
    retriever = {"kind": "http", "url": "http://127.0.0.1:9/retrieve"}
    asked = {"kind": "dataset", "data": "x.jsonl", "retriever": retriever}
    other = RunSettings.model_validate({**settings.model_dump(), "world": asked})
    with pytest.raises(InputError, match=r"set warmstart.steps = 0"):
        ensure(other, tmp_path)

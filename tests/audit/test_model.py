"""The audit of a run of a pretrained model: its world is asked again through the model's own tokenizer."""

import shutil
from pathlib import Path

import pytest

from sorl.audit import Check, audit
from tests.learn import real_model
from tests.learn.tiny import MakeRun

OF_THE_WORLD = ["transcripts", "loss_mask", "reward"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return real_model.write(tmp_path / "qwen2")


def run_of(trained: MakeRun, model: Path, seed: int) -> Path:
    return trained(
        seed=seed,
        iterations=1,
        model=str(model),
        warmstart={"steps": 0},
        evaluation={"every": 0, "episodes": 2},
        world={"max_turns": 2, "max_turn_tokens": 24},
        learn={"episodes": 4, "staleness": 0},
    )


def checks_of(run: Path) -> dict[str, Check]:
    return {check.identity: check for check in audit(run, [0], OF_THE_WORLD)}


def test_transcripts_of_a_model_are_checked_by_its_tokenizer(trained: MakeRun, model: Path) -> None:
    found = checks_of(run_of(trained, model, seed=0))
    assert [name for name in OF_THE_WORLD if found[name].violated or found[name].missing] == []


def test_a_model_that_is_elsewhere_is_named(trained: MakeRun, model: Path) -> None:
    run = run_of(trained, model, seed=1)
    shutil.rmtree(model)
    for check in checks_of(run).values():
        assert f"there is no folder '{model}' here" in check.missing

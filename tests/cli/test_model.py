"""`sorl model trim`: what it keeps, what it prints, and what it says of wrong input."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from sorl.learn.warmstart import tokenizer_of
from tests.cli.command import done, refused
from tests.learn import real_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_model.write(tmp_path_factory.mktemp("model") / "qwen2")


def test_a_model_is_trimmed_to_a_text(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The capital of Peru is Lima.\n", encoding="utf-8")
    said = done("model", "trim", model, tmp_path / "small", "--text", text).stdout
    small = tokenizer_of(tmp_path / "small")
    whole = tokenizer_of(model)
    assert said.startswith(f"kept {len(small):,} of {len(whole):,} tokens and ")
    line = text.read_text().strip()
    assert small.tokenize(line) == whole.tokenize(line)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "small").config.vocab_size == len(small)


def test_a_model_is_trimmed_to_the_worlds_of_a_grid(model: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'question = "What does it read?"\n[base]\nprompt = "plain"\n[base.world]\nmax_turns = 2\n'
    )
    done("model", "trim", model, tmp_path / "small", "--grid", grid)
    small = tokenizer_of(tmp_path / "small")
    asked = "who is the mentor of the rival of alice ?"
    assert small.tokenize(asked) == tokenizer_of(model).tokenize(asked)


def test_wrong_input_is_one_line(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("x\n")
    small = tmp_path / "small"
    none = tmp_path / "none"
    refused("give --grid FILE.toml or --text FILE", "model", "trim", model, small)
    refused("no model at", "model", "trim", none, small, "--text", text)
    refused("cannot read", "model", "trim", model, small, "--text", none)
    refused("exists already", "model", "trim", model, model, "--text", text)
    assert not small.exists()

"""The examples of CONTRIBUTING.md are what they say: an algorithm in one declaration, and as a line of a grid."""

import re
import tomllib
from pathlib import Path
from typing import Any

import torch

import workbench.algorithms
from tests.algorithms.ragged import ragged
from workbench.algorithms import ALGORITHMS, differences, resolve
from workbench.objective import KINDS, policy_loss, prepare

TEXT = (Path(workbench.algorithms.__file__).parents[2] / "CONTRIBUTING.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return found.group(1)


def example() -> Any:
    names: dict[str, Any] = {}
    exec(block("python"), names)
    return names["TURN_GSPO"]


def test_the_example_is_a_declaration_like_the_others():
    assert len(block("python").splitlines()) <= 25
    made = example()
    assert made.name not in ALGORITHMS
    assert set(differences(ALGORITHMS["gspo"], made)) == {"ratio", "clip"}
    assert made.differs_from == "gspo"


def test_the_example_can_be_trained():
    known = {**ALGORITHMS, "turn-gspo": example()}
    made = resolve("turn-gspo", known=known)
    batch, new = ragged(0)
    leaf = new.requires_grad_()
    policy_loss(made, prepare(made, batch), leaf).loss.backward()
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()
    assert bool(leaf.grad.any())


def test_the_line_of_a_grid_is_the_same_algorithm():
    line = tomllib.loads(block("toml"))["algorithm"]
    made, wanted = resolve(line), example()
    assert all(getattr(made, slot) == getattr(wanted, slot) for slot in KINDS)

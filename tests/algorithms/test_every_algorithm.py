"""The named algorithms: what they declare, and what distinguishes them."""

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import sorl.algorithms
from docs.generate.render import algorithms as page
from sorl.algorithms import ALGORITHMS, ALIASES, by_family, differences, resolve
from sorl.objective import FAMILIES, KINDS, Algorithm
from sorl.objective.ratio import Pool
from sorl.objective.slot import Slot
from sorl.objective.stabilise import RmsBatch, Stabiliser
from tests.objective.batches import EVERY


@pytest.mark.parametrize(("slot", "choices"), EVERY.items())
def test_every_kind_is_among_those_that_the_random_pipelines_draw(slot: str, choices: list[object]) -> None:
    assert {type(choice) for choice in choices} == set(KINDS[slot].values())


def test_the_declarations_are_read_without_torch():
    code = (
        "import sys, sorl.algorithms, sorl.objective, sorl.collapse.rule\n"
        "assert sorl.algorithms.resolve({'base': 'st-ppo', 'ratio': 'turn'}).stabilise.tau == 3\n"
        "assert 'torch' not in sys.modules\nimport torch\n"
        "from sorl.tensors import torch as ours\nassert ours.float64 is torch.float64"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_core_grid_is_there_in_its_order_and_the_alias_is_the_second_versions_name():
    assert ALIASES == {"so-ppo": "st-ppo"}
    assert resolve("so-ppo") is ALGORITHMS["st-ppo"]
    assert list(ALGORITHMS)[:6] == ["ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"]
    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())


def test_what_is_said_of_an_algorithm_is_its_own():
    """A declaration says what differs from its base; it must not inherit the base's claim."""
    said = [a.claim for a in ALGORITHMS.values()]
    assert all(said)
    repeated = {text for text in said if said.count(text) > 1}
    assert repeated == {ALGORITHMS["grpo-guard"].claim}
    for name in (
        "turn-ppo-mdp",
        "sspo",
        "seeupo",
        "minirl",
        "sapo-search",
        "grpo-guard",
        "grpo-guard-full",
        "mis",
    ):
        assert ALGORITHMS[name].experimental, name
    assert "reweighting" in ALGORITHMS["grpo-guard"].experimental
    assert ALGORITHMS["gspo"].differs_from == "grpo"


def test_what_is_read_into_the_paper_of_the_core_says_which_reading_it_is():
    readings = {name: a.experimental for name, a in ALGORITHMS.items() if a.paper.endswith("2511.20718")}
    assert set(readings) == {"turn-ppo", "s-ppo", "st-ppo", "so-grpo", "so-ppo-note"}
    assert "a note's objective" in readings.pop("so-ppo-note")
    assert all("authors' development fork" in said for said in readings.values())
    for name, conflict in (
        ("turn-ppo", "arithmetic"),
        ("s-ppo", "`cnorm`"),
        ("st-ppo", "KL(theta || old)"),
        ("so-grpo", "turn-level rewards"),
    ):
        assert conflict in readings[name]
        assert name == "turn-ppo" or "> 3" in readings[name]
    assert len({a.paper for a in (ALGORITHMS["mis"], ALGORITHMS["icepop"])}) == 2


def test_critics_groups_references_and_differences():
    ppo = ALGORITHMS["ppo"]
    st_ppo = ALGORITHMS["st-ppo"]
    assert differences(ppo, st_ppo) == {
        "ratio": (Pool(), Pool("turn")),
        "stabilise": (Stabiliser(), RmsBatch()),
    }
    assert differences(ppo, ppo) == {}
    critics = {"ppo": 1, "turn-ppo": 1, "s-ppo": 1, "st-ppo": 1, "starpo": 1, "starpo-s": 8}
    assert {name: ALGORITHMS[name].group_size for name in critics} == critics
    assert all(ALGORITHMS[name].critic for name in critics)
    assert all(
        not ALGORITHMS[name].critic and ALGORITHMS[name].group_size == 8 for name in ("grpo", "so-grpo")
    )
    assert not any(a.needs_reference for a in ALGORITHMS.values())
    assert resolve("grpo", {"kl": "loss"}).needs_reference
    assert resolve("ppo", {"kl": {"kind": "reward"}}).needs_reference
    assert resolve("ppo", {"advantage": "rloo"}).group_size == 8
    assert not resolve("ppo", {"advantage": "rloo"}).critic


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_a_file_of_declarations_without_maths(family):
    tree = ast.parse((Path(sorl.algorithms.__file__).parent / f"{family}.py").read_text())
    _, *rest = tree.body
    declarations = [node for node in rest if isinstance(node, ast.Assign)]
    assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in rest)
    assert len(declarations) == len(dict(by_family())[FAMILIES[family]]), "each is found by itself"
    assert all(node.end_lineno - node.lineno < 25 for node in declarations)
    assert "torch" not in ast.dump(tree)


def test_slots_are_the_fields_of_an_algorithm_in_their_order():
    assert [f.name for f in fields(Algorithm) if f.name in KINDS] == list(KINDS)
    for slot, kinds in KINDS.items():
        assert all(kind == choice.kind for kind, choice in kinds.items())
        base = next(c for c in type(getattr(ALGORITHMS["ppo"], slot)).__mro__ if Slot in c.__bases__)
        for choice in kinds.values():
            assert isinstance(choice(), base)


def test_the_page_shows_every_algorithm_and_every_kind_with_its_defaults():
    text = page({"ppo": "`a_grid`: 1 of 3 runs collapsed"})
    assert text.count("\n## ") == len(ALGORITHMS) + len(KINDS)
    for title in FAMILIES.values():
        assert f"| **{title}** |" in text
    assert text.count("- Measured: `a_grid`: 1 of 3 runs collapsed.") == 1
    assert text.count("- Measured: not measured yet.") == len(ALGORITHMS) - 1
    assert text.count("- Experimental: ") == sum(bool(a.experimental) for a in ALGORITHMS.values())
    for algorithm in ALGORITHMS.values():
        assert f"- Claimed: {algorithm.claim}." in text
        assert algorithm.paper.startswith("https://arxiv.org/abs/")
        assert all((algorithm.formula, algorithm.title, algorithm.summary, algorithm.paper in text))
        assert f"$${algorithm.formula}$$" in text
    assert "| `st-ppo` (experimental) | `turn-ppo` with another stabilise |" in text
    assert "| `ppo` | low = 0.2; high = 0.2; dual = none; gate = token |" in text
    assert "| stabilise | `rms_batch` tau = 3.0, smooth = false, scope = micro |" in text
    assert "`so-ppo` is accepted for `st-ppo`." in text
    for kinds in KINDS.values():
        for kind in kinds:
            assert f"\n| `{kind}` |" in text
    kinds_of_slots = text[text.index("## Slot") :].splitlines()
    assert all(line.replace("\\|", "").count("|") == 4 for line in kinds_of_slots if line.startswith("| `"))

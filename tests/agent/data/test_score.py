import json
from pathlib import Path

import pytest

from workbench.agent.worlds import best, choice, exact_match, f1

CASES = json.loads(Path(__file__).with_name("squad_cases.json").read_text())
CHOICES = (("A", "Aspirin"), ("B", "A beta blocker"), ("C", "Vitamin C"), ("D", "Bed rest"))


def test_exact_match_and_f1_are_squads_on_every_recorded_case() -> None:
    assert len(CASES) >= 300
    assert 40 < sum(case["em"] for case in CASES) < 200  # both outcomes, and partial overlaps, are among them
    assert sum(0 < case["f1"] < 1 for case in CASES) > 60
    for case in CASES:
        assert best(exact_match, case["answer"], case["golds"]) == case["em"], case
        assert best(f1, case["answer"], case["golds"]) == pytest.approx(case["f1"], abs=1e-6), case


@pytest.mark.parametrize(
    ("answers", "letter"),
    [
        (("A", "a", "(A) aspirin", "aspirin"), "A"),
        (("(b)", "B: a beta blocker", "The beta blocker."), "B"),
        (("C.", "C) Vitamin C", "vitamin c"), "C"),
        ((" D ",), "D"),
        (("E", "", "A patient needs rest", "E. Aspirin", "neither", "A B"), None),
    ],
)
def test_a_choice_is_read_from_its_letter_its_text_or_both(answers: tuple[str, ...], letter: str | None) -> None:
    assert {choice(answer, CHOICES) for answer in answers} == {letter}

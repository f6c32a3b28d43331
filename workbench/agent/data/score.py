"""Judging an answer by several gold answers, or by the letters of a multiple choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from workbench.agent.protocol import normalise

Choices = Sequence[tuple[str, str]]
_LETTER = re.compile(r"\W*([A-Za-z])\W*")  # "B", "(b)", "B."
_LETTERED = re.compile(r"\W*([A-Za-z])\s*[).:]\s*(.+)", re.DOTALL)  # "B. aspirin", "(B) aspirin"; not "A patient"


def best(metric: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    """The highest score of `answer` over the gold answers, as SQuAD and Search-R1 judge."""
    return max(metric(answer, gold) for gold in golds)


def choice(answer: str, choices: Choices) -> str | None:
    """The letter that `answer` chooses: by the letter, by letter and text, or by the text alone; None for no choice."""
    letters = {letter for letter, _ in choices}
    alone = _LETTER.fullmatch(answer)
    if alone and alone.group(1).upper() in letters:
        return alone.group(1).upper()
    texts = {normalise(text): letter for letter, text in choices}
    if normalise(answer) in texts:
        return texts[normalise(answer)]
    lettered = _LETTERED.fullmatch(answer.strip())
    return lettered.group(1).upper() if lettered and lettered.group(1).upper() in letters else None


def with_choices(question: str, choices: Choices) -> str:
    """The question with its choices below it, a line each, answered by a letter."""
    return "\n".join([question, *(f"{letter}. {text}" for letter, text in choices), "Answer with one letter."])

"""One question of a data set, and how each known row format becomes one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_ASKED = re.compile(r".*Question:(.*)", re.DOTALL)  # the last one: templates explain themselves before they ask


@dataclass(frozen=True)
class Item:
    """A question with every accepted answer; `choices` maps letters to texts where it is multiple choice."""

    id: str
    question: str
    answers: tuple[str, ...]
    choices: tuple[tuple[str, str], ...] = ()
    source: str = ""  # data set that the row says it is from


class NotARow(ValueError):
    """A row that is in none of the known formats; the message says what it has."""


def item_of(row: Mapping[str, Any], number: int) -> Item | None:
    """The item of one row, `number` being its id where it has none; None where it has no gold answer at all.

    MedQA: `question`, `options`, `answer_idx`. FlashRAG: `question`, `golden_answers`. Search-R1's parquet: the same
    with `data_source`, `prompt` and `reward_model.ground_truth.target`, which is preferred because it is what is
    trained on; without a column `question` it is read from the prompt. Raises NotARow for anything else.
    """
    if _given(row, "options"):
        return _multiple_choice(row, number)
    question, answers = _question(row), _answers(row)
    if question is None or answers is None:
        raise NotARow(
            f"a row has the columns {', '.join(map(str, row))}; known are FlashRAG's (question, golden_answers), "
            "Search-R1's (prompt, reward_model) and MedQA's (question, options, answer_idx)"
        )
    source = str(row["data_source"]) if _given(row, "data_source") else ""
    return Item(_id(row, number), question, answers, source=source) if answers else None


def _multiple_choice(row: Mapping[str, Any], number: int) -> Item | None:
    question, options = _text(row.get("question")), row["options"]
    if isinstance(options, Mapping):
        choices = tuple(
            (str(letter).strip().upper(), str(text)) for letter, text in options.items() if text is not None
        )
    elif all(isinstance(option, Mapping) for option in options):  # [{"key": "A", "value": ...}], as the hub stores it
        choices = tuple((str(option["key"]).strip().upper(), str(option["value"])) for option in options)
    else:
        choices = tuple(zip("ABCDEFGHIJ", map(str, options), strict=False))
    letter = _text(row.get("answer_idx")) or next((k for k, text in choices if text == row.get("answer")), None)
    if question is None or letter is None:
        return None
    if letter.upper() not in dict(choices):
        raise NotARow(f"the right choice is {letter!r}, the choices are {', '.join(k for k, _ in choices)}")
    return Item(_id(row, number), question, (letter.upper(),), choices)


def _question(row: Mapping[str, Any]) -> str | None:
    if (question := _text(row.get("question"))) is not None:
        return question
    if not _given(row, "prompt"):
        return None
    messages = [m["content"] for m in row["prompt"] if m.get("role") == "user"]
    asked = _ASKED.fullmatch(messages[-1]) if messages else None
    return _text(asked.group(1)) if asked else None


def _answers(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Gold answers, empty ones and repetitions dropped; None for a row that has no place for them."""
    reward = row.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if target is None and not _given(row, "golden_answers"):
        return () if "golden_answers" in row else None
    given = row["golden_answers"] if target is None else target
    several = [given] if isinstance(given, (str, int, float)) else given
    texts = [_text(answer) for answer in several] if isinstance(several, Iterable) else []
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _text(value: Any) -> str | None:
    """`value` as text, None for nothing and for blanks; 1969.0, which pandas makes of a column with gaps, is 1969."""
    if value is None or value != value:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.strip() or None


def _given(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None


def _id(row: Mapping[str, Any], number: int) -> str:
    return str(row["id"]) if _given(row, "id") else str(number)

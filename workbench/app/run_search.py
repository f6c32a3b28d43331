"""Find runs by words and conditions, such as `staleness > 4 and outcome = collapsed`.

What was not understood is said, part by part, so that an empty answer is never one of a misread question.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sorl.spec import nearest

_PART = re.compile(r'(?:"[^"]*"|[^",])+|"[^"]*$')
_AND = re.compile(r"\s+and\s+(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", re.IGNORECASE)
_CONDITION = re.compile(r"([^<>=!]*?)\s*(<=|>=|!=|==|<|>|=)\s*(.*)")
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_PREFERRED = "learn.policy."  # of settings that end alike, such as the learning rates of policy and critic
_LISTS = ("tags",)  # columns whose cells are lists, joined by commas


@dataclass(frozen=True)
class Found:
    """The runs that fulfil all that was understood, and sentences about the rest."""

    runs: pd.DataFrame
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Condition:
    column: str
    sign: str
    value: str


def find_runs(table: pd.DataFrame, asked: str, settings: pd.DataFrame | None = None) -> Found:
    """Rows of `table` that fulfil all parts of `asked`: parts stand between commas or the word `and`.

    A condition names a column of the table or of `settings`, which has a row for the same runs, or the end of
    its dotted name. Any other part is looked for in all cells. Quotes keep a comma or an `and` together.
    """
    remarks: list[str] = []
    keep = pd.Series(True, index=table.index)
    columns = table if settings is None else table.join(settings.drop(columns=list(table), errors="ignore"))
    for part in split_parts(asked):
        match = _CONDITION.fullmatch(part)
        if match is None:
            keep &= _with_word(table, _unquoted(part), remarks)
            continue
        condition = _read_condition(match, table, columns, remarks)
        if condition is not None:
            keep &= _fulfilled(columns[condition.column], condition, remarks)
    return Found(table[keep], remarks)


def split_parts(asked: str) -> list[str]:
    """What stands between commas and the word `and`, outside of quotes."""
    parts: list[str] = []
    for stretch in _PART.findall(asked):
        parts.extend(part.strip() for part in _AND.split(f" {stretch} "))
    return [part for part in parts if part and part.casefold() != "and"]


def _read_condition(
    match: re.Match[str], table: pd.DataFrame, columns: pd.DataFrame, remarks: list[str]
) -> _Condition | None:
    """The condition that a part says; None where it is not understood, which is remarked."""
    part = match[0]
    name, sign, value = match.groups()
    if not name:
        remarks.append(f"'{part}' names no column, and is left out.")
        return None
    named = _columns_called(_unquoted(name), columns)
    if not named:
        close = nearest(name.casefold(), [_last_name(column) for column in columns])
        remarks.append(f"No column or setting is called '{name}'{close}; '{part}' is left out.")
        return None
    if not value and sign in _ORDERS:
        remarks.append(f"'{part}' compares with nothing, and is left out.")
        return None
    column = _preferred(named, table)
    if len(named) > 1:
        others = ", ".join(other for other in named if other != column)
        remarks.append(f"'{name}' was read as {column}, not as {others}.")
    return _Condition(column, "=" if sign == "==" else sign, _unquoted(value))


def _columns_called(name: str, columns: pd.DataFrame) -> list[str]:
    """The column of that name, or all whose dotted name ends so."""
    wanted = name.casefold()
    exact = [str(column) for column in columns if str(column).casefold() == wanted]
    return exact or [str(column) for column in columns if str(column).casefold().endswith(f".{wanted}")]


def _preferred(named: list[str], table: pd.DataFrame) -> str:
    """Of columns that end alike one of the table, in which the runs differ; else the policy's."""
    shown = [column for column in named if column in table]
    policy = [column for column in shown or named if column.startswith(_PREFERRED)]
    return (policy or shown or named)[0]


def _last_name(column: Any) -> str:
    return str(column).rsplit(".", 1)[-1]


def _fulfilled(cells: pd.Series, condition: _Condition, remarks: list[str]) -> pd.Series:
    """Which runs fulfil a condition. A run without a value fulfils none, but `!=`."""
    wanted = as_number(condition.value)
    if condition.sign in _ORDERS:
        if wanted is None:
            remarks.append(f"'{condition.value}' is no number to compare {condition.column} with.")
            return pd.Series(False, index=cells.index)
        numbers = cells.map(as_number)
        return numbers.map(lambda number: number is not None and _holds(condition.sign, number, wanted))
    equal = _equal(cells, condition.column, condition.value, wanted)
    return ~equal if condition.sign == "!=" else equal


def _holds(sign: str, number: float, wanted: float) -> bool:
    return bool(_ORDERS[sign](number, wanted))


def _equal(cells: pd.Series, column: str, value: str, wanted: float | None) -> pd.Series:
    """Which cells are that number or that text; where no cell is, which have the text as whole words."""
    numbers = cells.map(as_number)
    if wanted is not None and numbers.notna().any():
        return numbers.map(lambda number: number is not None and math.isclose(number, wanted))
    texts = cells.map(_text).str.casefold()
    text = value.casefold()
    if column in _LISTS:
        return texts.map(lambda cell: text in cell.split(", "))
    exact = texts == text
    if exact.any() or not text:
        return exact
    return texts.str.contains(rf"(?<!\w){re.escape(text)}(?!\w)", regex=True)


def _with_word(table: pd.DataFrame, word: str, remarks: list[str]) -> pd.Series:
    """Which runs have the word in any cell; remarked where none has."""
    holds = pd.Series(False, index=table.index)
    for column in table:
        holds |= table[column].map(_text).str.contains(word, case=False, regex=False)
    if not holds.any() and len(table):
        remarks.append(f"'{word}' is in no cell of the table.")
    return holds


def as_number(value: Any) -> float | None:
    """A number, also as text or in per cent; None for all else, NaN and truth values included."""
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    scale = 0.01 if text.endswith("%") else 1.0
    try:
        number = float(text.removesuffix("%")) * scale
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _unquoted(text: str) -> str:
    return text.strip().strip('"').strip()

"""Numbers as people and programs write them, a metric at a time: `1,000`, `0,5`, `12%`, `np.float64(0.5)`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

# float64: masked where nothing was logged; NaN and infinities are values
Column = np.ma.MaskedArray[Any, Any]

LARGEST = 1e100  # what no sum of some thousands would hold is infinite
LONGEST = 64  # characters of a number
NULL_WORDS = frozenset(("", "-", "--", "na", "n/a", "#n/a", "none", "null", "nil", "<na>", "?"))

_WRAPPED = re.compile(
    r"(?:[A-Za-z_][\w.]*)\(\s*([^(),]+?)\s*(?:,.*)?\)"
)  # of tensor(0.5, device='x') the 0.5
_DIGITS = re.compile(r"[+-]?(?:\d[\d,.'’_ \u00a0\u202f]*)(?:[eE][+-]?\d+)?")
_SPACES = re.compile(r"['’_ \u00a0\u202f](?=\d{3}(?!\d))")  # between groups of thousands
_COMMA_GROUPS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_ONE_GROUP = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # thousands, or three digits behind a decimal comma
_COMMA_DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d*),\d+(?:[eE][+-]?\d+)?")


class NumberReader:
    """Reads the values of one metric as numbers, and remembers how they were written and what was none.

    Whether a comma groups thousands or begins the decimals is decided by the first values that leave no
    choice, for the whole metric.
    """

    def __init__(self, *, decimal_comma: bool | None = None) -> None:
        self._decimal_comma = decimal_comma
        self.commas = ""  # how commas were read: "thousands separators" or "decimal points"
        self.percent = False
        self.unreadable = 0  # values that are neither numbers nor nothing
        self.first_unreadable = ""  # the first of them
        self.first_position = 0  # of its row

    def read(self, values: Sequence[Any], positions: Sequence[int] | np.ndarray) -> Column:
        """Return values as a column: None and what is no number is masked; "nan" and "inf" are numbers.

        `positions` are those of their rows in the log.
        """
        try:
            numbers = np.array(values, dtype=float)
            if numbers.ndim != 1:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            return self._read_each(values, positions)
        mask: Any = np.array([value is None for value in values]) if None in values else np.ma.nomask
        return column(numbers, mask)

    def _read_each(self, values: Sequence[Any], positions: Sequence[int] | np.ndarray) -> Column:
        self._decide_comma([value for value in values if isinstance(value, str) and "," in value])
        numbers: list[float] = []
        masked: list[bool] = []
        for position, value in zip(positions, values, strict=True):
            number = self._number(value)
            if number is None and not _is_null(value):
                if not self.unreadable:
                    self.first_unreadable = str(value)[:LONGEST]
                    self.first_position = int(position)
                self.unreadable += 1
            numbers.append(math.nan if number is None else number)
            masked.append(number is None)
        return column(np.array(numbers, dtype=float), np.array(masked))

    def _number(self, value: Any) -> float | None:
        if isinstance(value, str):
            return self._number_of_text(value.strip())
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
        except (ValueError, TypeError):
            return None

    def _number_of_text(self, text: str) -> float | None:
        wrapped = _WRAPPED.fullmatch(text) if text.endswith(")") else None
        bare = (wrapped[1] if wrapped else text).strip("\"'")
        if len(bare) > LONGEST:
            return None
        if bare.endswith("%"):
            number = self._number_of_text(bare[:-1].rstrip())
            self.percent = self.percent or number is not None
            return None if number is None else number / 100
        try:
            return float(bare)
        except ValueError:
            pass
        if not _DIGITS.fullmatch(bare):
            return None
        plain = _SPACES.sub("", bare)
        if "," in plain:
            plain = self._without_comma(plain)
        try:
            return float(plain)
        except ValueError:
            return None

    def _without_comma(self, text: str) -> str:
        if self._decimal_comma and _COMMA_DECIMAL.fullmatch(text):
            self.commas = "decimal points"
            return text.replace(".", "").replace(",", ".")
        if not self._decimal_comma and _COMMA_GROUPS.fullmatch(text):
            self.commas = "thousands separators"
            return text.replace(",", "")
        return text

    def _decide_comma(self, texts: Sequence[str]) -> None:
        """Decide what commas mean, by the first text that has one reading only."""
        if self.commas:
            return
        for text in texts:
            plain = text.strip().strip("\"'").rstrip("% ")
            groups = bool(_COMMA_GROUPS.fullmatch(plain))
            decimals = bool(_COMMA_DECIMAL.fullmatch(plain))
            if groups and not _ONE_GROUP.fullmatch(plain):
                self._decimal_comma = plain.lstrip("+-").startswith("0,")
                return
            if decimals and not groups:
                self._decimal_comma = True
                return

    def notes(self, metric: str) -> list[str]:
        """Return sentences on how the values of a metric were written."""
        sentences = []
        if self.commas:
            sentences.append(f"'{metric}': commas were read as {self.commas}")
        if self.percent:
            sentences.append(f"'{metric}': percent signs were read as hundredths")
        return sentences


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in NULL_WORDS)


def column(values: np.ndarray, mask: Any) -> Column:
    """Return a column of floats, where what is larger than LARGEST is infinite."""
    with np.errstate(invalid="ignore"):
        large = np.abs(values) > LARGEST
    if large.any():
        values = np.where(large, np.sign(values) * np.inf, values)
    return np.ma.MaskedArray(values, mask)

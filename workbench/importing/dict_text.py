"""Dictionaries in the middle of text, as Python and JSON print them: `{'loss': 0.1, "kl": nan, 'n': '3'}`."""

from __future__ import annotations

import re
from typing import Any

DEPTH = 16  # dictionaries and lists inside each other
_DIGITS = 16  # below which a whole number stays one
LONGEST = 262_144  # characters of a dictionary

_SPACE = re.compile(r"[\s,]*")
_KEY = re.compile(
    r"""(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([A-Za-z_][\w./@-]*))\s*:\s*(?!:)""",
    re.DOTALL,
)
_STRING = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_NUMBER = re.compile(
    r"[+-]?(?:\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)\b", re.I
)
_CALL = re.compile(r"[A-Za-z_][\w.]*\(")
_WORD = re.compile(r"[^\s,{}\[\]()]+")
_BRACKETS = {"[": "]", "(": ")"}


class NotADict(ValueError):
    """A text that does not go on as a dictionary would."""


class DictReader:
    """Reads one dictionary of a text, from a brace or from its first key on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    def read_braced(self, position: int) -> dict[str, Any]:
        """Return the dictionary whose brace stands at `position`. Raises NotADict where there is none."""
        self.position = position
        return self._braced(DEPTH)

    def read_bare(self, position: int) -> dict[str, Any]:
        """Return the pairs `'key': value, ...` from `position` on, as far as they go."""
        self.position = position
        pairs: dict[str, Any] = {}
        while True:
            key = self._key()
            if key is None:
                return pairs
            try:
                pairs[key] = self._value(DEPTH)
            except NotADict:
                return pairs

    def _braced(self, deep: int) -> dict[str, Any]:
        if not deep or self._peek() != "{":
            raise NotADict
        self.position += 1
        pairs: dict[str, Any] = {}
        while True:
            self._skip_space()
            if self._peek() == "}":
                self.position += 1
                return pairs
            key = self._key()
            if key is None:
                raise NotADict
            pairs[key] = self._value(deep - 1)

    def _peek(self) -> str:
        return self._text[self.position : self.position + 1]

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self.position)
        if match is not None:
            self.position = match.end()

    def _key(self) -> str | None:
        self._skip_space()
        match = _KEY.match(self._text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return next(part for part in match.groups() if part is not None)

    def _value(self, deep: int) -> Any:
        first = self._peek()
        if first == "{":
            return self._braced(deep)
        if first in _BRACKETS:
            return self._list(deep, _BRACKETS[first])
        string = _STRING.match(self._text, self.position)
        if string is not None:
            self.position = string.end()
            return string[1] if string[1] is not None else string[2]
        number = _NUMBER.match(self._text, self.position)
        if number is not None:
            self.position = number.end()
            return _number_of(number[0])
        call = _CALL.match(self._text, self.position)
        if call is not None:
            self.position = call.end() - 1
            inside = self._list(deep, ")")
            return inside[0] if inside else None
        word = _WORD.match(self._text, self.position)
        if word is None:
            raise NotADict
        self.position = word.end()
        return {"true": True, "false": False}.get(word[0].lower())

    def _list(self, deep: int, end: str) -> list[Any]:
        """Return the values of a list, a tuple or a call; a keyword among its arguments is passed over."""
        if not deep:
            raise NotADict
        self.position += 1
        values: list[Any] = []
        while True:
            self._skip_space()
            if self._peek() == end:
                self.position += 1
                return values
            if not self._peek():
                raise NotADict
            values.append(self._value(deep - 1))
            if self._peek() == "=":
                values.pop()
                self.position += 1


def _number_of(text: str) -> float:
    digits = text.replace("_", "")
    is_whole = digits.isdecimal() and len(digits) < _DIGITS
    return int(digits) if is_whole else float(digits)

"""Text files of any origin: UTF-8 or UTF-16, with damaged bytes, lines without an end, bars of progress."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from sorl.spec.files import MIB, encoding_of, open_file

LINE = 4 * MIB  # characters of a line that are read
ZEROS = "zeros instead of text (the number of rows is estimated)"
_LINE_ENDS = re.compile(r"[\r\n]")


class Line(NamedTuple):
    """A line of a log, without its end."""

    number: int  # from 1
    text: str
    ended: bool  # by a line end; the last line of a log may be cut off
    too_long: bool  # LINE characters or more: `text` is its beginning


def text_of(head: bytes) -> str:
    """Return the first bytes as text, without a character that they cut; empty for what is binary."""
    encoding = encoding_of(head)
    return "" if encoding == "utf-8-sig" and b"\0" in head else head.decode(encoding, errors="ignore")


def first_line(head: bytes) -> str:
    """Return the first line of a file's first bytes that is not blank."""
    return _LINE_ENDS.split(text_of(head).lstrip(), maxsplit=1)[0]


def opened(path: Path) -> TextIO:
    """Return a file as text, UTF-8 or UTF-16; bytes that are no text become a mark."""
    file = open_file(path)
    return io.TextIOWrapper(file, encoding_of(file.peek(2)), errors="replace")


class UsualLength:
    """The mean length of the lines so far, by which lost ones are counted."""

    def __init__(self) -> None:
        self._lines = 0
        self._characters = 0

    def add(self, text: str) -> None:
        """Take a line into the mean."""
        self._lines += 1
        self._characters += len(text) + 1

    def lines_in(self, text: str) -> int:
        """Return how many lines a stretch of text without line ends may have been."""
        usual = self._characters / self._lines if self._lines else len(text) + 1
        return max(1, round((len(text) + 1) / usual))


def numbered_lines(file: TextIO) -> Iterator[Line]:
    """Yield the lines of a text file; of a line without an end no more than LINE is held."""
    pieces = iter(partial(file.readline, LINE), "")
    for number, piece in enumerate(pieces, start=1):
        text = piece.removesuffix("\n")
        too_long = len(piece) >= LINE and not piece.endswith("\n")
        rest = piece
        while too_long and rest and not rest.endswith("\n"):
            rest = file.readline(LINE)
        yield Line(number, text, rest.endswith("\n"), too_long)

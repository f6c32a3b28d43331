"""Append-only streams of JSON lines, read forward only and across calls.

A stream is one file, or, in prime-rl, a folder of numbered chunks that are compressed once they are full.
After a crash the last line may be torn, and a relaunch goes on behind it in the same line.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from sorl.importing.dumps.files import LONGEST_LINE, decoded
from sorl.spec import InputError

BUFFER = 2**20  # bytes


class Record(NamedTuple):
    """One object of a stream."""

    value: dict[str, Any]
    size: int  # bytes of its line
    file: Path


class JsonStream:
    """A stream with a place in it: `read` goes on where the last call stopped.

    `path` is that of the folder of chunks; one file of that name with `.jsonl` is the older layout. `head` is
    how each line begins: with it the whole line behind a torn one is found.
    """

    def __init__(self, path: Path, head: bytes, note: Callable[[str], None]) -> None:
        self.path = path
        self.head = head
        self.torn_lines = 0
        self._note = note
        self._chunk = -1
        self._offset = 0  # bytes of text of the chunk that have been read
        self._file = path
        self._handle: IO[bytes] | None = None
        self._is_sealed = False  # the chunk is compressed, so it does not grow
        self._is_read = False  # of a sealed chunk: to its end

    @property
    def exists(self) -> bool:
        """Whether anything was written."""
        return bool(self._chunks())

    def read(self, *, is_live: bool) -> Record | None:
        """The next object; None where there is none yet. A last line without an end is left for later."""
        while self._handle is not None or self._open():
            line = self._line()
            if not line:
                if not self._advance():
                    return None
                continue
            if not line.endswith(b"\n") and self._is_unfinished(line, is_live):
                self.close()
                return None
            self._offset += len(line)
            value = self._value(line)
            if value is not None:
                return Record(value, len(line), self._file)
        return None

    def close(self) -> None:
        """Close the open file. Reading goes on at the same place later."""
        if self._handle is not None:
            self._handle.close()
        self._handle = None

    def _chunks(self) -> dict[int, Path]:
        """Files by number, the plain one where both are there: the compressed one may be unfinished then."""
        single = self.path.with_name(self.path.name + ".jsonl")
        if single.is_file():
            return {0: single}
        chunks: dict[int, Path] = {}
        for suffix in (".jsonl.zst", ".jsonl"):
            for file in self.path.glob(f"*{suffix}"):
                number = file.name.removesuffix(suffix)
                if number.isdigit():
                    chunks[int(number)] = file
        return chunks

    def _open(self) -> bool:
        if self._is_sealed and self._is_read:
            return self._advance() and self._open()
        chunks = self._chunks()
        if self._chunk not in chunks:
            following = [number for number in chunks if number > self._chunk]
            if not following:
                return False
            self._begin(min(following))
        self._file = chunks[self._chunk]
        self._is_sealed = self._file.suffix == ".zst"
        try:
            self._handle = _opened(self._file, self._offset)
        except FileNotFoundError:  # the plain file was replaced by a compressed one just now
            self._file = self._file.with_name(self._file.name + ".zst")
            self._is_sealed = True
            self._handle = _opened(self._file, self._offset)
        return True

    def _begin(self, chunk: int) -> None:
        if chunk > self._chunk + 1:
            self._note(
                f"'{self.path}' begins at, or goes on with, chunk {chunk}: chunks before it are missing."
            )
        self._chunk = chunk
        self._offset = 0
        self._is_read = False

    def _line(self) -> bytes:
        assert self._handle is not None
        try:
            line = self._handle.readline(LONGEST_LINE)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"'{self._file}' cannot be read: {str(error).splitlines()[0]}") from None
        if len(line) >= LONGEST_LINE:
            raise InputError(f"'{self._file}': a line is longer than {LONGEST_LINE >> 20} MiB")
        return line

    def _advance(self) -> bool:
        """Go to the next chunk, if there is one and this one has been read to its end."""
        following = [number for number in self._chunks() if number > self._chunk]
        self._is_read = self._is_sealed
        if not following:
            if self._is_sealed:
                self.close()
            return False
        if self._handle is not None and self._handle.readline(1):  # written since its end was met
            self.close()
            return True
        self.close()
        self._begin(min(following))
        return True

    def _is_unfinished(self, line: bytes, is_live: bool) -> bool:
        """Whether the end of the line may still come."""
        if any(number > self._chunk for number in self._chunks()):
            return False
        if is_live:
            return True
        return not _is_json(line)

    def _value(self, line: bytes) -> dict[str, Any] | None:
        """The object of a line, or None for a torn one with nothing behind it."""
        try:
            value = decoded(line)
        except (ValueError, RecursionError):
            return self._value_behind_torn(line)
        if not isinstance(value, dict):
            raise InputError(f"'{self._file}': a line at byte {self._offset - len(line)} is no JSON object")
        return value

    def _value_behind_torn(self, line: bytes) -> dict[str, Any] | None:
        behind = line.rfind(self.head)
        if not line.startswith(self.head[:1]) or (behind <= 0 and line.endswith(b"\n")):
            raise InputError(f"'{self._file}': a line at byte {self._offset - len(line)} is no JSON")
        self.torn_lines += 1
        if behind <= 0 or not _is_json(line[behind:]):
            return None
        value = decoded(line[behind:])
        return value if isinstance(value, dict) else None


def _is_json(line: bytes) -> bool:
    try:
        decoded(line)
    except (ValueError, RecursionError):
        return False
    return True


def _opened(file: Path, offset: int) -> IO[bytes]:
    """A chunk opened at a byte of its text."""
    if file.suffix != ".zst":
        handle = file.open("rb")
        handle.seek(offset)
        return handle
    try:
        text = io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(file)), "zstd"), BUFFER)
        left = offset
        while left and (skipped := len(text.read(min(left, BUFFER)))):
            left -= skipped
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(f"'{file}' cannot be read: {str(error).splitlines()[0]}") from None
    return text

"""A corpus: JSON lines `{"id": ..., "contents": ...}`, read by line number from a mapped file, never held in memory."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from workbench.spec import InputError
from workbench.spec.files import from_json

_CHUNK = 1 << 20
_EXAMPLE = '{"id": "0", "contents": "Lima is the capital of Peru."}'


def cache_folder() -> Path:
    """Where indices and built corpora lie: SORL_CACHE, else ~/.cache/sorl; deleting it loses nothing but time."""
    return Path(os.environ.get("SORL_CACHE") or Path.home() / ".cache" / "sorl")


class Corpus:
    """The passages of a JSONL file by line number; the file is memory-mapped and must not change while it is read."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"no corpus file '{path}'; a corpus has lines like {_EXAMPLE}")
        self.path = path
        if not path.stat().st_size:
            raise InputError(f"corpus '{path}' is empty; it needs lines like {_EXAMPLE}")
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts = _starts(self._bytes)  # (N + 1,) byte offsets of the lines

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, i: int) -> tuple[str, str]:
        """(id, contents) of line `i`, from 0. Raises InputError for a line that is not a passage."""
        line = self._bytes[self._starts[i] : self._starts[i + 1]]
        try:
            passage = from_json(line)
            return str(passage["id"]), _text(passage)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"line {i + 1} of corpus '{self.path}' is no passage ({type(error).__name__}: {error}); "
                f"a line looks like {_EXAMPLE}"
            ) from None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (self[i] for i in range(len(self)))

    def digest(self) -> str:
        """Hash of the content, for whatever is cached about it."""
        digest = hashlib.sha256()
        for start in range(0, len(self._bytes), _CHUNK):
            digest.update(self._bytes[start : start + _CHUNK])
        return digest.hexdigest()[:16]


def _text(passage: dict[str, object]) -> str:
    contents = passage["contents"]
    if not isinstance(contents, str):
        raise TypeError(f"contents is {type(contents).__name__}, not text")
    return contents


def _starts(content: mmap.mmap) -> np.ndarray:
    """Byte offsets of the lines that are not blank, and the end of the last one."""
    starts, at = [], 0
    while at < len(content):
        end = content.find(b"\n", at) + 1 or len(content)
        if not content[at:end].isspace():
            starts.append(at)
        at = end
    return np.array([*starts, len(content)], dtype=np.int64)

"""Retrievers: ranked passages of a corpus, found by BM25, by embeddings or by a server; the corpus and its
cache.
"""

import hashlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from sorl.spec import InputError, RetrieverSettings
from sorl.spec.files import from_json


class Passage(NamedTuple):
    """One passage of a corpus, as Search-R1's JSONL has it; the score is the retriever's own, higher is
    better.
    """

    id: str
    contents: str
    score: float


class Retriever(Protocol):
    """The one call that worlds and servers make of a retriever."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query at most `top_k` passages, best first; none without a match. Raises
        RetrieverDown.
        """


class RetrieverDown(ConnectionError):
    """The retriever gave no usable answer, after every retry; the message names it and says why."""


def retriever_of(settings: RetrieverSettings) -> Retriever:
    """Return the retriever that `settings` name. Raises InputError for a server that does not answer, or no
    corpus.
    """
    if settings.kind == "http":
        from sorl.agent.retrievers.http import HTTPRetriever

        client = HTTPRetriever(str(settings.url), settings.timeout, settings.retries, settings.batch)
        try:
            client.retrieve(["hello"], 1)
        except RetrieverDown as error:
            hint = "start it (sorl retriever serve --corpus FILE.jsonl) or set world.retriever.url"
            raise InputError(f"{error}; {hint}") from None
        return client
    from sorl.agent.retrievers.local import BM25, Dense

    corpus = Path(str(settings.corpus))
    return Dense(corpus, settings.model) if settings.kind == "dense" else BM25(corpus)


_EXAMPLE = '{"id": "0", "contents": "Lima is the capital of Peru."}'


def cache_folder() -> Path:
    """Return the folder of indices and built corpora: SORL_CACHE, else ~/.cache/sorl."""
    return Path(os.environ.get("SORL_CACHE") or Path.home() / ".cache" / "sorl")


def cached(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `make` on first use; two processes that race end with one whole folder."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        make(unfinished)
        os.rename(unfinished, folder)
    except OSError:
        if not folder.is_dir():  # or another process finished it first
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


class Corpus:
    """The passages of a JSONL file by line number; the file is memory-mapped and must not change while it is
    read.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"no corpus file '{path}'; a corpus has lines like {_EXAMPLE}")
        if not path.stat().st_size:
            raise InputError(f"corpus '{path}' is empty; it needs lines like {_EXAMPLE}")
        self.path = path
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        starts = []
        at = 0
        for line in iter(self._bytes.readline, b""):
            starts += [] if line.isspace() else [at]
            at += len(line)
        # (N + 1,) byte offsets of the lines, and the end
        self._starts = np.array([*starts, at], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, i: int) -> tuple[str, str]:
        """Return (id, contents) of line `i`, from 0. Raises InputError for a line that is not a passage."""
        line = self._bytes[self._starts[i] : self._starts[i + 1]]
        try:
            passage = from_json(line)
            contents = passage["contents"]
            if not isinstance(contents, str):
                raise TypeError(f"contents is {type(contents).__name__}, not text")
            return str(passage["id"]), contents
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"line {i + 1} of corpus '{self.path}' is no passage ({type(error).__name__}: {error}); "
                f"a line looks like {_EXAMPLE}"
            ) from None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (self[i] for i in range(len(self)))

    def digest(self) -> str:
        """Hash of the content, which names what is cached about it."""
        return hashlib.sha256(self._bytes).hexdigest()[:16]

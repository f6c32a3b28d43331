"""BM25 over a corpus (bm25s, Lucene's formula), with an index on disk that is built once for a content and mapped."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.agent.retrievers import Passage
from workbench.agent.retrievers.corpus import Corpus, cache_folder
from workbench.spec import InputError

_WORD = re.compile(r"\w+")  # one letter and one digit are words: symbols of elements, numbers
_FORMAT = "1"  # of the cached index; a change of the words above or of the formula is a new one
_K1, _B = 1.5, 0.75


def words(text: str) -> list[str]:
    """Return the words that passages and queries are matched by: lower case, no punctuation, no stemming."""
    return _WORD.findall(text.lower())


class BM25:
    """Passages ranked by BM25 (k1 = 1.5, b = 0.75); a passage that shares no word with the query is not returned."""

    def __init__(self, corpus: Path, cache: Path | None = None) -> None:
        self.corpus = Corpus(corpus)
        self._stop = frozenset(_bm25s().stopwords.STOPWORDS_EN)
        self._index: Any = _load(_ensure(self.corpus, (cache or cache_folder()) / "bm25"))

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query at most `top_k` passages, best first, ties in the order of the corpus."""
        return [self._rank(query, top_k) for query in queries]

    def _rank(self, query: str, top_k: int) -> list[Passage]:
        asked = words(query)
        # Stop words find nothing that the others do not, and "of" would rank "Isle of Man" first for a capital of Peru.
        ids = self._index.get_tokens_ids([word for word in asked if word not in self._stop] or asked)
        if not ids:
            return []
        scores = self._index.get_scores_from_ids(ids)  # (N,)
        found = []
        for _ in range(min(top_k, len(scores))):
            best = int(scores.argmax())  # the first of equals; np.partition is a hundred times slower on so many ties
            if scores[best] <= 0.0:
                break
            found.append(Passage(*self.corpus[best], float(scores[best])))
            scores[best] = 0.0
        return found


def _ensure(corpus: Corpus, cache: Path) -> Path:
    """Folder of the index of this content, made on first use; two processes that race end with one whole folder."""
    folder = cache / f"{corpus.digest()}-{_FORMAT}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    try:
        _build(corpus, unfinished)
        os.rename(unfinished, folder)
    except OSError:
        if not folder.is_dir():  # nobody else finished it first: the error is real
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _build(corpus: Corpus, folder: Path) -> None:
    vocabulary: dict[str, int] = {}
    passages = [
        array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in words(contents)]) for _, contents in corpus
    ]
    if not vocabulary:
        raise InputError(f"corpus '{corpus.path}' has no word in any passage, so nothing can be found in it")
    index = _bm25s().BM25(k1=_K1, b=_B, method="lucene")
    index.index((passages, vocabulary), create_empty_token=False, show_progress=False)
    index.save(folder, show_progress=False)


def _load(folder: Path) -> Any:
    return _bm25s().BM25.load(folder, mmap=True, show_progress=False)


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise InputError(
            "the retriever bm25 needs the package bm25s, which is not installed: pip install 'sorl[retrieval]'"
        ) from None
    return bm25s

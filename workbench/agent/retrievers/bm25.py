"""BM25 over a corpus (bm25s, Lucene's formula), with a memory-mapped index that is built once for a content."""

import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.agent.retrievers import Corpus, Passage, cache_folder, cached, missing
from workbench.spec import InputError

_WORD = re.compile(r"\w+")  # one letter and one digit are words: symbols of elements, numbers
_FORMAT = "1"  # of the cached index; a change of the words above or of the formula is a new one


def words(text: str) -> list[str]:
    """Return the words of a passage or query: lower case, no punctuation, no stemming."""
    return _WORD.findall(text.lower())


class BM25:
    """Passages ranked by BM25 (k1 = 1.5, b = 0.75); a passage that shares no word with the query is not returned."""

    def __init__(self, corpus: Path, cache: Path | None = None) -> None:
        self.corpus = Corpus(corpus)
        try:
            import bm25s
        except ImportError:
            raise missing("bm25", "bm25s", "retrieval") from None
        self._bm25s: Any = bm25s
        self._stop = frozenset(bm25s.stopwords.STOPWORDS_EN)
        folder = cached((cache or cache_folder()) / "bm25" / f"{self.corpus.digest()}-{_FORMAT}", self._build)
        self._index: Any = bm25s.BM25.load(folder, mmap=True, show_progress=False)

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

    def _build(self, folder: Path) -> None:
        known: dict[str, int] = {}
        passages = [array("i", [known.setdefault(word, len(known)) for word in words(text)]) for _, text in self.corpus]
        if not known:
            raise InputError(f"corpus '{self.corpus.path}' has no word in any passage, so nothing can be found in it")
        index = self._bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        index.index((passages, known), create_empty_token=False, show_progress=False)
        index.save(folder, show_progress=False)

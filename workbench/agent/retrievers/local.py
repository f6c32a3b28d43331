"""Retrievers in this process: BM25 (bm25s, Lucene's formula), and embeddings by inner product
(faiss, exact).
"""

import hashlib
import re
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sorl.agent.retrievers import Corpus, Passage, cache_folder, cached
from sorl.spec import InputError

_WORD = re.compile(r"\w+")  # one letter and one digit are words: symbols of elements, numbers
_FORMAT = "1"  # of the cached BM25 index; a change of the words above or of the formula is a new one
_BATCH = 256
_INDEX = "index.faiss"
Encoder = Callable[[list[str]], np.ndarray]  # (n,) texts -> (n, D) embeddings, normalised by Dense


def _needed(name: str, retriever: str, package: str, extra: str) -> Any:
    """Import what an extra installs; InputError with the command that does."""
    try:
        return import_module(name)
    except ImportError:
        why = f"the retriever {retriever} needs {package}, which is not installed"
        raise InputError(f"{why}: pip install 'sorl[{extra}]'") from None


def words(text: str) -> list[str]:
    """Return the words of a passage or query: lower case, no punctuation, no stemming."""
    return _WORD.findall(text.lower())


class BM25:
    """Passages ranked by BM25 (k1 = 1.5, b = 0.75); a passage that shares no word with the query is not
    returned.
    """

    def __init__(self, corpus: Path, cache: Path | None = None) -> None:
        self.corpus = Corpus(corpus)
        self._bm25s = _needed("bm25s", "bm25", "bm25s", "retrieval")
        self._stop = frozenset(self._bm25s.stopwords.STOPWORDS_EN)
        folder = cached((cache or cache_folder()) / "bm25" / f"{self.corpus.digest()}-{_FORMAT}", self._build)
        self._index = self._bm25s.BM25.load(folder, mmap=True, show_progress=False)

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query at most `top_k` passages, best first, ties in the order of the corpus."""
        return [self._rank(query, top_k) for query in queries]

    def _rank(self, query: str, top_k: int) -> list[Passage]:
        asked = words(query)
        # Stop words find nothing that the others do not, and "of" would rank "Isle of Man" first for a
        # capital of Peru.
        ids = self._index.get_tokens_ids([word for word in asked if word not in self._stop] or asked)
        if not ids:
            return []
        scores = self._index.get_scores_from_ids(ids)  # (N,)
        found = []
        for _ in range(min(top_k, len(scores))):
            # the first of equals; np.partition is a hundred times slower on so many ties
            best = int(scores.argmax())
            if scores[best] <= 0.0:
                break
            found.append(Passage(*self.corpus[best], float(scores[best])))
            scores[best] = 0.0
        return found

    def _build(self, folder: Path) -> None:
        known: dict[str, int] = {}
        passages = []
        for _, text in self.corpus:
            ids = [known.setdefault(word, len(known)) for word in words(text)]
            passages.append(array("i", ids))
        if not known:
            raise InputError(
                f"corpus '{self.corpus.path}' has no word in any passage, so nothing can be found in it"
            )
        index = self._bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        index.index((passages, known), create_empty_token=False, show_progress=False)
        index.save(folder, show_progress=False)


class Dense:
    """Ranks by cosine similarity; `model` is a sentence-transformers model or folder, which `encoder`
    replaces.
    """

    def __init__(
        self, corpus: Path, model: str, cache: Path | None = None, encoder: Encoder | None = None
    ) -> None:
        self.corpus = Corpus(corpus)
        self._faiss = faiss = _needed("faiss", "dense", "faiss-cpu", "dense")
        self._encoder = encoder or _encoder(model)
        # E5 models get the prefixes that they were trained with (arXiv 2212.03533), as in Search-R1.
        self._prefixes = ("query: ", "passage: ") if "e5" in Path(model).name.lower() else ("", "")
        name = f"{self.corpus.digest()}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        folder = cached((cache or cache_folder()) / "dense" / name, self._build)
        self._index = faiss.read_index(str(folder / _INDEX), faiss.IO_FLAG_MMAP)

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query the `top_k` most similar passages, best first; an empty query
        finds nothing.
        """
        asked = [i for i, query in enumerate(queries) if query.strip()]
        found: list[list[Passage]] = [[] for _ in queries]
        if asked and top_k > 0:
            embedded = self._embed([self._prefixes[0] + queries[i] for i in asked])
            scores, rows = self._index.search(embedded, min(top_k, len(self.corpus)))
            for i, near, line in zip(asked, scores, rows, strict=True):
                found[i] = [
                    Passage(*self.corpus[int(j)], float(s)) for s, j in zip(near, line, strict=True) if j >= 0
                ]
        return found

    def _embed(self, texts: list[str]) -> np.ndarray:
        vectors = np.ascontiguousarray(self._encoder(texts), dtype=np.float32)
        self._faiss.normalize_L2(vectors)
        return vectors

    def _build(self, folder: Path) -> None:
        index: Any = None
        for start in range(0, len(self.corpus), _BATCH):
            lines = range(start, min(start + _BATCH, len(self.corpus)))
            vectors = self._embed([self._prefixes[1] + self.corpus[i][1] for i in lines])
            index = index or self._faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
        self._faiss.write_index(index, str(folder / _INDEX))


def _encoder(model: str) -> Encoder:
    package = _needed("sentence_transformers", "dense", "sentence-transformers", "dense")
    try:
        loaded = package.SentenceTransformer(model, model_kwargs={"use_safetensors": True})
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load the embedding model '{model}': {error}") from None
    return lambda texts: np.asarray(loaded.encode(texts, batch_size=_BATCH, show_progress_bar=False))

"""Dense retrieval: passages and queries embedded by one encoder, ranked by inner product (faiss, exact)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.agent.retrievers import Passage
from workbench.agent.retrievers.corpus import Corpus, cache_folder
from workbench.spec import InputError

Encoder = Callable[[list[str]], np.ndarray]  # (n,) texts -> (n, D) embeddings, normalised by Dense
_BATCH = 256
E5 = "intfloat/e5-base-v2"


class Dense:
    """Ranks by cosine similarity; the index of a corpus and an encoder is made once and memory-mapped.

    `model` is a sentence-transformers model or folder. E5 models get the prefixes that they were trained with
    (arXiv 2212.03533), as in Search-R1. `encoder` replaces the model.
    """

    def __init__(
        self, corpus: Path, model: str = E5, cache: Path | None = None, encoder: Encoder | None = None
    ) -> None:
        self.corpus = Corpus(corpus)
        try:
            import faiss
        except ImportError:
            raise _missing("faiss-cpu") from None
        self._faiss: Any = faiss
        self._encoder = encoder or _encoder(model)
        self._prefixes = ("query: ", "passage: ") if "e5" in Path(model).name.lower() else ("", "")
        name = hashlib.sha256(model.encode()).hexdigest()[:8]
        file = (cache or cache_folder()) / "dense" / f"{self.corpus.digest()}-{name}.faiss"
        if not file.is_file():
            self._build(file)
        self._index = self._faiss.read_index(str(file), self._faiss.IO_FLAG_MMAP)

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query the `top_k` most similar passages, best first; an empty query finds nothing."""
        asked = [i for i, query in enumerate(queries) if query.strip()]
        found: list[list[Passage]] = [[] for _ in queries]
        if asked and top_k > 0:
            embedded = self._embed([self._prefixes[0] + queries[i] for i in asked])
            scores, rows = self._index.search(embedded, min(top_k, len(self.corpus)))
            for i, near, line in zip(asked, scores, rows, strict=True):
                found[i] = [Passage(*self.corpus[int(j)], float(s)) for s, j in zip(near, line, strict=True) if j >= 0]
        return found

    def _embed(self, texts: list[str]) -> np.ndarray:
        vectors = np.ascontiguousarray(self._encoder(texts), dtype=np.float32)
        self._faiss.normalize_L2(vectors)
        return vectors

    def _build(self, file: Path) -> None:
        index: Any = None
        for start in range(0, len(self.corpus), _BATCH):
            lines = range(start, min(start + _BATCH, len(self.corpus)))
            vectors = self._embed([self._prefixes[1] + self.corpus[i][1] for i in lines])
            index = index or self._faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.writing")
        self._faiss.write_index(index, str(unfinished))
        os.replace(unfinished, file)


def _missing(package: str) -> InputError:
    return InputError(f"the retriever dense needs {package}, which is not installed: pip install 'sorl[dense]'")


def _encoder(model: str) -> Encoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise _missing("sentence-transformers") from None
    try:
        loaded = SentenceTransformer(model)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load the embedding model '{model}': {error}") from None
    return lambda texts: np.asarray(loaded.encode(texts, batch_size=_BATCH, show_progress_bar=False))

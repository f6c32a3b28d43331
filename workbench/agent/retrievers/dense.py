"""Dense retrieval: passages and queries embedded by one encoder, ranked by inner product (faiss, exact)."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.agent.retrievers import Corpus, Passage, cache_folder, cached, missing
from workbench.spec import InputError

Encoder = Callable[[list[str]], np.ndarray]  # (n,) texts -> (n, D) embeddings, normalised by Dense
_BATCH, _INDEX = 256, "index.faiss"
E5 = "intfloat/e5-base-v2"


class Dense:
    """Ranks by cosine similarity; the index of a corpus and a model is made once and memory-mapped.

    `model` is a sentence-transformers model or folder, which `encoder` replaces. E5 models get the prefixes that they
    were trained with (arXiv 2212.03533), as in Search-R1.
    """

    def __init__(
        self, corpus: Path, model: str = E5, cache: Path | None = None, encoder: Encoder | None = None
    ) -> None:
        self.corpus = Corpus(corpus)
        try:
            import faiss
        except ImportError:
            raise missing("dense", "faiss-cpu", "dense") from None
        self._faiss: Any = faiss
        self._encoder = encoder or _encoder(model)
        self._prefixes = ("query: ", "passage: ") if "e5" in Path(model).name.lower() else ("", "")
        name = f"{self.corpus.digest()}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        folder = cached((cache or cache_folder()) / "dense" / name, self._build)
        self._index = faiss.read_index(str(folder / _INDEX), faiss.IO_FLAG_MMAP)

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

    def _build(self, folder: Path) -> None:
        index: Any = None
        for start in range(0, len(self.corpus), _BATCH):
            lines = range(start, min(start + _BATCH, len(self.corpus)))
            vectors = self._embed([self._prefixes[1] + self.corpus[i][1] for i in lines])
            index = index or self._faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
        self._faiss.write_index(index, str(folder / _INDEX))


def _encoder(model: str) -> Encoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise missing("dense", "sentence-transformers", "dense") from None
    try:
        loaded = SentenceTransformer(model)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load the embedding model '{model}': {error}") from None
    return lambda texts: np.asarray(loaded.encode(texts, batch_size=_BATCH, show_progress_bar=False))

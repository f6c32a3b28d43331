"""Retrievers: ranked passages of a corpus, found by BM25, by embeddings or by a server."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from workbench.spec import InputError, RetrieverSettings


class Passage(NamedTuple):
    """One passage of a corpus, as Search-R1's JSONL has it; the score is the retriever's own, higher is better."""

    id: str
    contents: str
    score: float


class Retriever(Protocol):
    """The one call that worlds and servers make of a retriever."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query at most `top_k` passages, best first; none without a match. Raises RetrieverDown."""


class RetrieverDown(ConnectionError):
    """The retriever gave no usable answer, after every retry; the message names it and says why."""


def retriever_of(settings: RetrieverSettings) -> Retriever:
    """Return the retriever that `settings` name. Raises InputError for a server that does not answer, or no corpus."""
    if settings.kind == "http":
        from workbench.agent.retrievers.http import HTTPRetriever

        client = HTTPRetriever(str(settings.url), settings.timeout, settings.retries, settings.batch)
        try:
            client.retrieve(["hello"], 1)
        except RetrieverDown as error:
            hint = "start it (sorl retriever serve --corpus FILE.jsonl) or set world.retriever.url"
            raise InputError(f"{error}; {hint}") from None
        return client
    if settings.kind == "dense":
        from workbench.agent.retrievers.dense import Dense

        return Dense(Path(str(settings.corpus)), settings.model)
    from workbench.agent.retrievers.bm25 import BM25

    return BM25(Path(str(settings.corpus)))

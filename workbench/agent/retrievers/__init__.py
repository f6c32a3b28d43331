"""Retrievers: ranked passages of a corpus, found by BM25, by embeddings or by a server; a lookup ends no episode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from workbench.spec import InputError, RetrieverSettings

FAILED = "search failed"  # what a policy reads when the retriever is down


class Passage(NamedTuple):
    """One passage of a corpus, as Search-R1's JSONL has it; the score is the retriever's own, higher is better."""

    id: str
    contents: str
    score: float


class Retriever(Protocol):
    """The one call that worlds and servers make of a retriever."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """For each query at most `top_k` passages, best first; none where nothing matches. Raises RetrieverDown."""


class RetrieverDown(ConnectionError):
    """The retriever gave no usable answer, after every retry; the message names it and says why."""


class Lookup(NamedTuple):
    """The passages for one query: found, empty, or failed where the retriever is down."""

    passages: list[Passage]
    status: str
    seconds: float  # wall time of the request, of a batch its share


class Lookups:
    """Asks one query at a time, or many `ahead` in one request; a retriever that is down never ends an episode."""

    def __init__(self, retriever: Retriever | None, top_k: int) -> None:
        self._retriever, self._top_k = retriever, top_k
        self._ahead: dict[str, Lookup] = {}

    def __call__(self, query: str) -> Lookup:
        """Return the answer to `query`, asked now unless it was asked ahead."""
        return self._ahead[query] if query in self._ahead else self._ask([query])[0]

    def ahead(self, queries: Sequence[str]) -> None:
        """Ask all `queries` at once; the answers hold until the next call."""
        distinct = list(dict.fromkeys(queries))
        self._ahead = dict(zip(distinct, self._ask(distinct), strict=True)) if len(distinct) > 1 else {}

    def _ask(self, queries: list[str]) -> list[Lookup]:
        if self._retriever is None:  # the control without search
            return [Lookup([], "empty", 0.0) for _ in queries]
        began = time.perf_counter()
        try:
            found = [(x, "found" if x else "empty") for x in self._retriever.retrieve(queries, self._top_k)]
        except RetrieverDown:
            found = [([], "failed") for _ in queries]
        share = (time.perf_counter() - began) / len(queries)
        return [Lookup(passages, status, share) for passages, status in found]


def retriever_of(settings: RetrieverSettings) -> Retriever:
    """Return the retriever that `settings` name; a server is asked once, so that a run does not begin without it.

    Raises InputError for one that cannot be had.
    """
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

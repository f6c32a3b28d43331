"""The retriever that a world's settings name, and lookups that fail without ending an episode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from workbench.agent.retrievers import Passage, Retriever, RetrieverDown
from workbench.spec import InputError, RetrieverSettings

Status = Literal["found", "empty", "failed"]
FAILED = "search failed"  # what a policy reads when the retriever is down


class Lookup(NamedTuple):
    """The passages for one query; a retriever that is down has failed and finds nothing."""

    passages: list[Passage]
    status: Status
    seconds: float  # wall time of the request, of a batch its share


class Lookups:
    """Asks one query at a time, or many `ahead` in one request; a retriever that is down never ends an episode."""

    def __init__(self, retriever: Retriever | None, top_k: int) -> None:
        self._retriever, self._top_k = retriever, top_k
        self._ahead: dict[str, Lookup] = {}

    def __call__(self, query: str) -> Lookup:
        """Return the answer to `query`, asked now unless it was asked ahead."""
        if query in self._ahead:
            return self._ahead[query]
        return self._ask([query])[0]

    def ahead(self, queries: Sequence[str]) -> None:
        """Ask all `queries` at once; the answers hold until the next call."""
        distinct = list(dict.fromkeys(queries))
        self._ahead = dict(zip(distinct, self._ask(distinct), strict=True)) if len(distinct) > 1 else {}

    def _ask(self, queries: list[str]) -> list[Lookup]:
        if self._retriever is None:  # the control without search
            return [Lookup([], "empty", 0.0) for _ in queries]
        began = time.perf_counter()
        try:
            found = self._retriever.retrieve(queries, self._top_k)
        except RetrieverDown:
            share = (time.perf_counter() - began) / len(queries)
            return [Lookup([], "failed", share) for _ in queries]
        share = (time.perf_counter() - began) / len(queries)
        return [Lookup(passages, "found" if passages else "empty", share) for passages in found]


def retriever_of(settings: RetrieverSettings) -> Retriever:
    """Return the retriever that `settings` name; a server is asked once, so that a run does not begin without it.

    Raises InputError for one that cannot be had.
    """
    if settings.kind == "http":
        from workbench.agent.retrievers.http import HTTPRetriever

        assert settings.url is not None
        client = HTTPRetriever(settings.url, settings.timeout, settings.retries, settings.batch)
        try:
            client.retrieve(["hello"], 1)
        except RetrieverDown as error:
            raise InputError(
                f"{error}; start it (sorl retriever serve --corpus FILE.jsonl) or set world.retriever.url"
            ) from None
        return client
    assert settings.corpus is not None
    if settings.kind == "dense":
        from workbench.agent.retrievers.dense import Dense

        return Dense(Path(settings.corpus), settings.model)
    from workbench.agent.retrievers.bm25 import BM25

    return BM25(Path(settings.corpus))

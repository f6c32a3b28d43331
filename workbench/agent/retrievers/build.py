"""From settings to a retriever over a corpus or behind an address."""

from __future__ import annotations

from pathlib import Path

from workbench.agent.retrievers import Retriever, RetrieverDown
from workbench.spec import InputError, RetrieverSettings


def retriever_of(settings: RetrieverSettings) -> Retriever:
    """The retriever that `settings` name; a server is asked once, so that a run does not begin without it.

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

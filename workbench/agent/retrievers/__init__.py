"""Retrievers: ranked passages of a corpus, or ranked facts of a generated world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


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

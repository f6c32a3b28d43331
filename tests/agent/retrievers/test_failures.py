"""A retriever that fails and is slow at times loses no episode, and what it did is in columns and events."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.agent.fakes import ScriptedEngine
from tests.agent.retrievers.test_http import answering, as_search_r1
from workbench.agent.episode import Episode
from workbench.agent.retrievers import Passage, Retriever
from workbench.agent.retrievers.http import HTTPRetriever
from workbench.agent.tokenizer import Codec, build_tokenizer
from workbench.agent.worlds.dataset import Dataset, Item
from workbench.diagnostics import measure
from workbench.diagnostics.collapse import Watch
from workbench.diagnostics.evidence import Rollouts, StepEvidence
from workbench.diagnostics.measure import catalogue
from workbench.diagnostics.rules import RuleWatch, alarms
from workbench.spec import CollapseSettings, RetrieverSettings, WorldSettings

SEARCHES = 2  # an episode
DOWN = "http://127.0.0.1:9/retrieve"
SETTINGS = WorldSettings(kind="dataset", data="-", retriever=RetrieverSettings(kind="http", url=DOWN))


def world_with(retriever: Retriever, **settings: Any) -> Dataset:
    return Dataset(SETTINGS.model_copy(update=settings), retriever, [Item("0", "who ?", ("alice",))])


def play(url: str, episodes: int, retries: int) -> list[Episode]:
    world = world_with(HTTPRetriever(url, timeout=5, retries=retries))
    script = [*["<search> alice rival </search>"] * SEARCHES, "<answer> alice </answer>"]
    engine = ScriptedEngine(build_tokenizer(), lambda _: script)
    return engine.rollout(world, world.questions("train", 0, 0, episodes), list(range(episodes)))


def every_twentieth_fails(request: dict[str, Any], number: int) -> tuple[int, bytes]:
    if number % 50 == 7:
        time.sleep(0.02)
    return (500, b"") if number % 20 == 3 else as_search_r1(request, number)


@pytest.mark.parametrize("requests", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_episode_is_lost_and_every_failure_is_seen(requests: int) -> None:
    with answering(every_twentieth_fails) as (url, seen):
        episodes = play(url, requests // SEARCHES, retries=0)
    assert len(seen) == requests
    assert [e.ended for e in episodes] == ["answer"] * (requests // SEARCHES)
    assert all(e.success and e.searches == SEARCHES for e in episodes)
    outcomes = [outcome for e in episodes for outcome in e.retrieval_status if outcome is not None]
    assert [i for i, outcome in enumerate(outcomes, start=1) if outcome == "failed"] == list(range(3, requests, 20))
    row = measure(0, StepEvidence(Rollouts.of(episodes, 0))).step
    assert (row["retrieval_failed_frac"], row["retrieval_empty_frac"]) == (pytest.approx(0.05), 0.0)
    spent = sum(s for e in episodes for s in e.retrieval_seconds if s is not None)
    assert row["seconds_retrieval"] == pytest.approx(spent)
    (event,) = [e for e in RuleWatch(alarms(catalogue())).step(0, row) if e.diagnostic == "retrieval_failed_frac"]
    assert (event.kind, event.value) == ("alarm", pytest.approx(0.05))


def test_with_retries_no_failure_reaches_the_policy() -> None:
    with answering(every_twentieth_fails) as (url, seen):
        episodes = play(url, 50, retries=2)
    assert len(seen) > 100
    assert {outcome for e in episodes for outcome in e.retrieval_status} == {"found", None}


def test_a_policy_reads_that_its_search_failed_and_a_dead_retriever_is_an_event() -> None:
    episodes = play(DOWN, 4, retries=0)
    text = Codec(build_tokenizer()).decode(episodes[0].tokens)
    assert text.count("<information> <unk> <unk> </information>") == SEARCHES  # "search failed" in this vocabulary
    row = measure(0, StepEvidence(Rollouts.of(episodes, 0))).step
    assert row["retrieval_failed_frac"] == 1.0
    assert "retriever_down" in [e.kind for e in Watch(CollapseSettings(), 64).step(0, row)]


class Counting:
    """Finds the query itself, and counts what it was asked."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.requests.append(list(queries))
        return [[Passage("0", query, 1.0)] if query else [] for query in queries]


def test_queries_asked_ahead_are_one_request_and_then_answered_from_it() -> None:
    retriever = Counting()
    world = world_with(retriever)
    question = world.every()[0]

    def search(query: str) -> Any:
        return world.search(question, query, 1)

    world.search_ahead(["a", "", "a", "b"])
    assert retriever.requests == [["a", "", "b"]]
    assert [search(q)[:2] for q in ("a", "", "b")] == [("Doc 1 a", "found"), ("", "empty"), ("Doc 1 b", "found")]
    assert search("c").text == "Doc 1 c"
    world.search_ahead(["d"])  # one query is no batch, and what was asked before is over
    assert search("a").status == "found"
    assert retriever.requests[1:] == [["c"], ["a"]]
    without = world_with(retriever, top_k=0)
    without.search_ahead(["a", "b"])
    assert without.search(question, "a", 1) == ("", "empty", 0.0)

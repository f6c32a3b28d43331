"""Our client and server, each against the other and a server written from Search-R1's public description;
failures.

Search-R1 (search_r1/search/retrieval_request.py, README): POST {"queries": [...], "topk": 3, "return_scores":
true} to /retrieve; {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}, documents alone
without scores.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from sorl.agent.episode import Episode
from sorl.agent.retrievers import RetrieverDown
from sorl.agent.retrievers.http import HTTPRetriever, RetrievalServer
from sorl.agent.retrievers.local import BM25
from sorl.agent.tokenizer import Codec, build_tokenizer
from sorl.agent.worlds.dataset import Dataset, Item
from sorl.collapse.events import RuleWatch, alarms
from sorl.collapse.rule import Watch
from sorl.measures import CATALOGUE, measure
from sorl.measures.evidence import Rollouts, StepEvidence
from sorl.spec import CollapseSettings, InputError, RetrieverSettings, WorldSettings
from tests.agent.fakes import ScriptedEngine
from tests.agent.retrievers.conftest import PASSAGES

SEARCHES = 2  # an episode
DOWN = "http://127.0.0.1:9/retrieve"
SETTINGS = WorldSettings(kind="dataset", data="-", retriever=RetrieverSettings(kind="http", url=DOWN))
Request = dict[str, Any]


@contextmanager
def answering(answer: Callable[[Request, int], tuple[int, bytes]]) -> Iterator[tuple[str, list[Request]]]:
    """A server that answers request n with `answer(request, n)`; yields its address and the requests it has
    seen.
    """
    seen: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path, **request})
            status, body = answer(request, len(seen))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # a client that did not wait is what some tests are about
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()


def as_search_r1(request: Request, number: int) -> tuple[int, bytes]:
    """The first `topk` passages for every query."""
    documents = [{"id": f"p{i}", "contents": text} for i, text in enumerate(PASSAGES)][: request["topk"]]
    assert request["return_scores"]
    result = [{"document": d, "score": 1.0 / (i + 1)} for i, d in enumerate(documents)]
    return 200, json.dumps({"result": [result] * len(request["queries"])}).encode()


@pytest.fixture
def server(corpus: Path, tmp_path: Path) -> Iterator[RetrievalServer]:
    with RetrievalServer(BM25(corpus, tmp_path / "cache"), "127.0.0.1", 0, top_k=2) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def post(url: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = urllib3.request("POST", url, body=data, headers={"Content-Type": "application/json"})
    return response.status, response.json()


def test_the_client_speaks_search_r1s_protocol() -> None:
    with answering(as_search_r1) as (url, seen):
        found = HTTPRetriever(url, batch=2).retrieve(["a", "b", "c"], 2)
    assert found == [[("p0", PASSAGES[0], 1.0), ("p1", PASSAGES[1], 0.5)]] * 3
    sent = {"path": "/retrieve", "topk": 2, "return_scores": True}
    assert seen == [{**sent, "queries": ["a", "b"]}, {**sent, "queries": ["c"]}]


def test_the_server_answers_what_search_r1s_client_sends(server: RetrievalServer) -> None:
    status, answer = post(
        server.url, {"queries": ["capital of Peru", "zebra"], "topk": 1, "return_scores": True}
    )
    assert status == 200
    (best,), nothing = answer["result"]
    documents = [{"id": f"p{i}", "contents": PASSAGES[i]} for i in range(2)]
    assert best["document"] == documents[0]
    assert best["score"] > 0
    assert nothing == []
    assert post(server.url, {"queries": ["capital of Peru"]})[1] == {"result": [documents]}
    queries = ["capital of Peru", "são tomé", "zebra", ""]
    assert HTTPRetriever(server.url).retrieve(queries, 3) == server.retriever.retrieve(queries, 3)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Invalid JSON"),
        ([], "Input should be an object"),
        ({}, "queries: Field required"),
        ({"queries": "one"}, "queries: Input should be a valid"),
        ({"queries": ["a"], "topk": -1}, "topk: Input should be greater than or equal to 0"),
        ({"queries": ["a"], "topk": True}, "topk: Input should be a valid integer"),
        ({"queries": ["a"], "topk": 10**9}, "topk: Input should be less than or equal to 1000"),
        ({"queries": ["a"], "return_scores": 1}, "return_scores: Input should be a valid boolean"),
    ],
)
def test_the_server_refuses_what_is_not_in_the_protocol(
    server: RetrievalServer, body: Any, said: str
) -> None:
    status, answer = post(server.url, body)
    assert status == 422
    assert said in answer["detail"]


def test_the_server_knows_its_paths_and_survives_a_client_that_leaves(server: RetrievalServer) -> None:
    assert post(server.url.replace("/retrieve", "/else"), {"queries": []})[0] == 404
    assert urllib3.request("GET", server.url.replace("/retrieve", "/health")).json() == {"status": "ok"}
    with socket.create_connection(server.server_address[:2]) as leaving:  # type: ignore[arg-type]
        leaving.sendall(b"POST /retrieve HTTP/1.1\r\nContent-Length: 900\r\n\r\n{")
    assert post(server.url, {"queries": []}) == (200, {"result": []})
    with pytest.raises(InputError, match="--port"):
        RetrievalServer(server.retriever, "127.0.0.1", server.server_address[1])


def test_a_retriever_that_is_down_is_said_once_tried_once_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(request: Request, number: int) -> tuple[int, bytes]:
        return (500, b"<b>out of memory</b>") if number <= 4 else as_search_r1(request, number)

    with answering(answer) as (url, seen), caplog.at_level(logging.WARNING, "sorl.retriever"):
        client = HTTPRetriever(url, retries=1)
        for _ in range(3):
            with pytest.raises(RetrieverDown, match="status 500: '<b>out of memory</b>'"):
                client.retrieve(["a"], 1)
        assert len(seen) == 4  # two tries at first, then one each
        client.retrieve(["a"], 1)
    assert ["is down" in r.message for r in caplog.records] == [True, False]
    assert "is back" in caplog.records[1].message


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"result": []}',
        b'{"result": [[{"document": {"id": 1}}]]}',
        b'{"result": [["text"]]}',
        b'{"result": null}',
    ],
)
def test_an_answer_that_is_not_in_the_protocol_is_a_failure(body: bytes) -> None:
    said = "0 results for 1 queries" if body == b'{"result": []}' else "not an answer"
    with (
        answering(lambda request, number: (200, body)) as (url, seen),
        pytest.raises(RetrieverDown, match=said),
    ):
        HTTPRetriever(url, retries=3).retrieve(["a"], 1)
    assert len(seen) == 1  # the same question gets the same answer


def test_title_and_text_apart_are_joined_as_search_r1_does() -> None:
    body = b'{"result": [[{"document": {"id": 5, "title": "Lima", "text": "A city."}, "score": 2}]]}'
    with answering(lambda request, number: (200, body)) as (url, _):
        assert HTTPRetriever(url).retrieve(["a"], 1) == [[("5", '"Lima"\nA city.', 2.0)]]


def test_a_hanging_server_costs_the_timeout_and_one_that_refuses_is_down() -> None:
    release = threading.Event()

    with answering(lambda *_: (200 if release.wait(60) else 500, b"")) as (url, _):
        with pytest.raises(RetrieverDown, match="timed out"):
            HTTPRetriever(url, timeout=0.2, retries=0).retrieve(["a"], 1)
        release.set()
    with pytest.raises(RetrieverDown, match=r"127\.0\.0\.1:9/retrieve is down: .*refused"):
        HTTPRetriever("http://127.0.0.1:9/retrieve", retries=0).retrieve(["a"], 1)
    with pytest.raises(InputError, match="no address"):
        HTTPRetriever("localhost:8000")


# A retriever that fails and is slow at times loses no episode, and what it did is in columns and events.


def play(url: str, episodes: int, retries: int) -> list[Episode]:
    world = Dataset(SETTINGS, HTTPRetriever(url, timeout=5, retries=retries), [Item("who ?", ("alice",))])
    script = [*["<search> alice rival </search>"] * SEARCHES, "<answer> alice </answer>"]
    engine = ScriptedEngine(build_tokenizer(), lambda _: script)
    return engine.rollout(world, world.questions("train", 0, 0, episodes), list(range(episodes)))


def every_twentieth_fails(request: Request, number: int) -> tuple[int, bytes]:
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
    assert [i for i, outcome in enumerate(outcomes, start=1) if outcome == "failed"] == list(
        range(3, requests, 20)
    )
    row = measure(0, StepEvidence(Rollouts.of(episodes, 0))).step
    assert (row["retrieval_failed_frac"], row["retrieval_empty_frac"]) == (pytest.approx(0.05), 0.0)
    spent = sum(s for e in episodes for s in e.retrieval_seconds if s is not None)
    assert row["seconds_retrieval"] == pytest.approx(spent)
    (event,) = [
        e for e in RuleWatch(alarms(CATALOGUE)).step(0, row) if e.diagnostic == "retrieval_failed_frac"
    ]
    assert (event.kind, event.value) == ("alarm", pytest.approx(0.05))


def test_with_retries_no_failure_reaches_the_policy() -> None:
    with answering(every_twentieth_fails) as (url, seen):
        episodes = play(url, 50, retries=2)
    assert len(seen) > 100
    assert {outcome for e in episodes for outcome in e.retrieval_status} == {"found", None}


def test_a_policy_reads_that_its_search_failed_and_a_dead_retriever_is_an_event() -> None:
    episodes = play(DOWN, 4, retries=0)
    text = Codec(build_tokenizer()).decode(episodes[0].tokens)
    # "search failed" in this vocabulary
    assert text.count("<information> <unk> <unk> </information>") == SEARCHES
    row = measure(0, StepEvidence(Rollouts.of(episodes, 0))).step
    assert row["retrieval_failed_frac"] == 1.0
    assert "retriever_down" in [e.kind for e in Watch(CollapseSettings(), 64).step(0, row)]

"""Our client and server, each against the other and against a server written from Search-R1's public description.

Search-R1 (search_r1/search/retrieval_request.py, README): POST {"queries": [...], "topk": 3, "return_scores": true}
to /retrieve; {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}, documents alone without scores.
"""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.agent.retrievers.conftest import PASSAGES
from workbench.agent.retrievers import RetrieverDown
from workbench.agent.retrievers.bm25 import BM25
from workbench.agent.retrievers.http import HTTPRetriever, RetrievalServer
from workbench.spec import InputError

Answer = Callable[[dict[str, Any], int], tuple[int, bytes]]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers request n with `answer(request, n)`; yields its address and the requests it has seen."""
    seen: list[dict[str, Any]] = []

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

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that did not wait is what some tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()


def as_search_r1(request: dict[str, Any], number: int) -> tuple[int, bytes]:
    """The first `topk` passages for every query."""
    documents = [{"id": f"p{i}", "contents": text} for i, text in enumerate(PASSAGES)][: request["topk"]]
    assert request["return_scores"]
    result = [{"document": d, "score": 1.0 / (i + 1)} for i, d in enumerate(documents)]
    return 200, json.dumps({"result": [result] * len(request["queries"])}).encode()


@pytest.fixture
def server(corpus: Path, tmp_path: Path) -> Iterator[RetrievalServer]:
    with RetrievalServer(BM25(corpus, tmp_path / "cache"), "127.0.0.1", 0, top_k=2) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def post(url: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = urllib3.request("POST", url, body=data, headers={"Content-Type": "application/json"})
    return response.status, response.json()


def test_the_client_speaks_search_r1s_protocol() -> None:
    with answering(as_search_r1) as (url, seen):
        found = HTTPRetriever(url, batch=2).retrieve(["a", "b", "c"], 2)
    assert [[(p.id, p.contents, p.score) for p in passages] for passages in found] == [
        [("p0", PASSAGES[0], 1.0), ("p1", PASSAGES[1], 0.5)]
    ] * 3
    sent = {"path": "/retrieve", "topk": 2, "return_scores": True}
    assert seen == [{**sent, "queries": ["a", "b"]}, {**sent, "queries": ["c"]}]


def test_the_server_answers_what_search_r1s_client_sends(server: RetrievalServer) -> None:
    status, answer = post(server.url, {"queries": ["capital of Peru", "zebra"], "topk": 1, "return_scores": True})
    assert status == 200
    ((best,), nothing) = answer["result"]
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
def test_the_server_refuses_what_is_not_in_the_protocol(server: RetrievalServer, body: Any, said: str) -> None:
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


def test_a_retriever_that_is_down_is_said_once_tried_once_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def answer(request: dict[str, Any], number: int) -> tuple[int, bytes]:
        return (500, b"<b>out of memory</b>") if broken else as_search_r1(request, number)

    with answering(answer) as (url, seen), caplog.at_level(logging.WARNING, "sorl.retriever"):
        client = HTTPRetriever(url, retries=1)
        for _ in range(3):
            with pytest.raises(RetrieverDown, match="status 500: '<b>out of memory</b>'"):
                client.retrieve(["a"], 1)
        assert len(seen) == 4  # two tries at first, then one each
        broken = False
        client.retrieve(["a"], 1)
    assert ["is down" in r.message for r in caplog.records] == [True, False]
    assert "is back" in caplog.records[1].message


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"result": []}', b'{"result": [[{"document": {"id": 1}}]]}', b'{"result": [["text"]]}',
             b'{"result": null}'],
)  # fmt: skip
def test_an_answer_that_is_not_in_the_protocol_is_a_failure(body: bytes) -> None:
    said = "0 results for 1 queries" if body == b'{"result": []}' else "not an answer"
    with answering(lambda request, number: (200, body)) as (url, seen), pytest.raises(RetrieverDown, match=said):
        HTTPRetriever(url, retries=3).retrieve(["a"], 1)
    assert len(seen) == 1  # the same question gets the same answer


def test_title_and_text_apart_are_joined_as_search_r1_does() -> None:
    body = b'{"result": [[{"document": {"id": 5, "title": "Lima", "text": "A city."}, "score": 2}]]}'
    with answering(lambda request, number: (200, body)) as (url, _):
        assert HTTPRetriever(url).retrieve(["a"], 1) == [[("5", '"Lima"\nA city.', 2.0)]]


def test_a_hanging_server_costs_the_timeout_and_one_that_refuses_is_down() -> None:
    release = threading.Event()

    def hang(request: dict[str, Any], number: int) -> tuple[int, bytes]:
        release.wait(60)
        return 200, b""

    with answering(hang) as (url, _):
        with pytest.raises(RetrieverDown, match="timed out"):
            HTTPRetriever(url, timeout=0.2, retries=0).retrieve(["a"], 1)
        release.set()
    with pytest.raises(RetrieverDown, match=r"127\.0\.0\.1:9/retrieve is down: .*refused"):
        HTTPRetriever("http://127.0.0.1:9/retrieve", retries=0).retrieve(["a"], 1)
    with pytest.raises(InputError, match="no address"):
        HTTPRetriever("localhost:8000")

"""Search-R1's retrieval protocol, client and server: POST {"queries", "topk", "return_scores"}, passages a
query.
"""

import json
import logging
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sorl.agent.retrievers import Passage, Retriever, RetrieverDown
from sorl.spec import InputError

log = logging.getLogger("sorl.retriever")
_AGAIN = (429, 500, 502, 503, 504)  # statuses after which the same request may succeed
_SHOWN = 200  # characters of a strange answer that a message quotes
_LARGEST = 16 << 20  # bytes of a request
_JSON = {"Content-Type": "application/json"}


class HTTPRetriever:
    """Asks the server at `url` in batches, again after a failure, each wait twice the one
    before with jitter.
    """

    def __init__(self, url: str, timeout: float = 10.0, retries: int = 3, batch: int = 64) -> None:
        parsed = urllib3.util.parse_url(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(
                f"'{url}' is no address of a retriever; write it like http://127.0.0.1:8000/retrieve"
            )
        self.url = url if parsed.path not in (None, "", "/") else url.rstrip("/") + "/retrieve"
        self._retries = retries
        self._batch = batch
        self._down = False
        self._pool = urllib3.PoolManager(maxsize=8, timeout=urllib3.Timeout(total=timeout))

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query at most `top_k` passages, best first. Raises RetrieverDown after the last
        retry.
        """
        passages: list[list[Passage]] = []
        for start in range(0, len(queries), self._batch):
            passages += self._ask(list(queries[start : start + self._batch]), top_k)
        return passages

    def _ask(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        body = json.dumps(
            {"queries": queries, "topk": top_k, "return_scores": True}
        ).encode()  # also of lone surrogates
        again = urllib3.Retry(  # once while the server is down, or a run would wait for hours
            total=0 if self._down else self._retries,
            backoff_factor=0.1,
            backoff_jitter=0.1,
            backoff_max=5.0,
            allowed_methods=None,  # a question changes nothing, so a POST may be sent again
            status_forcelist=_AGAIN,
            raise_on_status=False,
            redirect=0,
        )
        try:
            answer = self._pool.request("POST", self.url, body=body, headers=_JSON, retries=again)
            if answer.status != 200:
                raise RetrieverDown(f"status {answer.status}: {_quoted(answer.data)}")
            found = _passages(answer.data, len(queries))
        except (RetrieverDown, urllib3.exceptions.HTTPError) as error:
            reason = str(error)
            if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
                reason = str(error.reason).split(">: ", 1)[-1].split("): ", 1)[-1]
            if not self._down:
                log.warning("retriever %s is down: %s", self.url, reason)
            self._down = True
            raise RetrieverDown(f"retriever {self.url} is down: {reason}") from error
        if self._down:
            log.warning("retriever %s is back", self.url)
        self._down = False
        return found


def _passages(answer: bytes, n: int) -> list[list[Passage]]:
    """Return the passages of an answer to `n` queries; RetrieverDown for anything that is not in the
    protocol.
    """
    found: list[list[Passage]] = []
    try:
        for result in json.loads(answer)["result"]:
            found.append([])
            for rank, entry in enumerate(result):  # {"document": {...}, "score": x}, or the document alone
                document = entry.get("document", entry)
                contents = document.get("contents")
                # corpora with title and text apart; joined as Search-R1 prepares its own
                if contents is None:
                    contents = f'"{document["title"]}"\n{document["text"]}'
                score = float(entry.get("score", -rank))
                found[-1].append(Passage(str(document.get("id", rank)), str(contents), score))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RetrieverDown(f"not an answer of Search-R1's protocol ({error}): {_quoted(answer)}") from None
    if len(found) != n:
        raise RetrieverDown(f"{len(found)} results for {n} queries")
    return found


def _quoted(answer: bytes) -> str:
    return repr(answer[:_SHOWN].decode("utf-8", "replace"))


class Request(BaseModel):
    """What a client of Search-R1's protocol sends."""

    model_config = ConfigDict(strict=True)
    queries: list[str]
    topk: int | None = Field(None, ge=0, le=1000)  # passages a query
    return_scores: bool = False


class RetrievalServer(ThreadingHTTPServer):
    """Answers POST /retrieve and GET /health for any retriever; `top_k` passages unless a request says how
    many.
    """

    request_queue_size = 128

    def __init__(self, retriever: Retriever, host: str, port: int, top_k: int = 3) -> None:
        self.retriever = retriever
        self.top_k = top_k
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {host}:{port} ({error}); choose another: --port N, --host NAME"
            raise InputError(message) from None

    @property
    def url(self) -> str:
        """The address for queries."""
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/retrieve"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""


def _documents(passages: Sequence[Passage], with_scores: bool) -> list[dict[str, Any]]:
    """Passages in the form of Search-R1's server."""
    documents: list[dict[str, Any]] = []
    for passage in passages:
        document = {"id": passage.id, "contents": passage.contents}
        documents.append({"document": document, "score": passage.score} if with_scores else document)
    return documents


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    timeout = 60
    # header and body are two small packets: without this each answer waits 40 ms
    disable_nagle_algorithm = True
    server: RetrievalServer

    def do_GET(self) -> None:
        """Whether the server is up."""
        self._send(
            *((200, {"status": "ok"}) if self.path == "/health" else (404, {"detail": "POST /retrieve"}))
        )

    def do_POST(self) -> None:
        """Ranked passages for each query."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST:
            self.close_connection = True
            self._send(413, {"detail": f"a request needs a Content-Length of at most {_LARGEST} bytes"})
            return
        body = self.rfile.read(int(length))
        if self.path.rstrip("/") != "/retrieve":
            self._send(404, {"detail": "POST /retrieve"})
            return
        try:
            request = Request.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            self._send(422, {"detail": ": ".join([*map(str, first["loc"]), first["msg"]])})
            return
        ranked = self.server.retriever.retrieve(request.queries, request.topk or self.server.top_k)
        self._send(200, {"result": [_documents(passages, request.return_scores) for passages in ranked]})

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: a run makes thousands."""

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

"""A server of Search-R1's retrieval protocol over any retriever, on the standard library's HTTP server."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workbench.agent.retrievers import Retriever
from workbench.spec import InputError

_LARGEST = 16 << 20  # bytes of a request


class Request(BaseModel):
    """What a client of Search-R1's protocol sends."""

    model_config = ConfigDict(strict=True)
    queries: list[str]
    topk: int | None = Field(None, ge=0, le=1000)  # passages a query
    return_scores: bool = False


class RetrievalServer(ThreadingHTTPServer):
    """Answers POST /retrieve and GET /health; `top_k` passages where a request does not say how many."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, retriever: Retriever, host: str, port: int, top_k: int = 3) -> None:
        self.retriever, self.top_k = retriever, top_k
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    timeout = 60
    disable_nagle_algorithm = True  # header and body are two small packets: without this each answer waits 40 ms
    server: RetrievalServer

    def do_GET(self) -> None:
        """Whether the server is up."""
        self._send(*((200, {"status": "ok"}) if self.path == "/health" else (404, {"detail": "POST /retrieve"})))

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
        result: list[list[dict[str, Any]]] = []
        for passages in self.server.retriever.retrieve(request.queries, request.topk or self.server.top_k):
            documents = [{"id": p.id, "contents": p.contents} for p in passages]
            scored = [{"document": d, "score": p.score} for d, p in zip(documents, passages, strict=True)]
            result.append(scored if request.return_scores else documents)
        self._send(200, {"result": result})

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: a run makes thousands."""

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

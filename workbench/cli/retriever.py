"""`sorl retriever serve`: serve passages by Search-R1's retrieval protocol."""

import contextlib
import signal
from pathlib import Path

import typer
from typer import Option

from sorl.agent.retrievers import retriever_of
from sorl.agent.retrievers.http import RetrievalServer
from sorl.cli.shared import one_of
from sorl.cli.tables import echo, note
from sorl.spec import RetrieverSettings

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def group() -> None:
    """Serve passages of a corpus to search agents: `sorl retriever serve`."""


@app.command()
def serve(
    corpus: Path = Option(
        ..., metavar="FILE.jsonl", help='One passage per line: {"id": ..., "contents": ...}.'
    ),
    port: int = Option(8000, min=0, max=65535, help="Port to listen on; 0: any free one."),
    host: str = Option("127.0.0.1", help="Address to listen on; the default serves this machine only."),
    kind: str = one_of("--kind", "bm25", "dense", default="bm25"),
    model: str = Option("intfloat/e5-base-v2", help="Embedding model of --kind dense: a name or a folder."),
    topk: int = Option(3, min=1, max=1000, help="Passages per query if the request does not say."),
) -> None:
    """Answer POST /retrieve as Search-R1's server does, until Ctrl-C."""
    if corpus.is_file():  # else one message says what a corpus is
        note(f"reading {corpus} (the index is built on first use)")
    settings = RetrieverSettings.model_validate({"kind": kind, "corpus": str(corpus), "model": model})
    with RetrievalServer(retriever_of(settings), host, port, topk) as server:
        if host not in ("127.0.0.1", "localhost", "::1"):
            note(f"anyone who can reach {host} can query this server: it has no password")
        echo(server.url)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()

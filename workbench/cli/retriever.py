"""`sorl retriever serve`: serve passages by Search-R1's retrieval protocol."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from workbench.cli.shared import echo
from workbench.spec import InputError

app = typer.Typer(no_args_is_help=True, add_completion=False)
_LOCAL = ("127.0.0.1", "localhost", "::1")


@app.callback()
def group() -> None:
    """Serve passages of a corpus to search agents: `sorl retriever serve`."""


@app.command()
def serve(
    corpus: Annotated[
        Path,
        typer.Option(
            metavar="FILE.jsonl", help='One passage per line: {"id": ..., "contents": ...}.', show_default=False
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default serves this machine only.")
    ] = "127.0.0.1",
    kind: Annotated[str, typer.Option(help="bm25 or dense.")] = "bm25",
    model: Annotated[str, typer.Option(help="Embedding model of --kind dense: a name or a folder.")] = (
        "intfloat/e5-base-v2"
    ),
    topk: Annotated[int, typer.Option(min=1, max=1000, help="Passages per query if the request does not say.")] = 3,
) -> None:
    """Answer POST /retrieve as Search-R1's server does, until Ctrl-C."""
    from workbench.agent.retrievers import retriever_of
    from workbench.agent.retrievers.serve import RetrievalServer
    from workbench.spec import RetrieverSettings, nearest

    if kind not in ("bm25", "dense"):
        raise InputError(f"--kind '{kind}' is no retriever{nearest(kind, ('bm25', 'dense'))}; there is: bm25, dense")
    echo(f"reading {corpus} (the index is built on first use)", err=True)
    settings = RetrieverSettings(kind="bm25" if kind == "bm25" else "dense", corpus=str(corpus), model=model)
    with RetrievalServer(retriever_of(settings), host, port, topk) as server:
        if host not in _LOCAL:
            echo(f"anyone who can reach {host} can query this server: it has no password", err=True)
        echo(server.url)
        signal.signal(signal.SIGTERM, _interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

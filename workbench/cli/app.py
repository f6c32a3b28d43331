"""`sorl app`: the web app over the runs folder."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.shared import echo, runs_of
from workbench.spec import InputError

_EXTRA = ("streamlit", "plotly")


def app(
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port; default: 8501, or the next free one.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
) -> None:
    """Open the web app: every arm side by side, aligned on the collapse, down to the turn and the token."""
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise InputError(f"the app needs {' and '.join(missing)}: type `pip install 'sorl[app]'`")
    if port is not None:
        _refuse_taken(host, port)
    serve(runs_of(ctx), host, port)


def serve(runs: Path, host: str, port: int | None) -> None:
    """Serve the app until Ctrl-C."""
    from streamlit.web.cli import main as streamlit

    # The app runs in this process and reads the folder from the environment, as `streamlit run app.py` does.
    os.environ["SORL_RUNS"] = str(runs.absolute())
    screen = Path(__file__).parents[1] / "app" / "main.py"
    options = ["--server.address", host, *(["--server.port", str(port)] if port else [])]
    echo(f"runs folder: {runs.absolute()}; Ctrl-C ends the app, never a run", err=True)
    sys.exit(streamlit(["run", str(screen), *options], standalone_mode=False))


def _refuse_taken(host: str, port: int) -> None:
    """Raise InputError where nothing can listen on this address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; leave --port out for a free one"
        ) from None

"""`sorl app`: the web app over the runs folder."""

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from typer import Context, Option

from sorl.cli.shared import NOTIFY
from sorl.cli.tables import note
from sorl.spec import InputError

_PERIOD = 5.0  # seconds between two looks for what is worth a message


def app(
    ctx: Context,
    port: int | None = Option(None, min=1, max=65535, help="Port; default: 8501 or the next free one."),
    host: str = Option("127.0.0.1", help="Address to listen on; 0.0.0.0 accepts other machines."),
    notify: str | None = NOTIFY,
) -> None:
    """Open the web app: arms next to each other, aligned on the collapse, down to the turn and the token."""
    for name in ("streamlit", "plotly"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    options = ["--server.address", host]
    if port is not None:
        options += ["--server.port", str(port)]
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"cannot listen on {host} port {port}: {why}; omit --port to use a free one"
            ) from None
    from streamlit.web.cli import main as streamlit

    # The app runs in this process and reads the folder from the environment, as `streamlit run app.py` does.
    if notify is not None:
        ring(ctx.obj, notify)
    os.environ["SORL_RUNS"] = str(ctx.obj.absolute())
    note(f"runs folder: {ctx.obj.absolute()}; Ctrl-C stops the app, not the runs")
    Thread(target=_warm, args=(ctx.obj.absolute(),), name="sorl warm", daemon=True).start()
    screen = Path(__file__).parents[1] / "app" / "main.py"
    sys.exit(streamlit(["run", str(screen), *options], standalone_mode=False))


def ring(runs: Path, url: str) -> None:
    """Post what happens to the runs of a folder to `url` for as long as this process lives, with or without a
    page.
    """
    import duckdb

    from sorl.diagnosis.alerts import Bell
    from sorl.store.reader import Reader
    from sorl.store.sync import sync

    bell = Bell(url, note)
    reader = Reader(runs, wait=1.0)

    def work() -> None:
        ask: Callable[[Reader], object] = bell.know
        while True:
            with suppress(InputError, duckdb.Error, OSError):
                sync(runs, seconds=1.0)
                ask(reader)
                ask = bell.look
            time.sleep(_PERIOD)

    Thread(target=work, name="sorl alerts", daemon=True).start()


def _warm(runs: Path) -> None:
    """Load the screens, sync, and answer what the first page asks while the browser starts."""
    page = import_module("sorl.app.page")
    for name in page.SCREENS:
        import_module(f"sorl.app.screens.{name}")
    store, syncing = page.store_of(str(runs))
    syncing.look_ahead(_PERIOD)
    with suppress(InputError):  # the page says it
        import_module("sorl.app.screens.overview").prepare(store)

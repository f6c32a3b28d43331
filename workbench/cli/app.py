"""`sorl app`: the web app over the runs folder."""

import os
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from typer import Context, Option

from workbench.cli.tables import note
from workbench.spec import InputError


def app(
    ctx: Context,
    port: int | None = Option(None, min=1, max=65535, help="Port; default: 8501 or the next free one."),
    host: str = Option("127.0.0.1", help="Address to listen on; 0.0.0.0 accepts other machines."),
) -> None:
    """Open the web app: arms next to each other, aligned on the collapse, down to the turn and the token."""
    if missing := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise InputError(f"the app needs {' and '.join(missing)}: run `pip install 'sorl[app]'`")
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
            raise InputError(f"cannot listen on {host} port {port}: {why}; omit --port to use a free one") from None
    from streamlit.web.cli import main as streamlit

    # The app runs in this process and reads the folder from the environment, as `streamlit run app.py` does.
    os.environ["SORL_RUNS"] = str(ctx.obj.absolute())
    note(f"runs folder: {ctx.obj.absolute()}; Ctrl-C stops the app, not the runs")
    Thread(target=_warm, name="sorl warm", daemon=True).start()
    screen = Path(__file__).parents[1] / "app" / "main.py"
    sys.exit(streamlit(["run", str(screen), *options], standalone_mode=False))


def _warm() -> None:
    """Load what the first page needs while the browser starts; scipy.stats takes as long as all the rest."""
    screens = import_module("workbench.app.page").SCREENS
    for name in (*(f"workbench.app.screens.{screen}" for screen in screens), "scipy.stats"):
        import_module(name)

"""A running training with everything that can watch it: how soon its rows are in the page, and what that
costs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from bench.measure import Comparison, Latency, Sample, Side, Target, alternate
from bench.processes import ITERATION, worker
from bench.training import Scene
from sorl.grid.folder import change
from sorl.spec import InputError
from sorl.store.reader import Reader
from sorl.store.sync import sync

if TYPE_CHECKING:
    from playwright.sync_api import Page

UPDATES = 30
_PATIENCE = 300.0  # seconds: what a loaded machine may need for anything that takes one when it is idle
_RUN = "bench-trl"  # as the process of `iteration` names its run
# The last step that a curve on the page shows; -1 while there is none.
_SHOWN = """() => Math.max(-1, ...[...document.querySelectorAll('.js-plotly-plot')].flatMap(
  plot => (plot._fullData || []).flatMap(
    trace => trace.customdata ? Array.from(trace.x).filter(x => x !== null && !isNaN(x)) : []
  )
))"""
_SHELL = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
connection.execute("SELECT count(*) FROM step").fetchall()
print("open", flush=True)
sys.stdin.read()
"""
_LOOP = """
import sys
from sorl.cli.main import main
query = "SELECT run_id, max(step), avg(success) FROM step GROUP BY run_id"
sys.argv = ["sorl", "--runs", sys.argv[1], "sql", query]
while True:
    try:
        main()
    except SystemExit:
        pass
"""


def missing() -> str | None:
    """What this part lacks on this machine; None when it can run."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed: type `pip install playwright`"
    return (
        None
        if chromium()
        else "no chromium: install Debian's package chromium, or name a program in SORL_CHROMIUM"
    )


def chromium() -> str | None:
    """The browser: the program SORL_CHROMIUM, else one of the usual names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("SORL_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def measure(scene: Scene, rounds: int) -> list[Comparison | Latency]:
    """Seconds from the file of a segment to its rows in the page; iterations/s watched against unwatched."""
    if reason := missing():
        raise InputError(reason)
    runs = scene.folder / "live"
    folder = runs / "live" / _RUN
    with ExitStack() as stack:
        trainer = stack.enter_context(worker(_trainer(scene, folder), scene.folder / "trainer.log", 1))
        change(
            folder,
            {"run_id": _RUN},
            experiment="live",
            algorithm="ppo",
            arm="ppo",
            seed=0,
            status="queued",
            config=scene.settings.model_dump_json(),
            steps=0,
        )
        steps = [0]

        def train() -> Sample:
            seen = trainer.iterate()
            steps[0] += 1
            return Sample(1, seen["seconds"], seen["cpu_seconds"])

        train()
        sync(runs)
        app, address = stack.enter_context(served(runs, scene.folder / "app.log"))
        page = stack.enter_context(opened(f"{address}/compare?seeds=single&metric=step.success"))
        fresh = freshness(page, folder, train, steps)
        others = [app, *[stack.enter_context(_process(_SHELL, runs / "sorl.duckdb")) for _ in range(2)]]
        others.append(stack.enter_context(_process(_LOOP, runs)))
        watched, alone = alternate(
            _beside(others, signal.SIGCONT, train), _beside(others, signal.SIGSTOP, train), rounds
        )
        for process in others:
            process.send_signal(signal.SIGCONT)
    sync(runs)
    found = Reader(runs).rows("SELECT count(*), count(DISTINCT step), max(step) FROM step").rows[0]
    if found != (steps[0], steps[0], steps[0] - 1):
        raise RuntimeError(f"{steps[0]} steps were trained, the database has (rows, steps, last) {found}")
    return [
        fresh,
        Comparison(
            name="training, watched",
            unit="iterations/s",
            ours=Side("app in a browser, two SQL shells, a loop of `sorl sql`", watched),
            baseline=Side("the same processes stopped", alone),
            target=Target("ratio", 0.98),
            note=(
                "by CPU: what the watching costs the trainer itself; the ratio: also what it takes from the"
                " cores"
            ),
            facts={"rows_of_step": steps[0], "lost": 0},
        ),
    ]


def freshness(
    page: Page, folder: Path, train: Callable[[], Sample], steps: list[int], updates: int = UPDATES
) -> Latency:
    """Seconds from the time of a segment's file until the page shows its step, for `updates` steps."""
    found = Latency("row in the page", 3.0, of="max")
    _until(page, steps[0] - 1)
    for _ in range(updates):
        train()
        _until(page, steps[0] - 1)
        shown = time.time()
        written = max(file.stat().st_mtime for file in (folder / "segments" / "step").glob("[0-9]*.parquet"))
        found.samples.append(Sample(1, shown - written, 0.0))
    return found


def _until(page: Page, step: int) -> None:
    page.wait_for_function(f"({_SHOWN})() >= {step}", timeout=1000 * _PATIENCE, polling=25)


def _beside(
    others: Sequence[subprocess.Popen[str]], how: signal.Signals, train: Callable[[], Sample]
) -> Callable[[], Sample]:
    def once() -> Sample:
        for process in others:
            process.send_signal(how)
        time.sleep(0.2)
        return train()

    return once


def _trainer(scene: Scene, folder: Path) -> list[str]:
    """A process that trains one iteration for each line it is sent, into the folder of the run."""
    folder.mkdir(parents=True)
    settings = scene.folder / "live.json"
    settings.write_text(scene.settings.model_dump_json())
    return [sys.executable, str(ITERATION), str(settings), str(scene.start), str(folder)]


@contextmanager
def served(runs: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of `sorl app` over a runs folder, once it answers, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "from sorl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "--runs", str(runs), "app", "--port", str(port)]
    with log.open("w") as out:
        app = subprocess.Popen(command, stdout=out, stderr=out, text=True)
        try:
            _answering(app, f"http://127.0.0.1:{port}/_stcore/health", log)
            yield app, f"http://127.0.0.1:{port}"
        finally:
            _end(app)


def _answering(app: subprocess.Popen[str], address: str, log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if app.poll() is not None:
            raise RuntimeError(f"the app ended:\n{log.read_text()[-3000:]}")
        with suppress(OSError), urlopen(address, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the app did not answer in {_PATIENCE:g} s:\n{log.read_text()[-3000:]}")


@contextmanager
def opened(address: str) -> Iterator[Page]:
    """The page at `address` in a browser without a window."""
    from playwright.sync_api import sync_playwright

    # In a container the browser runs as root, where its own sandbox does not start.
    options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=options, timeout=1000 * _PATIENCE)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(1000 * _PATIENCE)
            page.goto(address)
            yield page
        finally:
            browser.close()


@contextmanager
def _process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code`; one that says "open" is waited for until it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if "open" in code else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        if process.stdout is not None:
            process.stdout.readline()
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

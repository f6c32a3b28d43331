"""The app in a real browser: `sorl app` in a process of its own, and Debian's chromium without a window."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.store.processes import ROOT

pytest.importorskip("playwright", reason="playwright is not installed: pip install 'sorl[test]'")
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import TimeoutError as Late

PATIENCE = 240.0  # seconds: what a loaded machine may need for what takes one when it is idle
NO_CHROMIUM = "no chromium on this machine: apt-get install chromium, or name one in SORL_CHROMIUM"
# What is said at the end of each screen, or in its stead. The app looks for new rows twice a second: it is
# never idle.
ENDS = {
    "overview": ("needs no network", "More in Region"),
    "compare": ("What differs",),
    "turns": ("Each cell:",),
    "region": ("needs no network", "No region search yet"),
    "collapse": (
        "is no warning",
        "None of these runs collapsed",
        "None of these runs raised",
        "did not record their alarms",
    ),
    "conversations": ("Conditions know:", "No text of this run"),
    "episode": ("Point at a name",),
    "replay": ("in Episode", "no stored batch"),
    "run": ("Files",),
    "sql": ("reruns the query",),
    "glossary": ("Source:",),
    "imports": ("Nothing is kept until", "to copy"),
}
# The address is that of the screen, its end is there, nothing on it is stale, and every figure has been
# drawn.
_SETTLED = """
([paths, ends]) => paths.includes(location.pathname)
  && ends.some(end => document.querySelector('[data-testid="stMainBlockContainer"]')?.innerText.includes(end))
  && !document.querySelector('[data-stale="true"], [data-testid="stSkeleton"]')
  && [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].every(e => e.querySelector('.main-svg'))
  && document.fonts.status === 'loaded'
"""
# Where on the page an unseen mark of a figure stands that takes the pointer: the first that carries these
# values.
_MARK = """
([key, carried]) => {
  const drawn = document.querySelector(`.st-key-${key} .js-plotly-plot`);
  drawn.scrollIntoView({block: 'center'});
  const box = drawn.getBoundingClientRect();
  const axis = name => drawn._fullLayout[name[0] + 'axis' + name.slice(1)];
  for (const trace of drawn._fullData.filter(trace => trace.marker?.opacity === 0)) {
    const rows = Array.from(trace.customdata);
    const index = rows.findIndex(row => carried.every((value, i) => row[i] === value));
    const x = axis(trace.xaxis), y = axis(trace.yaxis);
    if (index < 0) continue;
    return [box.x + x._offset + x.d2p(trace.x[index]), box.y + y._offset + y.d2p(trace.y[index])];
  }
}
"""
_HOVERED = """
([key, carried]) => document.querySelector(`.st-key-${key} .js-plotly-plot`)._hoverdata
  ?.some(point => carried.every((value, i) => point.customdata[i] === value))
"""
# Two points of the page: where an x-range of the first panel of a figure begins and ends, at half its height.
_SPAN = """
([key, first, last]) => {
  const drawn = document.querySelector(`.st-key-${key} .js-plotly-plot`);
  drawn.scrollIntoView({block: 'center'});
  const {xaxis: x, yaxis: y} = drawn._fullLayout, box = drawn.getBoundingClientRect();
  return [first, last].map(at => [box.x + x._offset + x.d2p(at), box.y + y._offset + y._length / 2]);
}
"""


def chromium() -> str | None:
    """The program SORL_CHROMIUM, else the first that is installed; None where none is."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("SORL_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


MARKS = [  # of a module of tests: minutes where nothing else runs
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(chromium() is None, reason=NO_CHROMIUM),
]


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """The address of `sorl app` over a runs folder, on a free port of this machine; its process ends with the
    block.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "cli.py", "--runs", str(runs), "app", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as app:
        try:
            end = time.monotonic() + PATIENCE
            while True:
                assert app.poll() is None, f"the app ended: {app.stderr and app.stderr.read()}"
                assert time.monotonic() < end, f"the app does not answer in {PATIENCE:g} s"
                with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            app.terminate()


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser; in a container it runs as root, where its own sandbox does not start."""
    options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium(), args=options, timeout=1000 * PATIENCE)
        yield opened
        opened.close()


def new_page(opened: Browser, scheme: Any = "light") -> Page:
    """A page with a context of its own, light or dark."""
    size: Any = {"width": 1280, "height": 900}
    page = opened.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page.set_default_timeout(1000 * PATIENCE)
    return page


def complaints(page: Page) -> list[str]:
    """A list that fills with the errors of the page: of its scripts, its console, and requests
    that failed.
    """
    found: list[str] = []

    def add(text: str, url: str) -> None:
        # Opened at the address of a screen, the app looks for its server there first, and only then where it
        # is.
        if "/_stcore/" not in url:
            found.append(text)

    page.on("console", lambda m: m.type == "error" and add(f"console: {m.text}", m.location.get("url", "")))
    page.on("response", lambda r: r.status >= 400 and add(f"{r.status}: {r.url}", r.url))
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    return found


def settle(page: Page, screen: str, like: str = "") -> None:
    """Wait until a screen is drawn whole, at an address that is `like` this if one is given."""
    paths = ["/", f"/{screen}"] if screen == "overview" else [f"/{screen}"]
    if like:
        page.wait_for_url(like)
    page.wait_for_function(_SETTLED, arg=[paths, ENDS[screen]])


def visit(page: Page, url: str, screen: str) -> None:
    """Open an address, until the screen is drawn whole."""
    page.goto(url)
    settle(page, screen)


def go(page: Page, words: str, screen: str) -> None:
    page.get_by_role("link", name=words, exact=True).first.click()
    settle(page, screen)


def open_run(page: Page, run: str) -> None:
    """Click the cell of a run on the Overview."""
    page.locator(f'.st-key-grid a[data-key="{run}"]').click()
    settle(page, "run", "**/run?**")


def click_cell(page: Page, figure: str, carried: list[Any], opens: str) -> None:
    """Click the cell of a figure (by what `export.figure` calls it) whose mark carries these values first.

    A figure may be drawn again under the pointer: it is pointed at and clicked until the address is like
    `opens`.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            x, y = page.evaluate(_MARK, [figure, carried])
            page.mouse.move(x - 3, y - 2)
            page.mouse.move(x, y)
            page.wait_for_function(_HOVERED, arg=[figure, carried], timeout=5_000)
            # Without a move: where the page has shifted since, the click still means what is pointed at.
            page.mouse.down()
            page.mouse.up()
            return page.wait_for_url(opens, timeout=60_000)
        except Late:
            if time.monotonic() > end:
                raise


def drag(page: Page, figure: str, first: float, last: float) -> None:
    begin, end = page.evaluate(_SPAN, [figure, first, last])
    page.mouse.move(*begin)
    page.mouse.down()
    page.mouse.move((begin[0] + end[0]) / 2, begin[1])
    page.mouse.move(*end)
    page.mouse.up()

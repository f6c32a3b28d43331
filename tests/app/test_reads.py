"""Which tables the screens read: a screen that is drawn anew with every new row must not read them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import Open, html
from workbench.analysis import compare
from workbench.analysis.runs import runs
from workbench.app.page import store_of
from workbench.app.text import html_text
from workbench.store.reader import Reader

SCANNED = re.compile(r"Table:\s*\S*?(\w+)\s")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The tables that plans of the questions asked from here on scan."""
    found: set[str] = set()
    asked = Reader._ask

    def plan(self: Reader, sql: str, parameters: Any) -> None:
        told = asked(self, f"EXPLAIN {sql}", lambda c, text: c.execute(text, parameters).fetchall())
        found.update(SCANNED.findall("\n".join(row[1] for row in told).replace("│", " ")))

    for name in ("query", "rows"):
        method = getattr(Reader, name)

        def told(self: Reader, sql: str, parameters: Any = None, *, _of: Any = method, **options: Any) -> Any:
            plan(self, sql, parameters)
            return _of(self, sql, parameters, **options)

        monkeypatch.setattr(Reader, name, told)
    return found


@pytest.mark.parametrize("screen", ["compare", "turns", "collapse", "episode", "overview"])
def test_a_screen_that_shows_no_update_reads_none(
    screen: str, grid: Path, searched: Path, open_screen: Open, read: set[str]
) -> None:
    store_of.clear()
    app = open_screen(screen, searched if screen == "overview" else grid)
    assert not app.exception
    assert "run" in read
    assert "minibatch" not in read


def test_the_table_of_the_overview_is_that_of_the_terminal(grid: Path, open_screen: Open) -> None:
    shown = html(open_screen("overview", grid))
    summary = compare.readable(compare.summarise(runs(Reader(grid), "demo"))).astype(str)
    assert {"clip fraction", "grad norm median", "grad norm max"} <= set(summary.columns)
    for row in summary.to_numpy().tolist():
        assert "".join(f"<td>{html_text(cell)}</td>" for cell in row) in shown

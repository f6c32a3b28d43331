"""The way to other screens in words: addresses, links, and a table whose rows lead somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import streamlit as st

from workbench.app.navigation import SCREENS
from workbench.app.safe import html_text

if TYPE_CHECKING:
    import pandas as pd

STYLE = Path(__file__).parent / "detail.css"
_SEEDS = 10  # of an arm that a line of links names


def address(screen: str, **choices: str | Sequence[str]) -> str:
    """The address of a screen with these choices, relative to any other. Raises ValueError for an unknown screen."""
    if screen not in SCREENS:
        raise ValueError(f"'{screen}' is no screen of this app")
    return ("./" if screen == SCREENS[0] else screen) + "?" + urlencode(choices, doseq=True)


def anchor(words: str, where: str) -> str:
    """A link as HTML; `where` comes from `address`."""
    return f'<a href="{html_text(where)}">{html_text(words)}</a>'


def run_links(runs: pd.DataFrame, experiment: str) -> None:
    """A line that opens each of `runs` (arm, seed, run_id) in screen Run."""
    lines = []
    for arm, part in runs.groupby("arm", sort=False):
        seeds = [
            anchor(str(row.seed), address("run", experiment=experiment, run=str(row.run_id)))
            for row in part.head(_SEEDS).itertuples()
        ]
        more = f" and {len(part) - _SEEDS} more" if len(part) > _SEEDS else ""
        lines.append(f"<span>{html_text(arm)}: seed {', '.join(seeds)}{more}</span>")
    st.html(STYLE)
    st.html(f'<p class="sorl-note sorl-ways"><span>Open a run:</span>{"".join(lines)}</p>')


def linked_table(header: Sequence[tuple[str, str]], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Literal texts; `header` has name and definition of each column, a row its address (of this app) and its cells.

    The first cell of a row is the link.
    """
    st.html(STYLE)
    st.html(linked_html(header, rows))


def linked_html(header: Sequence[tuple[str, str]], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The table as HTML. Raises ValueError for an address that leaves the app."""
    head = "".join(f'<th title="{html_text(words)}">{html_text(name)}</th>' for name, words in header)
    body = "".join(f"<tr>{_row(address, cells)}</tr>" for address, cells in rows)
    return f'<div class="sorl-scroll"><table class="sorl-table sorl-listing"><tr>{head}</tr>{body}</table></div>'


def _row(address: str, cells: Sequence[str]) -> str:
    if not address.partition("?")[0].isalpha():
        raise ValueError(f"'{address}' is no screen of this app")
    first = f'<td><a href="{html_text(address)}">{html_text(cells[0])}</a></td>'
    return first + "".join(f"<td>{html_text(cell)}</td>" for cell in cells[1:])

"""A table whose rows lead to another screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from workbench.view.safe import html_text

STYLE = Path(__file__).parent / "detail.css"


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

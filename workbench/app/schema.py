"""Tables and columns of the database with their definitions, and help for a question that names none of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from workbench.app.safe import html_text

if TYPE_CHECKING:
    import pandas as pd

# The last is what DuckDB says of step.x in table step, whose column of that name it takes for a struct.
_UNKNOWN = re.compile(r"""(?:Referenced column|a column named|extract field) ["']([^"']+)["']""")


def columns_html(columns: pd.DataFrame) -> str:
    """The columns of one table (name, type, description) as HTML."""
    rows = "".join(
        f"<p><b>{html_text(name)}</b> <span>{html_text(kind.lower())}</span><br>{html_text(words)}</p>"
        for name, kind, words in zip(columns["name"], columns["type"], columns["description"], strict=True)
    )
    return f'<div class="sorl-columns">{rows}</div>'


def hint(mistake: str, columns: pd.DataFrame) -> str:
    """Where the column that a question missed is, or which are called nearly so; empty where nothing is near."""
    found = _UNKNOWN.search(mistake)
    if found is None:
        return ""
    name = found[1]
    columns = columns[~columns["type"].str.startswith("STRUCT")]  # a roll-up has the columns of its table once more
    places = list(columns.loc[columns["name"] == name, "table"])
    if places:
        return f"{name} is a column of {_listed(places)}."
    near = get_close_matches(name, sorted(set(columns["name"])), n=4, cutoff=0.7)
    each = [f"{one} ({_listed(list(columns.loc[columns['name'] == one, 'table']))})" for one in near]
    return f"There is {', '.join(each)}." if each else ""


def _listed(tables: Sequence[str]) -> str:
    shown = ", ".join(tables[:4])
    return f"{shown} and {len(tables) - 4} more" if len(tables) > 4 else shown

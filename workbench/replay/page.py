"""The generated parts of docs/replay.md: settings of the black box, arrays of a file, columns of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.replay.columns import CULPRITS, SUMMARY, TOKENS, TURNS
from workbench.spec import BatchesSettings
from workbench.store.stored import ARRAYS

_AXES = {"B": "B", "BT": "B x T", "R": "R", "RT": "R x T", "U": "U"}


def settings() -> str:
    """Markdown: one row per setting of [record.batches]."""
    fields = BatchesSettings.model_fields.items()
    return _table(
        ("setting", "default", "what is kept"), ((f"`{n}`", str(f.default), f.description or "") for n, f in fields)
    )


def arrays() -> str:
    """Markdown: one row per array of a stored batch."""
    rows = (
        (f"`{name}`", _AXES[a.axes], a.kind, a.text + ("" if a.always else "; where there is one"))
        for name, a in ARRAYS.items()
    )
    return _table(("array", "axes", "kind", "what it is"), rows)


def columns() -> str:
    """Markdown: one row per column, with the tables that have it."""
    tables = {"summary": SUMMARY, "turns": TURNS, "culprits": CULPRITS, "tokens": TOKENS}
    known = {column.name: column for table in tables.values() for column in table}
    places = {name: [t for t, table in tables.items() if any(c.name == name for c in table)] for name in known}
    rows = ((f"`{n}`", ", ".join(places[n]), c.type, c.description.replace("|", "\\|")) for n, c in known.items())
    return _table(("column", "tables", "type", "what it is"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

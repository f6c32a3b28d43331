"""Names and texts as parts of SQL statements."""

from __future__ import annotations


def quoted(name: str) -> str:
    """`name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as an SQL string; DDL takes no parameters."""
    return "'" + text.replace("'", "''") + "'"

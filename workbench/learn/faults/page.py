"""The generated part of docs/faults.md: the kinds of fault."""

from __future__ import annotations

from workbench.learn.faults.declared import KINDS, Kind


def kinds() -> str:
    """Markdown: one row per kind."""
    header = ("kind", "the bug", "strength", "default", "one turn", "concerns", "caught by")
    rows = [
        (f"`{k.name}`", k.bug, _strength(k), _number(k), "yes" if k.turn else "", k.concerns, _caught(k)) for k in KINDS
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def _strength(kind: Kind) -> str:
    return f"{kind.strength} ({kind.unit})" if kind.unit and kind.unit not in kind.strength else kind.strength


def _number(kind: Kind) -> str:
    return f"{kind.default:,g}"


def _caught(kind: Kind) -> str:
    return f"`{kind.caught}`" if kind.caught.startswith("guard_") else kind.caught

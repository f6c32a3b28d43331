"""The generated parts of docs/fair-comparison.md: the checks of the guard and the stop rules."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.spec import GUARD, StopSettings

_SEEN = {
    "plan": "`sorl plan`, before anything runs",
    "start": "trainer, before its first step",
    "step": "trainer, after every step",
    "compare": "`sorl compare`, from what runs recorded",
}


def checks() -> str:
    """Markdown: one row per check."""
    rows = [
        (f"`{c.name}`", _SEEN[c.seen], f"**{c.severity}**: {c.flags}" if c.flags else "", c.notes, c.reason)
        for c in GUARD
    ]
    return _markdown(("check", "seen by", "flagged", "only told", "why"), rows)


def stop_rules() -> str:
    """Markdown: one row per stop rule."""
    return _markdown(
        ("setting", "ends the run after"),
        [(f"`stop.{name}`", field.description or "") for name, field in StopSettings.model_fields.items()],
    )


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))

"""The events of a run as a table, in order, each with the way to its step in other screens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.app import cards
from workbench.app.links import anchor
from workbench.app.safe import html_text
from workbench.app.wording import number, word

MOST = 200  # events that are listed
_HEAD = (
    ("step", "training step"), ("severity", ""), ("event", ""), ("diagnostic", ""),
    ("value", "of the diagnostic at the event"), ("threshold", "that it crossed"), ("in words", ""),
    ("look at", "the step in other screens"),
)  # fmt: skip

Ways = Callable[[int], Sequence[tuple[str, str]]]  # step -> words and address of the screens that show it


def happenings(events: Sequence[Mapping[str, Any]], ways: Ways) -> str:
    """The table as HTML; `events` is the answer to query `happened`."""
    if not events:
        return '<p class="sorl-note">No event was recorded.</p>'
    head = "".join(f'<th title="{html_text(words)}">{html_text(name)}</th>' for name, words in _HEAD)
    body = "".join(_row(event, ways) for event in events[:MOST])
    more = f'<p class="sorl-note">The first {MOST} of {len(events):,} events.</p>' if len(events) > MOST else ""
    return f'<div class="sorl-scroll"><table class="sorl-table sorl-events"><tr>{head}</tr>{body}</table></div>{more}'


def _row(event: Mapping[str, Any], ways: Ways) -> str:
    step, named = event["step"], event["diagnostic"] or ""
    severity = word(event["severity"])
    cells = [
        "–" if step is None else f"{step:,}",
        f'<i class="sorl-dot sorl-{html_text(severity)}"></i>{html_text(severity)}',
        html_text(word(event["kind"]).replace("_", " ")),
        f'<a href="{html_text(cards.address(named))}">{html_text(named)}</a>' if named else "",
        html_text(number(event["value"])) if event["value"] is not None else "",
        html_text(number(event["threshold"])) if event["threshold"] is not None else "",
        html_text(word(event["message"])),
        "" if step is None else ", ".join(anchor(words, where) for words, where in ways(step)),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"

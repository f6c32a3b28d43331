"""The words of screen Run as HTML: who a run is, the ways from it, its settings, its log. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workbench.app.links import anchor
from workbench.app.safe import html_text
from workbench.app.settings import Setting
from workbench.app.standing import ended_badly, facts, sentence, title, versions
from workbench.app.theme import Palette, faded
from workbench.app.wording import number, size, word


def heading(run: dict[str, Any], colour: str, palette: Palette) -> str:
    """Name, outcome, and the run in a sentence; the reason where it ended badly."""
    outcome = run["outcome"] or ""
    hue = palette.outcomes.get(outcome, palette.outcomes[""])
    said = outcome.replace("_", " ") or word(run["status"])
    pill = f'<span class="sorl-pill" style="background:{faded(hue, 0.16)};border-color:{hue}">{html_text(said)}</span>'
    bad = ended_badly(run)
    return (
        f'<p class="sorl-question"><span class="sorl-swatch" style="background:{colour}"></span>'
        f'{html_text(title(run))}{pill}</p><p class="sorl-answer">{html_text(sentence(run))}</p>'
        + (f'<p class="sorl-warning">{html_text(bad)}</p>' if bad else "")
    )


def about(run: dict[str, Any]) -> str:
    """The facts of a run and the versions that it was trained with."""
    return _listed(facts(run)) + _listed(versions(run))


def ways(screens: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]) -> str:
    """Links to this run on other screens, and to the other seeds of its arm: words and address."""
    parts = [f"<span>This run in {', '.join(anchor(*link) for link in screens)}</span>"]
    if others:
        parts.append(f"<span>Other seeds of this arm: {', '.join(anchor(*link) for link in others)}</span>")
    return f'<p class="sorl-note sorl-ways">{"".join(parts)}</p>'


def settings_table(found: Iterable[Setting]) -> str:
    """Settings with their value here, in the grid's base, by default, and in the other arms."""
    head = "".join(f"<th>{name}</th>" for name in ("setting", "here", "base of the grid", "default", "other arms"))
    body = "".join(
        f"<tr{' class=' + chr(34) + 'sorl-changed' + chr(34) if one.tells else ''}>"
        + "".join(
            f"<td>{html_text(cell)}</td>"
            for cell in (
                one.key,
                one.here,
                one.base,
                one.default,
                one.elsewhere or ("" if one.key == "seed" else "same"),
            )
        )
        + "</tr>"
        for one in found
    )
    return f'<div class="sorl-scroll"><table class="sorl-table sorl-settings"><tr>{head}</tr>{body}</table></div>'


def recorded(tables: Sequence[dict[str, Any]]) -> str:
    """What a run wrote, in a line: rows and size of each table, and the segments that could not be read."""
    broken = sum(one["corrupt"] for one in tables)
    rows = [(one["table_name"], f"{number(one['rows'] or 0)} rows, {size(one['bytes'])}") for one in tables]
    bad = [("unreadable", f"{broken} segments set aside: `sorl doctor` lists them")] if broken else []
    return _listed([*rows, *bad])


def log(lines: Sequence[str] | None) -> str:
    """The end of a log, which stays at its last line; None where there is no file."""
    if not lines:
        return f'<p class="sorl-note">{"Its console.log is empty" if lines == [] else "It left no console.log"}.</p>'
    return f'<div class="sorl-log"><pre>{html_text(chr(10).join(lines))}</pre></div>'


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    parts = "".join(f"<span><b>{html_text(name)}</b>{html_text(value)}</span>" for name, value in pairs)
    return f'<p class="sorl-facts">{parts}</p>'

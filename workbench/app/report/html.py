"""A report as one HTML page that needs no network: figures in both palettes, drawn by the library inside the page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.app.report.parts import Code, Figure, Items, Part, Report, Section, Table, Text
from workbench.app.safe import html_text
from workbench.app.theme import DARK, LIGHT, Palette
from workbench.spec import OUTCOMES

_FOLDER = Path(__file__).parent
_SHORT = 22  # characters of a cell that is never broken into lines


def page(report: Report) -> str:
    """The whole page. Only its own two scripts may run in it, and nothing may be loaded from anywhere."""
    from plotly.offline import get_plotlyjs

    drawn: dict[str, dict[str, Any]] = {}
    lead = "\n".join(_part(part, drawn) for part in report.lead)
    sections = "\n".join(_section(number, section, drawn) for number, section in enumerate(report.sections))
    library, script = (
        get_plotlyjs().replace("</script", "<\\/script"),
        (_FOLDER / "report.js").read_text(encoding="utf-8"),
    )
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (library, script))
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html_text(report.title)}</title>
<style>
{_variables()}
{(_FOLDER / "report.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<h1>{html_text(report.title)}</h1>
{lead}
<nav>{" ".join(_links(report.sections))}</nav>
{sections}
</main>
<script type="application/json" id="figures">{_literal(drawn)}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _literal(value: Any) -> str:
    """JSON that cannot end its script element."""
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _variables() -> str:
    """The palettes of the app as CSS variables; print is light."""
    return "\n".join(
        (
            f":root {{ {_colours(LIGHT)} }}",
            f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_colours(DARK)} }} }}",
            *(f".tone-{name} {{ color: var(--{name}); font-weight: 600; }}" for name in OUTCOMES),
        )
    )


def _colours(palette: Palette) -> str:
    base = {"background": palette.background, "surface": palette.surface, "text": palette.text, "muted": palette.muted,
            "grid": palette.grid}  # fmt: skip
    outcomes: dict[str, str] = {name: palette.outcomes[name] for name in OUTCOMES}
    return " ".join(f"--{name}: {value};" for name, value in {**base, **outcomes}.items())


def _links(sections: Sequence[Section]) -> Iterator[str]:
    for number, section in enumerate(sections):
        if section.level == 2:
            yield f'<a href="#s{number}">{html_text(section.title)}</a>'


def _section(number: int, section: Section, drawn: dict[str, dict[str, Any]]) -> str:
    body = "\n".join(_part(part, drawn) for part in section.parts)
    return f'<section><h{section.level} id="s{number}">{html_text(section.title)}</h{section.level}>\n{body}</section>'


def _part(part: Part, drawn: dict[str, dict[str, Any]]) -> str:
    if isinstance(part, Text):
        return f'<p class="{part.kind}">{html_text(part.text)}</p>'
    if isinstance(part, Items):
        return "<ul>" + "".join(f"<li>{html_text(line)}</li>" for line in part.lines) + "</ul>"
    if isinstance(part, Code):
        box = f"<pre><code>{html_text(part.text)}</code></pre>"
        return f"<details><summary>{html_text(part.title)}</summary>{box}</details>" if part.title else box
    if isinstance(part, Table):
        return _table(part)
    return _figure(part, drawn)


def _table(part: Table) -> str:
    tones = dict(part.tones)

    def cell(text: str) -> str:
        kinds = [*(["short"] if len(text) <= _SHORT else []), *([f"tone-{tones[text]}"] if text in tones else [])]
        return f'<td class="{" ".join(kinds)}">{html_text(text)}</td>'

    head = "".join(f"<th>{html_text(name)}</th>" for name in part.header)
    body = "\n".join("<tr>" + "".join(cell(text) for text in row) + "</tr>" for row in part.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _figure(part: Figure, drawn: dict[str, dict[str, Any]]) -> str:
    title, caption = html_text(part.title), html_text(part.caption)
    palettes = (("light", LIGHT), ("dark", DARK))
    both = {kind: part.draw(palette) for kind, palette in palettes}
    if svg := "".join(f'<div class="of-{kind}">{one}</div>' for kind, one in both.items() if isinstance(one, str)):
        body = f'<div class="drawing">{svg}</div>'
    else:
        name = f"f{len(drawn)}"
        drawn[name] = {kind: json.loads(one.to_json()) for kind, one in both.items() if not isinstance(one, str)}
        height = int(drawn[name]["light"]["layout"]["height"])
        body = (
            f'<div class="drawing" id="{name}" role="img" aria-label="{title}. {caption}" '
            f'style="min-height:{height}px"></div>'
        )
    return f"<figure><h4>{title}</h4>{body}<figcaption>{caption}</figcaption></figure>"

"""What a report consists of, and the two ways to write it: one HTML page that needs no network, or Markdown.

Texts of a report are literal; writing them out escapes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.app.text import html_text, visible
from workbench.app.theme import DARK, LIGHT, Palette
from workbench.spec import OUTCOMES

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_FOLDER = Path(__file__).parent
# Only where it would act: an underscore inside a word, a bracket that no link follows and a lone < are letters.
_MARKS = re.compile(r"([\\`*|$~]|<(?=[A-Za-z!?/])|&(?=#?\w+;)|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#>])")


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is plain, lead (a size larger) or note (smaller)."""

    text: str
    kind: str = "plain"


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Lines to type or a file, in a box that opens on a click on its `title` where it has one."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts; cells whose text is a key of `tones` (text -> outcome) have the colour of that outcome."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    tones: Sequence[tuple[str, str]] = field(default=())

    @classmethod
    def of(cls, frame: pd.DataFrame, tones: Sequence[tuple[str, str]] = ()) -> Table:
        """The cells of a frame as texts."""
        return cls([str(c) for c in frame.columns], frame.astype(str).to_numpy().tolist(), tones)


@dataclass(frozen=True)
class Figure:
    """A figure (plotly or SVG) in any palette, its title, and a caption with n, seeds and the kind of interval."""

    draw: Callable[[Palette], go.Figure | str]
    title: str
    caption: str


Part = Text | Items | Code | Table | Figure


@dataclass(frozen=True)
class Section:
    """A heading of level 2 or 3, and its parts."""

    title: str
    parts: Sequence[Part]
    level: int = 2


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    lead: Sequence[Part]
    sections: Sequence[Section]


def html(report: Report) -> str:
    """Write the page. Its content policy allows its own two scripts and no request to anywhere."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    def literal(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(html_text(value))

    pages = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, finalize=literal, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    library = get_plotlyjs().replace("</script", "<\\/script")
    script = (_FOLDER / "report.js").read_text(encoding="utf-8")
    figures: dict[str, dict[str, Any]] = {}
    return pages.get_template("report.html.j2").render(
        report=report, kind=lambda part: type(part).__name__, figure=lambda part: _drawn(part, figures),
        # What the template draws fills `figures`, so it asks for them last.
        figures=lambda: Markup(_json(figures)), library=Markup(library), script=Markup(script),
        digests=[_digest(library), _digest(script)], palettes={"light": LIGHT, "dark": DARK}, outcomes=OUTCOMES,
        svg=Markup,
    )  # fmt: skip


def _drawn(part: Figure, figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Both palettes of a figure: their SVG, or its id among the figures of the page and its height in pixels."""
    both = {kind: part.draw(palette) for kind, palette in (("light", LIGHT), ("dark", DARK))}
    if svg := {kind: one for kind, one in both.items() if isinstance(one, str)}:
        return {"svg": svg}
    name = f"f{len(figures)}"
    figures[name] = {kind: json.loads(one.to_json()) for kind, one in both.items() if not isinstance(one, str)}
    return {"svg": {}, "name": name, "height": int(figures[name]["light"]["layout"]["height"])}


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that cannot end its script element."""
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def markdown(report: Report, level: int = 1) -> str:
    """Write the page without its figures; its title has a heading of `level`, its sections those below."""
    lines = [f"{'#' * level} {text(report.title)}", *(_part(part) for part in report.lead)]
    for section in report.sections:
        if section.parts and all(isinstance(part, Figure) for part in section.parts):
            continue
        lines.append(f"{'#' * (level + section.level - 1)} {text(section.title)}")
        lines += [_part(part) for part in section.parts]
    return "\n\n".join(line for line in lines if line) + "\n"


def _part(part: Part) -> str:
    if isinstance(part, Text):
        return f"**{text(part.text)}**" if part.kind == "lead" else text(part.text)
    if isinstance(part, Items):
        return "\n".join(f"- {text(line)}" for line in part.lines)
    if isinstance(part, Code):
        return (f"{text(part.title)}\n\n" if part.title else "") + _fenced(part.text)
    if isinstance(part, Table):
        rows = [[text(cell) for cell in part.header], ["---"] * len(part.header)]
        rows += [[text(cell) for cell in row] for row in part.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return ""


def text(words: object) -> str:
    """`words` as Markdown that shows exactly them, on one line."""
    return _MARKS.sub(r"\\\1", visible(words)).replace("\n", " ")


def _fenced(words: str) -> str:
    """A block of code without control characters; its fence is longer than any in it."""
    longest = max((len(found) for found in re.findall(r"`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(visible(line) for line in words.strip("\n").split("\n"))
    return f"{fence}\n{lines}\n{fence}"

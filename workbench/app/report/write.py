"""The parts of a report, and two ways to write it, both escaped: one HTML page that needs no network, or Markdown."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from workbench.app.text import html_text, visible
from workbench.app.theme import DARK, LIGHT, Palette
from workbench.spec import OUTCOMES

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
    """A table; cells whose text is a key of `tones` (text -> outcome) have the colour of that outcome."""

    frame: pd.DataFrame
    tones: Mapping[str, str] = field(default_factory=dict)

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return [str(name) for name in self.frame.columns]

    @property
    def rows(self) -> list[list[str]]:
        """The cells as texts."""
        return self.frame.astype(str).to_numpy().tolist()


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
    """Return the page. Its content policy allows its own two scripts and no request to anywhere."""
    from plotly.offline import get_plotlyjs

    figures: dict[str, dict[str, Any]] = {}

    def figure(part: Figure) -> dict[str, Any]:
        """Return both palettes of a figure: their SVG, or its id among the figures of the page and its height."""
        both = {kind: part.draw(palette) for kind, palette in (("light", LIGHT), ("dark", DARK))}
        if svg := {kind: one for kind, one in both.items() if isinstance(one, str)}:
            return {"svg": svg}
        name = f"f{len(figures)}"
        figures[name] = {kind: json.loads(one.to_json()) for kind, one in both.items() if not isinstance(one, str)}
        return {"svg": {}, "name": name, "height": int(figures[name]["light"]["layout"]["height"])}

    def drawn() -> Markup:
        """Return all figures as JSON that cannot end its script element."""
        found = json.dumps(figures).replace("<", "\\u003c")
        return Markup(found.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))

    pages = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, finalize=html_text, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    library = get_plotlyjs().replace("</script", "<\\/script")
    script = (_FOLDER / "report.js").read_text(encoding="utf-8")
    digests = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (library, script)]
    return pages.get_template("report.html.j2").render(
        report=report, kind=lambda part: type(part).__name__, figure=figure, svg=Markup, outcomes=OUTCOMES,
        figures=drawn,  # what the template draws fills `figures`, so it asks for them last
        library=Markup(library), script=Markup(script), digests=digests, palettes={"light": LIGHT, "dark": DARK},
    )  # fmt: skip


def markdown(report: Report, level: int = 1) -> str:
    """Return the page without its figures; its title has a heading of `level`, its sections those below."""
    blocks = [f"{'#' * level} {text(report.title)}", *(_block(part) for part in report.lead)]
    for section in report.sections:
        if section.parts and all(isinstance(part, Figure) for part in section.parts):
            continue
        blocks.append(f"{'#' * (level + section.level - 1)} {text(section.title)}")
        blocks += [_block(part) for part in section.parts]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _block(part: Part) -> str:
    if isinstance(part, Text):
        return f"**{text(part.text)}**" if part.kind == "lead" else text(part.text)
    if isinstance(part, Items):
        return "\n".join(f"- {text(line)}" for line in part.lines)
    if isinstance(part, Table):
        rows = [[text(cell) for cell in row] for row in (part.header, *part.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))
    if isinstance(part, Code):  # its fence is longer than any in it
        fence = "`" * max(3, 1 + max((len(found) for found in re.findall(r"`+", part.text)), default=0))
        lines = "\n".join(visible(line) for line in part.text.strip("\n").split("\n"))
        return (f"{text(part.title)}\n\n" if part.title else "") + f"{fence}\n{lines}\n{fence}"
    return ""


def text(words: object) -> str:
    """Return `words` as Markdown that shows exactly them, on one line."""
    return _MARKS.sub(r"\\\1", visible(words)).replace("\n", " ")

"""A report as Markdown: the same words and tables; of a figure its title, and where it is to be seen."""

from __future__ import annotations

import re

from workbench.app.report.parts import Code, Figure, Items, Part, Report, Table, Text
from workbench.app.safe import visible

# Only where it would act: an underscore inside a word, a bracket that no link follows and a lone < are letters.
_MARKS = re.compile(r"([\\`*|$~]|<(?=[A-Za-z!?/])|&(?=#?\w+;)|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#>])")


def page(report: Report, level: int = 1) -> str:
    """The whole page; its title has a heading of `level`, its sections those below."""
    lines = [f"{'#' * level} {text(report.title)}", *(_part(part) for part in report.lead)]
    for section in report.sections:
        if section.parts and all(isinstance(part, Figure) for part in section.parts):
            continue
        lines.append(f"{'#' * (level + section.level - 1)} {text(section.title)}")
        lines += [_part(part) for part in section.parts if not isinstance(part, Figure)]
    return "\n\n".join(line for line in lines if line) + "\n"


def _part(part: Part) -> str:
    if isinstance(part, Text):
        return f"**{text(part.text)}**" if part.kind == "lead" else text(part.text)
    if isinstance(part, Items):
        return "\n".join(f"- {text(line)}" for line in part.lines)
    if isinstance(part, Code):
        return (f"{text(part.title)}\n\n" if part.title else "") + _fenced(part.text)
    if isinstance(part, Table):
        return table(part)
    return ""


def table(part: Table) -> str:
    """A table of literal texts."""
    rows = [part.header, ["---"] * len(part.header), *part.rows]
    return "\n".join(
        f"| {' | '.join(cell if number == 1 else text(cell) for cell in row)} |" for number, row in enumerate(rows)
    )


def text(words: object) -> str:
    """`words` as Markdown that shows exactly them, on one line."""
    return _MARKS.sub(r"\\\1", visible(words)).replace("\n", " ")


def _fenced(words: str) -> str:
    """A block of code; its fence is longer than any in it."""
    longest = max((len(found) for found in re.findall(r"`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{visible_lines(words)}\n{fence}"


def visible_lines(words: str) -> str:
    """`words` line by line, without control characters."""
    return "\n".join(visible(line) for line in words.strip("\n").split("\n"))

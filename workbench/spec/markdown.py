"""Tables in Markdown, for the docs, the app and the command line."""

import re
from collections.abc import Iterable, Sequence

_BARE_BAR = re.compile(r"(?<!\\)\|")


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table without a final line break; bars in cells are escaped, unless they already are."""
    rule = ["---"] * len(header)
    return "\n".join(_row(line) for line in (header, rule, *rows))


def _row(cells: Sequence[object]) -> str:
    escaped = [_BARE_BAR.sub(r"\\|", str(cell)) for cell in cells]
    return f"| {' | '.join(escaped)} |"

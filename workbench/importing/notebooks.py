"""Notebooks and pages of HTML: the tables of metrics that a trainer shows in them, and what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from sorl.importing.names import is_known
from sorl.importing.rows import Rows
from sorl.importing.text import Line, opened, text_of
from sorl.importing.title import title_of
from sorl.spec import InputError
from sorl.spec.files import MIB, from_json

DOCUMENT = 64 * MIB  # characters that are read
TABLES = 1000  # of a page
CELLS = 2_000_000  # of its tables


def is_notebook(path: Path, head: bytes) -> bool:
    """Whether a file is a Jupyter notebook."""
    text = text_of(head)
    return path.suffix == ".ipynb" or (text.lstrip().startswith("{") and '"cells"' in text[:2000])


def is_html(path: Path, head: bytes) -> bool:
    """Whether a file is a page, or a part of one, with a table."""
    text = text_of(head).lower()
    return path.suffix in (".html", ".htm") or ("<table" in text and text.lstrip().startswith("<"))


def notebook(path: Path) -> Iterator[Rows]:
    """The tables and the printed text of a notebook as one run: of a table that grew the last state."""
    from sorl.importing.text_records import RecordFinder, with_steps

    try:
        outputs = list(_outputs(from_json(_text_of(path))["cells"]))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise InputError(f"'{path}' is no notebook: it has no list of cells, or is damaged") from None
    rows = Rows(title_of(path))
    printed: list[str] = []
    for output in outputs:
        data = output.get("data", {})
        html = _joined(data.get("text/html"))
        plain = _joined(data.get("text/plain")) or _joined(output.get("text"))
        if "<table" in html:
            rows.extend(_rows_of_page(html))
        elif plain:
            printed += plain.splitlines()
    lines = (Line(number, text, True, False) for number, text in enumerate(printed, start=1))
    if not rows:
        rows = Rows(title_of(path), place_unit="line")
        rows.extend(with_steps(RecordFinder(lines, rows).records(), rows))
    yield _not_empty(rows, path)


def _outputs(cells: Any) -> Iterator[dict[str, Any]]:
    for cell in cells:
        for output in cell.get("outputs", []):
            if isinstance(output, dict) and isinstance(output.get("data", {}), dict):
                yield output


def page(path: Path) -> Iterator[Rows]:
    """The tables of a page as one run."""
    yield _not_empty(Rows(title_of(path)).extend(_rows_of_page(_text_of(path))), path)


def _not_empty(rows: Rows, path: Path) -> Rows:
    if not rows:
        raise InputError(f"'{path}' has no table with a metric that is known here")
    return rows


def _text_of(path: Path) -> str:
    with opened(path) as file:
        text = file.read(DOCUMENT + 1)
    if len(text) > DOCUMENT:
        raise InputError(f"'{path}' is larger than {DOCUMENT // MIB} MiB; give a part of it")
    return text


def _joined(content: Any) -> str:
    """Return the text of an output, which may be a list of lines."""
    if isinstance(content, list):
        return "".join(part for part in content if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _rows_of_page(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of every table whose heading names a step or a known metric."""
    parser = _TableParser()
    parser.feed(text)
    for heading, *rows in filter(None, parser.tables):
        if not any(is_known(name) for name in heading):
            continue
        for row in rows:
            if len(row) == len(heading):
                yield dict(zip(heading, row, strict=True))


class _TableParser(HTMLParser):
    """Collects the cells of the tables of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._cell: list[str] | None = None
        self._cells = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table" and len(self.tables) < TABLES:
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1] and self._cells < CELLS:
            self._cell = []
            self._cells += 1

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][-1].append("".join(self._cell).strip())
            self._cell = None

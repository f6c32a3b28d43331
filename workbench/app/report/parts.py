"""What a report consists of, whatever it is written as. Texts are literal: whoever writes them out escapes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workbench.app.theme import Palette

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


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
    """Lines as they are typed or stored, in a box that `title` opens where it is given."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts; the words of `tones` (text of a cell -> outcome) are coloured."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    tones: Sequence[tuple[str, str]] = field(default=())

    @classmethod
    def of(cls, frame: pd.DataFrame, tones: Sequence[tuple[str, str]] = ()) -> Table:
        """The cells of a frame as texts."""
        return cls([str(c) for c in frame.columns], frame.astype(str).to_numpy().tolist(), tones)


@dataclass(frozen=True)
class Figure:
    """A figure (or SVG) in any palette, its title, and a caption that says n, seeds and what the intervals are."""

    draw: Callable[[Palette], go.Figure | str]
    title: str
    caption: str


Part = Text | Items | Code | Table | Figure


@dataclass(frozen=True)
class Section:
    """A heading (of level 2 or 3) and what stands below it."""

    title: str
    parts: Sequence[Part]
    level: int = 2


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    lead: Sequence[Part]
    sections: Sequence[Section]

"""Text of models, logs and file names, made literal for the place where it is shown: HTML, figures, Markdown."""

from __future__ import annotations

import html
import re

# Control characters, and the marks that reorder the text around them.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")
# Figures read HTML tags, %{...} in hover texts, and $...$ as LaTeX.
_FIGURE = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;", "{": "&#123;", "}": "&#125;"}
)


def visible(text: object) -> str:
    """`text` with every control character and direction mark shown as a replacement character."""
    return _INVISIBLE.sub("\ufffd", str(text))


def html_text(text: object) -> str:
    """`text` as HTML that shows exactly its characters, in an element or in a quoted attribute."""
    return html.escape(visible(text), quote=True)


def figure_text(text: object) -> str:
    """`text` for titles, labels and hover texts of a figure."""
    return visible(text).translate(_FIGURE)


def markdown_text(text: object) -> str:
    """`text` for labels and tooltips, which Streamlit reads as Markdown.

    A backslash ends emphasis, links, LaTeX and HTML; Streamlit looks for `:name:` after that, so a word joiner stands
    behind each colon.
    """
    return _MARKDOWN.sub(r"\\\1", visible(text)).replace(":", ":\u2060").replace("\n", " ")


def wrapped(text: str, width: int) -> str:
    """`text` for a figure, broken between words into lines of at most `width` characters (longer words are cut)."""
    import textwrap

    lines = textwrap.wrap(visible(text), width, break_long_words=True, break_on_hyphens=False)
    return "<br>".join(figure_text(line) for line in lines)

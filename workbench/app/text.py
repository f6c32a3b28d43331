"""Text for the page: escaped for where it is shown (HTML, figures, Markdown), and recorded
values as words.
"""

import html
import json
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

# Control characters, and the marks that reorder the text around them.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")
# Figures read HTML tags, %{...} in hover texts, and $...$ as LaTeX.
_FIGURE = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"&#{ord(sign)};" for sign in "$%{}"}
)


def visible(text: object) -> str:
    """Show every control character and direction mark of `text` as a replacement character."""
    return _INVISIBLE.sub("\ufffd", str(text))


def html_text(text: object) -> Markup:
    """Escape `text` for an HTML element or a quoted attribute; what is `Markup` already stays as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(text), quote=True))


def tag(name: str, *inside: object, css: str = "", **attributes: object) -> Markup:
    """Build an HTML element of class `css`; texts that are no `Markup` are escaped, empty attributes left
    out.
    """
    given = {"class": css, **attributes}
    written = "".join(
        f' {key.replace("_", "-")}="{html_text(value)}"' for key, value in given.items() if value
    )
    return Markup(f"<{name}{written}>{''.join(map(html_text, inside))}</{name}>")


def table_html(header: Sequence[object], rows: Iterable[Sequence[object]], css: str = "") -> Markup:
    """Build an HTML table; a name in `header` may be a pair of name and tooltip, or empty."""
    names = (name if isinstance(name, tuple) else (name, "") for name in header)
    # a heading without words would be read aloud as an empty one
    head = tag("tr", *(tag("th" if name else "td", name, title=tip) for name, tip in names))
    body = (_table_row(row) for row in rows)
    return tag("div", tag("table", head, *body, css=f"sorl-table {css}".strip()), css="sorl-scroll")


def figure_text(text: object) -> str:
    """Escape `text` for titles, labels and hover texts of a figure."""
    return visible(text).translate(_FIGURE)


def markdown_text(text: object) -> str:
    """Escape `text` for labels and tooltips, which Streamlit reads as Markdown."""
    # Streamlit looks for `:name:` after the backslashes, so a word joiner follows each colon.
    return _MARKDOWN.sub(r"\\\1", visible(text)).replace(":", ":\u2060").replace("\n", " ")


def wrapped(text: str, width: int) -> str:
    """Break `text` for a figure between words into lines of at most `width` characters; longer
    words are cut.
    """
    lines = textwrap.wrap(visible(text), width, break_long_words=True, break_on_hyphens=False)
    return "<br>".join(figure_text(line) for line in lines)


def number(value: Any) -> str:
    """Write a number in three figures, never -0; NaN and Inf as themselves, NULL as a dash."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:z.3g}" if math.isfinite(value) else f"{value}".replace("nan", "NaN")


def word(value: Any) -> str:
    """Write a text as it is, a truth value as yes or no, NULL as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def setting(value: Any) -> str:
    """Write the value of a setting: a text as it is, None as none, anything else as JSON."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def few(words: Sequence[str], most: int, separator: str = ", ", what: str = "") -> str:
    """Join the first `most` words, and say how many more there are: `what` is their singular, with a blank
    before it.
    """
    left = len(words) - most
    if left <= 0:
        return separator.join(words)
    plural = f"{what}s" if what and left > 1 else what
    return f"{separator.join(words[:most])} and {left} more{plural}"


def apart(names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Map names like `ppo · staleness 8` to what tells them apart, and return the parts at the end that all
    share.
    """
    parts = [name.split(" · ") for name in names]
    shared = 0
    while (
        len(names) > 1 and min(map(len, parts)) > shared + 1 and len({one[-1 - shared] for one in parts}) == 1
    ):
        shared += 1
    short = {name: " · ".join(one[: len(one) - shared]) for name, one in zip(names, parts, strict=True)}
    return short, " · ".join(parts[0][len(parts[0]) - shared :]) if shared else ""


def duration(seconds: float | None) -> str:
    """Write a time span in its two largest units: 39.8 s, 12 min 5 s, 3 h 20 min; NULL as a dash."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def times(factor: float) -> str:
    """Write a factor in two figures: 11 x, 1.2 x."""
    return f"{factor:.2g} x" if factor < 99.5 else f"{factor:,.0f} x"


def percent(share: float) -> str:
    """Write a share to the percent; a share above 0 is never "0 %"."""
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _table_row(cells: Iterable[object]) -> Markup:
    return tag("tr", *(tag("td", cell) for cell in cells))

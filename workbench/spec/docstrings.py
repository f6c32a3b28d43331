"""What a declaration says of itself: docstrings as titles and descriptions."""

from inspect import getdoc
from typing import Any


def first_paragraph(declared: Any) -> str:
    """The first paragraph of an object's docstring on one line; "" without a docstring."""
    text = getdoc(declared) or ""
    return " ".join(text.split("\n\n")[0].split())

"""Recorded values as the cells of a table: what was not measured is a dash, NaN is NaN."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> str:
    """A number in three figures; NaN and Inf as themselves, NULL a dash."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if math.isfinite(value) else f"{value}".replace("nan", "NaN")


def word(value: Any) -> str:
    """A text as it is, yes or no for a truth value; NULL a dash."""
    return "–" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)

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


def duration(seconds: float | None) -> str:
    """A span of time in its two largest units: 39.8 s, 12 min 5 s, 3 h 20 min; NULL a dash."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def percent(share: float) -> str:
    """A share of a whole, to the percent; what is not nothing is not 0 %."""
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def size(bytes: int | None) -> str:
    """A number of bytes in three figures: 812 B, 4.21 kB, 69 MB; NULL a dash."""
    if bytes is None:
        return number(bytes)
    value, unit = float(bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"

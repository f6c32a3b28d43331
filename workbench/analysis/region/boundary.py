"""Where half of the runs of a column collapse, and the area that lies below. Plain numbers in, plain numbers out.

Axes: the searched setting x as log2 x, so that lengths are doublings; the condition y of a column as log2 y, or as
log2(1 + y) where one of the conditions is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Runs at one value of the searched setting: how many were judged, how many of them collapsed (may be weighted)."""

    collapsed: float
    judged: float


@dataclass(frozen=True)
class Boundary:
    """The value at which half of the runs collapse, in log2; `beyond` says that it lies outside what was tried.

    beyond = above: even at the highest value tried fewer than half collapsed, `at` is that value; below: at the lowest
    value tried half or more did. `low` and `high` are the tried values beside the boundary, None where there is none.
    """

    at: float
    beyond: str = ""  # above, below or empty
    low: float | None = None
    high: float | None = None


def boundary(points: Mapping[float, Counts]) -> Boundary | None:
    """The boundary of a column from log2 x -> counts; None without a judged run.

    Shares of collapsed runs are made to rise with x (isotonic regression, weighted by the runs) and the 1/2 is read off
    the straight lines between them. Where a stretch lies at exactly 1/2, its middle counts.
    """
    tried = sorted(x for x, counts in points.items() if counts.judged > 0)
    if not tried:
        return None
    from scipy.optimize import isotonic_regression

    weights = [points[x].judged for x in tried]
    fitted = isotonic_regression([points[x].collapsed / points[x].judged for x in tried], weights=weights).x
    shares = [0.5 if abs(share - 0.5) < 1e-9 else float(share) for share in fitted]
    up = [i for i, share in enumerate(shares) if share < 0.5]
    down = [i for i, share in enumerate(shares) if share > 0.5]
    if len(up) == len(tried):
        return Boundary(tried[-1], "above", low=tried[-1])
    if not up:
        # At 1/2 from the lowest value on: the boundary is there or below.
        return Boundary(tried[0], "below", high=tried[0])
    last, first = up[-1], down[0] if down else len(tried)
    left = _half(tried, shares, last)
    right = _half(tried, shares, first - 1) if down else tried[-1]
    return Boundary((left + right) / 2, low=tried[last], high=tried[min(last + 1, len(tried) - 1)])


def _half(x: Sequence[float], shares: Sequence[float], i: int) -> float:
    """Where the line from point i to the next crosses 1/2."""
    return x[i] + (x[i + 1] - x[i]) * (0.5 - shares[i]) / (shares[i + 1] - shares[i])


def heights(conditions: Sequence[float]) -> list[float]:
    """The conditions on the axis that the area is taken over: log2 y, or log2(1 + y) where one of them is 0."""
    shift = 1.0 if min(conditions) <= 0 else 0.0
    return [math.log2(y + shift) for y in conditions]


@dataclass(frozen=True)
class Area:
    """The area below the boundary from the lowest value searched on, in doublings x doublings, and what it is part of.

    `at_least`: some column's boundary lies above what was tried, so the area is a lower bound; `at_most`: some column's
    lies below it, and counts as nothing there.
    """

    value: float
    share: float  # of the whole rectangle that was searched
    at_least: bool
    at_most: bool


def area(columns: Mapping[float, Boundary], low: float, high: float) -> Area | None:
    """Area between log2 `low` and the boundary over the conditions y, by the trapezoid rule; None below two columns."""
    order = sorted(columns)
    if len(order) < 2:
        return None
    y = heights(order)
    width = [min(max(columns[c].at, low), high) - low for c in order]
    pieces = zip(y, y[1:], width, width[1:], strict=False)
    value = sum((b - a) * (p + q) / 2 for a, b, p, q in pieces)
    whole = (y[-1] - y[0]) * (high - low)
    beyond = {columns[c].beyond for c in order}
    return Area(value, value / whole, "above" in beyond, "below" in beyond)

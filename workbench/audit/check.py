"""One checked identity, and what the difference of its two sides looks like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Check:
    """An identity of a stored step: what was logged, what it must be, and how far apart they may be.

    `missing` says what an identity needs that is not stored; nothing else is known of it then, and it has not passed.
    """

    identity: str = ""
    step: int = -1
    update: int | None = None
    gap: float = math.nan  # the largest difference
    tolerance: float = math.nan
    logged: float = math.nan  # both sides where the difference is largest
    expected: float = math.nan
    says: str = ""  # what the difference looks like: exchanged, scaled, shifted, ...
    trajectories: tuple[int, ...] = ()  # where it is above the tolerance
    layers: tuple[str, ...] = ()
    missing: str = ""

    @property
    def violated(self) -> bool:
        """Whether the two sides are further apart than the tolerance; a side that is not a number is."""
        return not self.missing and not self.gap <= self.tolerance


def explain(logged: np.ndarray, expected: np.ndarray, mask: np.ndarray, tolerance: float) -> Check:
    """Compare two arrays (B, T) at `mask` and read the difference; trajectories are rows here.

    The readings, simplest first: a constant factor, a constant offset, both (another whitening), rows that have each
    other's numbers, a shift by one position. No reading where none of them makes the difference vanish.
    """
    if not mask.any():
        return Check(gap=0.0, tolerance=tolerance)
    a, b = np.where(mask, logged, 0).astype(float), np.where(mask, expected, 0).astype(float)
    apart = np.where(mask, np.abs(a - b), 0)
    apart = np.where(np.isnan(apart), np.inf, apart)
    worst = np.unravel_index(int(apart.argmax()), apart.shape)
    rows = tuple(np.flatnonzero((apart > tolerance).any(1)).tolist())
    says = _reading(a, b, mask, rows, tolerance) if rows and np.isfinite(apart).all() else ""
    return Check(
        gap=float(apart[worst]), tolerance=tolerance, logged=float(logged[worst]), expected=float(expected[worst]),
        says=says, trajectories=rows,
    )  # fmt: skip


def _reading(a: np.ndarray, b: np.ndarray, mask: np.ndarray, rows: Sequence[int], tolerance: float) -> str:
    bad = np.zeros_like(mask)
    bad[list(rows)] = mask[list(rows)]
    x, y = b[bad], a[bad]
    near = 4 * tolerance + 1e-3 * np.abs(y)
    if len(np.unique(x)) > 1:
        if np.dot(x, x) and (np.abs(y - (factor := float(np.dot(x, y) / np.dot(x, x))) * x) <= near).all():
            return f"{factor:.4g} times what it must be" if abs(factor) > 1e-9 else "0 everywhere"
        if (np.abs(y - x - (offset := float((y - x).mean()))) <= near).all():
            return f"{offset:+.4g} at every token"
        slope, shift = np.polyfit(x, y, 1)
        if (np.abs(y - slope * x - shift) <= near).all():
            return f"{slope:.4g} times what it must be, {shift:+.4g}: centred or scaled by other statistics"
    givers = {i: [j for j in rows if j != i and _same(a[i], b[j], mask[i], tolerance)] for i in rows}
    if len(rows) > 1 and all(givers.values()):
        if len(rows) == 2:
            return "these two have each other's numbers"
        moved = {(givers[i][0] - i) for i in rows}
        by = f", each that of {abs(shift)} rows {'before' if shift < 0 else 'after'}" if len(moved) == 1 and (
            shift := moved.pop()) else ""  # fmt: skip
        return f"these {len(rows)} have each other's numbers{by}"
    for shift, word in ((1, "before"), (-1, "after")):
        inside = bad & np.roll(mask, shift, axis=1)
        if inside.sum() > 0.5 * bad.sum() and (np.abs(a - np.roll(b, shift, axis=1))[inside] <= tolerance).all():
            return f"each token has the number of the token {word} it"
    return ""


def _same(mine: np.ndarray, other: np.ndarray, mask: np.ndarray, tolerance: float) -> bool:
    return bool((np.abs(mine - other)[mask] <= tolerance).all())

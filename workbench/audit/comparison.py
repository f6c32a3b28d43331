"""What a stored step says against what is recomputed from it, and how far apart both may be."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from sorl.spec.evidence import Check

EXACT = 1e-3  # in float32: of a log-prob in nats, of a value of size 1, as a share of a number
ROUNDINGS = 4  # x what bfloat16 moves a number by here, that two computations in bfloat16 may be apart

Owner = Literal["policy", "critic"]


def spacing(values: np.ndarray) -> float:
    """Return the relative distance of neighbours in the precision that the numbers came in.

    A ledger stores float32. Numbers of bfloat16 leave its 16 lowest bits empty, those of float16 its 13.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    used = bits[np.isfinite(values)]
    if not (used & 0xFFFF).any():
        return 2.0**-7
    if not (used & 0x1FFF).any():
        return 2.0**-10
    return 2.0**-23


def explain(logged: np.ndarray, expected: np.ndarray, mask: np.ndarray, tolerance: float) -> Check:
    """Compare two arrays (B, T) at `mask` and read the difference; trajectories are rows here.

    The readings, simplest first: a constant factor, a constant offset, both (another whitening), rows that
    have each other's numbers, a shift by one position. No reading where none of them makes the difference
    vanish.
    """
    if not mask.any():
        return Check(gap=0.0, tolerance=tolerance)
    a = np.where(mask, logged, 0).astype(float)
    b = np.where(mask, expected, 0).astype(float)
    apart = np.where(mask, np.abs(a - b), 0)
    apart = np.where(np.isnan(apart), np.inf, apart)
    worst = np.unravel_index(int(apart.argmax()), apart.shape)
    rows = tuple(np.flatnonzero((apart > tolerance).any(1)).tolist())
    says = _reading(a, b, mask, rows, tolerance) if rows and np.isfinite(apart).all() else ""
    gap, x, y = (float(side[worst]) for side in (apart, logged, expected))
    return Check(gap=gap, tolerance=tolerance, logged=x, expected=y, says=says, trajectories=rows)


def _reading(a: np.ndarray, b: np.ndarray, mask: np.ndarray, rows: Sequence[int], tolerance: float) -> str:
    bad = np.zeros_like(mask)
    bad[list(rows)] = mask[list(rows)]
    line = _line(b[bad], a[bad], tolerance)
    if line:
        return line
    exchanged = _exchange(a, b, mask, rows, tolerance)
    if exchanged:
        return exchanged
    for shift, word in ((1, "before"), (-1, "after")):
        inside = bad & np.roll(mask, shift, axis=1)
        if (
            inside.sum() > 0.5 * bad.sum()
            and (np.abs(a - np.roll(b, shift, axis=1))[inside] <= tolerance).all()
        ):
            return f"each token has the number of the token {word} it"
    return ""


def _line(x: np.ndarray, y: np.ndarray, tolerance: float) -> str:
    """Say that one factor, one offset or both lead from the expected `x` to the logged `y`; empty where none
    do.
    """
    near = 4 * tolerance + 1e-3 * np.abs(y)
    if len(np.unique(x)) < 2:
        return ""
    if np.dot(x, x):
        factor = float(np.dot(x, y) / np.dot(x, x))
        if (np.abs(y - factor * x) <= near).all():
            return f"{factor:.4g} times what it must be" if abs(factor) > 1e-9 else "0 everywhere"
    offset = float((y - x).mean())
    if (np.abs(y - x - offset) <= near).all():
        return f"{offset:+.4g} at every token"
    slope, shift = np.polyfit(x, y, 1)
    if (np.abs(y - slope * x - shift) <= near).all():
        return f"{slope:.4g} times what it must be, {shift:+.4g}: centred or scaled by other statistics"
    return ""


def _exchange(a: np.ndarray, b: np.ndarray, mask: np.ndarray, rows: Sequence[int], tolerance: float) -> str:
    """Say that rows have each other's numbers; empty where one of them has not."""
    givers: dict[int, int] = {}
    for row in rows:
        equal = (np.abs(a[row] - b)[:, mask[row]] <= tolerance).all(1)
        giver = next((other for other in rows if other != row and equal[other]), None)
        if giver is None:
            return ""
        givers[row] = giver
    if len(rows) == 2:
        return "these two have each other's numbers"
    says = f"these {len(rows)} have each other's numbers"
    shift, *others = {giver - row for row, giver in givers.items()}
    if others:
        return says
    side = "before" if shift < 0 else "after"
    return f"{says}, each that of {abs(shift)} rows {side}"

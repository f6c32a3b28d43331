"""One colour scale for many heat maps: where it is centred, where it ends, and what its colour bar says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.app.theme import Palette

if TYPE_CHECKING:
    import pandas as pd

_SPREAD = 8  # the scale ends at so many times the median: what dies must not bleach what lives
_FLOOR = -20.0  # log of the smallest ratio that is told apart: trainers clamp there
_LARGEST = 1e300  # beyond it the width of a scale is no longer a number
_FACTORS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 100, 1e3, 1e4, 1e6, 1e9)


@dataclass(frozen=True)
class Shading:
    """`kind`: ratio (log scale, centred at 1), signed (centred at 0) or size (from 0); `limit` is where it ends.

    The limit of a ratio is a factor (2 means from 1/2 to 2). `below` and `above` say that values lie outside.
    """

    kind: str
    limit: float
    below: bool = False
    above: bool = False

    @property
    def is_log(self) -> bool:
        """True where colours follow the logarithm of the value."""
        return self.kind == "ratio"

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest place on the scale."""
        top = math.log(self.limit) if self.is_log else self.limit
        return (0.0 if self.kind == "size" else -top), top

    def place(self, values: pd.Series) -> pd.Series:
        """Where values stand on the scale: their logarithm for ratios, else themselves."""
        return _log(values) if self.is_log else values

    def colours(self, palette: Palette) -> tuple[str, ...]:
        """The colours from the lower end to the upper one."""
        return palette.sequential if self.kind == "size" else palette.diverging

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places and words of the colour bar; an end beyond which values lie says so."""
        low, high = self.ends
        places = [low + (high - low) * i / 4 for i in range(5)]
        words = [self._word(math.exp(p) if self.is_log else p) for p in places]
        words[0] = f"≤ {words[0]}" if self.below else words[0]
        words[-1] = f"≥ {words[-1]}" if self.above else words[-1]
        return places, words

    def _word(self, value: float) -> str:
        if self.is_log and self.limit < 1.2:  # ratios that two digits would not tell from 1
            return f"{round(value, 3):g}"
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.3g}"


def shading(unit: str, values: pd.Series) -> Shading:
    """The scale for `values` of a unit: a ratio around 1; otherwise around 0 where any is negative, else from 0."""
    known = values[values.map(math.isfinite)] if len(values) else values
    if unit == "ratio":
        logs = _log(known)
        factor = math.exp(_limit(logs.abs()))
        limit = next((f for f in _FACTORS if f >= factor * (1 - 1e-9)), _FACTORS[-1])
        return Shading("ratio", limit, bool((known < 1 / limit).any()), bool((known > limit).any()))
    limit = _nice(_limit(known.abs()))
    if unit == "fraction":
        limit = min(limit, 1.0)
    kind = "signed" if (known < 0).any() else "size"
    return Shading(kind, limit, kind == "signed" and bool((known < -limit).any()), bool((known > limit).any()))


def _log(values: pd.Series) -> pd.Series:
    import numpy as np

    return np.log(values.clip(lower=math.exp(_FLOOR)))


def _limit(sizes: pd.Series) -> float:
    if sizes.empty:
        return 1.0
    top, middle = float(sizes.max()), float(sizes.median())
    return min(top, _SPREAD * middle, _LARGEST) if middle > 0 else min(top, _LARGEST)


def _nice(limit: float) -> float:
    """The next 1, 2 or 5 times a power of ten; 1 for nothing."""
    if limit < 1 / _LARGEST:
        return 1.0
    decade = 10.0 ** math.floor(math.log10(limit))
    return next(n * decade for n in (1, 2, 5, 10) if n * decade >= limit * (1 - 1e-9))

"""The colour of a token by its log-ratio: one fixed scale, so that a colour means the same number in every episode."""

from __future__ import annotations

import math
from functools import lru_cache

from workbench.app.theme import DARK, LIGHT, Palette, mixed

END = 10.0  # nats at which the scale ends
MARKS = (-10.0, -1.0, -0.2, 0.0, 0.2, 1.0, 10.0)  # of the legend; 0.2 is about where PPO's clip begins
_LINEAR = 0.1  # nats below which the scale is linear; beyond, it is logarithmic
_QUIET = 0.005  # nats that are not worth a colour
_READABLE = 4.5  # contrast of text that WCAG asks for; black or white always has it


def position(log_ratio: float) -> float:
    """Where a log-ratio stands on the scale, from -1 to 1: asinh(d / 0.1) / asinh(10 / 0.1), cut at 10 nats."""
    place = math.asinh(log_ratio / _LINEAR) / math.asinh(END / _LINEAR)
    return max(-1.0, min(1.0, place))


def tint(log_ratio: float | None, palette: Palette) -> tuple[str, str] | None:
    """Ground and ink of a token; None where it needs no colour: not measured, NaN, or as likely as before."""
    if log_ratio is None or math.isnan(log_ratio) or abs(log_ratio) < _QUIET:
        return None
    return _pair(round(position(log_ratio), 2), palette.dark)


def gradient(palette: Palette) -> list[str]:
    """Colours of the legend from -10 to 10 nats, evenly spaced on the scale."""
    return [_mix(place / 10, palette) for place in range(-10, 11)]


@lru_cache(maxsize=1024)
def _pair(place: float, dark: bool) -> tuple[str, str]:
    palette = DARK if dark else LIGHT
    ground = _mix(place, palette)
    if contrast(palette.text, ground) >= _READABLE:
        return ground, palette.text
    return ground, max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, ground))


def _mix(place: float, palette: Palette) -> str:
    colours = palette.diverging
    at = (place + 1) / 2 * (len(colours) - 1)
    low = min(int(at), len(colours) - 2)
    return mixed(colours[low], colours[low + 1], at - low)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, (L1 + 0.05) / (L2 + 0.05) of WCAG's relative luminance, from 1 to 21."""
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

"""What the tokens of a transcript are tinted by, such as their log-ratio, and the scale of the colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from markupsafe import Markup

from sorl.app import theme
from sorl.app.data import Row
from sorl.app.text import number, tag
from sorl.app.theme import Palette


@dataclass(frozen=True)
class Overlay:
    """A figure of tokens, and how it is coloured.

    `nats`: the fixed scale of log-ratios. `symmetric`: from minus the largest size of the episode to it.
    `positive`: from 0 to the largest value of the episode. `mask`: whether the token is trained.
    """

    label: str
    unit: str
    scale: Literal["nats", "symmetric", "positive", "mask"]
    column: str
    minus: str = ""  # a column that is taken from it
    of_last_epoch: bool = False  # recorded in the last epoch alone
    of_every_epoch: bool = False  # the same in every epoch

    def values(self, row: Row) -> list[float | None]:
        """Return the figure of each token of a row of table `token`; None where it was not measured."""
        first = row.get(self.column) or []
        if not self.minus:
            return [None if value is None else float(value) for value in first]
        second = row.get(self.minus) or []
        pairs = zip(first, second, strict=False)
        return [None if a is None or b is None else float(a - b) for a, b in pairs]

    def is_known(self, row: Row) -> bool:
        """Whether any token has the figure."""
        return any(value is not None for value in self.values(row))

    def title(self, epoch: int | None) -> str:
        """Name the figure, its unit and the epoch that it is of."""
        when = "the last epoch" if epoch is None or self.of_last_epoch else f"epoch {epoch}"
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.label}{unit}" if self.of_every_epoch else f"{self.label}{unit} in {when}"


OVERLAYS = {
    "log-ratio": Overlay("log-ratio", "nats", "nats", "log_ratio"),
    "gradient": Overlay("gradient weight", "", "symmetric", "gradient_weight"),
    "advantage": Overlay("advantage", "", "symmetric", "advantage", of_last_epoch=True),
    "entropy": Overlay("entropy", "nats", "positive", "entropy", of_last_epoch=True),
    "mismatch": Overlay(
        "log-prob of trainer minus sampler", "nats", "nats", "log_prob_old", "log_prob_behaviour", False, True
    ),
    "value": Overlay("value by the critic", "", "symmetric", "value", of_last_epoch=True),
    "mask": Overlay("trained tokens", "", "mask", "trained", of_every_epoch=True),
}


class Scale(NamedTuple):
    """Colours for the values of an overlay in an episode; `end` is the size at which the scale ends."""

    overlay: Overlay
    end: float
    palette: Palette

    def place(self, value: float) -> float:
        """Place a value on the scale, from -1 to 1."""
        if self.overlay.scale == "nats":
            return theme.position(value)
        if self.overlay.scale == "mask":
            return 1.0 if value else 0.0
        return max(-1.0, min(1.0, value / self.end)) if self.end else 0.0

    def tint(self, value: float | None) -> tuple[str, str] | None:
        """Return ground and ink of a token; None where it needs no colour: not measured, NaN, or about 0."""
        if value is None or math.isnan(value):
            return None
        if self.overlay.scale == "nats":
            return theme.tint(value, self.palette)
        place = self.place(value)
        return None if abs(place) < 0.02 else theme.painted(self._colour(place), self.palette)

    def _colour(self, place: float) -> str:
        if self.overlay.scale == "symmetric":
            return theme.between(self.palette.diverging, (round(place, 2) + 1) / 2)
        # A trained token needs a ground that is told from the page, not the darkest.
        height = 0.4 if self.overlay.scale == "mask" else 0.1 + 0.7 * max(0.0, round(place, 2))
        return theme.between(self.palette.sequential, height)

    def ticks(self) -> list[tuple[float, str]]:
        """Return place, from 0 to 1, and words of the marks of the legend."""
        if self.overlay.scale == "nats":
            ends = {-theme.END: "≤ ", theme.END: "≥ "}
            return [((1 + theme.position(mark)) / 2, f"{ends.get(mark, '')}{mark:g}") for mark in theme.MARKS]
        if self.overlay.scale == "positive":
            return [(0.0, "0"), (1.0, number(self.end))]
        return [(0.0, number(-self.end)), (0.5, "0"), (1.0, number(self.end))]

    def html(self) -> Markup:
        """Build the scale as HTML: a band of its colours with marks under it; words for a mask."""
        if self.overlay.scale == "mask":
            return tag("span", "written by the policy, and trained", style=self._style(1.0))
        stops = [place / 10 for place in range(-10, 11)]
        if self.overlay.scale == "positive":
            stops = [place / 10 for place in range(11)]
        colours = (
            self.palette.diverging if self.overlay.scale == "nats" else [self._colour(stop) for stop in stops]
        )
        ground = tag("div", style=f"background:linear-gradient(90deg,{','.join(colours)})")
        marks = [tag("span", words, style=f"left:{100 * place:.1f}%") for place, words in self.ticks()]
        return tag("div", ground, *marks, css="sorl-scale")

    def _style(self, value: float) -> str:
        ground, ink = theme.painted(self._colour(self.place(value)), self.palette)
        return f"background:{ground};color:{ink};padding:.1rem .3rem"


def scale_of(name: str, rows: Sequence[Row], palette: Palette) -> Scale:
    """Return the colours of overlay `name` for the tokens of `rows`, which share one scale."""
    overlay = OVERLAYS[name]
    values = chain.from_iterable(overlay.values(row) for row in rows)
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    return Scale(overlay, max(sizes, default=0.0), palette)


def known_overlays(rows: Sequence[Row]) -> dict[str, str]:
    """Return the names and labels of the overlays that any of the rows has figures for."""
    known = {name: overlay for name, overlay in OVERLAYS.items() if any(map(overlay.is_known, rows))}
    return {name: overlay.label for name, overlay in known.items()} or {
        "log-ratio": OVERLAYS["log-ratio"].label
    }

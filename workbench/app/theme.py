"""How figures look: a colour an algorithm, a dash and a marker an arm, colours of tokens, light and dark
templates.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from plotly.colors import hex_to_rgb

FONT = '"Source Sans", "Source Sans 3", "Helvetica Neue", Arial, sans-serif'
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down")


@dataclass(frozen=True)
class Palette:
    """The colours of one theme; `config.toml` repeats background, surface and text for the app around the
    figures.
    """

    background: str
    surface: str
    text: str
    muted: str
    grid: str
    # The six of the core grid. Searched for in OKLab: the least distance between two under normal vision and
    # three kinds of colour blindness is as large as it gets at 3:1 contrast to the background.
    algorithms: Mapping[str, str]
    # The algorithms beyond them. Chosen greedily in OKLab: each is the colour of 3:1 contrast that is
    # farthest from all before it. Two of them are at least 0.08 apart; names, dashes and markers help where
    # that is too little.
    neighbours: Mapping[str, str]
    others: tuple[str, ...]  # of algorithms that are in neither list, chosen by their name
    outcomes: Mapping[str, str]  # that of a collapse, also of its onset in every figure, is no algorithm's
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]


LIGHT = Palette(
    background="#ffffff",
    surface="#f6f6f4",
    text="#24292f",
    muted="#66707a",
    grid="#e8eaec",
    algorithms={
        "ppo": "#cb3a04",
        "turn-ppo": "#c2870c",
        "s-ppo": "#3a94c0",
        "st-ppo": "#1a306b",
        "grpo": "#962d9c",
        "so-grpo": "#117e5f",
    },
    neighbours={
        "turn-ppo-mdp": "#632500",
        "starpo": "#a56cf6",
        "starpo-s": "#3448c9",
        "reinforce": "#eb4d8c",
        "rloo": "#86616b",
        "reinforce-pp": "#62095e",
        "dr-grpo": "#214502",
        "dapo": "#a386a0",
        "loop": "#14628e",
        "gspo": "#c01d68",
        "gspo-token": "#5f17a4",
        "sspo": "#645e00",
        "gmpo": "#536ff4",
        "seeupo": "#5a4158",
        "cispo": "#549129",
        "minirl": "#d159ca",
        "dppo": "#dd6857",
        "vespo": "#7a8362",
        "sapo": "#89142f",
        "bapo": "#6764a4",
        "grpo-guard": "#1c1ba0",
        "grpo-guard-full": "#29544c",
        "llds": "#884727",
        "sapo-search": "#8145cd",
        "tis": "#ba5493",
        "mis": "#aa6f3c",
        "icepop": "#824268",
    },
    others=("#7a5c3e", "#5f6b76", "#7f8217", "#c9568a"),
    outcomes={
        "healthy": "#2f7fb8",
        "mild": "#b8860b",
        "collapsed": "#e60053",
        "diverged": "#6b1f6e",
        "recovered": "#1f8a5b",
        "falling": "#a3542a",
        "no_learning": "#8a8f94",
        "no_clear_change": "#8f959b",
        "saturated": "#6d8ea8",
        "": "#8a8f94",
    },
    sequential=("#f4f6f8", "#c6dbea", "#86b4d3", "#4a84b0", "#27567f", "#122b49"),
    diverging=("#8c2d04", "#d98558", "#f2d5c4", "#f5f5f3", "#c3d9ea", "#5c98c4", "#1a4a78"),
)
DARK = Palette(
    background="#15181c",
    surface="#1e2227",
    text="#e6e8ea",
    muted="#98a2ac",
    grid="#2b3138",
    algorithms={
        "ppo": "#fe6a4c",
        "turn-ppo": "#f9b221",
        "s-ppo": "#51b6f4",
        "st-ppo": "#5871e6",
        "grpo": "#b079b0",
        "so-grpo": "#7de6ba",
    },
    neighbours={
        "turn-ppo-mdp": "#427f0d",
        "starpo": "#fab0d9",
        "starpo-s": "#c51a46",
        "reinforce": "#67bd1d",
        "rloo": "#a98e43",
        "reinforce-pp": "#4c7383",
        "dr-grpo": "#963aba",
        "dapo": "#cef034",
        "loop": "#3aa593",
        "gspo": "#965d2a",
        "gspo-token": "#f2daba",
        "sspo": "#f666c0",
        "gmpo": "#bbb994",
        "seeupo": "#95547a",
        "cispo": "#cb3d99",
        "minirl": "#a56cf6",
        "dppo": "#b5cceb",
        "vespo": "#db98f8",
        "sapo": "#c6796c",
        "bapo": "#a0a0c2",
        "grpo-guard": "#f09e91",
        "grpo-guard-full": "#728668",
        "llds": "#4ded80",
        "sapo-search": "#5dcbca",
        "tis": "#22fcfd",
        "mis": "#9b94fd",
        "icepop": "#abc44a",
    },
    others=("#c39f78", "#a3b0bc", "#c7c95c", "#ee93bd"),
    outcomes={
        "healthy": "#4ba3dc",
        "mild": "#e8bd4a",
        "collapsed": "#ff0d64",
        "diverged": "#c98ccc",
        "recovered": "#5fcf9a",
        "falling": "#e09a6c",
        "no_learning": "#8b949d",
        "no_clear_change": "#6f7780",
        "saturated": "#7f9fb8",
        "": "#8b949d",
    },
    sequential=("#1b2026", "#1f3b55", "#2c648f", "#4a93c4", "#8cc3e6", "#dff0fb"),
    diverging=("#ff9a6b", "#c8643a", "#6e4333", "#2b2f34", "#2f5573", "#4a93c4", "#a4d4f2"),
)


class Style(NamedTuple):
    """How an arm is drawn: the colour of its algorithm, and its own dash and marker."""

    colour: str
    dash: str
    marker: str


Styles = Mapping[str, Style]  # of arms
_SHADES = 3  # of the colour of an algorithm


def colour(algorithm: str, palette: Palette) -> str:
    """Return the colour of an algorithm; one that is in no list always gets the same."""
    known = palette.algorithms.get(algorithm) or palette.neighbours.get(algorithm)
    digest = int.from_bytes(sha256(algorithm.encode()).digest()[:4], "big")
    return known or palette.others[digest % len(palette.others)]


def styles(
    arms: Iterable[tuple[str, str]], palette: Palette, drawn: Collection[str] | None = None
) -> dict[str, Style]:
    """Map the arms `drawn` (default: all), in that order, to their styles, given all (arm, algorithm)."""
    # An arm looks the same on every screen: its dash and marker do not depend on what else is drawn, nor does
    # its shade where its algorithm has at most as many arms as shades. Else the first drawn has the colour.
    algorithms = dict(arms)
    found: dict[str, Style] = {}
    ranks = {name: rank for rank, name in enumerate([*palette.algorithms, *palette.neighbours])}
    sizes = Counter(algorithms.values())
    places = Counter[str]()
    shades = Counter[str]()
    for arm, algorithm in sorted(algorithms.items(), key=lambda pair: pair[0] != pair[1]):
        place = places[algorithm]
        places[algorithm] += 1
        if drawn is None or arm in drawn:
            number = place if sizes[algorithm] <= _SHADES else shades[algorithm]
            shades[algorithm] += 1
            rank = ranks.get(algorithm, 0)
            marker = MARKERS[(rank + place // len(DASHES)) % len(MARKERS)]
            found[arm] = Style(
                _shade(colour(algorithm, palette), number, palette),
                DASHES[(rank + place) % len(DASHES)],
                marker,
            )
    return found if drawn is None else {arm: found[arm] for arm in drawn if arm in found}


def _shade(base: str, number: int, palette: Palette) -> str:
    """Return one of the _SHADES of a colour, itself first."""
    return (base, mixed(base, palette.text, 0.4), mixed(base, palette.background, 0.4))[number % _SHADES]


def faded(hex_colour: str, opacity: float) -> str:
    """Return a colour of the palette at `opacity`."""
    return f"rgba({','.join(map(str, hex_to_rgb(hex_colour)))},{opacity:g})"


def mixed(hex_colour: str, other: str, share: float) -> str:
    """Mix `share` of another colour into a colour."""
    parts = (
        round((1 - share) * a + share * b)
        for a, b in zip(hex_to_rgb(hex_colour), hex_to_rgb(other), strict=True)
    )
    return "#" + "".join(f"{part:02x}" for part in parts)


def between(colours: Sequence[str], place: float) -> str:
    """Return the colour at `place`, from 0 to 1, of evenly spaced colours."""
    at = place * (len(colours) - 1)
    low = min(int(at), len(colours) - 2)
    return mixed(colours[low], colours[low + 1], at - low)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, (L1 + 0.05) / (L2 + 0.05) of WCAG's relative luminance, from 1 to
    21.
    """

    def luminance(hex_colour: str) -> float:
        parts = (part / 255 for part in hex_to_rgb(hex_colour))
        linear = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


# The colour of a token by its log-ratio: one fixed scale, so that a colour means the same number in every
# episode.

END = 10.0  # nats at which the scale ends
MARKS = (-10.0, -1.0, -0.2, 0.0, 0.2, 1.0, 10.0)  # of the legend; 0.2 is about where PPO's clip begins
_LINEAR = 0.1  # nats below which the scale is linear; beyond, it is logarithmic
_QUIET = 0.005  # nats that are not worth a colour


def position(log_ratio: float) -> float:
    """Place a log-ratio on the scale, from -1 to 1: asinh(d / 0.1) / asinh(10 / 0.1), cut at 10 nats."""
    return max(-1.0, min(1.0, math.asinh(log_ratio / _LINEAR) / math.asinh(END / _LINEAR)))


def tint(log_ratio: float | None, palette: Palette) -> tuple[str, str] | None:
    """Return ground and ink of a token; None where it needs no colour: not measured, NaN, or as likely as
    before.
    """
    if log_ratio is None or math.isnan(log_ratio) or abs(log_ratio) < _QUIET:
        return None
    return painted(between(palette.diverging, (round(position(log_ratio), 2) + 1) / 2), palette)


def painted(ground: str, palette: Palette) -> tuple[str, str]:
    """Return a ground and an ink that can be read on it."""
    if contrast(palette.text, ground) >= 4.5:  # that WCAG asks for; black or white always has it
        return ground, palette.text
    return ground, max("#000000", "#ffffff", key=lambda ink: contrast(ink, ground))


def template(palette: Palette) -> dict[str, Any]:
    """Return the figure template of a theme: quiet grid, no frame, the app's own font and background."""
    axis = {
        "gridcolor": palette.grid,
        "zeroline": False,
        "tickfont": {"color": palette.muted, "size": 12},
        "title": {"font": {"color": palette.muted, "size": 13}, "standoff": 8},
        "automargin": True,
        "spikecolor": palette.muted,
        "spikethickness": 1,
        "spikedash": "dot",
        "spikemode": "across",
    }
    layout = {
        "font": {"family": FONT, "size": 13, "color": palette.text},
        "paper_bgcolor": palette.background,
        "plot_bgcolor": palette.background,
        "xaxis": axis | {"separatethousands": True},
        "yaxis": axis,
        "hovermode": "closest",
        "dragmode": "zoom",
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 13, "color": palette.text},
            "itemwidth": 40,
        },
        "hoverlabel": {
            "bgcolor": palette.surface,
            "bordercolor": palette.grid,
            "align": "left",
            "font": {"family": FONT, "size": 13, "color": palette.text},
        },
        "coloraxis": {"colorbar": {"outlinewidth": 0, "thickness": 10, "tickfont": {"color": palette.muted}}},
    }
    return {"layout": layout}

"""How figures look: one colour an algorithm everywhere, one dash and marker an arm, a light and a dark template."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from workbench.app import hues

FONT = '"Source Sans", "Source Sans 3", "Helvetica Neue", Arial, sans-serif'
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down")


@dataclass(frozen=True)
class Palette:
    """The colours of one theme; `config.toml` repeats background, surface and text for the app around the figures."""

    dark: bool
    background: str
    surface: str
    text: str
    muted: str
    grid: str
    # Searched for in OKLab: the least distance between two under normal vision and three kinds of colour blindness is
    # as large as it gets at 3:1 contrast to the background.
    algorithms: Mapping[str, str]
    neighbours: Mapping[str, str]  # of the algorithms beyond the core grid
    others: tuple[str, ...]  # of algorithms that are in neither list, chosen by their name
    outcomes: Mapping[str, str]
    sequential: tuple[str, ...] = field(default=())
    diverging: tuple[str, ...] = field(default=())


LIGHT = Palette(
    dark=False, background="#ffffff", surface="#f6f6f4", text="#24292f", muted="#66707a", grid="#e8eaec",
    algorithms={
        "ppo": "#cb3a04", "turn-ppo": "#c2870c", "s-ppo": "#3a94c0", "st-ppo": "#1a306b", "grpo": "#962d9c",
        "so-grpo": "#117e5f",
    },
    neighbours=hues.LIGHT, others=("#7a5c3e", "#5f6b76", "#7f8217", "#c9568a"),
    outcomes={
        "healthy": "#2f7fb8", "mild": "#d9a520", "collapsed": "#cb3a04", "diverged": "#6b1f6e",
        "recovered": "#1f8a5b", "falling": "#a3542a", "no_learning": "#8a8f94", "": "#8a8f94",
    },
    sequential=("#f4f6f8", "#c6dbea", "#86b4d3", "#4a84b0", "#27567f", "#122b49"),
    diverging=("#8c2d04", "#d98558", "#f2d5c4", "#f5f5f3", "#c3d9ea", "#5c98c4", "#1a4a78"),
)  # fmt: skip
DARK = Palette(
    dark=True, background="#15181c", surface="#1e2227", text="#e6e8ea", muted="#98a2ac", grid="#2b3138",
    algorithms={
        "ppo": "#fe6a4c", "turn-ppo": "#f9b221", "s-ppo": "#51b6f4", "st-ppo": "#5871e6", "grpo": "#b079b0",
        "so-grpo": "#7de6ba",
    },
    neighbours=hues.DARK, others=("#c39f78", "#a3b0bc", "#c7c95c", "#ee93bd"),
    outcomes={
        "healthy": "#4ba3dc", "mild": "#e8bd4a", "collapsed": "#fe6a4c", "diverged": "#c98ccc",
        "recovered": "#5fcf9a", "falling": "#e09a6c", "no_learning": "#8b949d", "": "#8b949d",
    },
    sequential=("#1b2026", "#1f3b55", "#2c648f", "#4a93c4", "#8cc3e6", "#dff0fb"),
    diverging=("#ff9a6b", "#c8643a", "#6e4333", "#2b2f34", "#2f5573", "#4a93c4", "#a4d4f2"),
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How an arm is drawn: the colour of its algorithm, a dash and a marker of its own."""

    colour: str
    dash: str
    marker: str


def colour(algorithm: str, palette: Palette) -> str:
    """The colour of an algorithm; of one that is in no list, the same at every time and beside any other."""
    known = palette.algorithms.get(algorithm) or palette.neighbours.get(algorithm)
    digest = int.from_bytes(sha256(algorithm.encode()).digest()[:4], "big")
    return known or palette.others[digest % len(palette.others)]


def styles(arms: Sequence[tuple[str, str]], palette: Palette, drawn: Collection[str] | None = None) -> dict[str, Style]:
    """Arm -> style of the arms `drawn` (default: all), from all (arm, algorithm) of an experiment.

    Dash and marker are an arm's own, whatever is drawn beside it; the arm that is named like its algorithm is solid,
    the others follow in the order given. The first arm drawn of an algorithm has its very colour, further ones a
    darker or lighter shade of it.
    """
    found: dict[str, Style] = {}
    places: dict[str, int] = {}
    shades: dict[str, int] = {}
    for arm, algorithm in sorted(arms, key=lambda pair: pair[0] != pair[1]):
        place = places[algorithm] = places.get(algorithm, -1) + 1
        if drawn is not None and arm not in drawn:
            continue
        shade = shades[algorithm] = shades.get(algorithm, -1) + 1
        towards = (None, palette.text, palette.background)[shade % 3]
        hue = colour(algorithm, palette)
        found[arm] = Style(
            hue if towards is None else mixed(hue, towards, 0.4),
            DASHES[place % len(DASHES)], MARKERS[place // len(DASHES) % len(MARKERS)],
        )  # fmt: skip
    return found


def faded(hex_colour: str, opacity: float) -> str:
    """A colour of the palette, `opacity` of it."""
    red, green, blue = _parts(hex_colour)
    return f"rgba({red},{green},{blue},{opacity:g})"


def mixed(hex_colour: str, other: str, share: float) -> str:
    """A colour with `share` of another in it."""
    parts = (round((1 - share) * a + share * b) for a, b in zip(_parts(hex_colour), _parts(other), strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def _parts(hex_colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def scale(colours: Sequence[str]) -> list[list[Any]]:
    """Colours as a continuous colour scale of a figure."""
    return [[i / (len(colours) - 1), c] for i, c in enumerate(colours)]


def template(palette: Palette) -> dict[str, Any]:
    """The figure template of a theme: quiet grid, no frame, the app's own font and background."""
    axis = {
        "gridcolor": palette.grid, "gridwidth": 1, "zeroline": False, "showline": False, "ticks": "",
        "tickfont": {"color": palette.muted, "size": 12}, "automargin": True,
        "title": {"font": {"color": palette.muted, "size": 13}, "standoff": 8},
        "spikecolor": palette.muted, "spikethickness": 1, "spikedash": "dot", "spikemode": "across",
    }  # fmt: skip
    layout = {
        "font": {"family": FONT, "size": 13, "color": palette.text},
        "paper_bgcolor": palette.background, "plot_bgcolor": palette.background,
        "colorway": list(palette.algorithms.values()),
        "colorscale": {"sequential": scale(palette.sequential), "diverging": scale(palette.diverging)},
        "xaxis": axis, "yaxis": axis, "hovermode": "closest", "dragmode": "zoom",
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 13, "color": palette.text}, "itemwidth": 40,
        },
        "hoverlabel": {
            "bgcolor": palette.surface, "bordercolor": palette.grid, "align": "left",
            "font": {"family": FONT, "size": 13, "color": palette.text},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": palette.muted, "activecolor": palette.text},
        "coloraxis": {"colorbar": {"outlinewidth": 0, "thickness": 10, "tickfont": {"color": palette.muted}}},
    }  # fmt: skip
    return {"layout": layout}

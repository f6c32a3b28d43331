import math
import re
import tomllib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sorl.app
from sorl.algorithms import ALGORITHMS
from sorl.app.theme import DARK, LIGHT, MARKS, Palette, Style, colour, contrast, mixed, position, styles, tint
from sorl.spec import OUTCOMES

# Linear RGB as people with no cones of one kind see it: Machado, Oliveira and Fernandes 2009, severity 1.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# Linear RGB to cones, and cones to lightness and two opponent colours: OKLab (Ottosson 2020).
CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OPPONENT = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def oklab(colour: str, vision: str = "normal") -> np.ndarray:
    """Lightness and two opponent colours, (3,), as somebody with this vision sees them."""
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return np.array(OPPONENT) @ np.cbrt(
        np.clip(np.array(CONES) @ np.array(VISIONS[vision]) @ linear, 0, None)
    )


def distance(a: str, b: str, vision: str = "normal") -> float:
    return float(np.linalg.norm(oklab(a, vision) - oklab(b, vision)))


both = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])


@both
@pytest.mark.parametrize("vision", VISIONS)
def test_two_algorithms_never_look_alike(palette: Palette, vision: str) -> None:
    for a, b in combinations(palette.algorithms.items(), 2):
        assert distance(a[1], b[1], vision) > 0.09, (a, b)


@both
def test_every_named_algorithm_has_a_colour_of_its_own_and_an_unknown_one_keeps_its_colour(
    palette: Palette,
) -> None:
    own = {**palette.algorithms, **palette.neighbours}
    assert set(own) <= set(ALGORITHMS), "a colour for an algorithm that is gone"
    assert len(own) >= 33
    for (a, one), (b, other) in combinations(own.items(), 2):
        assert distance(one, other) > 0.08, (a, b)
    assert colour("gspo", palette) == palette.neighbours["gspo"]
    assert not set(own.values()) & set(palette.others)
    alone = styles([("mine", "mine")], palette)["mine"]
    assert alone == styles([("ppo", "ppo"), ("yours", "yours"), ("mine", "mine")], palette)["mine"]
    assert alone.colour == colour("mine", palette)
    assert alone.colour in palette.others


@both
def test_a_collapse_has_a_colour_that_is_no_arms_and_no_other_outcomes(palette: Palette) -> None:
    collapsed = palette.outcomes["collapsed"]
    arms = [*palette.algorithms.values(), *palette.neighbours.values(), *palette.others]
    others = [c for outcome, c in palette.outcomes.items() if outcome != "collapsed"]
    assert min(distance(collapsed, c) for c in [*arms, *others]) > 0.08
    assert min(distance(collapsed, c, vision) for c in others for vision in VISIONS) > 0.05, (
        "cells have words, too"
    )
    assert contrast(collapsed, palette.background) >= 4.5


@both
def test_lines_and_words_stand_out_from_the_background(palette: Palette) -> None:
    lines = [*palette.algorithms.values(), *palette.neighbours.values(), *palette.others]
    assert min(contrast(c, palette.background) for c in lines) >= 3
    assert min(contrast(c, palette.background) for c in (palette.text, palette.muted)) >= 4.5
    assert set(palette.outcomes) == {*OUTCOMES, ""}
    assert min(contrast(c, palette.background) for c in palette.outcomes.values()) >= 3


@both
def test_every_text_is_readable_on_every_ground_also_where_the_sheet_fades_it(palette: Palette) -> None:
    package = Path(sorl.app.__file__).parent
    shares = [
        float(share) for share in re.findall(r"[{;]\s*opacity: ([.\d]+)", (package / "style.css").read_text())
    ]
    theme = tomllib.loads((package / ".streamlit" / "config.toml").read_text())["theme"]
    primary = theme["light" if palette is LIGHT else "dark"]["primaryColor"]
    assert len(shares) > 5
    assert contrast("#ffffff", primary) >= 4.5, "Streamlit writes white on it"
    for ground in (palette.background, palette.surface):
        assert contrast(primary, ground) >= 3, "of what is chosen"
        for ink in (palette.text, palette.muted, *(mixed(palette.text, ground, 1 - s) for s in shares)):
            assert contrast(ink, ground) >= 4.5, (ink, ground)


def test_arms_of_one_algorithm_differ_without_a_new_hue() -> None:
    names = [f"ppo, control {i}" for i in range(20)]
    found = styles([(name, "ppo") for name in names], LIGHT)
    assert len({(s.dash, s.marker) for s in found.values()}) == len(names)
    assert np.ptp([np.arctan2(*oklab(s.colour)[:0:-1]) for s in found.values()]) < 0.2


def test_an_arm_looks_the_same_whatever_else_is_drawn() -> None:
    arms = [("ppo", "ppo"), ("ppo, on-policy", "ppo"), ("grpo, on-policy", "grpo")]
    among_all = styles(arms, LIGHT)
    for arm, _ in arms:
        assert styles(arms, LIGHT, drawn=[arm]) == {arm: among_all[arm]}
    assert among_all["ppo"] == Style(LIGHT.algorithms["ppo"], "solid", "circle")
    assert among_all["ppo, on-policy"].colour != LIGHT.algorithms["ppo"]


def test_of_an_algorithm_with_more_arms_than_shades_the_first_drawn_has_its_colour() -> None:
    arms = [(f"ppo {i}", "ppo") for i in range(9)]
    among_all = styles(arms, LIGHT)
    chosen = styles(arms, LIGHT, drawn=["ppo 7"])
    assert chosen["ppo 7"].colour == LIGHT.algorithms["ppo"]
    assert chosen["ppo 7"].dash == among_all["ppo 7"].dash != "solid"


def test_the_app_listens_on_this_machine_only_tells_nobody_and_a_look_at_the_database_is_cheap() -> None:
    package = Path(sorl.app.__file__).parent
    files = [folder / ".streamlit" / "config.toml" for folder in (package, package.parents[1])]
    config, root = (tomllib.loads(file.read_text()) for file in files)
    for found in (config, root):
        assert found["server"]["address"] == "127.0.0.1"
        assert found["browser"]["gatherUsageStats"] is False
    for name, palette in (("light", LIGHT), ("dark", DARK)):
        theme = config["theme"][name]
        colours = [theme[f"{part}Color"] for part in ("background", "secondaryBackground", "text")]
        assert colours == [palette.background, palette.surface, palette.text]
    # A full collection takes a tenth of a second with plotly and pandas loaded, and a screen looks twice a
    # second.
    assert config["runner"]["postScriptGC"] is False


@given(st.floats(-20, 20))
def test_the_scale_of_log_ratios_is_odd_rising_and_ends_at_ten_nats(log_ratio: float) -> None:
    places = [position(mark) for mark in MARKS]
    assert places == sorted(places)
    assert (places[0], places[len(MARKS) // 2], places[-1]) == (-1.0, 0.0, 1.0)
    assert position(1e6) == 1.0
    assert position(0.2) == pytest.approx(math.asinh(2) / math.asinh(100))
    assert position(-log_ratio) == -position(log_ratio)


@both
def test_text_can_be_read_on_every_tint_and_what_did_not_move_or_is_nan_has_none(palette: Palette) -> None:
    for step in range(-1000, 1001):
        if (pair := tint(step / 100, palette)) is not None:
            assert contrast(*pair) >= 4.5, (step / 100, pair)
    assert [tint(value, palette) for value in (None, math.nan, 0.0, 0.001)] == [None] * 4
    assert tint(math.inf, palette) == tint(10.0, palette)
    assert (tint(-10.0, palette) or [""])[0] == palette.diverging[0]

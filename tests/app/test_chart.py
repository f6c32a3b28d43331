from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal, checked
from workbench.app.figures.chart import GROUPS, chart
from workbench.app.theme import DARK, LIGHT

WORDS = {"kl": ("nats", "<-delta>_m (k1)"), "step": ("", "")}


def draw(frame: pd.DataFrame, x: str, y: str, colour: str = "", mark: str = "points", **more: Any) -> Any:
    palette = more.pop("palette", LIGHT)
    return checked(chart(frame, x, y, colour, mark, lambda c: WORDS.get(c, ("", "")), palette, **more))


def arms(*names: str, steps: int = 4) -> pd.DataFrame:
    rows = [(arm, step, 0.1 * step) for arm in names for step in range(steps)]
    return pd.DataFrame(rows, columns=["arm", "step", "kl"])


def test_axes_say_the_column_its_unit_and_its_definition() -> None:
    figure = draw(arms("ppo"), "step", "kl")
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("step", "kl (nats)")
    assert "&lt;-delta&gt;_m (k1)" in figure.layout.annotations[0].text


def test_an_algorithm_and_its_arms_have_their_own_colour() -> None:
    figure = draw(arms("st-ppo", "ppo", "ppo, on-policy", "ppo gradient clip"), "step", "kl", "arm", "line")
    looks = {t.name: (t.line.color, t.line.dash) for t in figure.data}
    assert looks["st-ppo"] == (LIGHT.algorithms["st-ppo"], "solid")
    assert looks["ppo"] == (LIGHT.algorithms["ppo"], "solid")
    assert len({dash for name, (_, dash) in looks.items() if name.startswith("ppo")}) == 3


def test_an_arm_gets_the_colour_of_the_algorithm_that_its_row_names() -> None:
    frame = arms("control").assign(algorithm="grpo")
    assert draw(frame, "step", "kl", "arm").data[0].marker.color == LIGHT.algorithms["grpo"]


def test_a_line_goes_from_left_to_right_whatever_the_order_of_the_rows() -> None:
    figure = draw(arms("ppo").iloc[::-1], "step", "kl", mark="line")
    assert list(figure.data[0].x) == [0, 1, 2, 3]


def test_texts_as_x_stand_on_the_vertical_axis_in_the_order_of_the_rows() -> None:
    frame = pd.DataFrame({"arm": ["b", "a", "c"], "seconds": [3.0, 1.0, 2.0]})
    figure = draw(frame, "arm", "seconds", mark="bars")
    assert figure.data[0].type == "bar"
    assert (list(figure.data[0].x), list(figure.data[0].y)) == ([3.0, 1.0, 2.0], ["b", "a", "c"])
    assert list(figure.layout.yaxis.ticktext) == ["b", "a", "c"]
    assert figure.layout.yaxis.autorange == "reversed"


def test_many_bars_make_a_taller_figure() -> None:
    frames = [pd.DataFrame({"run_id": [f"r{i}" for i in range(n)], "kl": range(n)}) for n in (3, 100)]
    few, many = (draw(frame, "run_id", "kl", mark="bars").layout.height for frame in frames)
    assert many > 2 * few


def test_a_column_of_many_numbers_is_a_colour_scale_and_of_few_a_legend() -> None:
    frame = pd.DataFrame({"step": range(40), "kl": range(40), "seed": [i % 3 for i in range(40)]})
    scaled = draw(frame, "step", "kl", "kl")
    assert len(scaled.data) == 1
    assert scaled.data[0].marker.colorbar.title.text == "kl (nats)"
    assert [t.name for t in draw(frame.iloc[::-1], "step", "kl", "seed").data] == ["0", "1", "2"]


def test_more_groups_than_a_legend_holds_are_drawn_without_one() -> None:
    frame = pd.DataFrame({"run_id": [f"r{i}" for i in range(GROUPS + 1)], "step": 1, "kl": 0.5})
    figure = draw(frame, "step", "kl", "run_id")
    assert len(figure.data) == GROUPS + 1
    assert figure.layout.showlegend is False


def test_a_spike_turns_the_axis_to_a_log_scale_but_never_under_bars() -> None:
    frame = pd.DataFrame({"step": range(5), "kl": [1.0, 1.0, 1.0, 1.0, 900.0]})
    assert draw(frame, "step", "kl", mark="line").layout.yaxis.type == "log"
    assert draw(frame, "step", "kl", mark="line").layout.yaxis.title.text == "kl (nats), log scale"
    assert draw(frame, "step", "kl", mark="bars").layout.yaxis.type == "linear"
    assert draw(frame, "step", "kl", mark="line", axis="linear").layout.yaxis.type == "linear"


def test_the_figure_has_the_colours_of_its_theme() -> None:
    for palette in (LIGHT, DARK):
        figure = draw(arms("ppo"), "step", "kl", "arm", palette=palette)
        assert figure.layout.template.layout.paper_bgcolor == palette.background
        assert figure.data[0].marker.color == palette.algorithms["ppo"]
        assert "#E5ECF6" not in figure.to_json()


@pytest.mark.parametrize("mark", ["line", "points", "bars"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_columns_and_values_stay_text(text: str, mark: str) -> None:
    frame = pd.DataFrame({text: [text, f"{text} 2"], "n": [1.0, 2.0], f"{text} n": [3, 4]})
    figures = [
        chart(frame, x, y, colour, mark, lambda c: (text, text), LIGHT)
        for x, y, colour in ((text, "n", ""), ("n", f"{text} n", text), (text, f"{text} n", text))
    ]
    for figure in figures:
        assert_literal(figure)

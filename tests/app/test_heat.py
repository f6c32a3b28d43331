from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal, checked
from workbench.app.curve_data import Window
from workbench.app.figures.common import AXES
from workbench.app.figures.heat import ColourScale, Heat, Measure, colour_scale, heat
from workbench.app.theme import DARK, LIGHT, styles

MEASURE = Measure("ratio_geo", "ratio", "exp(mean delta of the turn)")
WINDOW = Window(0, 9, 1)


def cells(turns: int = 3, buckets: int = 10, **changes: Any) -> pd.DataFrame:
    rows = [
        {"bucket": b, "turn_index": k + 1, "mean": 1 + 0.01 * b, "low": 0.9, "high": 1.2, "non_finite": 0,
         "measured": 2, "turns": 16.0, "value": 1 + 0.01 * b}
        for k in range(turns) for b in range(buckets)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**changes)


def draw(*maps: Heat, shade: ColourScale | None = None, **more: Any) -> Any:
    arms = styles([(part.arm, part.arm) for part in maps], LIGHT)
    shade = shade or colour_scale("ratio", pd.concat([part.cells["value"] for part in maps]))
    return checked(heat(maps, MEASURE, shade, arms, LIGHT, WINDOW, AXES["step"], **more))


def maps_of(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.type == "heatmap"]


def targets_of(figure: Any) -> list[Any]:
    return [trace for trace in scatters(figure) if trace.marker.opacity == 0]


def scatters(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.type != "heatmap"]


def test_all_arms_share_one_colour_scale_and_one_bar() -> None:
    dead = cells().assign(value=1e-8, mean=1e-8)
    figure = draw(Heat("ppo", dead), Heat("st-ppo", cells()))
    assert {trace.coloraxis for trace in maps_of(figure)} == {"coloraxis"}
    bar = figure.layout.coloraxis
    assert bar.cmin == -bar.cmax
    assert bar.colorbar.title.text == "ratio, log scale"
    assert "coloraxis2" not in figure.to_dict()["layout"]


def test_a_cell_stands_at_its_step_and_turn_with_the_log_of_its_ratio() -> None:
    data = cells()
    data.loc[(data["bucket"] == 4) & (data["turn_index"] == 2), ["value", "mean"]] = 0.5
    trace = maps_of(draw(Heat("ppo", data)))[0]
    assert trace.z[1][4] == pytest.approx(math.log(0.5))
    assert (trace.x0, trace.dx, trace.y0, trace.dy) == (0, 1, 1, 1)


def test_buckets_of_several_steps_stand_at_their_middle() -> None:
    data = cells(buckets=2)
    figure = checked(heat(
        [Heat("ppo", data)], MEASURE, colour_scale("ratio", data["value"]), styles([("ppo", "ppo")], LIGHT), LIGHT,
        Window(10, 19, 5), AXES["step"]))  # fmt: skip
    trace = maps_of(figure)[0]
    assert (trace.x0, trace.dx) == (12, 5)
    assert [list(c[3:5]) for c in targets_of(figure)[0].customdata[:2]] == [[10, 14], [15, 19]]
    assert "steps %{customdata[3]:,} to %{customdata[4]:,}" in targets_of(figure)[0].hovertemplate


def test_a_usual_cell_tells_its_numbers_and_an_unusual_one_the_words_for_it() -> None:
    data = cells().assign(mean=1.25)
    data.loc[4, ["low", "high"]] = 1.25
    usual, odd = targets_of(draw(Heat("ppo", data)))
    assert list(usual.customdata[0]) == [0, 0, 1, 0, 0, 1.25, 0.9, 1.2, 16]
    assert usual.hovertemplate.startswith("<b>ppo</b>, turn %{customdata[2]}, step %{customdata[3]:,}<br>ratio_geo ")
    assert (list(odd.x), list(odd.text)) == ([4], ["<b>ppo</b>, turn 1, step 4<br>ratio_geo 1.25<br>16 turns"])


def test_not_measured_is_hatched_and_has_no_colour() -> None:
    data = cells()
    blank = (data["turn_index"] == 3) & (data["bucket"] >= 7)
    data.loc[blank, ["value", "mean", "low", "high"]] = math.nan
    data.loc[blank, "measured"] = 0
    figure = draw(Heat("ppo", data))
    assert np.isnan(np.array(maps_of(figure)[0].z, dtype=float)[2][7:]).all()
    hatched = next(t for t in scatters(figure) if t.fillpattern.shape == "/")
    assert [v for v in hatched.x if not math.isnan(v)] == [6.5, 9.5, 9.5, 6.5, 6.5]
    assert "not measured" in figure.to_json()


def test_nan_is_marked_and_told() -> None:
    data = cells()
    data.loc[5, "non_finite"] = 1
    figure = draw(Heat("ppo", data))
    crosses = next(t for t in scatters(figure) if t.marker.symbol == "x-thin")
    assert (list(crosses.x), list(crosses.y)) == ([5.0], [1])
    assert "1 of 2 values NaN or Inf" in figure.to_json()


def test_a_turn_that_nobody_took_has_a_dash() -> None:
    data = cells()
    data = data[~((data["turn_index"] == 3) & (data["bucket"] == 6))]
    dashes = next(t for t in scatters(draw(Heat("ppo", data))) if t.marker.symbol == "line-ew")
    assert (list(dashes.x), list(dashes.y)) == ([6.0], [3])


def test_a_click_on_a_cell_tells_its_map_its_bucket_and_its_turn() -> None:
    figure = draw(Heat("ppo", cells()), Heat("st-ppo", cells(turns=2)))
    assert [tuple(c[:3]) for c in targets_of(figure)[1].customdata] == [(1, b, k) for k in (1, 2) for b in range(10)]


def test_the_chosen_cell_has_a_frame_in_its_map_only() -> None:
    figure = draw(Heat("ppo", cells()), Heat("st-ppo", cells()), chosen=(1, 4, 2))
    frames = [t for t in scatters(figure) if t.mode == "lines" and t.line.width == 2]
    assert [(t.xaxis, list(t.x)[:2], list(t.y)[1:3]) for t in frames] == [("x2", [3.5, 4.5], [1.5, 2.5])]


def test_onsets_stand_on_the_upper_edge() -> None:
    figure = draw(Heat("ppo", cells(), onsets=[3.0, 7.0]))
    marks = next(t for t in scatters(figure) if t.marker.symbol == "triangle-down")
    assert list(marks.x) == [3.0, 7.0]


def test_turn_one_is_on_top_and_every_axis_is_named() -> None:
    figure = draw(Heat("ppo", cells()))
    axis = figure.layout.yaxis
    assert axis.range[0] > axis.range[1]
    assert (axis.title.text, figure.layout.xaxis.title.text) == ("turn index", AXES["step"])
    assert any("exp(mean delta of the turn)" in a.text for a in figure.layout.annotations)


@pytest.mark.parametrize("buckets", [10, 2_000])
def test_plotly_accepts_every_trace_and_many_cells_are_left_to_the_graphics_processor(buckets: int) -> None:
    data = cells(buckets=buckets)
    data.loc[5, "non_finite"] = 1
    data.loc[7, ["value", "mean", "low", "high"]] = math.nan
    data.loc[7, "measured"] = 0
    maps = Heat("ppo", data, [3.0]), Heat("st-ppo", data.drop(index=9)), Heat("grpo", data.head(0))
    figure = draw(*maps, chosen=(0, 4, 2))
    assert ("scattergl" in {trace.type for trace in figure.data}) == (buckets == 2_000)
    assert sum("not measured" in a.text for a in figure.layout.annotations) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_every_number_of_arms_fits_side_by_side(count: int) -> None:
    figure = draw(*[Heat(f"arm {i}", cells()) for i in range(count)])
    assert len(maps_of(figure)) == count
    assert max(a.domain[1] for a in figure.select_xaxes()) <= 1
    assert len([a for a in figure.select_xaxes() if a.title.text]) >= min(count, 2)


def test_the_figure_has_the_colours_of_its_theme() -> None:
    arms = styles([("ppo", "ppo")], DARK)
    figure = heat([Heat("ppo", cells())], MEASURE, colour_scale("ratio", cells()["value"]), arms, DARK, WINDOW, "step")
    assert figure.layout.template.layout.plot_bgcolor == DARK.background
    assert figure.layout.coloraxis.colorscale[0][1] == DARK.diverging[0]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    arms = styles([(text, text)], LIGHT)
    measure = Measure(text, text, text)
    figure = heat(
        [Heat(text, cells(), [1.0])], measure, colour_scale(text, cells()["value"]), arms, LIGHT, WINDOW, "step"
    )
    assert_literal(figure)


def scale_of(unit: str, *values: float) -> ColourScale:
    return colour_scale(unit, pd.Series(values, dtype=float))


def test_a_ratio_is_centred_at_one_on_a_log_scale_and_a_ratio_of_nothing_stands_where_trainers_clamp() -> None:
    scale = scale_of("ratio", 0.9, 1.0, 1.4)
    assert (scale.kind, scale.limit, scale.colours(LIGHT)) == ("ratio", 1.5, LIGHT.diverging)
    places = scale.place(pd.Series([1.0, 1.5, 1 / 1.5, 0.0])).tolist()
    assert places == pytest.approx([0.0, scale.ends[1], scale.ends[0], -20])


def test_what_carries_a_sign_is_centred_at_zero_and_a_fraction_ends_at_one() -> None:
    signed, fraction = scale_of("reward", -0.3, 0.1), scale_of("fraction", 0.2, 0.97)
    assert (signed.kind, signed.ends, signed.colours(LIGHT)) == ("signed", (-0.5, 0.5), LIGHT.diverging)
    assert (fraction.kind, fraction.ends, fraction.colours(LIGHT)) == ("size", (0.0, 1.0), LIGHT.sequential)


def test_a_dead_run_does_not_bleach_the_living() -> None:
    scale = scale_of("ratio", 0.97, 1.02, 0.98, 1.01, 2e-9)
    assert (scale.limit <= 1.5, scale.below, scale.above) == (True, True, False)
    words = scale.ticks()[1]
    assert (words[0].startswith("≤ "), words[-1].startswith("≥ ")) == (True, False)


@pytest.mark.parametrize(
    ("values", "words"),
    [((0.5, 2.0), ["0.5", "0.71", "1", "1.4", "2"]), ((0.991, 1.009), ["0.99", "0.995", "1", "1.005", "1.01"])],
)
def test_the_colour_bar_of_a_ratio_says_the_ratio(values: tuple[float, ...], words: list[str]) -> None:
    assert scale_of("ratio", *values).ticks()[1] == words


@given(st.lists(st.floats(), max_size=30), st.sampled_from(["ratio", "nats", "fraction"]))
def test_any_values_even_none_give_a_scale_with_rising_ticks(values: list[float], unit: str) -> None:
    places, words = scale_of(unit, *values).ticks()
    assert all(math.isfinite(place) for place in places)
    assert places == sorted(set(places))
    assert len(words) == len(places) == 5

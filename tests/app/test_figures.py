"""Every figure: where its marks stand, what they carry, what is said where nothing was measured."""

import json
import math
from collections import defaultdict
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.analysis.survival import curve
from sorl.app.data import Fall, Window, alarm_leads, banded, lone
from sorl.app.figures import runs as of_runs
from sorl.app.figures.common import AXES, KINDS
from sorl.app.figures.curves import (
    GROUPS,
    Arrangement,
    Marks,
    Panel,
    Threshold,
    _stacked,
    chart,
    curves,
    single_out,
)
from sorl.app.figures.maps import FEW, Heat, Measure, Slice, colour_scale, heat, region
from sorl.app.queries import Diagnostics
from sorl.app.theme import DARK, LIGHT, Palette, contrast, mixed, styles
from tests.app.conftest import HOSTILE, assert_figure_literal, checked

RED = LIGHT.outcomes["collapsed"]
WORDS = {"kl": ("nats", "<-delta>_m (k1)")}


def looks(*arms: str, palette: Palette = LIGHT) -> Any:
    return styles([(arm, arm) for arm in arms], palette)


def texts(figure: Any) -> list[str]:
    return [a.text for a in figure.layout.annotations]


def marks(figure: Any, **wanted: Any) -> list[Any]:
    """The traces whose markers have these properties."""
    found = [t for t in figure.data if t.type != "heatmap"]
    return [t for t in found if all(t.marker[name] == value for name, value in wanted.items())]


def answer(frame: pd.DataFrame, x: str, y: str, colour: str = "", mark: str = "points", **more: Any) -> Any:
    palette = more.pop("palette", LIGHT)
    return checked(chart(frame, x, y, colour, mark, WORDS, palette, **more))


def arms(*names: str) -> pd.DataFrame:
    return pd.DataFrame([(arm, i, 0.1 * i) for arm in names for i in range(4)], columns=["arm", "step", "kl"])


def test_an_answer_is_drawn_from_left_to_right_in_the_colours_of_its_algorithms() -> None:
    rows = arms("st-ppo", "ppo", "ppo, on-policy", "ppo gradient clip").iloc[::-1]
    figure = answer(rows, "step", "kl", "arm", "line")
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("step", "kl (nats)")
    drawn = {t.name: (t.line.color, t.line.dash) for t in figure.data}
    assert [drawn[arm] for arm in ("ppo", "st-ppo")] == [
        (LIGHT.algorithms["ppo"], "solid"),
        (LIGHT.algorithms["st-ppo"], "dashdot"),
    ]
    assert len({dash for name, (_, dash) in drawn.items() if name.startswith("ppo")}) == 3
    assert list(figure.data[0].x) == [0, 1, 2, 3]
    named = answer(arms("control").assign(algorithm="grpo"), "step", "kl", "arm")
    assert named.data[0].marker.color == LIGHT.algorithms["grpo"], "of the algorithm that its row names"


def test_texts_as_x_are_horizontal_bars_in_the_order_of_the_rows_and_many_make_a_taller_figure() -> None:
    figure = answer(
        pd.DataFrame({"arm": ["b", "a", "c"], "seconds": [3.0, 1.0, 2.0]}), "arm", "seconds", mark="bars"
    )
    (bars,) = figure.data
    assert (bars.type, list(bars.x), list(bars.y)) == ("bar", [3.0, 1.0, 2.0], ["b", "a", "c"])
    assert (list(figure.layout.yaxis.ticktext), figure.layout.yaxis.autorange) == (
        ["b", "a", "c"],
        "reversed",
    )
    many = pd.DataFrame({"arm": [f"r{i}" for i in range(100)], "seconds": range(100)})
    assert answer(many, "arm", "seconds", mark="bars").layout.height > 2 * figure.layout.height


def test_many_numbers_are_a_colour_scale_few_a_legend_and_too_many_groups_have_none() -> None:
    frame = pd.DataFrame({"step": range(40), "kl": range(40), "seed": [i % 3 for i in range(40)]})
    (scaled,) = answer(frame, "step", "kl", "kl").data
    assert scaled.marker.colorbar.title.text == "kl (nats)"
    assert [t.name for t in answer(frame.iloc[::-1], "step", "kl", "seed").data] == ["0", "1", "2"]
    many = pd.DataFrame({"run_id": [f"r{i}" for i in range(GROUPS + 1)], "step": 1, "kl": 0.5})
    figure = answer(many, "step", "kl", "run_id")
    assert (len(figure.data), figure.layout.showlegend) == (GROUPS + 1, False)


MARK = pd.DataFrame({"arm": ["ppo"], "run_id": ["ppo-0"], "x": [4.0]})
ALARM = MARK.assign(value=40.0, message="grad_norm_max is 40")
RULES = Marks([Threshold("ppo", 20.0), Threshold(None, 30.0)], ALARM)
MARKED: dict[str, Any] = {"marks": RULES, "broken": MARK}


def points(seeds: int = 3, steps: int = 12) -> pd.DataFrame:
    found = pd.DataFrame(
        product(("ppo", "st-ppo"), range(seeds), range(steps)), columns=["arm", "seed", "bucket"]
    )
    run = found["arm"] + "-" + found["seed"].astype(str)
    low = 0.1 * found["seed"]
    means = {"mean": low + 0.01 * found["bucket"], "low": low, "high": low + 0.5, "non_finite": 0}
    return found.assign(run_id=run, run=pd.factorize(run)[0], x=found["bucket"].astype(float), **means)


def panel(data: pd.DataFrame, **more: Any) -> Panel:
    return Panel("grad_norm_max", "norm", "max ||g||_2 over updates, before gradient clipping", data, **more)


def drawn(
    *panels: Panel, palette: Palette = LIGHT, onsets: pd.DataFrame | None = None, **arrangement: Any
) -> Any:
    arms = looks("ppo", "st-ppo", palette=palette)
    return curves(panels, arms, palette, AXES["step"], onsets=onsets, arrangement=Arrangement(**arrangement))


def line_of(figure: Any, arm: str) -> Any:
    lines = [
        t
        for t in figure.data
        if "lines" in (t.mode or "") and t.customdata is not None and t.x[0] is not None
    ]
    return next(t for t in lines if t.line.color == LIGHT.algorithms[arm])


def test_panels_say_name_unit_and_definition_and_share_their_x_axis_and_their_legend() -> None:
    figure = checked(drawn(panel(banded(points())), panel(points()), panel(points().head(0))))
    assert sum("<b>grad_norm_max</b>" in t and "before gradient clipping" in t for t in texts(figure)) >= 2
    assert sum("not measured" in t for t in texts(figure)) == 1
    assert [axis.title.text for axis in figure.select_yaxes() if axis.visible is not False][:2] == [
        "norm",
        "norm",
    ]
    assert AXES["step"] in [axis.title.text for axis in figure.select_xaxes()]
    assert {axis.matches for axis in figure.select_xaxes()} == {"x"}
    assert [t.name for t in figure.data if t.showlegend is not False] == ["ppo", "st-ppo"]


def test_a_band_has_the_interquartile_mean_and_every_extreme_and_no_run_is_joined_to_the_next() -> None:
    data = points()
    data.loc[17, "high"] = 1e6
    band = banded(data)
    figure = drawn(panel(band), scale="linear")
    assert list(line_of(figure, "st-ppo").y) == band.loc[band["arm"] == "st-ppo", "middle"].tolist()
    for one in (figure, drawn(panel(data), scale="linear")):
        assert max(v for t in one.data for v in (t.y if t.y is not None else []) if v is not None) == 1e6
    line = line_of(drawn(panel(points(seeds=2))), "ppo")
    assert [i for i, v in enumerate(line.y) if math.isnan(v)] == [12, 25]
    assert line.connectgaps is False


def test_thresholds_alarms_onsets_and_what_is_no_number_stand_where_they_belong() -> None:
    figure = checked(drawn(panel(banded(points()), **MARKED), onsets=MARK.assign(x=7)))
    found = [(t.marker.symbol, t.x[0], t.y[0]) for t in figure.data if t.mode == "markers"]
    assert found == [
        ("triangle-up-open", 4, 40.0),
        ("circle", 4, 40.0),
        ("triangle-down", 7, 0.96),
        ("circle", 7, 0.96),
        ("x", 4, 0.03),
    ], "in each triangle stands the marker of its arm"
    thresholds = [t for t in figure.data if t.line.dash == "2px,3px"]
    found = [(list(t.y), t.line.color) for t in thresholds]
    assert found == [([20.0, 20.0], LIGHT.algorithms["ppo"]), ([30.0, 30.0], LIGHT.muted)]
    assert thresholds[0].hovertemplate.startswith("alarm at 20 for ppo")


def test_under_three_seeds_the_seeds_are_thin_lines_and_no_interval_is_given() -> None:
    for seeds in (2, 3):
        data = points(seeds=seeds)
        band = banded(data)
        figure = checked(drawn(panel(band, seeds=lone(data, band))))
        thin = [t for t in figure.data if t.opacity == 0.6 and t.line.width == 0.9]
        assert [t.mode for t in thin] == ["lines"] * (2 if seeds == 2 else 0)
        assert any(t.fill == "toself" for t in figure.data) == (seeds == 3)
        line = next(t for t in figure.data if t.text is not None)
        assert line.text[0].startswith("<br>95 % interval") == (seeds == 3)
        assert "%{customdata[2]} seeds" in line.hovertemplate
        assert {row[2] for row in line.customdata} == {seeds}


def test_a_few_far_values_are_cut_marked_and_told_and_a_linear_scale_shows_them_all() -> None:
    data = points().assign(low=0.0, mean=0.1, high=0.2)
    data.loc[5, ["low", "mean"]] = -3000.0
    figure = checked(drawn(panel(banded(data))))
    low, high = figure.layout.yaxis.range
    assert -2 < low < 0 < 0.2 < high < 2
    (mark,) = marks(figure, symbol="arrow-bar-down")
    assert (list(mark.x), list(mark.customdata)) == ([5.0], ["-3000"])
    assert "beyond the axis: ppo 1 point, to -3,000" in texts(figure)
    assert drawn(panel(banded(data)), scale="linear").layout.yaxis.range is None
    assert drawn(panel(banded(points()))).layout.yaxis.range is None


def test_a_threshold_is_drawn_from_where_its_rule_can_ring_and_not_at_all_where_it_never_can() -> None:
    rules = Marks([Threshold("ppo", 20.0, 7.0), Threshold("st-ppo", 30.0, 99.0), Threshold(None, 40.0)])
    figure = checked(drawn(panel(banded(points()), marks=rules)))
    found = [(list(t.x), t.y[0]) for t in figure.data if t.line.dash == "2px,3px"]
    assert found == [([7, 11], 20.0), ([0, 11], 40.0)]


def test_points_beyond_the_axis_are_told_arm_by_arm_so_that_no_click_in_the_legend_makes_it_false() -> None:
    data = points().assign(low=0.0, mean=0.1, high=0.2)
    data.loc[5, ["low", "mean"]] = -3000.0
    data.loc[40:41, "high"] = 700.0
    words = "beyond the axis: ppo 1 point, to -3,000; st-ppo 2 points, to 700"
    assert words in texts(drawn(panel(banded(data))))
    panes = texts(drawn(panel(banded(data)), by_arm=True))
    assert "beyond the axis: ppo 1 point, to -3,000" in panes
    assert "beyond the axis: st-ppo 2 points, to 700" in panes


def test_an_arm_alone_keeps_the_entries_of_the_legend_and_hides_all_else_of_the_others() -> None:
    figure = drawn(panel(banded(points()), **MARKED), onsets=MARK)
    single_out(figure, "st-ppo")
    assert {t.visible for t in figure.data if t.legendgroup == "st-ppo"} == {None}
    assert [t.visible for t in figure.data if t.name == "ppo"] == ["legendonly"]
    assert {t.visible for t in figure.data if t.legendgroup == "ppo" and not t.showlegend} == {False}


def test_what_was_measured_stands_pale_behind_a_smoothed_line() -> None:
    data = banded(points())
    smooth = data.assign(middle=0.5)
    figure = checked(drawn(panel(smooth, unsmoothed=data)))
    pale = [t for t in figure.data if t.opacity == 0.4]
    assert [list(t.y) for t in pale] == [part.tolist() for _, part in data.groupby("arm")["middle"]]
    assert set(line_of(figure, "ppo").y) == {0.5}


def test_no_line_is_drawn_over_a_step_at_which_a_seed_has_no_number() -> None:
    data = points()
    data.loc[data["bucket"].eq(5) & data["run"].eq(0), ["mean", "low", "high"]] = math.nan
    band = banded(data)
    figure = checked(drawn(panel(band, seeds=lone(data, band))))
    line = next(t for t in figure.data if t.text is not None and t.legendgroup == "ppo")
    assert math.isnan(line.y[5])
    assert 5 not in line.x[~np.isnan(line.y)]
    thin = next(t for t in figure.data if t.opacity == 0.6 and t.line.width == 0.9)
    assert thin.mode == "lines+markers", "a seed that is alone at one step is a dot"


def test_by_arm_each_diagnostic_has_a_pane_an_arm_on_one_scale_and_every_pane_its_ticks() -> None:
    panels = panel(banded(points()), **MARKED), panel(points())
    figure = checked(drawn(*panels, by_arm=True, onsets=MARK, scale="linear"))
    shown = [axis for axis in figure.select_yaxes() if axis.visible is not False]
    assert [axis.matches for axis in shown] == [None, "y", None, "y3"]
    assert {axis.showticklabels for axis in figure.select_xaxes()} == {None}
    for symbol in ("triangle-down", "triangle-up-open", "x"):
        assert {t.xaxis for t in marks(figure, symbol=symbol)} <= {"x", "x3"}, "of ppo, in its own panes"
    assert sum("ppo" in t for t in texts(figure)) == 4


def test_aligned_0_has_a_line_and_onsets_at_one_x_stand_apart() -> None:
    both = pd.concat([MARK, MARK.assign(run_id="ppo-1"), MARK.assign(arm="st-ppo", run_id="st-0")]).assign(
        x=0
    )
    figure = checked(drawn(panel(points()), panel(points()), onsets=both, is_aligned=True))
    assert [(s.x0, s.xref, s.yref) for s in figure.layout.shapes] == [
        (0, "x", "y domain"),
        (0, "x2", "y2 domain"),
    ]
    one, other = marks(figure, symbol="triangle-down")[:2]
    assert list(one.customdata) == ["ppo-0<br>ppo-1"]
    assert one.y[0] - other.y[0] == pytest.approx(0.08)


@pytest.mark.parametrize("seeds", [3, 400])
def test_many_points_are_left_to_the_graphics_processor_and_plotly_accepts_every_trace(seeds: int) -> None:
    one = points(seeds=seeds, steps=40)
    figure = drawn(panel(banded(one), **MARKED), panel(one), panel(one.head(0)), onsets=MARK)
    assert json.loads(checked(figure).to_json()) == json.loads(figure.to_json())
    assert ("scattergl" in {t.type for t in figure.data}) == (seeds == 400)
    figure = heated(Heat("ppo", cells(buckets=10 if seeds == 3 else 2_000)), Heat("grpo", cells().head(0)))
    assert ("scattergl" in {trace.type for trace in figure.data}) == (seeds == 400)
    assert sum("not measured" in text for text in texts(figure)) == 1


def test_a_spike_turns_an_axis_to_a_log_scale_unless_told_otherwise_and_never_under_bars() -> None:
    frame = pd.DataFrame({"step": range(5), "kl": [1.0, 1.0, 1.0, 1.0, 900.0]})
    data = points().assign(low=1.0, mean=1.5, high=2.0)
    data.loc[3, "high"] = 900.0
    found = [
        answer(frame, "step", "kl", mark="line"),
        drawn(panel(banded(data)), scale="auto"),
        peaked([1.0, 1.1, 900.0]),
        answer(frame, "step", "kl", mark="bars"),
        answer(frame, "step", "kl", mark="line", axis="linear"),
        drawn(panel(banded(data)), scale="linear"),
        peaked([1.0, 1.1, 9.0]),
    ]
    assert [figure.layout.yaxis.type == "log" for figure in found] == [True] * 3 + [False] * 4
    said = [figure.layout.yaxis.title.text for figure in found[:3]]
    assert said == ["kl (nats), log scale", "norm, log scale", "norm, log scale"]


MEASURE = Measure("ratio_geo", "geometric turn ratio", "ratio", "exp(mean delta of the turn)")


def cells(turns: int = 3, buckets: int = 10) -> pd.DataFrame:
    found = pd.DataFrame(product(range(1, turns + 1), range(buckets)), columns=["turn_index", "bucket"])
    level = 1 + 0.01 * found["bucket"]
    return found.assign(mean=level, value=level, low=0.9, high=1.2, non_finite=0, measured=2, turns=16.0)


def heated(*maps: Heat, window: Window = Window(0, 9, 1), palette: Palette = LIGHT, **more: Any) -> Any:
    names = looks(*(part.arm for part in maps), palette=palette)
    shade = colour_scale("ratio", pd.concat([part.cells["value"] for part in maps]))
    return checked(heat(maps, MEASURE, shade, names, palette, window, AXES["step"], **more))


def maps_of(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.type == "heatmap"]


def test_a_cell_stands_at_its_step_and_turn_with_the_log_of_its_ratio_and_all_arms_share_one_scale() -> None:
    data = cells()
    data.loc[(data["bucket"] == 4) & (data["turn_index"] == 2), ["value", "mean"]] = 0.5
    figure = heated(
        Heat("ppo", data, onsets=[(3.0, 0), (7.0, 2)]), Heat("st-ppo", cells(turns=2).assign(value=1e-8))
    )
    first, second = maps_of(figure)
    assert first.z[1][4] == pytest.approx(math.log(0.5))
    assert (first.x0, first.dx, first.y0, first.dy) == (0, 1, 1, 1)
    bar = figure.layout.coloraxis
    axis = figure.layout.yaxis
    assert first.coloraxis == second.coloraxis == "coloraxis"
    assert (bar.cmin, bar.colorbar.title.text) == (-bar.cmax, "ratio<br>log scale")
    assert bar.colorbar.ticktext[0].endswith("<br>lowest 1e-08")
    assert axis.range[0] > axis.range[1], "turn one is on top"
    assert (axis.title.text, texts(figure).count(AXES["step"])) == ("turn index", 1)
    assert any("exp(mean delta of the turn)" in text for text in texts(figure))
    (fell,) = marks(figure, symbol="triangle-down")
    assert (list(fell.x), list(fell.text)) == ([3.0, 7.0], ["s0", "s2"])
    clicks = [tuple(c) for c in marks(figure, opacity=0)[1].customdata]
    assert clicks == [(1, b, k) for k in (1, 2) for b in range(10)], "a click tells map, bucket and turn"


def test_what_a_cell_lacks_is_hatched_crossed_or_dashed_and_told() -> None:
    data = cells().assign(mean=1.25)
    data.loc[4, ["low", "high"]] = 1.25
    data.loc[5, "non_finite"] = 1
    blank = (data["turn_index"] == 3) & (data["bucket"] >= 7)
    data.loc[blank, ["value", "mean", "low", "high"]] = math.nan
    data.loc[blank, "measured"] = 0
    data.loc[1:2, "turns"] = FEW - 1
    figure = heated(Heat("ppo", data[~((data["turn_index"] == 3) & (data["bucket"] == 6))]))
    (cell,) = marks(figure, opacity=0)
    usual = "<b>ppo</b>, turn 1, step 0<br>geometric turn ratio 1.25<br>lowest 0.9, highest 1.2<br>16 turns"
    assert cell.text[0] == usual
    assert "<b>ppo</b>, turn 1, step 4<br>geometric turn ratio 1.25<br>16 turns" in cell.text
    assert np.isnan(np.array(maps_of(figure)[0].z, dtype=float)[2][7:]).all()
    hatched = next(t for t in figure.data if t.type != "heatmap" and t.fillpattern.shape == "/")
    assert [v for v in hatched.x if not math.isnan(v)] == [6.5, 9.5, 9.5, 6.5, 6.5]
    pale = next(t for t in figure.data if t.type != "heatmap" and t.fillcolor == "rgba(255,255,255,0.7)")
    assert [v for v in pale.x if not math.isnan(v)] == [0.5, 2.5, 2.5, 0.5, 0.5]
    crosses, dashes = (marks(figure, symbol=s)[0] for s in ("x-thin", "line-ew"))
    assert [(list(t.x), list(t.y)) for t in (crosses, dashes)] == [([5.0], [1]), ([6.0], [3])]
    several = heated(Heat("ppo", cells(buckets=2)), window=Window(0, 9, 5))
    assert (maps_of(several)[0].x0, maps_of(several)[0].dx) == (
        2,
        5,
    ), "buckets of several steps stand at their middle"
    assert "turn 1, steps 0 to 4<br>" in marks(several, opacity=0)[0].text[0]
    for words in ("not measured", "1 of 2 values NaN or Inf"):
        assert words in figure.to_json()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_number_of_arms_fits_side_by_side_and_the_chosen_cell_has_a_frame_in_its_map_only(
    count: int,
) -> None:
    figure = heated(*[Heat(f"arm {i}", cells()) for i in range(count)], chosen=(count - 1, 4, 2))
    assert len(maps_of(figure)) == count
    assert max(a.domain[1] for a in figure.select_xaxes()) <= 1
    (frame,) = (t for t in figure.data if t.type != "heatmap" and t.mode == "lines" and t.line.width == 2)
    assert frame.xaxis == maps_of(figure)[-1].xaxis
    assert (list(frame.x)[:2], list(frame.y)[1:3]) == ([3.5, 4.5], [1.5, 2.5])


def scale_of(unit: str, *values: float) -> Any:
    return colour_scale(unit, pd.Series(values, dtype=float))


def test_colours_are_centred_by_kind_and_a_dead_run_does_not_bleach_the_living() -> None:
    ratio = scale_of("ratio", 0.9, 1.4)
    signed = scale_of("reward", -0.3, 0.1)
    fraction = scale_of("fraction", 0.2, 0.97)
    assert (ratio.kind, ratio.limit, ratio.colours(LIGHT)) == ("ratio", 1.5, LIGHT.diverging)
    places = ratio.place(pd.Series([1.0, 1.5, 1 / 1.5, 0.0])).tolist()
    assert places == pytest.approx([0.0, ratio.ends[1], ratio.ends[0], -20]), "0 stands where trainers clamp"
    assert (signed.kind, signed.ends, signed.colours(LIGHT)) == ("signed", (-0.5, 0.5), LIGHT.diverging)
    assert (fraction.kind, fraction.ends, fraction.colours(LIGHT)) == ("size", (0.0, 1.0), LIGHT.sequential)
    dead = scale_of("ratio", 0.97, 1.02, 0.98, 1.01, 2e-9)
    assert (dead.limit <= 1.5, dead.below, dead.above) == (True, True, False)
    words = dead.ticks()[1]
    assert (words[0].startswith("≤ "), words[-1].startswith("≥ ")) == (True, False)
    assert scale_of("ratio", 0.5, 2.0).ticks()[1] == ["0.5", "0.71", "1", "1.4", "2"]
    assert scale_of("ratio", 0.991, 1.009).ticks()[1] == ["0.99", "0.995", "1", "1.005", "1.01"]


@given(st.lists(st.floats(), max_size=30), st.sampled_from(["ratio", "nats", "fraction"]))
def test_any_values_even_none_give_a_scale_with_rising_ticks(values: list[float], unit: str) -> None:
    places, words = scale_of(unit, *values).ticks()
    assert all(math.isfinite(place) for place in places)
    assert places == sorted(set(places))
    assert len(words) == len(places) == 5


def signal(
    values: list[float | None], *, broken: tuple[int, ...] = (), text: str = "", **more: Any
) -> of_runs.Signal:
    table = {"step": range(len(values)), "value": values}
    frame = pd.DataFrame(table | {"broken_step": [i if i in broken else None for i in table["step"]]}).astype(
        float
    )
    events = pd.DataFrame([{"x": 2, "message": text or "grad_norm_max is 40"}])
    words = (text or usual for usual in ("grad_norm_max", "largest gradient norm", "norm", "max ||g||_2"))
    return of_runs.Signal(*words, frame, events, **more)


def peaked(values: list[float | None], chosen: int = 0, **more: Any) -> Any:
    return checked(of_runs.peaks(signal(values, **more), RED, LIGHT, chosen))


def test_a_point_of_a_signal_can_be_clicked_says_if_tokens_were_kept_and_carries_its_alarm() -> None:
    figure = peaked([1.0, 2.0, 9.0], chosen=2, kept=[1], fall=Fall(1, 1, 1))
    found = {t.marker.symbol: list(t.customdata) for t in figure.data if t.mode == "markers"}
    assert (found["circle"], found["circle-open"]) == ([1], [0, 2])
    assert [(s.x0, s.line.dash) for s in figure.layout.shapes] == [(2, None), (1.0, "2px,3px")]
    alarm = marks(figure, symbol="triangle-up-open")[0]
    assert (list(alarm.x), list(alarm.y), list(alarm.customdata)) == ([2.0], [9.0], [2])
    cross = marks(peaked([1.0, None, 2.0], broken=(1,)), symbol="x-thin")[0]
    assert (list(cross.customdata), list(cross.y)) == ([1], [1.0])
    assert any("not measured" in text for text in texts(peaked([])))


def row(
    trajectory: int, gradient: float | None = 0.1, mass: float | None = 0.1, **changes: Any
) -> dict[str, Any]:
    numbers = {
        "gradient_share": gradient,
        "ratio_mass": mass,
        "ratio_max": 1.2,
        "worst_turn": 3,
        "reward": 0.0,
    }
    words = {"question": "q?", "gold": "a", "answer": None, "ended": "answer", "success": False}
    return (
        {"trajectory": trajectory, "worst_log_ratio": -4.0, "kept": trajectory == 1}
        | numbers
        | words
        | changes
    )


def ranked(*rows: dict[str, Any]) -> Any:
    return checked(of_runs.ranking(rows, 0.05, LIGHT, 7, 1))


def test_a_trajectory_is_two_bars_of_its_shares_in_a_row_that_can_be_clicked_anywhere() -> None:
    figure = ranked(row(1, 0.3, 0.2), row(2, 0.1, 0.4, success=True))
    bars = [t for t in figure.data if t.type == "bar"]
    assert [list(b.x) for b in bars] == [[0.3, 0.1], [0.2, 0.4]]
    assert list(bars[0].marker.color) == [LIGHT.muted, LIGHT.outcomes["healthy"]]
    assert figure.layout.yaxis.ticktext == ("<b>1</b>", "2")
    assert [set(t.customdata) for t in marks(figure, opacity=0)] == [{1, 2}] * 2
    shapes = [s for s in ranked(row(2), row(1)).layout.shapes if s.type == "rect"]
    assert [(s.y0, s.y1) for s in shapes] == [(0.5, 1.5)] * 2, "the chosen row is marked in both halves"
    figure = ranked(row(1, math.nan), row(2, None))
    words = next(t.text for t in figure.data if t.type == "scatter" and t.mode == "text")
    assert [w.strip() for w in words] == ["NaN", "not measured"]
    assert list(next(t for t in figure.data if t.type == "bar").x) == [None, None]


def mapped(
    arm: str = "ppo",
    measure: str = "collapsed",
    along: str = "learn.policy.lr",
    palette: Palette = LIGHT,
    lattice: tuple[float, ...] = (0.1, 0.2, 0.4),
) -> Any:
    cells = [(arm, 0.0, 0.2, 5, 1, 0.7), (arm, 0.0, 0.4, 5, 4, 0.2), (arm, 16.0, 0.1, 5, 3, math.nan)]
    found = pd.DataFrame(cells, columns=["series", "y", "x", "runs", "collapsed", "final"])
    found["arm"] = [f"{arm} · lr {x:g}" for x in found["x"]]
    columns = ["series", "y", "boundary", "boundary_low", "boundary_high", "beyond"]
    edges = pd.DataFrame(
        [(arm, 0.0, 0.3, 0.25, 0.35, ""), (arm, 16.0, 0.1, None, None, "below")], columns=columns
    )
    names = styles([(arm, "ppo")], palette)
    piece = Slice(found, edges, lattice, along, "learn.staleness")
    return checked(region(piece, names, palette, measure))


def test_a_cell_of_a_region_is_its_share_a_dot_the_boundary_and_what_was_not_run_is_empty() -> None:
    figure = mapped()
    _, shares, words, _, edge = figure.data
    none = math.nan
    np.testing.assert_equal(np.array(shares.z, dtype=float), [[none, 0.2, 0.8], [0.6, none, none]])
    found = [
        (round(2**x, 3), round(y), word) for x, y, word in zip(words.x, words.y, words.text, strict=True)
    ]
    assert found == [(0.2, 0, "1/5"), (0.4, 0, "4/5"), (0.1, 1, "3/5")]
    layout = figure.layout
    assert (layout.coloraxis.cmin, layout.coloraxis.cmax) == (0, 1)
    assert list(edge.x) == pytest.approx([math.log2(0.3), math.log2(0.1)])
    assert ([round(y) for y in edge.y], list(edge.marker.symbol)) == ([0, 1], ["circle", "triangle-left"])
    assert list(edge.error_x.array) == pytest.approx([math.log2(0.35 / 0.3), 0])
    assert list(edge.error_x.arrayminus) == pytest.approx([math.log2(0.3 / 0.25), 0])
    assert (list(layout.yaxis.ticktext), list(layout.xaxis.ticktext)) == (["0", "16"], ["0.1", "0.4"])
    assert "learn.policy.lr (log scale)" in texts(figure)
    assert list(words.customdata[0]) == [
        "ppo · lr 0.2",
        "0.2 at 0<br>1/5 runs collapsed<br>mean final success 0.700",
    ]
    key = "".join(texts(figure))
    assert ("▷\u00a0◁" in key, "dark: all collapsed" in key, "no number: not tried" in key) == (
        True,
        True,
        True,
    )
    assert "light: all collapsed" in "".join(texts(mapped(palette=DARK)))
    assert layout.xaxis.range[0] == pytest.approx(math.log2(0.1) - 0.5)
    wide = tuple(0.1 * 2.0**n for n in range(-4, 6))
    ends = [round(2**x, 3) for x in mapped(lattice=wide).layout.xaxis.range]
    assert ends == [0.035, 1.131], "one beyond what was tried"
    _, finals, words, *_ = mapped(measure="final").data
    assert list(words.text) == [".70", ".20", ""]
    np.testing.assert_equal(np.array(finals.z, dtype=float), [[math.nan, 0.7, 0.2], [math.nan] * 3])
    assert "mean final success not measured" in words.customdata[2][1]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("measure", ["collapsed", "final"])
def test_the_number_of_a_cell_can_be_read_on_its_colour(palette: Palette, measure: str) -> None:
    lattice = [2.0**n for n in range(11)]
    every = pd.DataFrame({"x": lattice, "collapsed": range(11), "final": [n / 10 for n in range(11)]})
    every = every.assign(series="ppo", y=0.0, runs=10)
    none = pd.DataFrame(columns=["series", "y"])
    piece = Slice(every, none, lattice, "a", "b")
    figure = region(piece, looks("ppo", palette=palette), palette, measure)
    colours = palette.sequential[1:]
    for n, ink in enumerate(figure.data[2].textfont.color):
        at = n / 10 * (len(colours) - 1)
        low = min(int(at), 3)
        assert contrast(ink, mixed(colours[low], colours[low + 1], at - low)) > 3.5


def watched(**arms: list[tuple[float, bool]]) -> pd.DataFrame:
    rows = [(f"{arm}-{i}", arm, i, *run) for arm, runs in arms.items() for i, run in enumerate(runs)]
    return pd.DataFrame(rows, columns=["run_id", "arm", "seed", "time", "event"]).assign(recovered=False)


ROWS = watched(
    **{
        "ppo": [(10, True), (10, False), (20, True), (36, False)],
        "st-ppo": [(36, False), (36, False), (30, False)],
    }
)


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from("abcd")), min_size=1, max_size=12))
def test_onsets_that_are_near_each_other_stand_one_above_the_other(fell: list[tuple[int, str]]) -> None:
    rows = pd.DataFrame(fell, columns=["x", "arm"])
    of: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for place, mark in zip(_stacked(rows, 15.0), fell, strict=True):
        of[place].add(mark)
    crowd = max(sum(abs(x - y) < 15 for y, _ in set(fell)) for x, _ in fell)
    for marks_of in of.values() if crowd <= 6 else ():
        steps = sorted(x for x, _ in marks_of)
        assert all(later - x >= 15 for x, later in pairwise(steps))
    assert max(of) < 6


@given(st.lists(st.tuples(st.integers(0, 2_000), st.sampled_from("abcd")), min_size=1, max_size=60))
def test_letters_of_alarms_never_overlap_and_none_is_lost(rang: list[tuple[int, str]]) -> None:
    rows = [
        {"row": 1, "x": x, "letter": name, "text": f"{name} at {x}", "carried": [0, x]} for x, name in rang
    ]
    shown = of_runs._together(pd.DataFrame(rows), 20.0)
    starts = shown["x"].to_numpy()
    ends = (shown["x"] + 20 * shown["letter"].str.len()).to_numpy()
    assert (starts[1:] > ends[:-1]).all()
    for x, name in rang:
        assert name in shown[shown["x"] <= x].iloc[-1]["letter"]
    assert shown["text"].str.count("<br>").max() <= 6


def survived(rows: pd.DataFrame = ROWS, words: str = "Log-rank test: p = 0.02") -> Any:
    of = looks(*rows["arm"].unique())
    return checked(of_runs.survival(curve(rows), rows, of, LIGHT, words, str(rows["arm"].iloc[-1])))


def test_the_survival_curve_is_the_kaplan_meier_estimate_with_censored_runs_and_runs_at_risk() -> None:
    # 4 at risk at 10: 1 - 1/4 = .75 (the run censored there was still at risk); 2 at risk at 20: .75 (1 -
    # 1/2) = .375.
    figure = survived()
    panes = [[t for t in figure.data if t.xaxis == axis] for axis in ("x", "x2")]
    line = next(t for t in panes[0] if t.line.shape == "hv" and t.hoverinfo != "skip")
    assert (list(line.x), list(line.y)) == ([0, 10, 20, 36], pytest.approx([1.0, 0.75, 0.375, 0.375]))
    censored, last = (next(t for t in pane if t.marker.symbol == "line-ns") for pane in panes)
    assert (list(censored.x), list(last.x), list(last.customdata)) == ([10, 36], [30, 36], [1, 2])
    ticks = list(figure.layout.xaxis.tickvals)
    for arm, found in zip(("ppo", "st-ppo"), (t for t in figure.data if t.mode == "text"), strict=True):
        at_risk = [int((ROWS.loc[ROWS["arm"] == arm, "time"] >= tick).sum()) for tick in ticks]
        assert (list(found.x), list(found.text)) == (ticks, list(map(str, at_risk)))
    assert {of_runs.TITLE, "Log-rank test: p = 0.02"} <= set(texts(figure))
    assert "2 of 4 collapsed" in "".join(texts(figure))
    dotted = [t for t in figure.data if t.line.dash == "2px,3px"]
    assert [t.xaxis for t in dotted] == ["x"], "the reference is in the other panes"
    assert [t.xaxis for t in figure.data if t.fill == "toself"] == ["x"]
    figure = survived(watched(a=[(36, False)] * 2, b=[(36, True), (9, True)]))
    lines = [t for t in figure.data if t.line.shape == "hv" and t.hoverinfo != "skip"]
    assert ({t.line.width for t in lines}, max(v for t in lines for v in t.y)) == ({2}, 1.0)
    assert not [t for t in figure.data if t.fill == "toself"], "no interval from two runs"
    assert not any("interval" in t.hovertemplate for t in lines)


RUNS = pd.DataFrame(
    [(arm, seed, f"{arm}-{seed}", 0, 29) for arm in ("ppo", "st-ppo") for seed in range(2)],
    columns=["arm", "seed", "run_id", "first", "last"],
)


def happened(*rows: tuple[str, int, str], runs: pd.DataFrame = RUNS, message: str = "it moved") -> Any:
    events = pd.DataFrame(list(rows), columns=["run_id", "x", "kind"])
    events = events.assign(severity="warning", diagnostic="d", message=message)
    return checked(of_runs.timeline(runs, events, looks(*runs["arm"].unique()), LIGHT, AXES["step"]))


def test_a_run_is_a_line_below_its_arm_and_each_kind_of_event_a_mark_that_tells_run_and_step() -> None:
    kinds = [kind for kind in KINDS if kind != "other"]
    figure = happened(*[("ppo-0", i, kind) for i, kind in enumerate([*kinds, "guard_mask"])])
    assert [v for v in next(t for t in figure.data if t.mode == "lines").x if v == v] == [0, 29, 0, 29]
    assert list(figure.layout.yaxis.tickvals) == [1, 2, 4, 5]
    heads = {a.y: a.text for a in figure.layout.annotations}
    assert ("ppo" in heads[0], "st-ppo" in heads[3]) == (True, True)
    by_name = {trace.name: trace for trace in figure.data if trace.mode in ("markers", "text")}
    assert list(by_name) == [words for _, words, _ in KINDS.values()]
    assert [t.name for t in figure.data if t.showlegend is not False] == list(by_name)
    assert len({(t.marker.symbol, t.marker.color) for t in by_name.values()}) == len(KINDS)
    assert "guard mask" in by_name["other event"].text[0], "an unknown kind is shown all the same"
    figure = happened(
        ("ppo-0", 5, "mild"), ("ppo-0", 5, "mild"), ("ppo-0", 6, "mild"), ("st-ppo-1", 7, "onset")
    )
    by_name = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    heights = list(by_name["mild fall"].y)
    assert heights[1] < heights[0] == heights[2], "events of one step stand above each other"
    assert [list(c) for c in by_name["onset of the collapse"].customdata] == [[3, 7]]


def test_alarms_are_a_letter_for_each_kind_below_the_line() -> None:
    events = pd.DataFrame(
        [("ppo-0", 5, "kl_k3"), ("ppo-0", 5, "chi2"), ("st-ppo-1", 7, "kl_k3")],
        columns=["run_id", "x", "diagnostic"],
    ).assign(kind="alarm", message="it rang")
    assert of_runs.letters(events) == {"chi2": "a", "kl_k3": "b"}
    figure = checked(of_runs.timeline(RUNS, events, looks("ppo", "st-ppo"), LIGHT, AXES["step"]))
    (rang,) = (t for t in figure.data if t.name == "alarm")
    assert (list(rang.text), [list(c[:2]) for c in rang.customdata]) == (["ab", "b"], [[0, 5], [3, 7]])
    assert rang.customdata[0][2].count("it rang") == 2


KNOWN = Diagnostics(
    {"step.grad_norm_max": {"alarm_when": "above"}, "step.ess_frac_min": {"alarm_when": "below"}}
)


def test_forks_leave_the_curve_of_their_parent_an_arm_in_a_colour_and_no_child_is_joined_to_the_next() -> (
    None
):
    stem = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "mean": [0.2, 0.4, 0.6, 0.0]})
    rows = [
        (arm, f"{arm}{draw}", draw, step, 0.5, arm == "unchanged")
        for arm in ("unchanged", "<i>cure")
        for draw in (0, 1)
        for step in (2, 3)
    ]
    forks = pd.DataFrame(rows, columns=["arm", "run_id", "draw", "step", "success", "down"]).assign(
        forked_at=2
    )
    plain, cure = of_runs.branches(stem, forks, LIGHT)
    assert (plain["name"], cure["name"]) == ("unchanged: 2 of 2 fell", "&lt;i&gt;cure: 0 of 2 fell")
    assert [list(plain["x"][:3]), list(plain["y"][:3])] == [[1, 2, 3], [0.4, 0.5, 0.5]]
    assert math.isnan(plain["x"][3])
    assert plain["line"]["color"] == LIGHT.muted != cure["line"]["color"]


def first_alarms() -> pd.DataFrame:
    """Four runs that collapse at 20 and two that do not; None where a run never raised the alarm."""
    steps = {
        "grad_norm_max": [18, 16, 21, None, None, None],
        "ess_frac_min": [10, None, None, None, 5, 7],
        "chi2": [18, 19, 20, None, None, None],
    }
    rows = [(name, run, step) for name, found in steps.items() for run, step in enumerate(found)]
    table = pd.DataFrame(rows, columns=["diagnostic", "run", "step"])
    onset = pd.Series(20.0, table.index).where(table["run"] < 4)
    return table.assign(collapse_step=onset, lead=onset - table["step"])


def test_alarms_are_counted_run_by_run_the_earliest_on_top_a_tie_for_each() -> None:
    found = alarm_leads(first_alarms(), KNOWN)
    names = ["alarm", "direction", "before", "after", "never", "collapsed", "first", "false_alarms", "steady"]
    assert found[names].to_numpy().tolist() == [
        ["ess_frac_min", "↓", 1, 0, 3, 4, 1, 2, 2],
        ["grad_norm_max", "↑", 2, 1, 1, 4, 1, 0, 2],
        ["chi2", "", 2, 1, 1, 4, 0, 0, 2],  # an alarm at the onset is no warning
    ]
    over = found.iloc[1]  # over the runs that it warned in
    assert (over["lead_median"], over["lead_low"], over["lead_high"]) == (3.0, 2.5, 3.5)
    assert alarm_leads(first_alarms().head(0), KNOWN).empty
    tied = first_alarms()
    tied.loc[(tied["diagnostic"] == "chi2") & (tied["run"] == 1), ["step", "lead"]] = [16, 4]
    late = (
        first_alarms().query("diagnostic == 'chi2'").assign(diagnostic="late", lead=lambda f: f["lead"] - 9)
    )
    table = alarm_leads(pd.concat([late, tied]), KNOWN)
    assert table.set_index("alarm").loc["chi2", "first"] == 1
    assert (table["alarm"].iloc[-1], table["before"].iloc[-1]) == ("late", 0)


def led(found: pd.DataFrame, text: str = "ppo") -> Any:
    dots = found.dropna(subset=["lead"]).assign(
        alarm=lambda f: f["diagnostic"], arm=text, run_id=text, seed=1
    )
    return checked(of_runs.leads(alarm_leads(found, KNOWN), dots, looks(text), LIGHT))


def test_a_dot_a_run_stands_at_its_steps_from_the_onset_and_hides_no_other() -> None:
    figure = led(first_alarms())
    dots = next(t for t in figure.data if t.customdata is not None and t.marker.symbol == "circle")
    assert sorted(dots.x) == [-10.0, -4.0, -2.0, -2.0, -1.0, -0.0, 1.0]
    assert figure.layout.xaxis.title.text == AXES["onset"]
    assert {"came<br>first", "before<br>the onset", "never", "in healthy<br>runs", "2/4", "2/2"} <= set(
        texts(figure)
    )
    same = first_alarms()
    same.loc[same["diagnostic"] == "grad_norm_max", ["lead"]] = 3.0
    dots = next(t for t in led(same).data if t.customdata is not None and t.marker.symbol == "circle")
    assert len(set(zip(dots.x, dots.y, strict=True))) == len(dots.x)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_figures_have_the_colours_of_their_theme_and_nothing_of_the_default_look(palette: Palette) -> None:
    one = answer(arms("ppo"), "step", "kl", "arm", palette=palette)
    assert one.data[0].marker.color == palette.algorithms["ppo"]
    warm = heated(Heat("ppo", cells()), palette=palette)
    assert warm.layout.coloraxis.colorscale[0][1] == palette.diverging[0]
    for figure in (one, warm, drawn(panel(banded(points())), palette=palette)):
        layout = figure.layout.template.layout
        assert (layout.paper_bgcolor, layout.plot_bgcolor) == (palette.background, palette.background)
        assert "Source Sans" in layout.font.family
        assert "#E5ECF6" not in figure.to_json()  # the blue ground of plotly's own template


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text_in_every_figure(text: str) -> None:
    frame = pd.DataFrame({text: [text, f"{text} 2"], "n": [1.0, 2.0], f"{text} n": [3, 4]})
    for mark in ("line", "points", "bars"):
        for x, y, colour in ((text, "n", ""), ("n", f"{text} n", text), (text, f"{text} n", text)):
            assert_figure_literal(chart(frame, x, y, colour, mark, dict.fromkeys(frame, (text, text)), LIGHT))
    mark = ALARM.assign(arm=text, run_id=text, message=text)
    data = points().replace({"arm": {"ppo": text}})
    one = Panel(text, text, text, data, Marks([Threshold(text, 1.0)], mark), mark, unsmoothed=data)
    both = [one, Panel(text, text, text, banded(data))]
    shade = colour_scale(text, cells()["value"])
    part = Heat(text, cells(), [(1.0, text)])
    runs = RUNS.head(1).assign(arm=text, run_id=text)
    for figure in (
        curves(both, looks(text, "st-ppo"), LIGHT, AXES["step"], onsets=mark),
        heat([part], Measure(text, text, text, text), shade, looks(text), LIGHT, Window(0, 9, 1), "step"),
        ranked(row(1, question=text, gold=text, answer=text)),
        peaked([1.0, 2.0, 3.0], text=text),
        mapped(arm=text, along=text),
        survived(watched(**{text: [(3.0, True), (5.0, False)]}), words=text),
        happened((text, 3, text), (text, 3, "alarm"), runs=runs, message=text),
        led(first_alarms(), text),
        led(first_alarms().assign(diagnostic=text).drop_duplicates("run")),
    ):
        assert_figure_literal(figure)

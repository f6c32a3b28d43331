from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal, checked
from workbench.app.curve_data import banded
from workbench.app.figures.common import AXES
from workbench.app.figures.curves import Panel, curves
from workbench.app.theme import DARK, LIGHT, styles

STYLES = styles([("ppo", "ppo"), ("st-ppo", "st-ppo")], LIGHT)
MARK = pd.DataFrame({"arm": ["ppo"], "run_id": ["ppo-0"], "x": [4.0]})
ALARM = MARK.assign(value=40.0, message="grad_norm_max is 40")


def points(seeds: int = 3, steps: int = 12) -> pd.DataFrame:
    rows = [
        {"arm": arm, "run_id": f"{arm}-{seed}", "seed": seed, "run": i * seeds + seed, "bucket": step, "x": float(step),
         "mean": 0.1 * seed + 0.01 * step, "low": 0.1 * seed, "high": 0.1 * seed + 0.5, "non_finite": 0}
        for i, arm in enumerate(("ppo", "st-ppo")) for seed in range(seeds) for step in range(steps)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def panel(data: pd.DataFrame, **more: Any) -> Panel:
    return Panel("grad_norm_max", "norm", "max ||g||_2 over updates, before gradient clipping", data, **more)


def draw(*panels: Panel, **more: Any) -> Any:
    return checked(curves(panels, STYLES, LIGHT, AXES["step"], **more))


def lines(figure: Any) -> list[Any]:
    return [t for t in figure.data if t.x is not None and t.x[0] is not None and "lines" in (t.mode or "")]


def line_of(figure: Any, arm: str) -> Any:
    return next(t for t in lines(figure) if t.line.color == LIGHT.algorithms[arm] and t.customdata is not None)


def scales(figure: Any) -> Iterator[Any]:
    """The y-axes of the panels, without those of the marks on their edges."""
    return (axis for axis in figure.select_yaxes() if axis.visible is not False)


def test_panels_say_name_unit_and_definition_and_share_their_x_axis_and_their_legend() -> None:
    figure = draw(panel(banded(points())), panel(points()))
    titles = [a.text for a in figure.layout.annotations]
    assert all("<b>grad_norm_max</b>" in t and "before gradient clipping" in t for t in titles)
    assert [a.title.text for a in scales(figure)] == ["norm", "norm"]
    assert AXES["step"] in [a.title.text for a in figure.select_xaxes()]
    assert {axis.matches for axis in figure.select_xaxes()} == {"x"}
    assert [t.name for t in figure.data if t.showlegend is not False] == ["ppo", "st-ppo"]


def test_the_line_of_a_band_is_the_interquartile_mean_in_the_colour_of_the_algorithm() -> None:
    data = banded(points())
    assert list(line_of(draw(panel(data)), "st-ppo").y) == data.loc[data["arm"] == "st-ppo", "middle"].tolist()


def test_the_extremes_of_every_point_are_drawn() -> None:
    data = points()
    data.loc[17, "high"] = 1e6
    for shown in (banded(data), data):
        assert max(v for t in lines(draw(panel(shown), scale="linear")) for v in t.y if v is not None) == 1e6


def test_a_run_is_not_joined_to_the_next() -> None:
    line = line_of(draw(panel(points(seeds=2))), "ppo")
    assert [i for i, v in enumerate(line.y) if math.isnan(v)] == [12, 25]
    assert line.connectgaps is False


def test_thresholds_alarms_onsets_and_what_is_no_number_stand_where_they_belong() -> None:
    more = {"thresholds": [("ppo", 20.0), (None, 30.0)], "alarms": ALARM, "broken": MARK}
    figure = draw(panel(banded(points()), **more), onsets=MARK.assign(x=7))
    by_symbol = {t.marker.symbol: (t.x[0], t.y[0]) for t in figure.data if t.mode == "markers"}
    assert by_symbol == {"triangle-up-open": (4, 40.0), "triangle-down": (7, 0.97), "x": (4, 0.03)}
    thresholds = [t for t in figure.data if t.line.dash == "2px,3px"]
    assert [(list(t.y), t.line.color) for t in thresholds] == [
        ([20.0, 20.0], LIGHT.algorithms["ppo"]), ([30.0, 30.0], LIGHT.muted),
    ]  # fmt: skip
    assert thresholds[0].hovertemplate.startswith("alarm at 20 for ppo")


@pytest.mark.parametrize("seeds", [3, 400])
def test_plotly_accepts_every_trace_and_many_points_are_left_to_the_graphics_processor(seeds: int) -> None:
    one = points(seeds=seeds, steps=40)
    more = {"thresholds": [("ppo", 20.0), (None, 30.0)], "alarms": ALARM, "broken": MARK}
    figure = curves(
        [panel(banded(one), **more), panel(one), panel(one.head(0))], STYLES, LIGHT, AXES["step"], onsets=MARK
    )
    assert json.loads(checked(figure).to_json()) == json.loads(figure.to_json())
    assert ("scattergl" in {t.type for t in figure.data}) == (seeds == 400)
    figure.data[0]._props["colour"] = "red"
    with pytest.raises(ValueError, match="Invalid"):
        checked(figure)


def test_a_spike_turns_the_axis_to_a_log_scale_unless_told_otherwise() -> None:
    data = points().assign(low=1.0, mean=1.5, high=2.0)
    data.loc[3, "high"] = 900.0
    axes = {s: next(scales(draw(panel(banded(data)), scale=s))) for s in ("auto", "linear")}
    assert (axes["auto"].type, axes["auto"].title.text) == ("log", "norm, log scale")
    assert axes["linear"].type != "log"


def test_nothing_measured_is_said_in_the_panel() -> None:
    figure = draw(panel(banded(points().head(0))), panel(banded(points())))
    assert sum("not measured" in a.text for a in figure.layout.annotations) == 1


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_the_figure_has_the_colours_of_its_theme_and_nothing_of_the_default_look(palette: Any) -> None:
    figure = curves([panel(banded(points()))], STYLES, palette, AXES["step"])
    layout = figure.layout.template.layout
    assert (layout.paper_bgcolor, layout.plot_bgcolor) == (palette.background, palette.background)
    assert "Source Sans" in layout.font.family
    assert "#E5ECF6" not in figure.to_json()  # the blue ground of plotly's own template


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    data = points().replace({"arm": {"ppo": text}})
    mark = ALARM.assign(arm=text, run_id=text, message=text)
    one = Panel(text, text, text, data, thresholds=[(text, 1.0)], alarms=mark, broken=mark)
    looks = styles([(text, text), ("st-ppo", "st-ppo")], LIGHT)
    assert_literal(curves([one, Panel(text, text, text, banded(data))], looks, LIGHT, AXES["step"], onsets=mark))

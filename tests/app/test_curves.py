from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from tests.app.conftest import HOSTILE
from tests.app.unpacked import unpacked
from workbench.app.figures.curves import Panel, curves
from workbench.app.series import AXES, banded
from workbench.app.theme import DARK, LIGHT, styles


def points(arms: tuple[str, ...] = ("ppo", "st-ppo"), seeds: int = 3, steps: int = 12) -> pd.DataFrame:
    rows = [
        {"arm": arm, "run_id": f"{arm}-{seed}", "seed": seed, "run": i * seeds + seed, "bucket": step, "x": float(step),
         "mean": 0.1 * seed + 0.01 * step, "low": 0.1 * seed, "high": 0.1 * seed + 0.5, "non_finite": 0}
        for i, arm in enumerate(arms) for seed in range(seeds) for step in range(steps)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def panel(data: pd.DataFrame, **more: Any) -> Panel:
    return Panel("grad_norm_max", "norm", "max ||g||_2 over updates, before gradient clipping", data, **more)


STYLES = styles([("ppo", "ppo"), ("st-ppo", "st-ppo")], LIGHT)


def draw(*panels: Panel, **more: Any) -> Any:
    return unpacked(curves(panels, STYLES, LIGHT, AXES["step"], **more))


def drawn(figure: Any, mode: str = "lines") -> list[Any]:
    return [t for t in figure.data if t.x is not None and t.x[0] is not None and mode in (t.mode or "")]


def scales(figure: Any) -> Iterator[Any]:
    """The y-axes of the panels, without those of the marks on their edges."""
    return (axis for axis in figure.select_yaxes() if axis.visible is not False)


def test_every_panel_says_its_name_its_unit_and_its_definition() -> None:
    figure = draw(panel(banded(points())), panel(points()))
    titles = [a.text for a in figure.layout.annotations]
    assert all("<b>grad_norm_max</b>" in t and "before gradient clipping" in t for t in titles)
    assert [a.title.text for a in scales(figure)] == ["norm", "norm"]
    assert AXES["step"] in [a.title.text for a in figure.select_xaxes()]


def test_panels_share_their_x_axis() -> None:
    figure = draw(*[panel(banded(points())) for _ in range(5)])
    assert {axis.matches for axis in figure.select_xaxes()} == {"x"}


def test_the_line_of_a_band_is_the_interquartile_mean_in_the_colour_of_the_algorithm() -> None:
    data = banded(points())
    figure = draw(panel(data))
    line = next(t for t in drawn(figure) if t.line.color == LIGHT.algorithms["st-ppo"] and t.customdata is not None)
    assert list(line.y) == data.loc[data["arm"] == "st-ppo", "middle"].tolist()


def test_the_extremes_of_every_point_are_drawn() -> None:
    data = points()
    data.loc[17, "high"] = 1e6
    for shown in (banded(data), data):
        values = [v for t in drawn(draw(panel(shown), scale="linear")) for v in t.y if v is not None]
        assert max(values) == 1e6


def test_a_run_is_not_joined_to_the_next() -> None:
    figure = draw(panel(points(seeds=2)))
    line = next(t for t in drawn(figure) if t.line.color == LIGHT.algorithms["ppo"] and t.customdata is not None)
    gaps = [i for i, v in enumerate(line.y) if math.isnan(v)]
    assert gaps == [12, 25]
    assert line.connectgaps is False


def test_what_is_no_number_is_marked_at_the_edge() -> None:
    broken = pd.DataFrame({"arm": ["ppo"], "run_id": ["ppo-0"], "x": [4.0]})
    marks = [t for t in draw(panel(points(), broken=broken)).data if t.marker.symbol == "x"]
    assert [list(t.x) for t in marks] == [[4.0]]


def test_thresholds_alarms_and_onsets_stand_where_they_belong() -> None:
    alarms = pd.DataFrame({"arm": ["ppo"], "x": [5], "value": [40.0], "message": ["grad_norm_max is 40"]})
    onsets = pd.DataFrame({"arm": ["ppo"], "run_id": ["ppo-0"], "x": [7]})
    figure = draw(panel(banded(points()), thresholds=[("ppo", 20.0), (None, 30.0)], alarms=alarms), onsets=onsets)
    by_symbol = {t.marker.symbol: t for t in figure.data if t.mode == "markers"}
    assert (by_symbol["triangle-up-open"].x[0], by_symbol["triangle-up-open"].y[0]) == (5, 40.0)
    assert by_symbol["triangle-down"].x[0] == 7
    thresholds = [t for t in figure.data if t.line.dash == "2px,3px"]
    assert [(list(t.y), t.line.color) for t in thresholds] == [
        ([20.0, 20.0], LIGHT.algorithms["ppo"]), ([30.0, 30.0], LIGHT.muted),
    ]  # fmt: skip
    assert thresholds[0].hovertemplate.startswith("alarm at 20 for ppo")


@pytest.mark.parametrize("seeds", [3, 400])
def test_plotly_accepts_every_trace_though_it_is_not_asked_while_drawing(seeds: int) -> None:
    one = points(seeds=seeds, steps=40)
    marks = one[["arm", "run_id", "x"]].head(5)
    alarms = marks.assign(value=40.0, message="grad_norm_max is 40")
    figure = draw(
        panel(banded(one), thresholds=[("ppo", 20.0), (None, 30.0)], alarms=alarms, broken=marks), panel(one),
        panel(one.head(0)), onsets=marks,
    )  # fmt: skip
    checked = go.Figure(json.loads(figure.to_json()))
    assert json.loads(checked.to_json()) == json.loads(figure.to_json())
    assert ("scattergl" in {t.type for t in checked.data}) == (seeds == 400)
    with pytest.raises(ValueError, match="Invalid"):
        go.Figure([*checked.data, {"type": "scatter", "colour": "red"}])


def test_a_spike_turns_the_axis_to_a_log_scale_unless_told_otherwise() -> None:
    data = points().assign(low=1.0, mean=1.5, high=2.0)
    data.loc[3, "high"] = 900.0
    axes = {s: next(scales(draw(panel(banded(data)), scale=s))) for s in ("auto", "linear")}
    assert (axes["auto"].type, axes["auto"].title.text) == ("log", "norm, log scale")
    assert axes["linear"].type != "log"


def test_nothing_measured_is_said_in_the_panel() -> None:
    figure = draw(panel(banded(points().head(0))), panel(banded(points())))
    assert sum("not measured" in a.text for a in figure.layout.annotations) == 1


def test_an_arm_is_in_the_legend_once_whatever_the_number_of_panels() -> None:
    figure = draw(*[panel(banded(points())) for _ in range(4)])
    assert [t.name for t in figure.data if t.showlegend is not False] == ["ppo", "st-ppo"]


def test_many_points_are_left_to_the_graphics_processor() -> None:
    figure = draw(panel(points(seeds=40, steps=400)))
    assert "scattergl" in {t.type for t in figure.data}


def test_the_figure_has_the_colours_of_its_theme_and_nothing_of_the_default_look() -> None:
    for palette in (LIGHT, DARK):
        figure = curves([panel(banded(points()))], STYLES, palette, AXES["step"])
        layout = figure.layout.template.layout
        assert (layout.paper_bgcolor, layout.plot_bgcolor) == (palette.background, palette.background)
        assert "Source Sans" in layout.font.family
        assert "#E5ECF6" not in figure.to_json()  # the blue ground of plotly's own template


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    data = points((text,))
    broken = data[["arm", "run_id", "x"]].head(1)
    alarms = pd.DataFrame({"arm": [text], "x": [5], "value": [40.0], "message": [text]})
    hostile = Panel(text, text, text, data, [(text, 1.0)], alarms, broken)
    figure = curves([hostile], styles([(text, text)], LIGHT), LIGHT, AXES["step"], onsets=broken)
    for found in _strings(json.loads(figure.to_json())):
        bare = found.replace("<b>", "").replace("</b>", "").replace("<br>", "").replace("<extra></extra>", "")
        bare = bare.replace("</span>", "").replace(f"<span style='font-size:12px;color:{LIGHT.muted}'>", "")
        assert "<" not in bare, found
        assert "$" not in bare, found


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for v in value.values() for s in _strings(v)]
    if isinstance(value, list):
        return [s for v in value for s in _strings(v)]
    return [value] if isinstance(value, str) else []

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal, checked
from workbench.app.figures.run import Signal, peaks, ranking
from workbench.app.screens.episode import shown
from workbench.app.theme import LIGHT
from workbench.app.trajectories import Watched, ranked, run_words, worst


def signal(values: list[float | None], *, broken: tuple[int, ...] = (), text: str = "", **more: Any) -> Signal:
    points = pd.DataFrame(
        {"step": range(len(values)), "value": values,
         "broken_step": [i if i in broken else None for i in range(len(values))]}
    ).astype(float)  # fmt: skip
    events = pd.DataFrame([{"x": 2, "message": text or "grad_norm_max is 40"}])
    name, unit, definition = text or "grad_norm_max", text or "norm", text or "max ||g||_2"
    return Signal(name, unit, definition, points, events, **more)


def row(trajectory: int, gradient: float | None = 0.1, mass: float | None = 0.1, **changes: Any) -> dict[str, Any]:
    return {
        "trajectory": trajectory, "gradient_share": gradient, "ratio_mass": mass, "ratio_max": 1.2, "worst_turn": 3,
        "worst_log_ratio": -4.0, "success": False, "question": "q?", "gold": "a", "answer": None, "ended": "answer",
        "kept": trajectory == 1, "reward": 0.0,
    } | changes  # fmt: skip


def test_a_point_tells_its_step_and_whether_its_tokens_were_kept() -> None:
    figure = checked(peaks(signal([1.0, 2.0, 9.0], kept=[1]), "#cb3a04", LIGHT, chosen=2))
    points = {t.marker.symbol: list(t.customdata) for t in figure.data if t.mode == "markers"}
    assert points["circle"] == [1]
    assert points["circle-open"] == [0, 2]


def test_the_chosen_step_and_the_onset_have_lines_and_an_alarm_stands_on_its_point() -> None:
    figure = checked(peaks(signal([1.0, 2.0, 9.0], onset=1.0), "#cb3a04", LIGHT, chosen=2))
    assert [(s.x0, s.line.dash) for s in figure.layout.shapes] == [(2, None), (1.0, "2px,3px")]
    alarm = next(t for t in figure.data if t.marker.symbol == "triangle-up-open")
    assert (list(alarm.x), list(alarm.y), list(alarm.customdata)) == ([2.0], [9.0], [2])


def test_a_step_without_a_number_can_be_clicked_too() -> None:
    figure = checked(peaks(signal([1.0, None, 2.0], broken=(1,)), "#cb3a04", LIGHT, chosen=0))
    cross = next(t for t in figure.data if t.marker.symbol == "x-thin")
    assert (list(cross.customdata), list(cross.y)) == ([1], [1.0])


def test_the_axes_have_their_unit_and_a_spike_turns_the_scale_to_logarithms() -> None:
    axis = peaks(signal([1.0, 1.1, 900.0]), "#cb3a04", LIGHT, 0).layout.yaxis
    assert (axis.type, axis.title.text) == ("log", "norm, log scale")
    assert peaks(signal([1.0, 1.1, 9.0]), "#cb3a04", LIGHT, 0).layout.yaxis.title.text == "norm"


def test_nothing_measured_is_said() -> None:
    empty = Signal(
        "a",
        "",
        "",
        pd.DataFrame(columns=["step", "value", "broken_step"], dtype=float),
        pd.DataFrame(columns=["x", "message"]),
    )
    assert any("not measured" in a.text for a in peaks(empty, "#cb3a04", LIGHT, 0).layout.annotations)


@pytest.mark.parametrize(
    ("values", "broken", "onset", "lowest", "step"),
    [
        ([1.0, 9.0, 2.0], (), None, False, 1),
        ([1.0, 0.2, 2.0], (), None, True, 1),
        ([1.0, 3.0, 9.0], (), 1.0, False, 1),
        ([1.0, None, 9.0], (1,), None, False, 1),
        ([None, None, None], (), None, False, 2),
    ],
)
def test_one_begins_at_the_spike(
    values: list[float | None], broken: tuple[int, ...], onset: float | None, lowest: bool, step: int
) -> None:
    assert Watched(signal(values, broken=broken, onset=onset), 3, lowest).spike == step


@pytest.mark.parametrize(
    ("by", "values", "order"),
    [("gradient_share", [0.1, None, math.nan, 0.4], [2, 3, 0, 1]), ("worst_log_ratio", [2.0, -5.0], [1, 0])],
)
def test_the_ranking_is_by_size_with_nan_first_and_null_last(
    by: str, values: list[float | None], order: list[int]
) -> None:
    rows = [row(place) | {by: value} for place, value in enumerate(values)]
    store: Any = SimpleNamespace(records=lambda *_, **__: rows)
    assert [r["trajectory"] for r in ranked(store, "a", 0, by)] == order


def test_the_chosen_trajectory_is_always_drawn() -> None:
    rows = [row(i) for i in range(20)]
    assert [r["trajectory"] for r in shown(rows, rows[15], 8)] == [*range(7), 15]
    assert [r["trajectory"] for r in shown(rows, rows[3], 8)] == [*range(8)]


def draw(*rows: dict[str, Any], chosen: int | None = 1) -> Any:
    return checked(ranking(rows, 0.05, LIGHT, 7, chosen))


def test_two_bars_a_trajectory_have_the_recorded_shares() -> None:
    figure = draw(row(1, 0.3, 0.2), row(2, 0.1, 0.4, success=True))
    bars = [t for t in figure.data if t.type == "bar"]
    assert [list(b.x) for b in bars] == [[0.3, 0.1], [0.2, 0.4]]
    assert list(bars[0].marker.color) == [LIGHT.muted, LIGHT.outcomes["healthy"]]
    assert figure.layout.yaxis.ticktext == ("<b>1</b>", "2")


def test_a_share_that_is_no_number_is_told_and_not_drawn() -> None:
    figure = draw(row(1, math.nan), row(2, None))
    words = next(t.text for t in figure.data if t.type == "scatter" and t.mode == "text")
    assert [w.strip() for w in words] == ["NaN", "not measured"]
    assert list(next(t for t in figure.data if t.type == "bar").x) == [None, None]


def test_a_click_anywhere_on_a_row_tells_its_trajectory() -> None:
    targets = [t for t in draw(row(1), row(2)).data if t.marker.opacity == 0]
    assert len(targets) == 2
    assert all(set(t.customdata) == {1, 2} for t in targets)


def test_the_chosen_row_is_marked_in_both_halves() -> None:
    shapes = [s for s in draw(row(2), row(1)).layout.shapes if s.type == "rect"]
    assert [(s.y0, s.y1) for s in shapes] == [(0.5, 1.5)] * 2


def test_the_turn_with_the_largest_share_is_the_one_to_look_at() -> None:
    turns = [{"epoch": e, "gradient_share": s} for e, s in ((0, 0.1), (1, 0.4), (2, None))]
    assert worst(turns) == turns[1]
    broken = {"epoch": 3, "gradient_share": math.nan}
    assert worst([*turns, broken]) is broken
    assert worst(turns[2:]) is None


def test_a_run_is_named_by_what_became_of_it() -> None:
    fell = {"arm": "ppo", "seed": 3, "outcome": "collapsed", "status": "finished", "collapse_step": 17.0}
    assert run_words(fell) == "ppo, seed 3: collapsed at 17"
    assert run_words(fell | {"outcome": None, "status": "running", "collapse_step": math.nan}) == "ppo, seed 3: running"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_questions_and_names_stay_text(text: str) -> None:
    assert_literal(draw(row(1, question=text, gold=text, answer=text)))
    assert_literal(peaks(signal([1.0, 2.0, 3.0], text=text), "#cb3a04", LIGHT, 0))

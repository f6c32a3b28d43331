from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal
from workbench.analysis.survival import curve
from workbench.app.figures.collapse import TITLE, survival
from workbench.app.theme import LIGHT, styles


def watched(*arms: tuple[str, list[tuple[float, bool]]]) -> pd.DataFrame:
    return pd.DataFrame(
        [{"run_id": f"{arm}-{i}", "arm": arm, "seed": i, "time": time, "event": event}
         for arm, runs in arms for i, (time, event) in enumerate(runs)]
    )  # fmt: skip


ROWS = watched(
    ("ppo", [(10, True), (10, False), (20, True), (36, False)]), ("st-ppo", [(36, False), (36, False), (30, False)])
)


def draw(rows: pd.DataFrame = ROWS, words: str = "p = 0.1") -> Any:
    arms = [(a, a) for a in rows["arm"].unique()]
    return survival(curve(rows), rows, styles(arms, LIGHT), LIGHT, words)


def test_the_curve_is_the_kaplan_meier_estimate_drawn_in_steps() -> None:
    # 4 at risk at 10: 1 - 1/4 = .75 (the run censored there was still at risk); 2 at risk at 20: .75 (1 - 1/2) = .375.
    line = next(t for t in draw().data if t.line.shape == "hv" and t.line.color == LIGHT.algorithms["ppo"])
    assert list(line.x) == [0, 10, 20, 36]
    assert [c[4] for c in line.customdata] == pytest.approx([1.0, 0.75, 0.375, 0.375])


def test_censored_runs_have_a_tick_with_their_number() -> None:
    ticks = {t.marker.line.color: t for t in draw().data if t.marker.symbol == "line-ns"}
    assert list(ticks[LIGHT.algorithms["ppo"]].x) == [10, 36]
    last = ticks[LIGHT.algorithms["st-ppo"]]
    assert (list(last.x), list(last.customdata)) == ([30, 36], [1, 2])


def test_the_runs_at_risk_stand_below_at_every_tick_of_the_axis() -> None:
    figure = draw()
    counts = next(t for t in figure.data if t.mode == "text")
    ticks = list(figure.layout.xaxis.tickvals)
    by_arm = [counts.text[i : i + len(ticks)] for i in range(0, len(counts.text), len(ticks))]
    assert list(counts.x)[: len(ticks)] == ticks
    for arm, found in zip(("ppo", "st-ppo"), by_arm, strict=True):
        times = ROWS.loc[ROWS["arm"] == arm, "time"]
        assert list(found) == [str(int((times >= t).sum())) for t in ticks]


def test_equal_curves_do_not_hide_each_other_and_tell_their_true_height() -> None:
    rows = watched(("a", [(36, False)] * 2), ("b", [(36, False)] * 2))
    lines = [t for t in draw(rows).data if t.line.shape == "hv"]
    assert lines[0].y[0] != lines[1].y[0]
    assert abs(lines[0].y[0] - lines[1].y[0]) < 0.02
    assert [t.customdata[0][4] for t in lines] == [1.0, 1.0]


def test_few_arms_show_the_interval_and_many_do_not() -> None:
    assert any(t.fill == "toself" for t in draw().data)
    many = watched(*[(f"a{i}", [(10.0, True), (20.0, False), (20.0, False)]) for i in range(5)])
    assert not any(t.fill == "toself" for t in draw(many).data)


def test_the_axes_say_what_they_count_and_the_test_is_told() -> None:
    figure = draw(words="Log-rank test: p = 0.02")
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (TITLE, "runs still up (fraction)")
    assert {"Log-rank test: p = 0.02", "runs at risk"} <= {a.text for a in figure.layout.annotations}


@pytest.mark.parametrize("end", [1, 2, 7, 36, 100, 9_999])
def test_the_ticks_are_round_and_few_whatever_the_length(end: int) -> None:
    ticks = list(draw(watched(("ppo", [(end, False)]))).layout.xaxis.tickvals)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 11
    assert all(t == int(t) for t in ticks)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_literal(draw(watched((text, [(3.0, True), (5.0, False)])), words=text))

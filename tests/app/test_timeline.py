from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal
from workbench.app.figures.collapse import KINDS, timeline
from workbench.app.series import AXES
from workbench.app.theme import LIGHT, styles


def runs(arms: tuple[str, ...] = ("ppo", "st-ppo"), seeds: int = 2) -> pd.DataFrame:
    return pd.DataFrame(
        [{"arm": arm, "seed": seed, "run_id": f"{arm}-{seed}", "first": 0, "last": 29} for arm in arms
         for seed in range(seeds)]
    )  # fmt: skip


def events(*rows: tuple[str, int, str], message: str = "it moved") -> pd.DataFrame:
    return pd.DataFrame(
        [{"run_id": run, "x": x, "kind": kind, "severity": "warning", "diagnostic": "d", "message": message}
         for run, x, kind in rows],
        columns=["run_id", "x", "kind", "severity", "diagnostic", "message"],
    )  # fmt: skip


def draw(found: pd.DataFrame, drawn: pd.DataFrame | None = None) -> Any:
    drawn = runs() if drawn is None else drawn
    return timeline(drawn, found, styles([(a, a) for a in drawn["arm"].unique()], LIGHT), LIGHT, AXES["step"])


def marks(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.mode == "markers"}


def test_a_run_is_a_line_from_its_first_step_to_its_last() -> None:
    lines = [t for t in draw(events()).data if t.mode == "lines"]
    assert [v for v in lines[0].x if v is not None] == [0, 29, 0, 29]


def test_each_kind_of_event_has_its_own_mark_and_its_words_in_the_legend() -> None:
    kinds = [kind for kind in KINDS if kind != "other"]
    figure = draw(events(*[("ppo-0", i, kind) for i, kind in enumerate(kinds)]))
    assert list(marks(figure)) == [KINDS[kind][1] for kind in kinds]
    assert len({(t.marker.symbol, t.marker.color) for t in marks(figure).values()}) == len(kinds)


def test_an_event_that_nobody_knows_is_shown_all_the_same() -> None:
    shown = marks(draw(events(("ppo-0", 3, "guard_mask"))))["other event"]
    assert "guard mask" in shown.text[0]


def test_events_of_one_step_stand_above_each_other() -> None:
    figure = draw(events(("ppo-0", 5, "alarm"), ("ppo-0", 5, "alarm"), ("ppo-0", 6, "alarm")))
    heights = list(marks(figure)["alarm"].y)
    assert heights[1] < heights[0] == heights[2]


def test_a_click_on_a_mark_tells_its_run_and_its_step() -> None:
    shown = marks(draw(events(("st-ppo-1", 7, "onset"))))["onset of the collapse"]
    assert [list(c) for c in shown.customdata] == [[3, 7]]


def test_every_run_has_a_row_of_its_own_below_the_name_of_its_arm() -> None:
    figure = draw(events())
    assert list(figure.layout.yaxis.tickvals) == [1, 2, 4, 5]
    heads = {a.y: a.text for a in figure.layout.annotations}
    assert "ppo" in heads[0]
    assert "st-ppo" in heads[3]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_arms_kinds_and_messages_stay_text(text: str) -> None:
    drawn = runs((text,), 1)
    found = events((f"{text}-0", 3, text), (f"{text}-0", 3, "alarm"), message=text)
    assert_literal(draw(found, drawn))

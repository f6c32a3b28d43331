from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from tests.view.conftest import HOSTILE
from workbench.view.figures.matrix import MOST, TALL, condition, layout, matrix, parts
from workbench.view.theme import LIGHT, faded


def runs(*arms: tuple[str, str], seeds: int = 2, **columns: Any) -> pd.DataFrame:
    rows = [
        {"run_id": f"{arm}-{seed}", "arm": arm, "algorithm": algorithm, "seed": seed, "status": "finished",
         "outcome": "healthy", "collapse_step": None, "peak_success": 0.8, "final_success": 0.7, "steps": 30,
         "reason": None, **columns}
        for arm, algorithm in arms for seed in range(seeds)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def success(frame: pd.DataFrame, last: int = 10) -> pd.DataFrame:
    return pd.DataFrame(
        [{"run_id": run, "x": x, "mean": 0.5, "last": last} for run in frame["run_id"] for x in range(last + 1)]
    )


def draw(frame: pd.DataFrame) -> Any:
    return matrix(layout(frame), success(frame), LIGHT)


def texts(figure: Any) -> list[str]:
    return [t for trace in figure.data if trace.mode == "text" for t in trace.text]


def test_controls_are_rows_of_their_own() -> None:
    cells = layout(runs(("ppo", "ppo"), ("ppo, on-policy", "ppo"), ("grpo", "grpo")))
    assert cells.drop_duplicates("label")[["label", "row"]].to_numpy().tolist() == [
        ["ppo", 0], ["ppo, on-policy", 1], ["grpo", 2],
    ]  # fmt: skip


def test_a_full_crossing_has_a_block_of_columns_for_each_condition() -> None:
    arms = [(f"{a} · staleness {s}", a) for a in ("ppo", "grpo") for s in (0, 8)]
    cells = layout(runs(*arms))
    assert list(cells["label"].unique()) == ["ppo", "grpo"]
    assert list(cells["block"].unique()) == ["staleness 0", "staleness 8"]
    assert not cells.duplicated(["row", "column"]).any()
    figure = draw(runs(*arms))
    assert [a.text for a in figure.layout.annotations] == ["<b>staleness 0</b>", "<b>staleness 8</b>"]


def test_a_large_grid_is_parts_of_one_width_that_hold_every_run_once() -> None:
    frame = pd.concat([runs(*[(f"arm {i}", "ppo") for i in range(2 * TALL)], seeds=15), runs(("last", "grpo"))])
    found = parts(layout(frame))
    assert list(found) == ["1-12", "13-24", "25-25"]
    assert [part["row"].max() for part in found.values()] == [TALL - 1, TALL - 1, 0]
    assert sorted(pd.concat(found.values())["run_id"]) == sorted(frame["run_id"])
    widths = {tuple(matrix(part, success(frame), LIGHT).layout.xaxis.range) for part in found.values()}
    assert widths == {(-0.52, 14.52)}


def test_a_grid_of_a_few_hundred_cells_is_one_part() -> None:
    cells = layout(runs(*[(f"arm {i}", "ppo") for i in range(MOST // 10)], seeds=10))
    assert parts(cells)["1-30"] is cells


def test_an_arm_with_many_seeds_goes_on_in_the_next_row() -> None:
    cells = layout(runs(("ppo", "ppo"), ("grpo", "grpo"), seeds=45))
    assert not cells.duplicated(["row", "column"]).any()
    assert cells["column"].max() == 19
    assert sorted(cells.loc[cells["arm"] == "grpo", "row"].unique()) == [3, 4, 5]


def test_a_condition_is_what_the_arm_says_besides_its_algorithm() -> None:
    assert condition("ppo · staleness 8", "ppo") == "staleness 8"
    assert condition("ppo, on-policy", "ppo") == "on-policy"
    assert condition("ppo", "ppo") == ""
    assert condition("mine", "ppo") == "mine"


def test_a_collapsed_run_says_so_and_when() -> None:
    figure = draw(runs(("ppo", "ppo"), seeds=1, outcome="collapsed", collapse_step=17))
    assert texts(figure) == ["collapsed at 17"]
    assert faded(LIGHT.outcomes["collapsed"], 0.16) in {t.fillcolor for t in figure.data}


def test_a_run_without_an_outcome_says_its_status() -> None:
    assert texts(draw(runs(("ppo", "ppo"), seeds=1, outcome=None, status="running"))) == ["running"]


def test_a_run_without_a_single_step_has_a_cell_without_a_curve() -> None:
    frame = runs(("ppo", "ppo"), seeds=1, outcome=None, status="queued", steps=0)
    figure = matrix(layout(frame), success(frame).head(0), LIGHT)
    assert texts(figure) == ["queued"]


def test_a_curve_stays_inside_its_cell() -> None:
    frame = runs(("ppo", "ppo"))
    steep = success(frame).assign(mean=[0.0, 1.0] * 11)
    figure = matrix(layout(frame), steep, LIGHT)
    curve = next(t for t in figure.data if t.line.color == LIGHT.algorithms["ppo"])
    assert all(-0.45 <= y <= 0.45 for y in curve.y if not math.isnan(y))
    assert min(x for x in curve.x if not math.isnan(x)) >= -0.5


def test_a_click_on_a_cell_tells_its_run() -> None:
    frame = runs(("ppo", "ppo"), ("grpo", "grpo"))
    targets = next(t for t in draw(frame).data if t.marker.opacity == 0)
    assert [c[0] for c in targets.customdata] == frame["run_id"].tolist()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_reasons_stay_text(text: str) -> None:
    figure = draw(runs((text, text), reason=text, status="failed", outcome=None))
    shown = [*figure.layout.yaxis.ticktext, *(t for trace in figure.data for t in trace.text or ())]
    for words in shown:
        bare = words.replace("<b>", "").replace("</b>", "").replace("<br>", "").replace("</span>", "")
        bare = bare.replace(bare[: bare.index(">") + 1], "") if bare.startswith("<span style='color:#") else bare
        assert "<" not in bare, words
        assert "$" not in bare, words

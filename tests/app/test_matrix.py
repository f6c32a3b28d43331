"""The grid of runs on the Overview: a cell a run, with its outcome, its curve of success and its link."""

import re
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from sorl.app.figures.matrix import MOST, ROW, TALL, layout, matrix, parts
from sorl.app.text import visible
from sorl.app.theme import LIGHT, styles
from sorl.store.notes import Notes
from tests.app.conftest import HOSTILE, Read


def runs(*arms: tuple[str, str], seeds: int = 2, **columns: Any) -> pd.DataFrame:
    rows = [(f"{arm}-{seed}", arm, algorithm, seed) for arm, algorithm in arms for seed in range(seeds)]
    usual = {
        "status": "finished",
        "outcome": "healthy",
        "collapse_step": None,
        "peak_success": 0.8,
        "final_success": 0.7,
        "steps": 30,
        "reason": None,
    }
    return pd.DataFrame(rows, columns=["run_id", "arm", "algorithm", "seed"]).assign(**usual | columns)


def success(frame: pd.DataFrame, last: int = 10) -> pd.DataFrame:
    rows = [(run, x, 0.5, last) for run in frame["run_id"] for x in range(last + 1)]
    return pd.DataFrame(rows, columns=["run_id", "x", "mean", "last"])


def read(svg: str) -> Read:
    ElementTree.fromstring(svg)  # it is XML, also outside a page
    return Read(svg)


def draw(frame: pd.DataFrame, curves: pd.DataFrame | None = None, **options: Any) -> Read:
    return read(matrix(layout(frame), success(frame) if curves is None else curves, LIGHT, **options))


def test_controls_are_rows_of_their_own_and_a_full_crossing_has_a_block_of_columns_for_each_condition() -> (
    None
):
    cells = layout(runs(("ppo", "ppo"), ("ppo, on-policy", "ppo"), ("grpo", "grpo")))
    labels = cells.drop_duplicates("label")[["label", "row"]].to_numpy().tolist()
    assert labels == [["ppo", 0], ["ppo, on-policy", 1], ["grpo", 2]]
    arms = [(f"{a} · staleness {s}", a) for a in ("ppo", "grpo") for s in (0, 8)]
    cells = layout(runs(*arms))
    assert list(cells["label"].unique()) == ["ppo", "grpo"]
    assert list(cells["block"].unique()) == ["staleness 0", "staleness 8"]
    assert not cells.duplicated(["row", "column"]).any()
    assert [draw(runs(*arms)).words("text").count(block) for block in ("staleness 0", "staleness 8")] == [
        1,
        1,
    ]


def test_a_large_grid_is_parts_of_one_width_that_hold_every_run_once() -> None:
    frame = pd.concat(
        [runs(*[(f"arm {i}", "ppo") for i in range(2 * TALL)], seeds=15), runs(("last", "grpo"))]
    )
    found = parts(layout(frame))
    assert list(found) == ["1-12", "13-24", "25-25"]
    assert [part["row"].max() for part in found.values()] == [TALL - 1, TALL - 1, 0]
    assert sorted(pd.concat(found.values())["run_id"]) == sorted(frame["run_id"])
    drawn = [read(matrix(part, success(frame), LIGHT)) for part in found.values()]
    assert len({cell["width"] for one in drawn for cell in one.all("svg")[1:]}) == 1
    cells = layout(runs(*[(f"arm {i}", "ppo") for i in range(MOST // 10)], seeds=10))
    assert parts(cells)["1-30"] is cells, "a smaller one is one part"
    cells = layout(runs(("ppo", "ppo"), ("grpo", "grpo"), seeds=45))
    assert not cells.duplicated(["row", "column"]).any()
    assert cells["column"].max() == 19
    assert sorted(cells.loc[cells["arm"] == "grpo", "row"].unique()) == [3, 4, 5]


def test_a_cell_says_its_outcome_and_when_it_fell_or_its_status_where_there_is_none() -> None:
    drawn = draw(runs(("ppo", "ppo"), seeds=1, outcome="collapsed", collapse_step=5))
    assert {"collapsed", "after step 5"} <= set(drawn.words("text"))
    assert LIGHT.outcomes["collapsed"] in {cell["fill"] for cell in drawn.all("rect")}
    mark = next(path for path in drawn.all("path") if "stroke-dasharray" in path)
    assert mark["d"].startswith("M50.0 ")  # step 5 of 10: the middle of the cell
    assert "running" in draw(runs(("ppo", "ppo"), seeds=1, outcome=None, status="running")).words("text")
    queued = runs(("ppo", "ppo"), seeds=1, outcome=None, status="queued", steps=0)
    for curves in (success(queued).head(0), pd.DataFrame(columns=["run_id", "x", "mean", "last"])):
        drawn = draw(queued, curves)
        assert "queued" in drawn.words("text")
        assert not drawn.all("path")


def test_a_curve_stays_inside_its_cell_and_what_is_no_number_leaves_a_gap() -> None:
    frame = runs(("ppo", "ppo"), ("grpo", "grpo"))
    drawn = draw(frame, success(frame).assign(mean=[0.0, 1.0] * 22))
    curves = [path["d"] for path in drawn.all("path") if path["stroke"] == LIGHT.algorithms["ppo"]]
    points = [re.findall(r"[ML]([0-9.]+) ([0-9.]+)", curve) for curve in curves]
    assert [len(curve) for curve in points] == [11, 11]
    assert all(0 < float(place) < 100 for curve in points for point in curve for place in point)
    sheet, *cells = drawn.all("svg")
    left, right, below = ([float(c[k].rstrip("%")) for k in ("x", "y", "width", "height")] for c in cells[:3])
    assert left[0] + left[2] < right[0]
    assert left[1] + left[3] < below[1]
    assert float(sheet["height"]) >= 2 * ROW
    one = runs(("ppo", "ppo"), seeds=1)
    (curve,) = draw(one, success(one).assign(mean=[0.5, 0.5, float("nan"), 7.0, *[float("nan")] * 7])).all(
        "path"
    )
    assert curve["d"] == "M7 59h0L15.6 59M32.8 40h0", "and a share beyond one stays in the cell"


def test_every_cell_is_a_link_that_carries_its_run_where_an_address_is_known() -> None:
    frame = runs(("ppo", "ppo"), ("grpo", "grpo"))
    links = draw(frame, address=lambda run: f"run?run={run}").all("a")
    assert [link["data-key"] for link in links] == frame["run_id"].tolist()
    assert [link["href"] for link in links] == [f"run?run={run}" for run in frame["run_id"]]
    assert not draw(frame).all("a")


def test_a_cell_writes_best_and_last_value_and_a_falling_one_is_told_apart_without_colour() -> None:
    frame = runs(("ppo", "ppo"), seeds=2, outcome=["collapsed", "falling"], collapse_step=[5, None])
    frame = frame.assign(onset_low=[4, 7], last_success=[0.0, 0.125], peak_success=0.8)
    drawn = draw(frame, address=lambda run: f"run?run={run}")
    words = drawn.words("text")
    wanted = {
        "collapsed",
        "after step 5",
        "falling",
        "after step 7",
        "peak 0.80, last 0.00",
        "peak 0.80, last 0.12",
    }
    assert wanted <= set(words)
    assert [cell.get("stroke-dasharray") for cell in drawn.all("rect") if "rx" in cell] == [None, "5 3"]
    label = drawn.all("a")[0]["aria-label"]
    assert label.startswith("ppo, seed 0: collapsed after step 5 · ppo-0 · peak success 0.8")
    assert label.endswith("Click, or Enter, opens this run.")
    assert "Enter" not in "".join(draw(frame).words("title")), "a report's cells open nothing"
    live = draw(runs(("ppo", "ppo"), seeds=1, outcome=None, status="running", slump=9.0))
    assert {"falling", "since step 9"} <= set(live.words("text"))


def test_arms_of_one_algorithm_have_the_colour_and_dash_that_they_have_on_other_screens() -> None:
    frame = runs(("ppo", "ppo"), ("ppo, on-policy", "ppo"), seeds=1)
    curves = pd.DataFrame({"run_id": list(frame["run_id"]) * 2, "x": [0, 0, 1, 1], "mean": 0.5, "last": 1})
    curves = curves.sort_values("run_id", kind="stable")
    picture = Read(matrix(layout(frame), curves, LIGHT))
    paths = [(path["stroke"], path.get("stroke-dasharray", "")) for path in picture.all("path")]
    looks = styles([("ppo", "ppo"), ("ppo, on-policy", "ppo")], LIGHT)
    assert [stroke for stroke, _ in paths] == [look.colour for look in looks.values()]
    assert [bool(dash) for _, dash in paths] == [look.dash != "solid" for look in looks.values()]
    rows = [mark["fill"] for mark in picture.all("rect") if "rx" not in mark]
    assert rows == [look.colour for look in looks.values()]


@pytest.mark.parametrize("seeds", [1, 2, 5, 8])
def test_below_its_least_width_a_grid_scrolls_so_that_no_word_leaves_its_cell(seeds: int) -> None:
    cells = layout(
        runs(("ppo · learn.staleness 16", "ppo"), seeds=seeds, outcome="collapsed", collapse_step=119)
    )
    sheet = read(matrix(cells, success(cells), LIGHT)).all("svg")[0]
    least = cells["least"].iloc[0]
    assert sheet["style"] == f"min-width:{least:.0f}px"
    names = least * cells["names"].iloc[0] / 100
    assert names >= 18 + 6.5 * len("ppo · learn.staleness 16")
    assert (least - names) / cells["across"].iloc[0] * 0.96 >= 6 + 6 * len("after step 1,119")
    if seeds <= 2:
        assert layout(runs(("ppo", "ppo"), seeds=seeds))["least"].iloc[0] <= 360, "fits a telephone"


def test_the_notes_of_a_run_are_on_its_cell() -> None:
    frame = layout(runs(("ppo", "ppo"), seeds=2)).assign(notes=[Notes("<b>odd</b>", ("keep",)), Notes()])
    drawn = read(matrix(frame, success(frame), LIGHT))
    assert drawn.words("text").count("✎") == 1
    assert "tags: keep\n<b>odd</b>" in drawn.words("title")[-2]


def test_a_long_name_is_broken_into_lines_and_whole_in_its_title() -> None:
    name = "ppo, " + "with a very long list of changes " * 5
    drawn = draw(runs((name, "ppo"), seeds=1))
    assert len(drawn.words("tspan")) == 4
    assert drawn.words("tspan")[-1].endswith("…")
    assert max(map(len, drawn.words("tspan"))) <= 29
    assert name in drawn.words("title")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_reasons_stay_text(text: str) -> None:
    frame = runs((text, text), reason=text, status="failed", outcome=None).assign(run_id=[text, text + "2"])
    drawn = draw(frame, address=lambda run: f"run?run={run}")
    assert set(drawn.tags) <= {"svg", "g", "a", "title", "text", "tspan", "rect", "path"}
    assert not {name for name in drawn.attributes if name.startswith("on")}
    assert any(visible(text) in title for title in drawn.words("title"))
    assert drawn.all("a")[0]["data-key"] == visible(text)

"""Screen Turns: its view, the cells of its heat maps, and the trajectories behind a cell."""

from __future__ import annotations

import json
import math
import re
import shutil
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.app.conftest import Open, figures, html
from tests.store.fixture import Shape, write_run
from workbench.app.curve_data import Window
from workbench.app.figures.maps import Measure
from workbench.app.screens.turns import Cell, Turns, listed, measures
from workbench.app.store import Store, dictionary
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

ADDRESS = {
    "arm": ["st-ppo", "ppo"], "measure": "advantage", "x": "onset", "seed": "1", "cells": "extreme", "range": "-6..4",
    "cell": ["ppo", "-2", "3"],
}  # fmt: skip


def test_turns_takes_its_view_from_the_address(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, **ADDRESS)
    assert not app.exception
    for name, value in ADDRESS.items():
        kept = app.query_params[name]
        assert (kept if isinstance(kept, list) else [kept]) == (value if isinstance(value, list) else [value])
    layout = json.loads(figures(app)[0])["layout"]
    assert layout["xaxis"]["range"] == [-6.5, 4.5]
    assert "reward" in layout["coloraxis"]["colorbar"]["title"]["text"]


def test_turns_shows_a_map_an_arm_and_a_picked_cell_lists_its_episodes(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid)
    assert sum(t["type"] == "heatmap" for t in json.loads(figures(app)[0])["data"]) == 4
    assert app.query_params["measure"] in ("ratio_geo", ["ratio_geo"])
    assert "Click a cell" in html(app)
    assert re.search(
        r"ratio_geo farthest from 1 before a collapse: [\d.]+ in ppo, turn \d, step 1\d, \d before the onset; "
        r"without one: [\d.]+ in ", html(app),
    )  # fmt: skip
    app.session_state["cell picked"] = ["ppo", "12", "3"]
    app.run()
    assert not app.exception
    assert app.query_params["cell"] == ["ppo", "12", "3"]
    assert "ppo, turn 3, step 12: 16 trajectories" in html(app)
    assert html(app).count('<a href="episode?experiment=demo&amp;run=ppo-s') == 16


@pytest.mark.parametrize(("measure", "by"), [("clip_frac", "clip_frac"), ("n_turns", "log_ratio_sum")])
def test_a_cell_stays_while_the_diagnostic_changes_and_is_listed_by_it_or_by_drift(
    measure: str, by: str, grid: Path, open_screen: Open
) -> None:
    app = open_screen("turns", grid, arm=["ppo"], cell=["ppo", "12", "3"])
    app.selectbox(key="measure").set_value(measure).run()
    assert not app.exception
    assert app.query_params["cell"] == ["ppo", "12", "3"]
    assert f"ordered by {by}" in html(app)


def test_a_cell_that_is_not_there_is_none_and_one_without_a_trajectory_says_so(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, arm=["ppo"], cell=["ppo", "12", "9"])
    assert "no trajectory of these runs is recorded there" in html(app)
    for cell in ([], ["ppo"], ["nobody", "1", "2"], ["ppo", "x", "2"], ["ppo", "1", "--2"], ["ppo", "1", "²"]):
        assert Cell.read(cell, ["ppo"]) is None, cell
    assert "Click a cell" in html(open_screen("turns", grid, arm=["ppo"], cell=["ppo", "999", "1"]))


@pytest.mark.parametrize("carried", [[1, 12, 3], {"0": 1, "1": 12, "2": 3}])
def test_a_click_opens_the_cell_that_was_clicked_and_a_second_one_draws_nothing_anew(
    carried: object, grid: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = count()

    def chart(*_: object, **__: object) -> dict[str, object]:
        assert next(drawn) < 5, "drawn for ever"
        return {"selection": {"points": [{"customdata": carried}], "box": []}}

    monkeypatch.setattr("streamlit.plotly_chart", chart)
    app = open_screen("turns", grid, arm=["grpo", "ppo"])
    assert not app.exception
    assert app.query_params["cell"] == ["ppo", "12", "3"]
    assert "ppo, turn 3, step 12: 16 trajectories" in html(app)


def test_runs_without_turns_say_what_records_them(tmp_path: Path, open_screen: Open) -> None:
    run = write_run(tmp_path, "curves", "a", shape=Shape(steps=6, trajectories=2, turns=2, epochs=1))
    for table in ("turn", "turn_step", "trajectory", "token"):
        shutil.rmtree(run / "segments" / table)
    sync(tmp_path, CATALOGUE)
    for screen in ("turns", "episode"):
        app = open_screen(screen, tmp_path)
        assert not app.exception
        assert "hold curves only" in html(app)
        assert app.code[0].value == "sorl run FILE.toml"
    assert not figures(open_screen("turns", tmp_path)), "six empty maps tell nothing"


SHAPE = Shape(steps=12, trajectories=4, turns=3, epochs=2, steps_per_segment=12)
RUNS = pd.DataFrame({"run_id": ["a", "b"], "arm": ["ppo", "ppo"], "collapse_step": [8.0, np.nan]})


def rewrite(folder: Path, table: str, column: str, change: dict[int, float | None]) -> None:
    """Put other values into rows of a run's only segment of a table."""
    file = folder / "segments" / table / "000000.parquet"
    read = pq.read_table(file)
    values = read[column].to_pylist()
    for row, value in change.items():
        values[row] = value
    pq.write_table(read.set_column(read.column_names.index(column), column, [values]), file)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two runs of 12 steps with 3 turns; in `a`, turn 1 has no entropy at step 2, NaN at step 3."""
    folder = tmp_path_factory.mktemp("cells") / "runs"
    first = write_run(folder, "demo", "a", shape=SHAPE, collapse=6)
    write_run(folder, "demo", "b", shape=SHAPE, seed=1)
    rewrite(first, "turn_step", "entropy", {6: None, 9: math.nan})
    sync(folder, CATALOGUE)
    return Store(folder)


def view(store: Store, name: str, window: Window = Window(0, 11, 1), origins: tuple[int, int] = (0, 0)) -> Turns:
    return Turns(RUNS, "step", list(origins), window, Measure(name, *dictionary(store).words(f"turn_step.{name}")))


def raw(store: Store, sql: str) -> pd.DataFrame:
    return store.reader.query(sql)


def cells(store: Store, name: str, *, extreme: bool = False, window: Window = Window(0, 11, 1)) -> pd.DataFrame:
    return view(store, name, window).heats(store, ["ppo"], extreme=extreme)[0].cells


def test_a_cell_of_a_ratio_is_a_geometric_mean_and_else_the_plain_mean_with_its_extremes(store: Store) -> None:
    found = cells(store, "ratio_geo").set_index(["turn_index", "bucket"])["mean"]
    wanted = raw(store, "SELECT turn_index, step, exp(avg(ln(ratio_geo))) AS m FROM turn_step GROUP BY ALL")
    for turn, step, mean in wanted.itertuples(index=False, name=None):
        assert found[turn, step] == pytest.approx(mean)
    found = cells(store, "advantage", window=Window(2, 11, 4)).set_index(["turn_index", "bucket"])
    wanted = raw(
        store,
        "SELECT turn_index, (step - 2) // 4 AS bucket, avg(advantage) AS mean, min(advantage) AS low, "
        "max(advantage) AS high, sum(n_turns) AS turns FROM turn_step WHERE step >= 2 GROUP BY ALL",
    ).set_index(["turn_index", "bucket"])
    for column in ("mean", "low", "high", "turns"):
        np.testing.assert_allclose(found[column].astype(float), wanted.loc[found.index, column].astype(float))
    assert found.loc[(1, 1), "first_step"] == 6
    one = Turns(RUNS.head(1), "step", [0], Window(0, 11, 1), view(store, "entropy").measure)
    told = one.heats(store, ["ppo"], extreme=False)[0].cells.query("turn_index == 1").set_index("bucket").loc[[2, 3, 4]]
    assert told["measured"].tolist() == [0, 1, 1], "NULL is not measured"
    assert told["non_finite"].tolist() == [0, 1, 0], "NaN is a fact"
    names = measures(dictionary(store))
    assert names[:3] == ["ratio_geo", "ratio_arith", "ratio_prod"]
    assert set(names) == {d.name for d in CATALOGUE if d.table == "turn_step" and d.sql_type != "VARCHAR"}
    assert all(len(cells(store, name)) for name in names), "every measured column of a turn can be drawn"


def test_the_extreme_of_a_cell_is_what_lies_farthest_from_neutral(store: Store) -> None:
    for name, size in (("ratio_geo", lambda v: abs(math.log(v))), ("advantage", abs)):
        found = cells(store, name, extreme=True, window=Window(0, 11, 12))
        for value, low, high in found[["value", "low", "high"]].itertuples(index=False, name=None):
            assert size(value) == max(size(low), size(high))


def test_the_trajectories_of_a_cell_are_those_of_its_steps_most_extreme_first(store: Store) -> None:
    window = Window(0, 11, 3)
    found = view(store, "ratio_geo", window).trajectories(store, Cell("ppo", 3, 2), "ratio_geo")
    assert found[0]["total"] == 2 * 3 * SHAPE.trajectories  # runs x steps x trajectories: the last epoch only
    assert {row["step"] for row in found} <= {3, 4, 5}
    assert {row["epoch"] for row in found} == {SHAPE.epochs - 1}
    sizes = [abs(math.log(row["value"])) for row in found]
    assert sizes == sorted(sizes, reverse=True)
    best = raw(
        store,
        "SELECT max(abs(ln(ratio_geo))) AS m FROM turn WHERE turn_index = 2 AND epoch = 1 AND step BETWEEN 3 AND 5",
    )
    assert sizes[0] == pytest.approx(best["m"].item())


def test_a_listed_trajectory_has_every_column_an_address_and_says_if_its_tokens_were_kept(store: Store) -> None:
    known = dictionary(store)
    for name in ("ratio_geo", "clip_frac", "entropy"):
        found = view(store, name).trajectories(store, Cell("ppo", 4, 1), name)
        header, rows = listed(found, "demo", name, known)
        assert all(len(row) == len(header) for _, row in rows)
        assert {(row["run_id"], row["trajectory"]) for row in found if row["kept"]} == {("a", 0), ("b", 0)}
        screen, query = rows[0][0].split("?")
        assert screen == "episode"
        assert set(parse_qs(query)) == {"experiment", "run", "step", "trajectory", "rank", "epoch"}

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench.crowd import EXPERIMENT, Size, ensure
from workbench.analysis.runs import runs as runs_of
from workbench.app.data import Store
from workbench.app.panels import curve
from workbench.app.series import Window, widths
from workbench.spec import ROLLUPS

MANY = 1_000  # runs: their rows are not read one by one
SIZE = Size(runs=3, steps=1_000, turns=3)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of a thousand steps, of which the last 100 steps of one are not rolled up yet."""
    import duckdb

    folder = tmp_path_factory.mktemp("crowd") / "runs"
    ensure(folder, SIZE, lambda _: None)
    with duckdb.connect(str(folder / "sorl.duckdb")) as connection:
        run = connection.execute("SELECT min(run_id) FROM run").fetchone()
        for rollup in ROLLUPS:
            connection.execute(f"DELETE FROM {rollup.name} WHERE run_id = ? AND block * {rollup.width} >= 896", run)
        connection.execute("UPDATE span SET rolled_to = 896 WHERE run_id = ?", run)
    return folder


def ids(folder: Path) -> list[str]:
    return list(runs_of(Store(folder).reader, EXPERIMENT)["run_id"])


@pytest.mark.parametrize(
    "metric", ["step.success", "step.grad_norm_max", "step.heldout_success", "turn_step.ratio_geo"]
)
@pytest.mark.parametrize("points", [52, 170, 13])
def test_a_curve_of_blocks_is_that_of_their_rows(crowd: Path, metric: str, points: int) -> None:
    table, column = metric.split(".")
    window = Window.made(128, 959, points, MANY)
    plain = Window(window.first, window.last, window.width)
    store, runs = Store(crowd), ids(crowd)
    rolled, single = (curve(store, runs, [0] * 3, w, table, column) for w in (window, plain))
    assert window.block > 1
    assert plain.rollup(table) is None
    pd.testing.assert_frame_equal(rolled, single, check_dtype=False, rtol=1e-12)


@pytest.mark.parametrize(("column", "log"), [("ratio_geo", True), ("entropy", False), ("n_turns", False)])
@pytest.mark.parametrize("width", [16, 64])
def test_a_heat_map_of_blocks_is_that_of_its_rows(crowd: Path, column: str, log: bool, width: int) -> None:
    store, runs = Store(crowd), ids(crowd)
    asked = {"runs": runs, "origins": [0] * 3, "arms": [0, 1, 0], "first": 0, "last": 959, "width": 64,
             "column": column, "log": log}  # fmt: skip
    rolled = store.query("heat_blocks", rollup=f"turn_index_block_{width}", block=width, **asked)
    single = store.query("heat", **asked)
    pd.testing.assert_frame_equal(rolled, single, check_dtype=False, rtol=1e-12)


def test_a_shifted_run_keeps_its_extremes_and_lands_within_half_a_block(crowd: Path) -> None:
    store, runs = Store(crowd), ids(crowd)
    window = Window(-400, 399, 32, 16)
    rolled, single = (curve(store, runs, [405] * 3, w, "step", "entropy") for w in (window, Window(-400, 399, 32)))
    assert set(rolled["bucket"]) <= set(single["bucket"])
    assert rolled["high"].max() == single["high"].max()


def test_wide_buckets_are_whole_blocks_and_narrow_ones_are_what_was_asked_for() -> None:
    assert Window.made(0, 99, 100, MANY) == Window(0, 99, 1)
    assert Window.made(5, 5_000, 240, MANY) == Window(0, 5_000, 32, 16)
    assert Window.made(5, 5_000, 240, 4) == Window(5, 5_000, 21)
    assert Window.made(5, 500, 496, MANY, least=50) == Window(5, 500, 50)
    assert Window.made(-7, 500, 85, MANY) == Window(-8, 500, 8, 4)
    assert Window.made(-7, 500, 85, MANY, widths=widths("turn_step", "turn_index")) == Window(-7, 500, 6)
    assert Window(0, 9, 16, 16).rollup("turn_step", "turn_index").name == "turn_index_block_16"
    assert Window(0, 9, 128, 64).rollup("minibatch").name == "minibatch_block_64"
    assert Window(0, 9, 4, 4).rollup("minibatch") is None
    assert Window(0, 9, 1).rollup("step") is None


def test_the_crowd_is_the_same_each_time_and_refuses_another_database(crowd: Path, tmp_path: Path) -> None:
    from workbench.spec import InputError

    ensure(tmp_path, SIZE, lambda _: None)
    asked = "SELECT sum(hash(run_id, step, turn_index, ratio_geo)) FROM turn_step"
    assert Store(tmp_path).reader.rows(asked).rows == Store(crowd).reader.rows(asked).rows
    ensure(crowd, SIZE, lambda _: pytest.fail("made again"))
    with pytest.raises(InputError, match="another database"):
        ensure(crowd, Size(4, 10, 1), lambda _: None)
    with pytest.raises(InputError, match="RUNSxSTEPSxTURNS"):
        Size.read("10x20")

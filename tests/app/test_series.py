from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.store.fixture import Shape, write_run
from workbench.app.series import Window, banded, is_wide, origins, placed
from workbench.app.store import Store
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

SHAPE = Shape(steps=50, trajectories=2, turns=2, epochs=2, minibatches=3, steps_per_segment=50)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two runs of 50 steps with 6 updates each, one of which collapses."""
    folder = tmp_path_factory.mktemp("series") / "runs"
    write_run(folder, "demo", "a", shape=SHAPE, collapse=30)
    write_run(folder, "demo", "b", shape=SHAPE, seed=1)
    sync(folder, CATALOGUE)
    return Store(folder)


def raw(store: Store, column: str, table: str = "step") -> pd.DataFrame:
    return store.reader.query(f"SELECT run_id, step, {column} AS value FROM {table} ORDER BY ALL")


def ask(
    store: Store, column: str, window: Window, table: str = "step", start: tuple[int, int] = (0, 0)
) -> pd.DataFrame:
    return store.query(
        "series", runs=["a", "b"], origins=list(start), first=window.first, last=window.last, width=window.width,
        column=column, table=table,
    )  # fmt: skip


RUNS = pd.DataFrame({"run_id": ["a", "b"], "seed": [0, 1], "arm": ["ppo", "st-ppo"], "collapse_step": [30.0, np.nan]})


def test_one_step_a_bucket_is_the_recorded_value(store: Store) -> None:
    found = placed(ask(store, "success", Window(0, 49, 1)), RUNS, Window(0, 49, 1))
    recorded = raw(store, "success")
    assert found["x"].tolist() == recorded["step"].tolist()
    for column in ("mean", "low", "high"):
        np.testing.assert_array_equal(found[column], recorded["value"])


def test_wide_buckets_keep_every_extreme(store: Store) -> None:
    found = ask(store, "grad_norm", Window(0, 49, 7), "minibatch")
    recorded = raw(store, "grad_norm", "minibatch")
    recorded["bucket"] = recorded["step"] // 7
    wanted = recorded.groupby(["run_id", "bucket"])["value"].agg(["mean", "min", "max"])
    np.testing.assert_allclose(found[["mean", "low", "high"]], wanted)


def test_a_point_stands_in_the_middle_of_its_steps(store: Store) -> None:
    window = Window(0, 49, 10)
    assert placed(ask(store, "success", window), RUNS, window)["x"].tolist() == [4.5, 14.5, 24.5, 34.5, 44.5] * 2


def test_nothing_outside_the_window_is_asked_for(store: Store) -> None:
    window = Window(10, 12, 1)
    assert placed(ask(store, "success", window), RUNS, window)["x"].tolist() == [10, 11, 12] * 2


def test_aligned_on_the_collapse_zero_is_the_onset_and_survivors_stand_at_the_median_onset() -> None:
    assert origins(RUNS, "onset") == [30, 30]
    assert origins(RUNS, "step") == [0, 0]
    assert origins(RUNS.assign(collapse_step=np.nan), "onset") == [0, 0]


def test_the_median_onset_of_an_even_number_of_collapses_is_a_whole_step() -> None:
    runs = pd.DataFrame({"collapse_step": pd.array([16, 19, None], dtype="Int64")})
    assert origins(runs, "onset") == [16, 19, 18]


def test_aligned_on_the_collapse_the_value_at_zero_is_that_of_the_onset(store: Store) -> None:
    window = Window(-30, 19, 1)
    found = placed(ask(store, "success", window, start=(30, 20)), RUNS, window)
    recorded = raw(store, "success").set_index(["run_id", "step"])["value"]
    at = found[found["x"] == 0].set_index("run_id")["mean"]
    assert at.to_dict() == {"a": recorded["a", 30], "b": recorded["b", 20]}


@pytest.mark.parametrize("column", ["updates", "tokens_trained"])
def test_a_clock_counts_from_the_beginning_to_the_end_of_the_bucket(store: Store, column: str) -> None:
    window = Window(20, 49, 5)
    clock = store.query("clock", runs=["a", "b"], origins=[0, 0], first=window.first, width=window.width, column=column)
    found = placed(ask(store, "success", window), RUNS, window, clock)
    total = raw(store, column).assign(value=lambda f: f.groupby("run_id")["value"].cumsum())
    wanted = total[total["step"].isin(range(24, 50, 5))]["value"]
    assert found["x"].tolist() == wanted.tolist()


def test_null_and_nan_are_told_apart(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = write_run(tmp_path, "demo", "a", shape=SHAPE)
    file = folder / "segments" / "step" / "000000.parquet"
    table = pq.read_table(file)
    values = table["entropy"].to_pylist()
    values[3], values[4] = None, float("nan")
    index = table.column_names.index("entropy")
    pq.write_table(table.set_column(index, "entropy", [values]), file)
    sync(tmp_path, CATALOGUE)
    found = Store(tmp_path).query(
        "series", runs=["a"], origins=[0], first=0, last=9, width=1, column="entropy", table="step"
    )
    assert found["bucket"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert found.loc[found["bucket"] == 4, "non_finite"].item() == 1
    assert found.loc[found["bucket"] == 4, "mean"].isna().item()


def test_a_band_has_the_mean_place_of_its_seeds() -> None:
    points = pd.DataFrame(
        {"arm": "ppo", "run_id": ["a", "b"], "run": [0, 1], "bucket": 0, "x": [10.0, 14.0], "mean": [1.0, 2.0],
         "low": [0.0, 1.0], "high": [3.0, 9.0]}
    )  # fmt: skip
    row = banded(points).iloc[0]
    assert (row["x"], row["middle"], row["low"], row["high"], row["n"]) == (12.0, 1.5, 0.0, 9.0, 2)


def test_buckets_widen_with_the_number_of_lines() -> None:
    assert Window.over(0, 99, 5).width == 1
    assert Window.over(0, 9_999, 5).width == 42
    assert Window.over(0, 9_999, 1_000).width == 167
    assert [Window.over(0, last, 1_000).width for last in (59, 60, 419, 479, 480)] == [1, 2, 7, 8, 9]
    assert [Window.over(0, last, 5).width for last in (239, 240, 1_919)] == [1, 2, 8]
    assert Window.over(0, 99, 5, least=20).width == 20


def test_a_spike_calls_for_a_log_axis_and_a_fraction_does_not() -> None:
    assert is_wide([0.2, 0.3, 647.0])
    assert not is_wide([0.0, 0.3, 647.0])
    assert not is_wide([0.2, 0.9, float("nan"), float("inf")])
    assert not is_wide([])

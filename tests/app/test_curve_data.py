"""From the database to curves: the points of a column, and the queries behind the figures."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.store.fixture import Shape, write_run
from workbench.app.curve_data import Chosen, Window, banded, origins
from workbench.app.figures.common import is_wide
from workbench.app.store import Store
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

SHAPE = Shape(steps=50, trajectories=4, turns=2, epochs=2, minibatches=3, steps_per_segment=50)
RUNS = pd.DataFrame({"run_id": ["a", "b"], "seed": [0, 1], "arm": ["ppo", "st-ppo"], "collapse_step": [30.0, np.nan]})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two runs of 50 steps with 6 updates each; `a` collapses, and has no entropy at step 3, NaN at step 4."""
    folder = tmp_path_factory.mktemp("curves") / "runs"
    run = write_run(folder, "demo", "a", shape=SHAPE, collapse=30)
    file = run / "segments" / "step" / "000000.parquet"
    table = pq.read_table(file)
    values = table["entropy"].to_pylist()
    values[3], values[4] = None, math.nan
    pq.write_table(table.set_column(table.column_names.index("entropy"), "entropy", [values]), file)
    write_run(folder, "demo", "b", shape=SHAPE, seed=1)
    sync(folder, CATALOGUE)
    return Store(folder)


def raw(store: Store, sql: str) -> pd.DataFrame:
    return store.reader.query(sql)


def points(
    store: Store, column: str, window: Window, table: str = "step", axis: str = "step", start: tuple[int, int] = (0, 0)
) -> pd.DataFrame:
    return Chosen(RUNS, axis, list(start), window).points(store, table, column)


def test_a_point_is_the_recorded_value_and_of_several_steps_their_mean_and_extremes_in_the_middle(store: Store) -> None:
    found = points(store, "success", Window(0, 49, 1))
    recorded = raw(store, "SELECT run_id, step, success FROM step ORDER BY ALL")
    assert found["x"].tolist() == recorded["step"].tolist()
    assert found["run_id"].tolist() == recorded["run_id"].tolist()
    for column in ("mean", "low", "high"):
        np.testing.assert_array_equal(found[column], recorded["success"])
    found = points(store, "grad_norm", Window(0, 49, 7), "minibatch")
    recorded = raw(store, "SELECT run_id, step // 7 AS bucket, grad_norm FROM minibatch")
    wanted = recorded.groupby(["run_id", "bucket"])["grad_norm"].agg(["mean", "min", "max"])
    np.testing.assert_allclose(found[["mean", "low", "high"]], wanted)
    for window, x in ((Window(0, 49, 10), [4.5, 14.5, 24.5, 34.5, 44.5]), (Window(10, 12, 1), [10, 11, 12])):
        assert points(store, "success", window)["x"].tolist() == x * 2
    two = pd.DataFrame(
        {"arm": "ppo", "run_id": ["a", "b"], "run": [0, 1], "bucket": 0, "x": [10.0, 14.0], "mean": [1.0, 2.0],
         "low": [0.0, 1.0], "high": [3.0, 9.0]}
    )  # fmt: skip
    row = banded(two).iloc[0]
    assert (row["x"], row["middle"], row["low"], row["high"], row["n"]) == (12.0, 1.5, 0.0, 9.0, 2)


def test_aligned_on_the_collapse_zero_is_the_onset_and_other_runs_stand_at_the_median_onset(store: Store) -> None:
    assert [origins(RUNS, "onset"), origins(RUNS, "step")] == [[30, 30], [0, 0]]
    assert origins(RUNS.assign(collapse_step=np.nan), "onset") == [0, 0]
    several = pd.DataFrame({"collapse_step": pd.array([16, 19, None], dtype="Int64")})
    assert origins(several, "onset") == [16, 19, 18], "the median of an even number is a whole step"
    found = points(store, "success", Window(-30, 19, 1), start=(30, 20))
    recorded = raw(store, "SELECT run_id, step, success FROM step").set_index(["run_id", "step"])["success"]
    at = found[found["x"] == 0].set_index("run_id")["mean"]
    assert at.to_dict() == {"a": recorded["a", 30], "b": recorded["b", 20]}


@pytest.mark.parametrize(("axis", "column"), [("updates", "updates"), ("tokens", "tokens_trained")])
def test_a_clock_counts_from_the_beginning_to_the_end_of_the_bucket(store: Store, axis: str, column: str) -> None:
    found = points(store, "success", Window(20, 49, 5), axis=axis)
    total = raw(store, f"SELECT run_id, step, {column} AS value FROM step ORDER BY ALL")
    total = total.assign(value=total.groupby("run_id")["value"].cumsum())
    assert found["x"].tolist() == total.loc[total["step"].isin(range(24, 50, 5)), "value"].tolist()


def test_null_and_nan_are_told_apart(store: Store) -> None:
    found = points(store, "entropy", Window(0, 9, 1)).query("run_id == 'a'").set_index("bucket")
    assert found.index.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert (found.loc[4, "non_finite"], math.isnan(found.loc[4, "mean"])) == (1, True)


def test_buckets_widen_with_the_number_of_lines_and_a_spike_calls_for_a_log_axis() -> None:
    assert [Window.over(0, last, 5).width for last in (99, 239, 240, 1_919, 9_999)] == [1, 1, 2, 8, 42]
    assert [Window.over(0, last, 1_000).width for last in (59, 60, 479, 480, 9_999)] == [1, 2, 8, 9, 167]
    assert Window.over(0, 99, 5, least=20).width == 20
    for values, wide in (([0.2, 0.3, 647.0], True), ([0.0, 0.3, 647.0], False), ([0.9, math.nan, math.inf], False)):
        assert is_wide(values) == wide


def test_the_query_of_leads_knows_every_run_and_its_first_alarm_only(store: Store) -> None:
    found = store.query("leads", runs=["a", "b"])
    assert len(found) == 2 * 2
    mine = found[found["run"] == 0].set_index("diagnostic")
    onset = raw(store, "SELECT collapse_step FROM run WHERE run_id = 'a'")["collapse_step"].item()
    wanted = raw(store, "SELECT diagnostic, min(step) AS step FROM event WHERE kind = 'alarm' GROUP BY ALL")
    for name, step in wanted.itertuples(index=False, name=None):
        assert (mine.loc[name, "step"], mine.loc[name, "lead"]) == (step, onset - step)
    assert found.loc[found["run"] == 1, "step"].isna().all()


@pytest.mark.parametrize("lowest", [False, True])
def test_peaks_keep_the_extreme_of_every_bucket(store: Store, lowest: bool) -> None:
    values = raw(store, "SELECT grad_norm_max AS v FROM step WHERE run_id = 'a' ORDER BY step")["v"]
    found = store.query("peaks", run="a", column="grad_norm_max", first=0, width=4, lowest=lowest)
    for bucket, (step, value) in enumerate(zip(found["step"], found["value"], strict=True)):
        part = values.iloc[bucket * 4 : bucket * 4 + 4]
        assert (step, value) == ((part.idxmin(), part.min()) if lowest else (part.idxmax(), part.max()))

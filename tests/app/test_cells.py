from __future__ import annotations

import math
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.store.fixture import Shape, write_run
from workbench.app.cells import Cell, Turns, columns, listed, measure_of, measures
from workbench.app.series import Window
from workbench.app.store import Store, dictionary
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

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
    return Turns(RUNS, list(origins), window, measure_of(dictionary(store), name))


def raw(store: Store, sql: str) -> pd.DataFrame:
    return store.reader.query(sql)


def cells(store: Store, name: str, *, extreme: bool = False, window: Window = Window(0, 11, 1)) -> pd.DataFrame:
    return view(store, name, window).heats(store, ["ppo"], extreme=extreme)[0].cells


def test_a_cell_of_a_ratio_is_the_geometric_mean_of_the_recorded_values(store: Store) -> None:
    found = cells(store, "ratio_geo").set_index(["turn_index", "bucket"])["mean"]
    wanted = raw(store, "SELECT turn_index, step, exp(avg(ln(ratio_geo))) AS m FROM turn_step GROUP BY ALL")
    for turn, step, mean in wanted.itertuples(index=False, name=None):
        assert found[turn, step] == pytest.approx(mean)


def test_a_cell_of_anything_else_is_the_plain_mean_with_its_extremes(store: Store) -> None:
    window = Window(2, 11, 4)
    found = cells(store, "advantage", window=window).set_index(["turn_index", "bucket"])
    wanted = raw(
        store,
        "SELECT turn_index, (step - 2) // 4 AS bucket, avg(advantage) AS mean, min(advantage) AS low, "
        "max(advantage) AS high, sum(n_turns) AS turns FROM turn_step WHERE step >= 2 GROUP BY ALL",
    ).set_index(["turn_index", "bucket"])
    for column in ("mean", "low", "high", "turns"):
        np.testing.assert_allclose(found[column].astype(float), wanted.loc[found.index, column].astype(float))
    assert found.loc[(1, 1), "first_step"] == 6


def test_the_extreme_of_a_cell_is_what_lies_farthest_from_neutral(store: Store) -> None:
    window = Window(0, 11, 12)
    ratio = cells(store, "ratio_geo", extreme=True, window=window)
    for value, low, high in ratio[["value", "low", "high"]].itertuples(index=False, name=None):
        assert abs(math.log(value)) == max(abs(math.log(low)), abs(math.log(high)))
    signed = cells(store, "advantage", extreme=True, window=window)
    for value, low, high in signed[["value", "low", "high"]].itertuples(index=False, name=None):
        assert abs(value) == max(abs(low), abs(high))


def test_null_and_nan_are_told_apart(store: Store) -> None:
    one = Turns(RUNS.head(1), [0], Window(0, 11, 1), measure_of(dictionary(store), "entropy"))
    found = one.heats(store, ["ppo"], extreme=False)[0].cells
    found = found[found["turn_index"] == 1].set_index("bucket")
    assert found.loc[[2, 3, 4], "measured"].tolist() == [0, 1, 1]
    assert found.loc[[2, 3, 4], "non_finite"].tolist() == [0, 1, 0]
    assert found.loc[[2, 3, 4], "mean"].isna().tolist() == [True, True, False]


def test_onsets_inside_the_window_are_marked(store: Store) -> None:
    assert view(store, "entropy").heats(store, ["ppo"], extreme=False)[0].onsets == [8.0]
    assert view(store, "entropy", Window(0, 5, 1)).heats(store, ["ppo"], extreme=False)[0].onsets == []


def test_aligned_on_the_collapse_the_onset_is_at_zero(store: Store) -> None:
    found = view(store, "ratio_geo", Window(-8, 3, 1), (8, 8)).heats(store, ["ppo"], extreme=False)[0]
    assert found.onsets == [0.0]
    assert found.cells["first_step"].min() == -8


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


def test_trajectories_say_whether_their_tokens_were_kept(store: Store) -> None:
    found = view(store, "ratio_geo").trajectories(store, Cell("ppo", 4, 1), "ratio_geo")
    assert {(row["run_id"], row["trajectory"]) for row in found if row["kept"]} == {("a", 0), ("b", 0)}


def test_a_listed_trajectory_has_a_cell_for_every_column(store: Store) -> None:
    known = dictionary(store)
    for name in ("ratio_geo", "clip_frac", "entropy"):
        found = view(store, name).trajectories(store, Cell("ppo", 4, 1), name)
        rows = listed(found, "demo", name, known)
        assert all(len(cells) == len(columns(name, known)) for _, cells in rows)
    assert rows[0][0].startswith("episode?experiment=demo&run=")


def test_a_link_to_an_episode_is_a_whole_address(store: Store) -> None:
    known = dictionary(store)
    found = view(store, "ratio_geo").trajectories(store, Cell("ppo", 4, 1), "ratio_geo")
    (_, query) = listed(found[:1], "demo", "ratio_geo", known)[0][0].split("?")
    assert set(parse_qs(query)) == {"experiment", "run", "step", "trajectory", "signal", "rank", "epoch"}


def test_every_measured_column_of_a_turn_index_can_be_drawn(store: Store) -> None:
    known = dictionary(store)
    names = measures(known)
    assert names[:3] == ["ratio_geo", "ratio_arith", "ratio_prod"]
    assert set(names) == {d.name for d in CATALOGUE if d.table == "turn_step" and d.sql_type != "VARCHAR"}
    for name in names:
        assert len(cells(store, name)) > 0


def test_a_cell_survives_the_way_through_an_address_and_nonsense_does_not() -> None:
    cell = Cell("ppo", -3, 2)
    assert Cell.read(cell.written, ["ppo"]) == cell
    for given in ([], ["ppo"], ["grpo", "1", "2"], ["ppo", "x", "2"], ["ppo", "1", "--2"], ["ppo", "1", "²"]):
        assert Cell.read(given, ["ppo"]) is None, given


def test_the_query_of_leads_knows_every_run_and_its_first_alarm_only(store: Store) -> None:
    found = store.query("leads", runs=["a", "b"])
    assert len(found) == 2 * 2
    mine = found[found["run"] == 0].set_index("diagnostic")
    onset = raw(store, "SELECT collapse_step FROM run WHERE run_id = 'a'")["collapse_step"].item()
    wanted = raw(store, "SELECT diagnostic, min(step) AS step FROM event WHERE kind = 'alarm' GROUP BY ALL")
    for name, step in wanted.itertuples(index=False, name=None):
        assert (mine.loc[name, "step"], mine.loc[name, "lead"]) == (step, onset - step)
    assert found.loc[found["run"] == 1, "step"].isna().all()


def test_the_ranking_is_the_mean_share_over_the_updates_of_the_step(store: Store) -> None:
    rows = store.records("ranking", run="a", step=5)
    assert [row["trajectory"] for row in rows] == list(range(SHAPE.trajectories))
    shares = raw(
        store,
        "SELECT sum(ratio_mass_frac) / 4 AS share FROM turn WHERE run_id = 'a' AND step = 5 GROUP BY trajectory "
        "ORDER BY trajectory",  # 2 epochs of 2 minibatches
    )
    np.testing.assert_allclose([row["ratio_mass"] for row in rows], shares["share"])
    wanted = raw(
        store, "SELECT max(abs(log_ratio_sum)) AS m FROM turn WHERE run_id = 'a' AND step = 5 AND trajectory = 2"
    )
    assert abs(rows[2]["worst_log_ratio"]) == pytest.approx(wanted["m"].item())


def test_peaks_keep_the_extreme_of_every_bucket(store: Store) -> None:
    values = raw(store, "SELECT grad_norm_max AS v FROM step WHERE run_id = 'a' ORDER BY step")["v"]
    for lowest in (False, True):
        found = store.query("peaks", run="a", column="grad_norm_max", first=0, width=4, lowest=lowest)
        for bucket, (step, value) in enumerate(zip(found["step"], found["value"], strict=True)):
            part = values.iloc[bucket * 4 : bucket * 4 + 4]
            assert (step, value) == ((part.idxmin(), part.min()) if lowest else (part.idxmax(), part.max()))

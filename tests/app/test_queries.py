"""From the database to the screens: answers, then the points, buckets and cells of
figures.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.app import data, queries
from sorl.app.data import (
    CLOCKS,
    Chosen,
    Drawing,
    Window,
    banded,
    carried,
    lone,
    onset_of,
    origins,
    panel,
    stopped,
)
from sorl.app.figures.common import is_wide
from sorl.app.figures.maps import Measure
from sorl.app.queries import QUERIES, WORDS, Diagnostics, Store, dictionary, notation
from sorl.app.screens.turns import FIRST, Cell, Turns, listed
from sorl.measures import CATALOGUE
from sorl.measures.declare import SYMBOLS
from sorl.measures.declare import dictionary as declared
from sorl.spec import InputError
from sorl.store.connect import Busy, writer
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.app.conftest import SMALL, Patch, Read
from tests.store.fixture import Shape, write_run, write_status


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path, "demo", "a", shape=SMALL)
    sync(tmp_path)
    return tmp_path


def ids(reader: Reader) -> list[str]:
    return [row[0] for row in reader.rows("SELECT run_id FROM run ORDER BY 1").rows]


def test_a_question_is_asked_once_until_new_rows_or_no_more_room(runs: Path, monkeypatch: Patch) -> None:
    asked: list[int] = []
    answers = Store(runs)
    for _ in range(3):
        assert answers.computed("ids", lambda reader: asked.append(1) or ids(reader)) == ["a"]
    assert len(asked) == 1
    given = {"runs": ["a"], "origins": [0], "first": 0, "last": 11, "column": "success", "table": "step"}
    assert [len(answers.query("series", width=width, **given)) for width in (1, 6)] == [12, 2]
    write_run(runs, "demo", "b", shape=SMALL, seed=1)
    sync(runs)
    assert answers.computed("ids", ids) == ["a", "b"]
    monkeypatch.setattr(queries, "_REMEMBERED", 2 * queries._RECORDS)
    small = Store(runs)
    asked = []
    for number in (1, 2, 3, 1):
        small.computed(number, lambda reader: asked.append(1) or 0)
    assert len(asked) == 4


def test_every_column_has_words_and_no_two_of_a_table_have_the_same() -> None:
    columns = declared(CATALOGUE)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    known = Diagnostics({f"{row['table_name']}.{row['name']}": row for row in rows})
    for table in ("step", "turn", "turn_step"):
        metrics = [metric for metric in known.rows if metric.startswith(f"{table}.")]
        titles = [known.title(metric) for metric in metrics]
        assert len(set(titles)) == len(titles)
        assert not [title for title in titles if "_" in title]
    assert {name.split(".")[-1] for name in WORDS} <= {row["name"] for row in rows}, (
        "no words for what is not measured"
    )
    assert known.title("step.turns") == "mean number of turns", "as its description begins"
    assert known.title("step.mismatch_kl").startswith("KL of the trainer's"), (
        "KL is no word with a small letter"
    )
    unknown = {"table_name": "step", "name": "a_b", "description": None}
    assert Diagnostics({"step.a_b": unknown}).title("step.a_b") == "a_b"


@pytest.mark.parametrize(
    ("formula", "signs"),
    [
        ("mean over the turns with this index of exp(mean delta of the turn)", ["delta"]),
        ("<1[r < 1 - eps_low or r > 1 + eps_high]>_m", ["<x>_m", "r, w", "eps_low, eps_high", "1[x], #{x}"]),
        ("mean |V_old(s_k) - G| over the turns", ["A, R, G", "V, V_old, V^c", "K, n_k, s_k"]),
        ("wall time of the turn's search; of a batch its share", []),
        ("log_prob - log_prob_old", []),
    ],
)
def test_the_symbols_of_a_formula_are_defined_and_no_word_is_taken_for_one(
    formula: str, signs: list[str]
) -> None:
    said = notation(formula)
    assert [sign for sign, _ in SYMBOLS if f"{sign}: " in said] == signs
    assert (said == "") == (not signs)


def test_while_the_database_is_held_the_last_answer_is_given(runs: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(queries, "_WAIT", 0.05)
    answers = Store(runs)
    known = answers.computed("ids", ids)
    with writer(runs, 1.0) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1 AS x")
        connection.execute("CHECKPOINT")
        assert answers.computed("ids", ids) == known
        with pytest.raises(Busy):
            answers.computed("another", ids)


@pytest.mark.parametrize("name", sorted(file.stem for file in QUERIES.glob("*.sql")))
def test_every_named_query_states_its_grain_and_runs(store: Store, name: str) -> None:
    given = {
        "runs": ["a"],
        "origins": [0],
        "first": 0,
        "last": 11,
        "width": 2,
        "points": 5,
        "table": "step",
        "column": "ratio_geo" if name in ("heat", "cell") else "updates",
        "run": "a",
        "step": 3,
        "trajectory": 0,
        "turn": 1,
        "arms": [0],
        "log": False,
        "lowest": False,
        "experiment": "demo",
        "question": "who",
        "pattern": "e[0-9]",
        "around": ".{0,9}e[0-9].{0,9}",
        "steps": [3],
        "trajectories": [0],
    }
    grain, text = queries.sql(name)
    assert grain.startswith("One row")
    used = {k: v for k, v in given.items() if re.search(rf"\${k}\b", text)}
    assert len(store.query(name, **used).columns) > 0


def test_a_missing_database_is_a_sentence_that_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sorl sync"):
        Store(tmp_path).query("experiments")
    assert Store(tmp_path).state() == ()


SHAPE = Shape(steps=50, trajectories=4, turns=3, epochs=2, minibatches=3, steps_per_segment=50)
RUNS = pd.DataFrame(
    {"run_id": ["a", "b"], "seed": [0, 1], "arm": ["ppo", "st-ppo"], "collapse_step": [30.0, np.nan]}
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two runs of 50 steps with 6 updates each; `a` collapses, and has no entropy at step 3,
    NaN at step 4.
    """
    folder = tmp_path_factory.mktemp("curves")
    run = write_run(folder, "demo", "a", shape=SHAPE, collapse=30)
    for table, turns in (("step", 1), ("turn_step", SHAPE.turns)):  # of its turns the first
        file = run / "segments" / table / "000000.parquet"
        read = pq.read_table(file)
        values = read["entropy"].to_pylist()
        values[3 * turns] = None
        values[4 * turns] = math.nan
        pq.write_table(read.set_column(read.column_names.index("entropy"), "entropy", [values]), file)
    write_run(folder, "demo", "b", shape=SHAPE, seed=1)
    sync(folder)
    return Store(folder)


def raw(store: Store, sql: str) -> pd.DataFrame:
    return store.reader.query(sql)


def points(
    store: Store,
    column: str,
    window: Window,
    table: str = "step",
    axis: str = "step",
    start: Sequence[int] = (0, 0),
) -> pd.DataFrame:
    return Chosen(RUNS, axis, list(start), window).points(store, table, column)


def test_a_point_is_the_recorded_value_and_of_several_steps_their_mean_and_extremes_in_the_middle(
    store: Store,
) -> None:
    found = points(store, "success", Window(0, 49, 1))
    recorded = raw(store, "SELECT run_id, step, success FROM step ORDER BY ALL")
    assert found["x"].tolist() == recorded["step"].tolist()
    assert found["run_id"].tolist() == recorded["run_id"].tolist()
    np.testing.assert_array_equal(found[["mean", "low", "high"]], recorded[["success"] * 3])
    found = points(store, "grad_norm", Window(0, 49, 7), "minibatch")
    recorded = raw(store, "SELECT run_id, step // 7 AS bucket, grad_norm FROM minibatch")
    wanted = recorded.groupby(["run_id", "bucket"])["grad_norm"].agg(["mean", "min", "max"])
    np.testing.assert_allclose(found[["mean", "low", "high"]], wanted)
    for window, x in ((Window(0, 49, 10), [4.5, 14.5, 24.5, 34.5, 44.5]), (Window(10, 12, 1), [10, 11, 12])):
        assert points(store, "success", window)["x"].tolist() == x * 2
    two = {
        "arm": "ppo",
        "run_id": ["a", "b"],
        "run": [0, 1],
        "bucket": 0,
        "x": [10.0, 14.0],
        "mean": [1.0, 2.0],
        "low": [0.0, 1.0],
        "high": [3.0, 9.0],
    }
    row = banded(pd.DataFrame(two)).iloc[0]
    assert row[["x", "middle", "low", "high", "n"]].tolist() == [12.0, 1.5, 0.0, 9.0, 2]


def test_aligned_zero_is_the_onset_or_the_first_own_step_and_other_runs_stand_at_the_median(
    store: Store,
) -> None:
    assert [origins(RUNS, "onset"), origins(RUNS, "step")] == [[30, 30], [0, 0]]
    assert origins(RUNS.assign(collapse_step=np.nan), "onset") == [0, 0]
    several = pd.DataFrame({"collapse_step": pd.array([16, 19, None], dtype="Int64")})
    assert origins(several, "onset") == [16, 19, 18], "the median of an even number is a whole step"
    found = points(store, "success", Window(-30, 19, 1), start=(30, 20))
    recorded = raw(store, "SELECT run_id, step, success FROM step").set_index(["run_id", "step"])["success"]
    at = found[found["x"] == 0].set_index("run_id")["mean"]
    assert at.to_dict() == {"a": recorded["a", 30], "b": recorded["b", 20]}
    late = pd.DataFrame(
        {"collapse_step": [10, None, None], "onset_low": [9, 20, None], "onset_high": [11, 24, None]}
    )
    assert onset_of(late).tolist()[:2] == [10, 20], "also of a run that was falling at its end"
    assert origins(late, "onset") == [10, 20, 15], "the median of those that fell"
    assert origins(RUNS.assign(forked_at=[4.0, np.nan]), "fork") == [4, 0], "without a parent from its start"


def seeds(*lengths: int, arm: str = "ppo") -> pd.DataFrame:
    """A run for each length, whose value is its number plus a hundredth of the bucket."""
    rows = [
        (arm, run, bucket, run + bucket / 100)
        for run, length in enumerate(lengths)
        for bucket in range(length)
    ]
    found = pd.DataFrame(rows, columns=["arm", "run", "bucket", "mean"])
    return found.assign(low=found["mean"], high=found["mean"], non_finite=0, x=found["bucket"] * 1.0)


def test_the_line_of_an_arm_is_never_the_mean_of_the_runs_that_are_left() -> None:
    points = seeds(6, 6, 3)
    lines = banded(points)
    assert (lines["bucket"].tolist(), set(lines["n"])) == ([0, 1, 2], {3})
    left = lone(points, lines)
    assert sorted(zip(left["run"], left["bucket"], strict=True)) == [
        (r, b) for r in (0, 1) for b in (3, 4, 5)
    ]
    lines = banded(carried(points, [2]))
    assert (lines["bucket"].tolist(), set(lines["n"])) == ([*range(6)], {3})
    assert lines["middle"].iloc[5] == pytest.approx((0.05 + 1.05 + 2.02) / 3), "at its last value"
    assert lines["x"].tolist() == [0, 1, 2, 3, 4, 5], "where the others are"
    assert lone(carried(points, [2]), lines).empty
    assert banded(points, ["ppo"]).empty, "of an arm of which a run is missing altogether"
    assert len(lone(seeds(4, 4), banded(seeds(4, 4)))) == 8, "under three seeds they are drawn one by one"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.data())
def test_every_point_of_a_line_counts_all_its_seeds(lengths: list[int], data: st.DataObject) -> None:
    points = seeds(*lengths)
    ended = data.draw(st.sets(st.integers(0, len(lengths) - 1)))
    lines = banded(carried(points, ended))
    whole = carried(points, ended)
    shown = [length for run, length in enumerate(lengths) if run not in ended]
    assert len(lines) == min([*shown, max(lengths)])
    assert set(lines["n"]) == {len(lengths)}
    for bucket, middle in zip(lines["bucket"], lines["middle"], strict=True):
        values = [run + min(bucket, length - 1) / 100 for run, length in enumerate(lengths)]
        assert min(values) - 1e-9 <= middle <= max(values) + 1e-9
        assert sorted(whole.loc[whole["bucket"] == bucket, "mean"]) == pytest.approx(sorted(values))


def test_in_a_part_after_its_end_a_stopped_run_has_its_last_value_and_any_other_leaves_no_line(
    store: Store,
) -> None:
    told = RUNS.assign(arm="ppo", steps=[20, 50], planned=50, status="finished", detected=[12, None])
    assert stopped(told).tolist() == [True, False]
    assert not stopped(told.assign(status="running")).any()
    chosen = Chosen(told, "step", [0, 0], Window(20, 29, 1))
    recorded = raw(store, "SELECT run_id, step, success FROM step").set_index(["run_id", "step"])["success"]
    # This database has steps beyond the 20th of `a`: to the part they are as if they were not there.
    found = chosen.points(store, "step", "success").query("run_id == 'b'")
    lines = banded(*chosen.whole(store, found, "step", "success"))
    means = [(recorded["a", 19] + recorded["b", s]) / 2 for s in range(20, 30)]
    assert lines["middle"].tolist() == pytest.approx(means)
    assert banded(*chosen.whole(store, found, "step", "grad_norm_max")).empty
    late = Chosen(told, "onset", [0, 40], Window(-40, -20, 1))
    assert late.whole(store, found, "step", "grad_norm_max")[1] == ["ppo"], (
        "aligned, a run may begin after the part"
    )


def test_a_baseline_is_taken_off_at_the_same_step_and_said_in_the_unit(store: Store) -> None:
    chosen = Chosen(RUNS, "step", [0, 0], Window(0, 19, 1))
    known = dictionary(store)
    plain = panel(store, chosen, known, "step.grad_norm_max", Drawing(bands=True))
    less = panel(store, chosen, known, "step.grad_norm_max", Drawing(bands=True, baseline="st-ppo"))
    lines, differences = (p.data.set_index(["arm", "bucket"])["middle"].unstack(0) for p in (plain, less))
    np.testing.assert_allclose(differences["ppo"], lines["ppo"] - lines["st-ppo"])
    assert (differences["st-ppo"] == 0).all()
    assert (less.unit, less.marks.thresholds, less.marks.alarms) == (f"{plain.unit}, minus st-ppo", (), None)
    left = data.minus(seeds(3), banded(seeds(2)), "ppo")
    assert left["bucket"].tolist() == [0, 1], "only where the baseline has a line"
    saved = data.drawn([plain])
    assert set(saved["n"].dropna()) == {1}
    assert set(saved["run_id"].dropna()) == {"a", "b"}, "seeds that are drawn alone are saved too"


def test_only_recorded_clocks_are_offered(store: Store) -> None:
    assert [data.clocks(store, runs) for runs in (RUNS, RUNS.head(0))] == [
        ["updates", "tokens", "seconds"],
        [],
    ]


@pytest.mark.parametrize(("axis", "column"), CLOCKS.items())
def test_a_clock_counts_from_the_beginning_to_the_end_of_the_bucket(
    store: Store, axis: str, column: str
) -> None:
    found = points(store, "success", Window(20, 49, 5), axis=axis)
    total = raw(store, f"SELECT run_id, step, {column} AS value FROM step ORDER BY ALL")
    total = total.assign(value=total.groupby("run_id")["value"].cumsum())
    np.testing.assert_allclose(found["x"], total.loc[total["step"].isin(range(24, 50, 5)), "value"])


def test_null_and_nan_are_told_apart(store: Store) -> None:
    found = points(store, "entropy", Window(0, 9, 1)).query("run_id == 'a'").set_index("bucket")
    assert found.index.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert (found.loc[4, "non_finite"], math.isnan(found.loc[4, "mean"])) == (1, True)


def test_buckets_widen_with_the_number_of_lines_and_a_spike_calls_for_a_log_axis() -> None:
    assert [Window.over(0, last, 5).width for last in (99, 239, 240, 1_919, 9_999)] == [1, 1, 2, 8, 42]
    assert [Window.over(0, last, 1_000).width for last in (59, 60, 479, 480, 9_999)] == [1, 2, 8, 9, 167]
    for values, wide in (
        ([0.2, 0.3, 647.0], True),
        ([0.0, 0.3, 647.0], False),
        ([0.9, math.nan, math.inf], False),
    ):
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


def test_a_run_that_only_diverged_is_no_run_that_stayed_up(tmp_path: Path) -> None:
    for name, changes in (("fell", {"collapse_step": 6}), ("up", {}), ("gone", {"outcome": "diverged"})):
        write_status(
            write_run(tmp_path, "demo", name, shape=SMALL, collapse=6), **{"collapse_step": None} | changes
        )
    sync(tmp_path)
    assert set(Store(tmp_path).query("leads", runs=["fell", "up", "gone"])["run"]) == {0, 1}


@pytest.mark.parametrize("lowest", [False, True])
def test_peaks_keep_every_extreme_and_the_baseline_is_the_median_of_the_first_points(
    store: Store, lowest: bool
):
    values = raw(store, "SELECT grad_norm_max AS v FROM step WHERE run_id = 'a' ORDER BY step")["v"]
    found = store.query("peaks", run="a", column="grad_norm_max", first=0, width=4, lowest=lowest)
    for bucket, (step, value) in enumerate(zip(found["step"], found["value"], strict=True)):
        part = values.iloc[bucket * 4 : bucket * 4 + 4]
        assert (step, value) == ((part.idxmin(), part.min()) if lowest else (part.idxmax(), part.max()))
    starts = {n: store.query("baseline", runs=["a"], points=n, column="grad_norm_max") for n in (5, 51)}
    assert starts[5][["baseline", "ready"]].to_numpy().tolist() == [[values[:5].median(), 5]]
    assert starts[51][["baseline", "ready"]].isna().all(axis=None), "too few points for a baseline"


def test_the_ranking_is_the_mean_share_over_the_updates_of_the_step(store: Store) -> None:
    found = store.query("ranking", run="a", step=5)
    wanted = raw(
        store,
        "SELECT sum(ratio_mass_frac) / 6 AS share, max(abs(log_ratio_sum)) AS worst FROM turn "
        # 2 epochs of 3 minibatches
        "WHERE run_id = 'a' AND step = 5 GROUP BY trajectory ORDER BY trajectory",
    )
    assert found["trajectory"].tolist() == [*range(SHAPE.trajectories)]
    np.testing.assert_allclose(found[["ratio_mass", "worst_log_ratio"]].abs(), wanted)


def turns(store: Store, name: str, window: Window = Window(0, 11, 1)) -> Turns:
    measure = Measure(name, name, *dictionary(store).words(f"turn_step.{name}"))
    return Turns(RUNS.assign(arm="ppo"), "step", [0, 0], window, measure)


def cells(
    store: Store, name: str, *, extreme: bool = False, window: Window = Window(0, 11, 1)
) -> pd.DataFrame:
    return turns(store, name, window).heats(store, ["ppo"], extreme=extreme)[0].cells


def test_a_cell_of_a_ratio_is_a_geometric_mean_and_else_the_plain_mean_with_its_extremes(
    store: Store,
) -> None:
    found = cells(store, "ratio_geo").set_index(["turn_index", "bucket"])["mean"]
    means = "SELECT turn_index, step, exp(avg(ln(ratio_geo))) FROM turn_step WHERE step < 12 GROUP BY ALL"
    for turn, step, mean in store.reader.rows(means).rows:
        assert found[turn, step] == pytest.approx(mean)
    found = cells(store, "advantage", window=Window(2, 11, 4)).set_index(["turn_index", "bucket"])
    wanted = raw(
        store,
        "SELECT turn_index, (step - 2) // 4 AS bucket, avg(advantage) AS mean, min(advantage) AS low,"
        " max(advantage) AS high, sum(n_turns) AS turns FROM turn_step WHERE step BETWEEN 2 AND 11 GROUP"
        " BY ALL",
    ).set_index(["turn_index", "bucket"])
    for column in ("mean", "low", "high", "turns"):
        np.testing.assert_allclose(found[column].astype(float), wanted.loc[found.index, column].astype(float))
    assert found.loc[(1, 1), "first_step"] == 6
    one = Turns(RUNS.head(1), "step", [0], Window(0, 11, 1), turns(store, "entropy").measure)
    told = (
        one.heats(store, ["ppo"], extreme=False)[0]
        .cells.query("turn_index == 1")
        .set_index("bucket")
        .loc[[3, 4, 5]]
    )
    assert told["measured"].tolist() == [0, 1, 1], "NULL is not measured"
    assert told["non_finite"].tolist() == [0, 1, 0], "NaN is a fact"
    names = dictionary(store).names("turn_step", FIRST)
    assert names[:3] == ["ratio_geo", "ratio_arith", "ratio_prod"]
    assert set(names) == {d.name for d in CATALOGUE if d.table == "turn_step" and d.sql_type != "VARCHAR"}
    assert all(len(cells(store, name)) for name in names), "every measured column of a turn can be drawn"


def test_the_extreme_of_a_cell_is_what_lies_farthest_from_neutral(store: Store) -> None:
    for name, size in (("ratio_geo", lambda v: abs(math.log(v))), ("advantage", abs)):
        found = cells(store, name, extreme=True, window=Window(0, 11, 12))
        for value, low, high in found[["value", "low", "high"]].itertuples(index=False, name=None):
            assert size(value) == max(size(low), size(high))


def test_the_trajectories_of_a_cell_are_those_of_its_steps_most_extreme_first(store: Store) -> None:
    found = turns(store, "ratio_geo", Window(0, 11, 3)).trajectories(store, Cell("ppo", 3, 2), "ratio_geo")
    assert found[0]["total"] == 2 * 3 * SHAPE.trajectories  # runs x steps x trajectories: the last epoch only
    assert {row["step"] for row in found} <= {3, 4, 5}
    assert {row["epoch"] for row in found} == {SHAPE.epochs - 1}
    ordered = [(row["kept"], abs(math.log(row["value"]))) for row in found]
    assert ordered == sorted(ordered, reverse=True), "those with tokens first"
    where = "turn_index = 2 AND epoch = 1 AND step BETWEEN 3 AND 5"
    best = raw(store, f"SELECT max(abs(ln(ratio_geo))) AS m FROM turn WHERE {where}")
    assert max(size for _, size in ordered) == pytest.approx(best["m"].item())


def test_a_listed_trajectory_has_every_column_an_address_and_says_if_its_tokens_were_kept(
    store: Store,
) -> None:
    known = dictionary(store)
    for name in ("ratio_geo", "clip_frac", "entropy"):
        found = turns(store, name).trajectories(store, Cell("ppo", 4, 1), name)
        header, rows = listed(found, "demo", name, known)
        assert all(len(row) == len(header) for row in rows)
        assert not [text for text, tip in header if "_" in text or "no unit" in tip]
        assert {(row["run_id"], row["trajectory"]) for row in found if row["kept"]} == {("a", 0), ("b", 0)}
        screen, query = Read(rows[0][0]).values("href")[0].split("?")
        assert screen == "episode"
        assert set(parse_qs(query)) == {"experiment", "run", "step", "trajectory", "rank", "epoch"}

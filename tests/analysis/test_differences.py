"""What differs between the runs that fell and the others: counted by hand, and silent where runs are few."""

import math
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats as scipy_stats

from sorl.analysis.differences import (
    Before,
    Groups,
    column_effects,
    comparable_columns,
    measured_before,
    setting_shares,
    split,
    steps_before,
)
from sorl.analysis.stats import chance_higher
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.store.fixture import Shape, write_run

FALLEN = ["a", "b", "c", "d"]
STANDING = ["e", "f", "g"]
GROUPS = Groups(FALLEN, STANDING)


def settings_of(**columns: str) -> pd.DataFrame:
    """A row a run; a column is a letter a run."""
    return pd.DataFrame({name: list(values) for name, values in columns.items()}, index=FALLEN + STANDING)


def measured(**columns: list[float]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"run_id": FALLEN + STANDING, "name": name, "mean": values, "broken": 0})
        for name, values in columns.items()
    ]
    return pd.concat(parts, ignore_index=True).astype({"mean": float})


def test_runs_are_divided_by_whether_they_have_an_onset() -> None:
    assert split(["a", "b", "c"], [3.0, math.nan, 0.0]) == Groups(["a", "c"], ["b"])


def test_two_runs_that_fell_are_not_enough() -> None:
    assert GROUPS.are_enough
    assert not Groups(["a", "b"], STANDING).are_enough
    assert not Groups(FALLEN, ["e", "f"]).are_enough


def test_a_value_is_counted_in_either_group_and_tested_exactly() -> None:
    shares = setting_shares(settings_of(lr="xxxxyyy"), GROUPS)
    (share,) = shares
    assert (share.setting, share.value, share.fallen, share.standing) == ("lr", "x", 4, 0)
    assert share.p == pytest.approx(1 / math.comb(7, 4))
    assert share.corrected == share.p, "it is the only test"


def test_settings_that_divide_the_runs_alike_are_one_test() -> None:
    (share,) = setting_shares(settings_of(lr="xxxxyyy", depth="uuuuvvv"), GROUPS)
    assert share.same == ("depth = u",)


def test_a_setting_that_all_runs_share_and_the_seed_are_no_difference() -> None:
    assert setting_shares(settings_of(lr="xxxxxxx", seed="1234567"), GROUPS) == []


def test_many_values_are_corrected_for_their_number() -> None:
    shares = setting_shares(settings_of(lr="xxxxyyy", depth="uvuvuvu", width="pqrpqrp"), GROUPS)
    assert shares[0].setting == "lr"
    assert shares[0].corrected == pytest.approx(len(shares) * shares[0].p)


def test_a_column_that_separates_the_groups_comes_first_with_its_chance() -> None:
    effects = column_effects(measured(noise=[1, 5, 2, 6, 3, 4, 7], sure=[5, 6, 7, 8, 1, 2, 3]), GROUPS)
    assert [effect.column for effect in effects] == ["sure", "noise"]
    assert effects[0].higher.value == 1.0
    assert effects[0].higher.p == pytest.approx(2 / math.comb(7, 3))
    assert effects[0].corrected == pytest.approx(4 / math.comb(7, 3))


def test_a_column_with_too_few_values_or_one_value_is_left_out() -> None:
    nan = math.nan
    rows = measured(few=[1, 2, nan, nan, 3, 4, 5], constant=[1.0] * 7)
    assert column_effects(rows, GROUPS) == []


def test_nan_in_a_run_is_counted_and_not_averaged_away() -> None:
    rows = measured(kl=[5, 6, 7, 8, 1, 2, 3])
    rows.loc[0, ["mean", "broken"]] = [math.nan, 2]
    (effect,) = column_effects(rows, GROUPS)
    assert (effect.fallen, effect.standing, effect.broken) == (3, 3, 1)


def test_the_steps_are_the_ten_before_the_median_onset() -> None:
    assert steps_before([20.0, math.nan, 30.0, 25.0]) == Before(15, 24)
    assert steps_before([4.0]) == Before(0, 3)
    assert steps_before([0.0]).last < steps_before([0.0]).first


def test_no_run_counts_from_its_own_onset_on(tmp_path: Path) -> None:
    shape = Shape(steps=30, trajectories=2, turns=2, epochs=1, steps_per_segment=30)
    for name in "ab":
        write_run(tmp_path, "demo", name, shape=shape, seed=ord(name))
    sync(tmp_path)
    reader = Reader(tmp_path)
    found = measured_before(reader, {"a": 14.0, "b": math.nan}, Before(10, 19), ["entropy", "no_column"])
    means = found.set_index("run_id")["mean"]
    for run, last in (("a", 13), ("b", 19)):
        wanted = reader.query(
            "SELECT avg(entropy) AS m FROM step WHERE run_id = ? AND step BETWEEN 10 AND ?", [run, last]
        )
        assert means[run] == pytest.approx(wanted["m"].item())
    assert set(found["name"]) == {"entropy"}


def test_clocks_and_fingerprints_are_not_compared() -> None:
    def row(name: str, unit: str = "norm", table: str = "step", kind: str = "DOUBLE") -> dict[str, object]:
        return {"name": name, "unit": unit, "table_name": table, "sql_type": kind}

    rows = [
        row("grad_norm_max"),
        row("seconds_total", "seconds"),
        row("updates"),
        row("tokens_trained"),
        row("batch_hash"),
        row("kl", table="minibatch"),
        row("verdict", kind="VARCHAR"),
    ]
    assert comparable_columns(rows) == ["grad_norm_max"]


@pytest.mark.parametrize(
    ("first", "second", "chance"),
    [([4, 5, 6], [1, 2, 3], 1.0), ([1, 2, 3], [4, 5, 6], 0.0), ([1, 2], [1, 2], 0.5)],
)
def test_the_chance_of_a_higher_value_counts_pairs_and_lies_in_its_interval(
    first: list[float], second: list[float], chance: float
) -> None:
    found = chance_higher(first, second)
    assert found.value == chance
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= chance <= found.high <= 1
    assert found.high - found.low > 0.2, "few values say little"
    assert found.p == pytest.approx(scipy_stats.mannwhitneyu(first, second).pvalue)


def test_the_interval_of_a_chance_is_newcombes_method_five() -> None:
    found = chance_higher([*range(10, 20)], [*range(5, 15)])
    z = scipy_stats.norm.ppf(0.975)
    for end in (found.low, found.high):
        assert end is not None
        spread = 1 + 9 * ((1 - end) / (2 - end) + end / (1 + end))
        assert abs((found.value or 0) - end) == pytest.approx(z * math.sqrt(end * (1 - end) * spread / 100))

"""The test within strata: right by enumeration, blind to what strata differ in, and honest about groups."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from sorl.analysis.strata import shift


def frame(seed, steps=20, groups=6, rollouts=4):
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame({"step": np.repeat(np.arange(steps), groups * rollouts)})
    rows["group"] = np.tile(np.arange(groups).repeat(rollouts), steps)
    hardness = draw.normal(size=steps * groups).repeat(rollouts)
    rows["value"] = hardness + draw.normal(size=len(rows))
    rows["chance"] = draw.uniform(size=len(rows))
    rows["group_chance"] = draw.uniform(size=steps * groups).repeat(rollouts)
    return rows


def shifted(rows, chosen):
    return shift(rows["value"], chosen, rows["step"], rows["group"])


def test_the_statistic_is_that_of_all_permutations_of_a_stratum():
    values = pd.Series([3.0, 1.0, 4.0, 1.5, 9.0])
    chosen = pd.Series([True, False, False, False, True])
    found = shift(values, chosen, pd.Series(0, values.index), pd.Series(0, values.index))
    ranks = values.rank().to_numpy()
    sums = np.array([ranks[list(pair)].sum() for pair in combinations(range(5), 2)])
    assert found.z == pytest.approx((ranks[[0, 4]].sum() - sums.mean()) / sums.std())
    assert (found.chosen, found.others, found.chosen_units) == (6.0, pytest.approx(6.5 / 3), 2)


def test_rows_that_were_chosen_by_chance_are_found_different_as_often_as_the_level_says():
    found = [shifted(rows, rows["chance"] < 0.3).p for rows in map(frame, range(300))]
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.09


def test_whole_groups_count_once_so_that_hard_prompts_make_no_false_alarm():
    found = [shifted(rows, rows["group_chance"] < 0.3).p for rows in map(frame, range(300))]
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.09


def test_rows_are_compared_with_their_own_group_where_groups_were_split():
    rows = frame(0)
    hardest = rows.groupby(["step", "group"])["value"].transform("mean") > 0.5
    # of hard prompts most rows are chosen, but which of them is chance
    chosen = rows["chance"] < np.where(hardest, 0.7, 0.1)
    assert shifted(rows, chosen).p > 0.01
    assert shifted(rows, rows["chance"] - 0.2 * rows["value"] < 0.3).p < 1e-6


def test_nothing_is_said_where_no_stratum_has_both_or_all_values_are_equal():
    rows = frame(0)
    assert shifted(rows, pd.Series(True, rows.index)) is None
    assert shifted(rows.assign(value=1.0), rows["chance"] < 0.3) is None

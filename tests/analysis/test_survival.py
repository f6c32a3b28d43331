"""Survival curves, tests and hazard ratios: figures that R prints of published data, closed forms and
properties.
"""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.analysis import survival
from sorl.analysis.stats import Estimate
from tests.analysis.published import AML, FELL, STOOD, TIED, lung, rows

HEALTHY = {
    "run_id": "r",
    "arm": "ppo",
    "seed": 0,
    "outcome": "healthy",
    "collapse_step": None,
    "onset_low": None,
    "detected": None,
    "steps": 36,
}


@pytest.mark.parametrize(
    ("changes", "time", "event"),
    [
        ({}, 36, False),  # a run of 36 steps that stayed up is censored at 36
        # at the onset, not where it stopped
        ({"outcome": "collapsed", "collapse_step": 12, "steps": 20}, 12, True),
        ({"outcome": "diverged", "steps": 9}, 8, True),  # its last step, counted from 0
        ({"outcome": "diverged", "collapse_step": 3, "steps": 9}, 3, True),  # it had fallen before it broke
        ({"outcome": None, "steps": 7}, 7, False),  # too short to be judged, interrupted or failed
        ({"outcome": "no_learning"}, 36, False),
        ({"outcome": "falling", "onset_low": 30}, 30, False),  # neither an event nor a survivor
        ({"outcome": "recovered", "collapse_step": 12, "onset_low": 11}, 12, True),
        ({"outcome": "mild"}, 36, False),
        # in training, the onset is not in its row yet
        ({"outcome": None, "detected": 15, "steps": 16}, 15, True),
        ({"outcome": "diverged", "steps": 0}, 0, True),
        ({"outcome": None, "steps": 0}, None, False),  # never began: not watched
        ({"outcome": None, "steps": None}, None, False),
    ],
)
def test_a_run_is_an_event_at_its_onset_or_censored_where_it_ends(changes, time, event):
    seen = survival.observed(pd.DataFrame([HEALTHY | changes]))
    assert seen[["time", "event"]].to_numpy().tolist() == ([] if time is None else [[time, event]])


def test_collapses_are_counted_with_those_that_recovered() -> None:
    fell = {"outcome": "collapsed", "collapse_step": 12}
    runs = [HEALTHY, HEALTHY | fell, HEALTHY | fell, HEALTHY | fell | {"outcome": "recovered"}]
    assert (
        survival.collapses(survival.observed(pd.DataFrame(runs))) == "3 of 4 collapsed, 1 of them recovered"
    )
    assert survival.collapses(survival.observed(pd.DataFrame(runs[:3]))) == "2 of 3 collapsed"


def test_the_curve_is_the_one_that_r_prints_for_the_leukaemia_data() -> None:
    drawn = survival.curve(AML)
    maintained = drawn[(drawn["arm"] == "Maintained") & (drawn["events"] > 0)]
    assert maintained["time"].tolist() == [9, 13, 18, 23, 31, 34, 48]
    assert maintained["at_risk"].tolist() == [11, 10, 8, 7, 5, 4, 2]
    assert maintained["survival"].tolist() == pytest.approx(
        [0.909, 0.818, 0.716, 0.614, 0.491, 0.368, 0.184], abs=5e-4
    )
    # The censored run at 13 was still at risk when another collapsed at 13: 10 / 11 * 9 / 10.
    assert maintained["survival"].iloc[1] == pytest.approx(9 / 11, abs=1e-12)
    last = drawn[drawn["arm"] == "Nonmaintained"].iloc[-1]
    assert (last["time"], last["survival"]) == (45, 0)
    assert np.isnan(last["high"]), "R has no interval there either"


def test_the_median_and_the_restricted_mean_with_its_error_are_those_that_r_prints() -> None:
    by = {
        arm: survival.median_time(group).value for data in (AML, lung()) for arm, group in data.groupby("arm")
    }
    assert by == {"Maintained": 31, "Nonmaintained": 23, "male": 270, "female": 426}
    # summary(survfit(Surv(time, status) ~ sex, lung))$table, common upper limit 1022 days
    for arm, mean, error in (("male", 326.0841, 22.91156), ("female", 460.6473, 34.68985)):
        found, variance, _ = survival.restricted_mean(lung()[lung()["arm"] == arm], 1022)
        assert (found, variance**0.5) == (pytest.approx(mean, abs=5e-5), pytest.approx(error, abs=5e-6))
    # S: 1 to step 2, 2/3 to 6 (one censored at 4), then 0 of one run left: 2 + 4 * 2/3.
    three = rows("a", [2, 4, 6], [1, 0, 1])
    # After the last collapse no area is left.
    assert survival.restricted_mean(three, 10)[:2] == pytest.approx((2 + 8 / 3, (8 / 3) ** 2 / (3 * 2)))
    assert survival.restricted_mean(three, 5)[0] == pytest.approx(2 + 2)


def test_what_seeds_cannot_tell_has_no_interval_and_an_interval_stays_within_what_is_possible() -> None:
    arms = {"up": ([36, 36], [0, 0]), "down": ([9, 9], [1, 1]), "wide": ([1, 35, 36], [1, 1, 0])}
    frame = survival.by_arm(pd.concat([rows(arm, *runs) for arm, runs in arms.items()])).set_index("arm")
    assert frame["horizon"].tolist() == [36] * 3
    assert frame["rmst"].tolist() == pytest.approx([36, 9, 24])
    assert frame[["rmst_low", "rmst_high"]].isna().all(axis=1).tolist() == [True, True, False]
    assert 0 <= frame.loc["wide", "rmst_low"] <= 24 <= 36 == frame.loc["wide", "rmst_high"]
    assert pd.isna(frame.loc["up", "median"])
    # Five collapses of five: the probability that all fall on one side of the median is 2 / 32, more than 5
    # %.
    assert survival.median_time(rows("a", [1, 2, 3, 4, 5], [1] * 5)).high is None


def test_the_difference_of_restricted_means_has_welchs_interval() -> None:
    difference, horizon = survival.restricted_mean_difference(AML, "Nonmaintained")
    arms = [
        survival.restricted_mean(AML.query("arm == @arm"), 161) for arm in ("Maintained", "Nonmaintained")
    ]
    gap = arms[0].mean - arms[1].mean
    variances = [arm.variance * arm.runs / (arm.runs - 1) for arm in arms]
    degrees = sum(variances) ** 2 / sum(v**2 / (arm.runs - 1) for v, arm in zip(variances, arms, strict=True))
    half = scipy.stats.t.ppf(0.975, degrees) * math.sqrt(sum(variances))
    assert horizon == 161
    assert (difference.value, difference.low, difference.high) == pytest.approx((gap, gap - half, gap + half))


def test_without_censoring_the_interval_of_the_difference_is_that_of_welchs_t_test() -> None:
    times = {"a": [3, 9, 14, 20, 31], "b": [12, 25, 28, 33, 35, 36]}
    rows = pd.concat(pd.DataFrame({"arm": arm, "time": t, "event": True}) for arm, t in times.items())
    difference, _ = survival.restricted_mean_difference(rows, "a")
    welch = scipy.stats.ttest_ind(times["b"], times["a"], equal_var=False).confidence_interval()
    assert (difference.low, difference.high) == pytest.approx((welch.low, welch.high))


def test_the_common_horizon_is_the_shortest_of_the_arms_that_did_not_all_fall() -> None:
    fell = rows("a", [10, 20], [1, 1])
    up = rows("b", [36, 40], [0, 0])
    short = rows("c", [5, 30], [1, 0])
    assert survival.common_horizon(pd.concat([fell, up])) == 40, (
        "a curve that has ended at 0 is known for ever"
    )
    assert survival.common_horizon(pd.concat([fell, up, short])) == 30
    assert survival.common_horizon(fell) == 20
    assert survival.common_horizon(rows("a", [20, 20], [1, 0])) == 20
    assert survival.common_horizon(fell.iloc[:0]) is None


@pytest.mark.parametrize(
    ("data", "chi2", "degrees", "p"),
    [
        (AML, 3.396389, 1, 0.065339),
        (lung(), 10.326741954885632, 1, None),
        (lung("ph.ecog"), 21.962131682476, 3, None),
        # difftest.R: an arm that no collapse finds at risk changes nothing, chi-squared 3.4 on 1 degree of
        # freedom.
        (pd.concat([rows("Dummy", [1, 2, 2, 3, 3, 3, 4], [0] * 7), AML]), 3.396389, 1, 0.065339),
    ],
)
def test_the_log_rank_test_is_the_one_that_r_prints(
    data: pd.DataFrame, chi2: float, degrees: int, p: float
) -> None:
    found = survival.logrank(data)
    assert (found.chi2, found.degrees) == (pytest.approx(chi2, rel=3e-7), degrees)
    assert p is None or found.p == pytest.approx(p, abs=1e-6)


def test_the_hazard_ratio_is_the_one_that_r_prints() -> None:
    found, _ = survival.hazard_ratio(AML, "Maintained")
    assert math.log(found.value or 0) == pytest.approx(0.9155326, abs=5e-8)
    # exp(coef) and the standard error of coef: 2.4981, 0.5119
    assert found.value == pytest.approx(2.4981, abs=5e-5)
    assert found.low is not None
    assert found.high is not None
    standard_error = math.log(found.high / found.low) / (2 * 1.959964)
    assert standard_error == pytest.approx(0.5119, abs=5e-5)
    by_sex, _ = survival.hazard_ratio(lung(), "male")
    assert (by_sex.value, by_sex.low, by_sex.high) == pytest.approx((0.5880, 0.4237, 0.8160), abs=5e-5)


def test_the_hazard_ratio_with_ties_is_the_solution_in_closed_form() -> None:
    # Efron's score is 30 + 23 r - r^3 = 0 with r the hazard ratio (Therneau and Grambsch, appendix).
    ratio = math.cos(math.acos((45 / 23) * math.sqrt(3 / 23)) / 3) * 2 * math.sqrt(23 / 3)
    information = sum(share - share**2 for share in (ratio / (ratio + k) for k in (1, 5, 3)))
    half = 1.959964 / math.sqrt(information)
    found, _ = survival.hazard_ratio(TIED, "x=0")
    assert found.value == pytest.approx(ratio, rel=1e-8)
    assert (found.low, found.high) == pytest.approx(
        (ratio * math.exp(-half), ratio * math.exp(half)), rel=1e-6
    )


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (FELL, STOOD, "no collapse in st-ppo"),
        (
            FELL,
            rows("st-ppo", [25, 30, 36], [1, 1, 0]),
            "no collapse in st-ppo while the other arm was at risk",
        ),
        (FELL, rows("st-ppo", [3, 4, 5], [1, 1, 1]), "no collapse in ppo while the other arm was at risk"),
        (FELL, rows("st-ppo", [], []), "no run to compare"),
        (rows("ppo", [36, 36], [0, 0]), STOOD, "no collapse in st-ppo and ppo"),
    ],
)
def test_a_hazard_ratio_whose_likelihood_has_no_maximum_is_not_given(one, other, reason: str) -> None:
    assert survival.hazard_ratio(pd.concat([one, other]), "ppo") == (Estimate(None), reason)


def test_the_permutations_are_all_that_there_are_and_without_a_collapse_there_is_nothing_to_test() -> None:
    none = pd.concat([STOOD, rows("ppo", [36, 36], [0, 0])])
    assert (survival.logrank(none), survival.permuted_logrank(none, "ppo")) == (None, None)
    # Five against none of five is the most extreme of all labellings.
    assert survival.permuted_logrank(pd.concat([FELL, STOOD]), "ppo") == pytest.approx(2 / math.comb(10, 5))
    few = pd.concat(
        [rows("a", [4, 9, 9], [1, 1, 0]), rows("b", [6, 9, 15, 20], [1, 1, 0, 1])], ignore_index=True
    )

    def distance(mine: tuple[int, ...]) -> float:  # |O - E| of the arm, summed over the collapses one by one
        inside = np.isin(np.arange(len(few)), mine)
        total = 0.0
        for at in sorted(set(few.loc[few["event"], "time"])):
            risk = few["time"] >= at
            died = (few["time"] == at) & few["event"]
            total += (died & inside).sum() - died.sum() * (risk & inside).sum() / risk.sum()
        return abs(total)

    every = [distance(labels) >= distance((0, 1, 2)) - 1e-9 for labels in itertools.combinations(range(7), 3)]
    assert survival.permuted_logrank(few, "a") == pytest.approx(np.mean(every))


def test_many_runs_are_permuted_at_random_and_agree_with_the_approximation() -> None:
    # 22 runs against 20 have 5e11 labellings; at such numbers the chi-squared distribution is a good
    # approximation.
    many = pd.concat([AML, AML.assign(time=AML["time"] + 1)]).iloc[:42]
    exact = survival.permuted_logrank(many, "Maintained")
    approximate = survival.logrank(many)
    assert exact == pytest.approx(approximate.p, abs=0.005)
    assert exact == survival.permuted_logrank(many, "Maintained"), "the same runs give the same figure"


watched = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=12)
few_watched = st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=6)


def pair(one: list[tuple[int, bool]], two: list[tuple[int, bool]]) -> pd.DataFrame:
    return pd.concat([rows(arm, *zip(*runs, strict=True)) for arm, runs in (("a", one), ("b", two))])


@settings(max_examples=15)
@given(few_watched, few_watched)
def test_the_reference_only_inverts_a_hazard_ratio_and_changes_no_test(one: list, two: list) -> None:
    both = pair(one, two)
    found, reason = survival.hazard_ratio(both, "a")
    turned, _ = survival.hazard_ratio(both, "b")
    if found.value is None:
        assert reason
        assert turned.value is None
    else:
        assert 1e-3 < found.low < found.value < found.high < 1e6  # type: ignore[operator]
        assert found.value * turned.value == pytest.approx(1, rel=1e-5)  # type: ignore[operator]
    if test := survival.logrank(both):
        assert 0 <= test.p <= 1
        assert survival.permuted_logrank(both, "a") == pytest.approx(survival.permuted_logrank(both, "b"))
        assert survival.logrank(both.iloc[::-1]) == pytest.approx(test, abs=1e-9)


@settings(max_examples=12)
@given(watched, watched, st.randoms())
def test_the_order_of_seeds_does_not_matter(one: list, two: list, random) -> None:
    mixed = pair(*(random.sample(runs, len(runs)) for runs in (one, two)))
    pd.testing.assert_frame_equal(survival.by_arm(pair(one, two)), survival.by_arm(mixed))


@settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 41))
def test_without_censoring_the_curve_is_the_share_of_runs_still_up(times: list[int], at: int) -> None:
    runs = rows("a", times, [1] * len(times))
    assert survival.survival_at(runs, at) == pytest.approx(np.mean([t > at for t in times]), abs=1e-12)
    assert survival.restricted_mean(runs, 41)[0] == pytest.approx(np.mean(times), abs=1e-9)
    assert survival.median_time(runs).value == sorted(times)[(len(times) + 1) // 2 - 1]

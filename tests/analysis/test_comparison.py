from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.published import AML, TIED, lung, lung_by_ecog, rows
from workbench.analysis.comparison import (
    against,
    hazard_ratio,
    logrank,
    permuted_logrank,
    restricted_mean_difference,
)
from workbench.analysis.survival import restricted_mean

FELL = rows("ppo", [10, 12, 14, 16, 20], [1] * 5)
STOOD = rows("st-ppo", [36] * 5, [0] * 5)


def counts(**arms: tuple[int, int]) -> pd.DataFrame:
    return pd.DataFrame([{"arm": arm, "collapsed": k, "judged": n} for arm, (k, n) in arms.items()])


def test_the_log_rank_test_is_the_one_that_r_prints() -> None:
    two = logrank(AML)
    assert two is not None
    assert two.chi2 == pytest.approx(3.396389, abs=1e-6)
    assert two.p == pytest.approx(0.065339, abs=1e-6)
    by_sex = logrank(lung())
    assert by_sex is not None
    assert by_sex.chi2 == pytest.approx(10.326741954885632, rel=1e-9)


def test_the_log_rank_test_of_four_arms_is_the_one_that_r_prints() -> None:
    four = logrank(lung_by_ecog())
    assert four is not None
    assert four.chi2 == pytest.approx(21.962131682476, rel=1e-9)
    assert four.degrees == 3


def test_an_arm_that_no_collapse_finds_at_risk_changes_nothing_as_in_r() -> None:
    dummy = rows("Dummy", [1, 2, 2, 3, 3, 3, 4], [0] * 7)  # difftest.R: chi-squared 3.4 on 1 degree of freedom still
    three = logrank(pd.concat([dummy, AML]))
    assert three == logrank(AML)
    assert three is not None
    assert three.degrees == 1


def test_the_hazard_ratio_is_the_one_that_r_prints() -> None:
    found = hazard_ratio(AML, "Maintained").ratio
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert math.log(found.value) == pytest.approx(0.9155326, abs=5e-8)
    # exp(coef) and the standard error of coef: 2.4981, 0.5119
    assert found.value == pytest.approx(2.4981, abs=5e-5)
    assert math.log(found.high / found.low) / (2 * 1.959964) == pytest.approx(0.5119, abs=5e-5)
    by_sex = hazard_ratio(lung(), "male").ratio
    assert (by_sex.value, by_sex.low, by_sex.high) == pytest.approx((0.5880, 0.4237, 0.8160), abs=5e-5)


def test_the_hazard_ratio_with_ties_is_the_solution_in_closed_form() -> None:
    # Efron's score is 30 + 23 r - r^3 = 0 with r the hazard ratio (Therneau and Grambsch, appendix).
    ratio = math.cos(math.acos((45 / 23) * math.sqrt(3 / 23)) / 3) * 2 * math.sqrt(23 / 3)
    information = sum(share - share**2 for share in (ratio / (ratio + k) for k in (1, 5, 3)))
    half = 1.959964 / math.sqrt(information)
    found = hazard_ratio(TIED, "x=0").ratio
    assert found.value == pytest.approx(ratio, rel=1e-8)
    assert found.low == pytest.approx(ratio * math.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(ratio * math.exp(half), rel=1e-6)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (STOOD, "no collapse in st-ppo"),
        (rows("st-ppo", [25, 30, 36], [1, 1, 0]), "no collapse in st-ppo while the other arm was at risk"),
        (rows("st-ppo", [3, 4, 5], [1, 1, 1]), "no collapse in ppo while the other arm was at risk"),
        (rows("st-ppo", [], []), "no run to compare"),
    ],
)
def test_a_hazard_ratio_whose_likelihood_has_no_maximum_is_not_given(other: pd.DataFrame, reason: str) -> None:
    found = hazard_ratio(pd.concat([FELL, other]), "ppo")
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (None, None, None)
    assert found.reason == reason


def test_without_a_collapse_there_is_nothing_to_test() -> None:
    both = pd.concat([STOOD, rows("ppo", [36, 36], [0, 0])])
    assert logrank(both) is None
    assert permuted_logrank(both, "ppo") is None
    assert hazard_ratio(both, "ppo").reason == "no collapse in st-ppo and ppo"


def test_five_against_none_of_five_is_the_most_extreme_of_all_labellings() -> None:
    assert permuted_logrank(pd.concat([FELL, STOOD]), "ppo") == pytest.approx(2 / math.comb(10, 5))


def test_the_permutations_are_all_that_there_are() -> None:
    few = pd.concat([rows("a", [4, 9, 9], [1, 1, 0]), rows("b", [6, 9, 15, 20], [1, 1, 0, 1])], ignore_index=True)
    whole = np.arange(len(few))

    def distance(mine: tuple[int, ...]) -> float:  # |O - E| of the arm, summed over the collapses one by one
        inside = np.isin(whole, mine)
        total = 0.0
        for at in sorted(set(few.loc[few["event"], "time"])):
            risk, died = few["time"] >= at, (few["time"] == at) & few["event"]
            total += (died & inside).sum() - died.sum() * (risk & inside).sum() / risk.sum()
        return abs(total)

    seen = distance((0, 1, 2))
    every = [distance(labels) for labels in itertools.combinations(range(7), 3)]
    assert permuted_logrank(few, "a") == pytest.approx(np.mean([d >= seen - 1e-9 for d in every]))


def test_many_runs_are_permuted_at_random_and_agree_with_the_approximation() -> None:
    # 22 runs against 20 have 5e11 labellings; at such numbers the chi-squared distribution is a good approximation.
    many = pd.concat([AML, AML.assign(time=AML["time"] + 1)]).iloc[:42]
    exact, approximate = permuted_logrank(many, "Maintained"), logrank(many)
    assert exact is not None
    assert approximate is not None
    assert exact == pytest.approx(approximate.p, abs=0.005)
    assert exact == permuted_logrank(many, "Maintained"), "the same runs give the same figure"


def test_the_difference_of_restricted_means_adds_the_variances() -> None:
    difference, horizon = restricted_mean_difference(AML, "Nonmaintained")
    parts = [restricted_mean(AML.query("arm == @arm"), 161) for arm in ("Maintained", "Nonmaintained")]
    assert horizon == 161
    assert difference.value == pytest.approx(parts[0][0] - parts[1][0])
    half = 1.959964 * math.sqrt(parts[0][1] + parts[1][1])
    assert (difference.low, difference.high) == pytest.approx((difference.value - half, difference.value + half))


def test_arms_are_compared_with_the_reference_and_corrected_for_how_many_they_are() -> None:
    third = rows("grpo", [11, 30, 36, 36, 36], [1, 1, 0, 0, 0])
    frame = against(
        counts(ppo=(5, 5), **{"st-ppo": (0, 5)}, grpo=(2, 5)), pd.concat([FELL, STOOD, third]), "ppo"
    ).set_index("arm")
    assert list(frame.index) == ["st-ppo", "grpo"]
    assert frame.loc["st-ppo", "fisher_p"] == pytest.approx(2 / 252)
    assert frame.loc["st-ppo", "fisher_holm"] == pytest.approx(4 / 252)  # the smaller of two is doubled
    assert frame.loc["grpo", "fisher_holm"] == frame.loc["grpo", "fisher_p"]
    assert frame.loc["st-ppo", "rmst_difference"] == pytest.approx(36 - 14.4)
    assert frame.loc["st-ppo", "hazard_ratio_reason"] == "no collapse in st-ppo"
    assert frame.loc["grpo", "hazard_ratio"] < 1
    assert not frame["undecidable"].any()


def test_three_seeds_against_three_are_undecidable_whatever_they_did() -> None:
    three = pd.concat([FELL.iloc[:3], STOOD.iloc[:3]])
    row = against(counts(ppo=(3, 3), **{"st-ppo": (0, 3)}), three, "ppo").iloc[0]
    assert row["smallest_p"] == pytest.approx(0.1)
    assert row["permuted_p"] == pytest.approx(0.1)
    assert row["logrank_p"] < 0.05, "what the approximation says is not possible with six runs"
    assert row["undecidable"]


def test_the_correction_can_make_undecidable_what_one_comparison_would_decide() -> None:
    four = {name: rows(name, [36] * 4, [0] * 4) for name in ("a", "b", "c")}
    runs = pd.concat([FELL.iloc[:4], *four.values()])
    alone = against(counts(ppo=(4, 4), a=(0, 4)), runs, "ppo")
    assert alone["smallest_p"].tolist() == pytest.approx([2 / 70])
    assert not alone["undecidable"].any()
    assert against(counts(ppo=(4, 4), a=(0, 4), b=(0, 4), c=(0, 4)), runs, "ppo")["undecidable"].all()


def test_an_arm_whose_runs_are_not_judged_is_compared_by_its_curve_only() -> None:
    row = against(counts(ppo=(5, 5), **{"st-ppo": (None, 0)}), pd.concat([FELL, STOOD]), "ppo").iloc[0]
    assert row["fisher_p"] is None
    assert row["fisher_holm"] is None
    assert row["permuted_p"] == pytest.approx(2 / 252)


watched = st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=15)
@given(watched, watched)
def test_a_hazard_ratio_is_finite_or_refused_and_the_reference_only_inverts_it(
    one: list[tuple[int, bool]], two: list[tuple[int, bool]]
) -> None:
    both = pd.concat([rows(arm, *zip(*runs, strict=True)) for arm, runs in (("a", one), ("b", two))])
    found, turned = hazard_ratio(both, "a"), hazard_ratio(both, "b")
    if found.ratio.value is None:
        assert found.reason
        assert turned.ratio.value is None
        return
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert turned.ratio.value is not None
    assert 1e-3 < found.ratio.value < 1e3
    assert found.ratio.low < found.ratio.value < found.ratio.high
    assert found.ratio.value * turned.ratio.value == pytest.approx(1, rel=1e-5)


@settings(max_examples=15)
@given(watched, watched)
def test_the_tests_do_not_care_which_arm_is_the_reference(
    one: list[tuple[int, bool]], two: list[tuple[int, bool]]
) -> None:
    both = pd.concat([rows(arm, *zip(*runs, strict=True)) for arm, runs in (("a", one), ("b", two))])
    test = logrank(both)
    if test is None:
        return
    assert 0 <= test.p <= 1
    assert permuted_logrank(both, "a") == pytest.approx(permuted_logrank(both, "b"))
    turned = logrank(both.iloc[::-1])
    assert turned is not None
    assert turned.chi2 == pytest.approx(test.chi2, abs=1e-9)

"""The comparison of arms: figures that R prints of published data, and what the tables say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.published import AML, TIED, lung, lung_by_ecog, rows
from workbench.analysis.compare import (
    against,
    against_reference,
    answer,
    by_algorithm,
    figures,
    hazard_ratio,
    logrank,
    mean_interval,
    over_conditions,
    permuted_logrank,
    readable,
    reading,
    restricted_mean_difference,
    summarise,
    time_to_collapse,
)
from workbench.analysis.survival import restricted_mean
from workbench.spec import LearnSettings, RunSettings

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


def runs(arm: str, *onsets: int | None, steps: int = 36, **columns: Any) -> pd.DataFrame:
    """Finished runs of one arm, collapsed at the given steps or up to the end."""
    return pd.DataFrame(
        [
            {
                "run_id": f"{arm}-{seed}", "arm": arm, "algorithm": arm, "seed": seed, "status": "finished",
                "outcome": "healthy" if onset is None else "collapsed", "collapse_step": onset, "onset_low": onset,
                "detected": None, "steps": steps,
                "planned": 36, "peak_success": 0.7, "final_success": 0.6, "clip_frac": 0.02,
                "grad_norm_median": 1.0, "grad_norm_max": 2.0, "config": None,
            } | columns
            for seed, onset in enumerate(onsets)
        ]
    ).astype({"collapse_step": float, "onset_low": float})  # fmt: skip


FIVE_FELL = runs("ppo", 10, 12, 14, 16, 20)
FIVE_STOOD = runs("st-ppo", None, None, None, None, None)
SOME = runs("grpo", 9, 30, None, None, None)


def test_an_arm_that_cannot_be_told_apart_by_so_few_seeds_is_called_undecidable() -> None:
    frame = figures(pd.concat([FIVE_FELL.iloc[:3], FIVE_STOOD.iloc[:3]]))
    assert against_reference(frame)["difference"].tolist() == ["undecidable at this n"]
    said = reading(frame)[-1]
    assert said.startswith("Undecidable with so few seeds: st-ppo against ppo. The smallest p-value")
    assert "can give is 0.10: no difference shown is no evidence of none." in said


def test_a_difference_is_shown_or_not_by_the_corrected_p_values() -> None:
    cells = against_reference(figures(pd.concat([FIVE_FELL, FIVE_STOOD, SOME]))).set_index("arm")
    assert cells["difference"].to_dict() == {"st-ppo": "shown", "grpo": "not shown"}
    assert cells.loc["st-ppo", "permuted log-rank p"] == "0.008 (0.016)"
    assert cells.loc["st-ppo", "hazard ratio"] == "not estimable: no collapse in st-ppo"
    assert cells.loc["st-ppo", "collapse-free steps gained"].startswith("+21.6 [+")
    alone = against_reference(figures(pd.concat([FIVE_FELL, FIVE_STOOD])))
    assert alone["permuted log-rank p"].tolist() == ["0.008"], "one comparison needs no correction"


def test_what_is_undecidable_for_every_arm_is_said_once() -> None:
    three = [frame.iloc[:3] for frame in (FIVE_FELL, FIVE_STOOD, SOME)]
    assert "Undecidable with so few seeds: every arm against ppo." in reading(figures(pd.concat(three)))[-1]


def test_the_test_of_all_arms_is_told_from_three_arms_on() -> None:
    three = figures(pd.concat([FIVE_FELL, FIVE_STOOD, SOME]))
    assert any(s.startswith("Log-rank test that all 3 arms collapse equally soon") for s in reading(three))
    assert three["all_logrank_degrees"].unique().tolist() == [2]
    assert not any("all 2 arms" in s for s in reading(figures(pd.concat([FIVE_FELL, FIVE_STOOD]))))


def test_the_time_to_collapse_is_told_with_what_is_not_reached() -> None:
    cells = time_to_collapse(figures(pd.concat([FIVE_FELL, FIVE_STOOD]))).set_index("arm")
    assert cells.loc["ppo"].tolist() == ["5", "5", "14 [10, -]", "14.4 [11.4, 17.4]"]
    assert cells.loc["st-ppo"].tolist() == ["5", "0", "not reached", "36.0"]
    assert cells.columns[-1] == "collapse-free of 36 steps"


def test_the_interval_of_the_iqm_is_called_narrow_where_it_is() -> None:
    few, enough = figures(FIVE_STOOD), figures(runs("st-ppo", *[None] * 8))
    assert any("too narrow" in sentence for sentence in reading(few))
    assert not any("too narrow" in sentence for sentence in reading(enough))


def test_an_experiment_in_which_nothing_has_begun_has_nothing_to_compare() -> None:
    queued = runs("ppo", None, steps=0, status="queued", outcome=None)
    frame = figures(pd.concat([queued, queued.assign(arm="st-ppo")]))
    assert frame["arm"].tolist() == ["ppo", "st-ppo"]
    assert [len(part(frame)) for part in (time_to_collapse, against_reference, over_conditions)] == [0, 0, 0]
    assert reading(frame) == []


def test_an_arm_that_has_not_begun_is_left_out_of_the_times_only() -> None:
    queued = runs("st-ppo", None, steps=0, status="queued", outcome=None)
    frame = figures(pd.concat([FIVE_FELL, queued]))
    assert frame["arm"].tolist() == ["ppo", "st-ppo"]
    assert time_to_collapse(frame)["arm"].tolist() == ["ppo"]
    cells = against_reference(frame)
    assert cells["hazard ratio"].tolist() == ["not estimable: no run to compare"]
    assert cells["difference"].tolist() == ["-"]


@pytest.mark.parametrize("reference", ["ppo", "st-ppo"])
def test_every_other_arm_is_compared_with_the_reference(reference: str) -> None:
    frame = figures(pd.concat([FIVE_FELL, FIVE_STOOD, SOME]), reference)
    assert set(frame.loc[frame["reference"].isna(), "arm"]) == {reference}
    assert set(frame["reference"].dropna()) == {reference}


def ended(arm: str, *outcomes: str | None, status: str = "finished", **columns: Any) -> pd.DataFrame:
    rows = [
        {
            "arm": arm, "algorithm": arm, "seed": seed, "status": status, "outcome": outcome,
            "collapse_step": 10.0 + seed if outcome == "collapsed" else float("nan"), "peak_success": 0.7,
            "final_success": 0.5 + 0.1 * seed, "clip_frac": 0.02, "grad_norm_median": 4.0, "grad_norm_max": 9.0,
            "steps": 36, "planned": 36,
        } | columns
        for seed, outcome in enumerate(outcomes)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_t_interval_over_three_seeds_is_the_one_of_the_textbook() -> None:
    # mean 0.6, s = 0.1, standard error 0.1 / sqrt(3) = 0.057735, t(0.975, 2) = 4.302653: half width 0.248414
    assert mean_interval(pd.Series([0.5, 0.6, 0.7])) == pytest.approx((0.6, 0.351586, 0.848414), abs=1e-6)
    assert mean_interval(pd.Series([0.5])) == (0.5, None, None)
    assert mean_interval(pd.Series([None, None], dtype=float)) == (None, None, None)
    assert mean_interval(pd.Series([0.9, 1.0, None]))[2] == 1.0, "a fraction's interval ends at 1"


def test_seeds_are_replicates_and_a_run_that_diverged_counts_as_collapsed() -> None:
    frame = summarise(
        pd.concat([ended("a", "collapsed", "diverged", "healthy"), ended("b", "healthy", "mild", "no_learning")])
    )
    a, b = frame.to_dict(orient="records")
    assert (a["n"], a["judged"], a["collapsed"], a["onset"]) == (3, 3, 2, 10.0)
    # Clopper-Pearson of 2 in 3: 0.0943, 0.9916
    assert (a["collapsed_low"], a["collapsed_high"]) == pytest.approx((0.0943, 0.9916), abs=1e-4)
    assert b["collapsed"] == 0
    assert a["final"] == pytest.approx(0.6)


def test_unfinished_and_undecided_runs_are_counted_apart_and_said() -> None:
    frame = summarise(
        pd.concat([ended("a", "healthy", None), ended("b", None, status="running"), ended("a", None, status="failed")])
    )
    a, b = frame.to_dict(orient="records")
    assert (a["runs"], a["n"], a["judged"]) == (3, 2, 1)
    assert (b["runs"], b["n"], b["judged"]) == (1, 0, 0)
    text = answer(frame)
    assert "With one seed" in text
    assert "98 %" in text  # upper end of 0 in 1: 1 - 0.025 = 0.975, printed as 98
    assert "Not all runs are finished: a 2 of 3, b 0 of 1." in text
    assert "too short for the collapse rule: a 1." in text
    cells = readable(frame)
    assert list(cells["seeds"]) == ["2 of 3", "0 of 1"]
    assert list(cells["collapsed"]) == ["0/1 [0 %, 98 %]", "-"]
    assert cells["peak success"][1] == "-"


def test_the_answer_names_the_arms_by_how_often_they_fell() -> None:
    frame = summarise(
        pd.concat(
            [ended("a", "collapsed", "healthy"), ended("b", "collapsed", "collapsed"), ended("c", "healthy", "healthy")]
        )
    )
    assert answer(frame).startswith(
        "Collapsed: b in 2 of 2 (onset near step 10); a in 1 of 2 (onset near step 10). Did not collapse: c."
    )


def test_of_many_arms_the_answer_names_the_first_and_counts_the_others() -> None:
    fell = [ended(f"fell{i:02}", "collapsed") for i in range(11)]
    stood = [ended(f"stood{i}", "healthy") for i in range(8)]
    text = answer(summarise(pd.concat([*fell, *stood])))
    assert text.startswith("Collapsed (11 arms): fell00 in 1 of 1 (onset near step 10); ")
    assert "; and 3 more. Did not collapse: stood0, stood1, " in text
    assert "fell08" not in text
    assert "stood7" in text


def test_an_arm_that_never_learned_is_not_called_stable() -> None:
    frame = summarise(pd.concat([ended("a", "no_learning", "no_learning"), ended("b", "healthy", "mild")]))
    text = answer(frame)
    assert text.startswith("No arm collapsed (2 runs).")
    assert "Did not rise above their start, which is not stability: a in 2 of 2." in text
    assert "Lost some success without collapsing: b in 1 of 2." in text


def test_nothing_is_concluded_from_nothing() -> None:
    assert answer(summarise(ended("a", None, status="running"))).startswith("No run can be judged yet")


def test_the_iqm_and_its_interval_stand_beside_the_mean() -> None:
    a, b = summarise(pd.concat([ended("a", *["healthy"] * 5), ended("b", "healthy")])).to_dict(orient="records")
    assert a["final"] == pytest.approx(0.7)
    assert a["final_iqm"] == pytest.approx(0.7)  # 0.5 to 0.9 without the lowest and the highest
    assert 0.5 <= a["final_iqm_low"] < 0.6 < 0.8 < a["final_iqm_high"] <= 0.9
    assert a["peak_iqm"] == pytest.approx(0.7)
    assert b["final_iqm"] == 0.5
    assert pd.isna(b["final_iqm_low"]), "one seed has no interval"
    assert readable(summarise(ended("b", "healthy")))["final success, IQM"][0] == "0.50"


def test_final_success_of_runs_that_ended_early_is_not_passed_off_as_that_of_the_end() -> None:
    early = ended("a", "collapsed", "collapsed", steps=20)
    early.loc[1, "steps"] = 24
    frame = summarise(pd.concat([early, ended("a", "healthy"), ended("b", "healthy", "diverged", steps=9)]))
    assert frame["stopped"].tolist() == [2, 2]
    text = answer(frame)
    assert "final success is that of the step they ended at: a 2 of 3 (after 20 to 24 of 36 steps)" in text
    assert "b 2 of 2 (after 9 of 36 steps)" in text
    assert "Ended early" not in answer(summarise(ended("a", "healthy")))


def test_runs_of_another_trainer_that_name_no_length_did_not_end_early() -> None:
    assert summarise(ended("a", "healthy", planned=float("nan")))["stopped"].tolist() == [0]


def arm(algorithm: object, staleness: int, *successes: float, status: str = "finished") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "arm": f"{algorithm} {staleness}", "status": status, "final_success": success,
                "config": RunSettings(
                    algorithm=algorithm, seed=seed, learn=LearnSettings(staleness=staleness)
                ).model_dump_json(),
            }
            for seed, success in enumerate(successes)
        ]
    )  # fmt: skip


def test_algorithms_are_pooled_over_the_conditions_that_all_of_them_have() -> None:
    turn = {"base": "ppo", "ratio": {"level": "turn"}}
    frame = by_algorithm(
        pd.concat(
            [
                arm("ppo", 0, 0.8, 0.8), arm("ppo", 8, 0.1, 0.1),
                arm(turn, 0, 0.7, 0.9), arm(turn, 8, 0.6, 0.8),
                arm("grpo", 0, 0.99, 0.99),  # a control: it has one condition only
                arm("ppo", 4, 0.5, 0.5),  # a condition that one algorithm does not have
                arm("ppo", 8, 0.9, status="running"),
            ]
        )
    )  # fmt: skip
    assert frame["pooled"].tolist() == ["ppo", "ppo (ratio.level turn)"]
    assert frame["conditions"].tolist() == [2, 2]
    assert frame["pooled_runs"].tolist() == [4, 4]
    assert frame["pooled_final_iqm"].tolist() == pytest.approx([0.45, 0.75])
    assert frame["pooled_final_iqm_low"][0] == pytest.approx(0.45), "seeds of one condition do not differ"
    assert frame["pooled_final_iqm_low"][1] < 0.72


def test_where_nothing_is_crossed_nothing_is_pooled() -> None:
    assert by_algorithm(pd.concat([arm("ppo", 8, 0.1, 0.2), arm("grpo", 8, 0.7, 0.8)])).empty
    assert by_algorithm(pd.concat([arm("ppo", 8, 0.1, 0.2), arm("ppo", 0, 0.7, 0.8)])).empty
    assert by_algorithm(arm("ppo", 8, 0.1, status="running")).empty

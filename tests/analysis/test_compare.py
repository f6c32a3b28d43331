"""The comparison of arms: what the tables and sentences say of runs whose fate is known."""

from typing import Any

import pandas as pd
import pytest

from sorl.analysis import compare
from sorl.spec import LearnSettings, RunSettings
from tests.analysis.published import FELL, STOOD, rows


def counts(**arms: tuple[int | None, int]) -> pd.DataFrame:
    return pd.DataFrame([{"arm": arm, "collapsed": k, "judged": n} for arm, (k, n) in arms.items()])


def test_arms_are_compared_with_the_reference_and_corrected_for_how_many_they_are() -> None:
    third = rows("grpo", [11, 30, 36, 36, 36], [1, 1, 0, 0, 0])
    incidences = counts(ppo=(5, 5), **{"st-ppo": (0, 5)}, grpo=(2, 5))
    frame = compare.against(incidences, pd.concat([FELL, STOOD, third]), "ppo").set_index("arm")
    assert list(frame.index) == ["st-ppo", "grpo"]
    assert frame.loc["st-ppo", "fisher_p"] == pytest.approx(2 / 252)
    assert frame.loc["st-ppo", "fisher_holm"] == pytest.approx(4 / 252)  # the smaller of two is doubled
    assert frame.loc["grpo", "fisher_holm"] == frame.loc["grpo", "fisher_p"]
    assert frame.loc["st-ppo", "rmst_difference"] == pytest.approx(36 - 14.4)
    assert frame.loc["st-ppo", "hazard_ratio_reason"] == "no collapse in st-ppo"
    assert frame.loc["grpo", "hazard_ratio"] < 1
    assert not frame["undecidable"].any()


def test_the_correction_can_make_undecidable_what_one_comparison_would_decide() -> None:
    runs = pd.concat([FELL.iloc[:4], *(rows(name, [36] * 4, [0] * 4) for name in "abc")])
    alone = compare.against(counts(ppo=(4, 4), a=(0, 4)), runs, "ppo")
    assert alone["smallest_p"].tolist() == pytest.approx([2 / 70])
    assert not alone["undecidable"].any()
    assert compare.against(counts(ppo=(4, 4), a=(0, 4), b=(0, 4), c=(0, 4)), runs, "ppo")["undecidable"].all()
    # An arm whose runs are not judged is compared by its curve only.
    unjudged = counts(ppo=(5, 5), **{"st-ppo": (None, 0)})
    row = compare.against(unjudged, pd.concat([FELL, STOOD]), "ppo").iloc[0]
    assert (row["fisher_p"], row["fisher_holm"]) == (None, None)
    assert row["permuted_p"] == pytest.approx(2 / 252)


def ended(arm: str, *outcomes: str | None, status: str = "finished", **columns: Any) -> pd.DataFrame:
    """Finished runs of one arm by their outcome, 36 steps long; a collapse begins at step 10 + seed."""
    seeds = range(len(outcomes))
    onsets = [
        10.0 + seed if outcome == "collapsed" else float("nan") for seed, outcome in enumerate(outcomes)
    ]
    given = {
        "run_id": [f"{arm}-{seed}" for seed in seeds],
        "arm": arm,
        "algorithm": arm,
        "seed": seeds,
        "status": status,
        "outcome": outcomes,
        "collapse_step": onsets,
        "onset_low": float("nan"),
        "detected": None,
        "peak_success": 0.7,
        "final_success": [0.5 + 0.1 * seed for seed in seeds],
        "clip_frac": 0.02,
        "grad_norm_median": 4.0,
        "grad_norm_max": 9.0,
        "steps": 36,
        "planned": 36,
        "config": None,
    }
    return pd.DataFrame(given | columns)


def runs(arm: str, *onsets: int | None) -> pd.DataFrame:
    """Finished runs of one arm, collapsed at the given steps or up to the end."""
    outcomes = ("healthy" if onset is None else "collapsed" for onset in onsets)
    return ended(arm, *outcomes, collapse_step=pd.Series(onsets, dtype=float))


FIVE_FELL = runs("ppo", 10, 12, 14, 16, 20)
FIVE_STOOD = runs("st-ppo", *[None] * 5)
SOME = runs("grpo", 9, 30, None, None, None)
QUEUED = ended("st-ppo", None, steps=0, status="queued")


def of(*parts: pd.DataFrame) -> pd.DataFrame:
    return compare.figures(pd.concat(parts))


def test_an_arm_that_cannot_be_told_apart_by_so_few_seeds_is_called_undecidable() -> None:
    frame = of(FIVE_FELL.iloc[:3], FIVE_STOOD.iloc[:3])
    pair = frame.set_index("arm").loc["st-ppo"]
    assert (pair["smallest_p"], pair["permuted_p"]) == pytest.approx((0.1, 0.1))
    assert pair["logrank_p"] < 0.05, "what the approximation says is not possible with six runs"
    assert compare.against_reference(frame)["difference"].tolist() == [compare.TOO_FEW]
    said = compare.reading(frame)[-1]
    assert said.startswith("Too few seeds to tell st-ppo from ppo: the smallest p-value")
    assert "can give is 0.10. No difference shown is no evidence of none." in said
    every = compare.reading(of(*(part.iloc[:3] for part in (FIVE_FELL, FIVE_STOOD, SOME))))[-1]
    assert "Too few seeds to tell any arm from ppo:" in every, "said once for all arms"


def test_a_difference_is_shown_or_not_by_the_corrected_p_values() -> None:
    three = of(FIVE_FELL, FIVE_STOOD, SOME)
    assert three["all_logrank_degrees"].unique().tolist() == [2]
    assert any(
        s.startswith("Log-rank test that all 3 arms collapse equally soon") for s in compare.reading(three)
    )
    cells = compare.against_reference(three).set_index("arm")
    assert cells["difference"].to_dict() == {"st-ppo": "shown", "grpo": "not shown"}
    assert cells.loc["st-ppo", "permuted log-rank p"] == "0.008 (0.016)"
    assert cells.loc["st-ppo", "hazard ratio"] == "not estimable: no collapse in st-ppo"
    assert cells.loc["st-ppo", "collapse-free steps gained"].startswith("+21.6 [+")
    two = of(FIVE_FELL, FIVE_STOOD)
    assert compare.against_reference(two)["permuted log-rank p"].tolist() == ["0.008"], "needs no correction"
    assert not any("all 2 arms" in s for s in compare.reading(two))
    for reference in ("ppo", "st-ppo"):
        frame = compare.figures(pd.concat([FIVE_FELL, FIVE_STOOD, SOME]), reference)
        assert (
            set(frame.loc[frame["reference"].isna(), "arm"])
            == {reference}
            == set(frame["reference"].dropna())
        )


def test_the_time_to_collapse_is_told_with_what_is_not_reached() -> None:
    cells = compare.time_to_collapse(of(FIVE_FELL, FIVE_STOOD)).set_index("arm")
    assert cells.loc["ppo"].tolist() == ["5", "5", "14 [10, upper end not reached]", "14.4 [9.6, 19.2]"]
    assert cells.loc["st-ppo"].tolist() == ["5", "0", "not reached", "36.0"]
    assert cells.columns[-1] == "mean collapse-free steps (of 36)"
    two = compare.time_to_collapse(of(FIVE_FELL.iloc[:2], FIVE_STOOD)).set_index("arm")
    assert two.loc["ppo"].tolist()[2:] == ["10", "11.0"], "no interval from two runs"


def test_an_arm_that_has_not_begun_is_left_out_of_the_times_only() -> None:
    frame = of(FIVE_FELL, QUEUED)
    assert frame["arm"].tolist() == ["ppo", "st-ppo"]
    assert compare.time_to_collapse(frame)["arm"].tolist() == ["ppo"]
    cells = compare.against_reference(frame).iloc[0]
    assert (cells["hazard ratio"], cells["difference"]) == ("not estimable: no run to compare", "-")
    queued = of(QUEUED.assign(arm="ppo"), QUEUED)
    assert queued["arm"].tolist() == ["ppo", "st-ppo"]
    for part in (
        compare.time_to_collapse,
        compare.against_reference,
        compare.over_conditions,
        compare.reading,
    ):
        assert len(part(queued)) == 0, "nothing has begun, so there is nothing to compare"


def summed(*parts: pd.DataFrame) -> list[dict[str, Any]]:
    return compare.summarise(pd.concat(parts)).to_dict(orient="records")


def answer(*parts: pd.DataFrame) -> str:
    return compare.answer(compare.summarise(pd.concat(parts)))


def test_seeds_are_replicates_and_a_run_that_diverged_counts_as_collapsed() -> None:
    a, b = summed(
        ended("a", "collapsed", "diverged", "healthy"), ended("b", "healthy", "mild", "no_learning")
    )
    assert (a["n"], a["judged"], a["collapsed"], a["onset"], b["collapsed"]) == (3, 3, 2, 10.0, 0)
    # Clopper-Pearson of 2 in 3: 0.0943, 0.9916
    assert (a["collapsed_low"], a["collapsed_high"]) == pytest.approx((0.0943, 0.9916), abs=1e-4)
    assert a["final"] == pytest.approx(0.6)
    high = summed(ended("a", *["healthy"] * 3, peak_success=[0.8, 0.9, 1.0]))[0]["peak_high"]
    assert high == 1.0, "a fraction's interval ends at 1"


def test_the_iqm_and_its_interval_stand_next_to_the_mean_and_narrow_ones_are_called_so() -> None:
    for few, seeds in ((True, 5), (False, 8)):
        assert (
            any("too narrow" in sentence for sentence in compare.reading(of(runs("st-ppo", *[None] * seeds))))
            is few
        )
    a, b = summed(ended("a", *["healthy"] * 5), ended("b", "healthy"))
    # 0.5 to 0.9 without its ends
    assert (a["final"], a["final_iqm"], a["peak_iqm"]) == pytest.approx((0.7, 0.7, 0.7))
    assert 0.5 <= a["final_iqm_low"] < 0.6 < 0.8 < a["final_iqm_high"] <= 0.9
    assert b["final_iqm"] == 0.5
    assert pd.isna(b["final_iqm_low"]), "one seed has no interval"


def test_unfinished_and_undecided_runs_are_counted_apart_and_said() -> None:
    frame = compare.summarise(
        pd.concat(
            [
                ended("a", "healthy", None),
                ended("b", None, status="running"),
                ended("a", None, status="failed"),
            ]
        )
    )
    assert frame[["runs", "n", "judged"]].to_numpy().tolist() == [[3, 2, 1], [1, 0, 0]]
    text = compare.answer(frame)
    # Upper end of 0 in 1: 1 - 0.025 = 0.975, printed as 98.
    for words in (
        "With one seed",
        "98 %",
        "Not all runs are finished: a 2 of 3, b 0 of 1.",
        "too short for the collapse rule: a 1.",
    ):
        assert words in text
    cells = compare.readable(frame)
    assert list(cells["seeds"]) == ["2 of 3", "0 of 1"]
    assert list(cells["collapsed"]) == ["0/1 [0 %, 98 %]", "-"]
    assert cells["peak success"][1] == "-"


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (
            [("a", "collapsed", "healthy"), ("b", "collapsed", "collapsed"), ("c", "healthy", "healthy")],
            [
                "Collapsed: b in 2 of 2 (onset at steps 10, 11); a in 1 of 2 (onset near step 10). Did not"
                " collapse: c."
            ],
        ),
        (
            [
                *((f"fell{i:02}", "collapsed") for i in range(11)),
                *((f"stood{i}", "healthy") for i in range(8)),
            ],
            [
                "Collapsed (11 arms): fell00 in 1 of 1 (onset near step 10); ",
                "; and 3 more. Did not collapse: stood0,",
            ],
        ),
        (
            [("a", "no_learning", "no_learning"), ("b", "healthy", "mild")],
            [
                "No arm collapsed (2 runs).",
                "rise above their start, so that staying up says nothing: a in 2 of 2.",
                "Lost some success without collapsing: b in 1 of 2.",
            ],
        ),
        ([("a", None)], ["No run can be judged yet"]),
        # one arm
        ([("ppo", "collapsed"), ("ppo, on-policy", "healthy")], ['Did not collapse: "ppo, on-policy".']),
        (
            [("a", "falling", "collapsed")],
            [
                "too late for the collapse rule, and left out of these counts: a 1 of 2 (with them 2 of 2"
                " collapsed)."
            ],
        ),
        (
            [("a", "healthy"), ("b", "falling")],
            ["No arm collapsed (1 run).", "b 1 of 1 (with them 1 of 1 collapsed)."],
        ),
    ],
)
def test_the_answer_says_which_arms_fell_which_stood_and_which_never_learned(
    arms: list, words: list[str]
) -> None:
    text = answer(*(ended(*arm) for arm in arms))
    assert all(part in text for part in words)


def test_two_seeds_are_shown_as_they_are_and_three_have_an_interval() -> None:
    cells = ["final success", "final success, IQM", "peak success", "collapsed"]
    one, two, three = (
        compare.readable(compare.summarise(ended("a", *["healthy"] * n))).loc[0] for n in (1, 2, 3)
    )
    assert one[cells].tolist() == ["0.50", "0.50", "0.70", "0/1 [0 %, 98 %]"]
    assert two[cells].tolist()[:3] == ["0.50, 0.60", "0.55", "0.70, 0.70"]
    # t of 2 degrees at 97.5 % is 4.303: 4.303 x 0.1 / sqrt(3)
    assert three["final success"] == "0.60 [0.35, 0.85]"
    fell = [
        compare.readable(compare.summarise(ended("a", *["collapsed"] * n)))["onset step"][0]
        for n in (1, 2, 3)
    ]
    assert fell == ["10", "10, 11", "11"]


def test_the_answer_tells_runs_apart_that_share_an_arm_and_dates_what_they_did() -> None:
    curve = {"last_success": 0.44, "last_low": 28, "last_high": 35, "first_success": 0.5, "peak_success": 0.5}
    text = answer(ended("grpo", "collapsed", "collapsed", **curve))
    assert "Collapsed: grpo in 2 of 2 (onset at steps 10, 11)." in text, (
        "a median of both is a step of neither"
    )
    climbing = (
        "Collapsed and climbing, for too short a time to be called recovered: grpo seed 0 at half of its"
        " peak or "
    )
    assert climbing + "above since step 29: 0.44 at the end, 88 % of its peak; seed 1 at half" in text
    for lacking in ({"last_low": 33}, {"last_low": None}, {"last_success": float("nan")}):
        assert "climbing" not in answer(ended("grpo", "collapsed", **(curve | lacking)))
    gone = curve | {"last_success": 0.0, "last_high": 30}
    text = answer(ended("ppo", "collapsed", "falling", **gone))
    assert "seed 1 at 0.00 at the end, below half of its peak (0.50) since step 31)" in text
    text = answer(ended("s", "no_learning", "healthy", **curve))
    assert "staying up says nothing: s in 1 of 2 (start 0.50)." in text
    assert "(onset near step 12)" in answer(ended("ppo", *["collapsed"] * 4)), "of many the median"


def test_final_success_of_runs_that_ended_early_is_not_passed_off_as_that_of_the_end() -> None:
    early = ended("a", "collapsed", "collapsed", steps=[20, 24])
    frame = compare.summarise(
        pd.concat([early, ended("a", "healthy"), ended("b", "healthy", "diverged", steps=9)])
    )
    assert frame["stopped"].tolist() == [2, 2]
    text = compare.answer(frame)
    assert "final success is that of the step they ended at: a 2 of 3 (after 20 to 24 of 36 steps)" in text
    assert "b 2 of 2 (after 9 of 36 steps)" in text
    assert "Ended early" not in answer(ended("a", "healthy"))
    # Runs of another trainer that name no length did not end early.
    assert compare.summarise(ended("a", "healthy", planned=float("nan")))["stopped"].tolist() == [0]


def arm(algorithm: object, staleness: int, *successes: float, status: str = "finished") -> pd.DataFrame:
    learn = LearnSettings(staleness=staleness)
    n = len(successes)
    name = f"{algorithm} {staleness}"
    configs = [RunSettings(algorithm=algorithm, seed=i, learn=learn).model_dump_json() for i in range(n)]
    return pd.DataFrame({"arm": name, "status": status, "final_success": successes, "config": configs})


def test_algorithms_are_pooled_over_the_conditions_that_all_of_them_have() -> None:
    turn = {"base": "ppo", "ratio": {"level": "turn"}}
    frame = compare.by_algorithm(
        pd.concat(
            [
                arm("ppo", 0, 0.8, 0.8),
                arm("ppo", 8, 0.1, 0.1),
                arm(turn, 0, 0.7, 0.9),
                arm(turn, 8, 0.6, 0.8),
                arm("grpo", 0, 0.99, 0.99),  # a control: it has one condition only
                arm("ppo", 4, 0.5, 0.5),  # a condition that one algorithm does not have
                arm("ppo", 8, 0.9, status="running"),
            ]
        )
    )
    assert frame["pooled"].tolist() == ["ppo", "ppo (ratio.level turn)"]
    assert frame[["conditions", "pooled_runs"]].to_numpy().tolist() == [[2, 4], [2, 4]]
    assert frame["pooled_final_iqm"].tolist() == pytest.approx([0.45, 0.75])
    assert frame["pooled_final_iqm_low"][0] == pytest.approx(0.45), "seeds of one condition do not differ"
    assert frame["pooled_final_iqm_low"][1] < 0.72
    # Where nothing is crossed nothing is pooled.
    for other in (("grpo", 8, 0.7, 0.8), ("ppo", 0, 0.7, 0.8)):
        assert compare.by_algorithm(pd.concat([arm("ppo", 8, 0.1, 0.2), arm(*other)])).empty
    assert compare.by_algorithm(arm("ppo", 8, 0.1, status="running")).empty

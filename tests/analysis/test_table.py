from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from workbench.analysis.table import answer, mean_interval, readable, summarise


def runs(arm: str, *outcomes: str | None, status: str = "finished", **columns: Any) -> pd.DataFrame:
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
        pd.concat([runs("a", "collapsed", "diverged", "healthy"), runs("b", "healthy", "mild", "no_learning")])
    )
    a, b = frame.to_dict(orient="records")
    assert (a["n"], a["judged"], a["collapsed"], a["onset"]) == (3, 3, 2, 10.0)
    # Clopper-Pearson of 2 in 3: 0.0943, 0.9916
    assert (a["collapsed_low"], a["collapsed_high"]) == pytest.approx((0.0943, 0.9916), abs=1e-4)
    assert b["collapsed"] == 0
    assert a["final"] == pytest.approx(0.6)


def test_unfinished_and_undecided_runs_are_counted_apart_and_said() -> None:
    frame = summarise(
        pd.concat([runs("a", "healthy", None), runs("b", None, status="running"), runs("a", None, status="failed")])
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
            [runs("a", "collapsed", "healthy"), runs("b", "collapsed", "collapsed"), runs("c", "healthy", "healthy")]
        )
    )
    assert answer(frame).startswith(
        "Collapsed: b in 2 of 2 (onset near step 10); a in 1 of 2 (onset near step 10). Did not collapse: c."
    )


def test_of_many_arms_the_answer_names_the_first_and_counts_the_others() -> None:
    fell = [runs(f"fell{i:02}", "collapsed") for i in range(11)]
    stood = [runs(f"stood{i}", "healthy") for i in range(8)]
    text = answer(summarise(pd.concat([*fell, *stood])))
    assert text.startswith("Collapsed (11 arms): fell00 in 1 of 1 (onset near step 10); ")
    assert "; and 3 more. Did not collapse: stood0, stood1, " in text
    assert "fell08" not in text
    assert "stood7" in text


def test_an_arm_that_never_learned_is_not_called_stable() -> None:
    frame = summarise(pd.concat([runs("a", "no_learning", "no_learning"), runs("b", "healthy", "mild")]))
    text = answer(frame)
    assert text.startswith("No arm collapsed (2 runs).")
    assert "Did not rise above their start, which is not stability: a in 2 of 2." in text
    assert "Lost some success without collapsing: b in 1 of 2." in text


def test_nothing_is_concluded_from_nothing() -> None:
    assert answer(summarise(runs("a", None, status="running"))).startswith("No run can be judged yet")


def test_the_iqm_and_its_interval_stand_beside_the_mean() -> None:
    a, b = summarise(pd.concat([runs("a", *["healthy"] * 5), runs("b", "healthy")])).to_dict(orient="records")
    assert a["final"] == pytest.approx(0.7)
    assert a["final_iqm"] == pytest.approx(0.7)  # 0.5 to 0.9 without the lowest and the highest
    assert 0.5 <= a["final_iqm_low"] < 0.6 < 0.8 < a["final_iqm_high"] <= 0.9
    assert a["peak_iqm"] == pytest.approx(0.7)
    assert b["final_iqm"] == 0.5
    assert pd.isna(b["final_iqm_low"]), "one seed has no interval"
    assert readable(summarise(runs("b", "healthy")))["final success, IQM"][0] == "0.50"


def test_final_success_of_runs_that_ended_early_is_not_passed_off_as_that_of_the_end() -> None:
    early = runs("a", "collapsed", "collapsed", steps=20)
    early.loc[1, "steps"] = 24
    frame = summarise(pd.concat([early, runs("a", "healthy"), runs("b", "healthy", "diverged", steps=9)]))
    assert frame["stopped"].tolist() == [2, 2]
    text = answer(frame)
    assert "final success is that of the step they ended at: a 2 of 3 (after 20 to 24 of 36 steps)" in text
    assert "b 2 of 2 (after 9 of 36 steps)" in text
    assert "Ended early" not in answer(summarise(runs("a", "healthy")))


def test_runs_of_another_trainer_that_name_no_length_did_not_end_early() -> None:
    assert summarise(runs("a", "healthy", planned=float("nan")))["stopped"].tolist() == [0]

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from workbench.verdict.table import answer, mean_interval, readable, summarise


def runs(arm: str, *outcomes: str | None, status: str = "finished", **columns: Any) -> pd.DataFrame:
    rows = [
        {
            "arm": arm, "algorithm": arm, "seed": seed, "status": status, "outcome": outcome,
            "collapse_step": 10.0 + seed if outcome == "collapsed" else float("nan"), "peak_success": 0.7,
            "final_success": 0.5 + 0.1 * seed, "clip_frac": 0.02, "grad_norm_median": 4.0, "grad_norm_max": 9.0,
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


def test_an_arm_that_never_learned_is_not_called_stable() -> None:
    frame = summarise(pd.concat([runs("a", "no_learning", "no_learning"), runs("b", "healthy", "mild")]))
    text = answer(frame)
    assert text.startswith("No arm collapsed (2 runs).")
    assert "Never learned, which is not stability: a in 2 of 2." in text
    assert "Lost some success without collapsing: b in 1 of 2." in text


def test_nothing_is_concluded_from_nothing() -> None:
    assert answer(summarise(runs("a", None, status="running"))).startswith("No run can be judged yet")

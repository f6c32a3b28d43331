from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from workbench.analysis.compared import against_reference, figures, over_conditions, reading, time_to_collapse


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


FELL = runs("ppo", 10, 12, 14, 16, 20)
STOOD = runs("st-ppo", None, None, None, None, None)
SOME = runs("grpo", 9, 30, None, None, None)


def test_an_arm_that_cannot_be_told_apart_by_so_few_seeds_is_called_undecidable() -> None:
    frame = figures(pd.concat([FELL.iloc[:3], STOOD.iloc[:3]]))
    assert against_reference(frame)["difference"].tolist() == ["undecidable at this n"]
    said = reading(frame)[-1]
    assert said.startswith("Undecidable with so few seeds: st-ppo against ppo. The smallest p-value")
    assert "can give is 0.10: no difference shown is no evidence of none." in said


def test_a_difference_is_shown_or_not_by_the_corrected_p_values() -> None:
    cells = against_reference(figures(pd.concat([FELL, STOOD, SOME]))).set_index("arm")
    assert cells["difference"].to_dict() == {"st-ppo": "shown", "grpo": "not shown"}
    assert cells.loc["st-ppo", "permuted log-rank p"] == "0.008 (0.016)"
    assert cells.loc["st-ppo", "hazard ratio"] == "not estimable: no collapse in st-ppo"
    assert cells.loc["st-ppo", "collapse-free steps gained"].startswith("+21.6 [+")
    alone = against_reference(figures(pd.concat([FELL, STOOD])))
    assert alone["permuted log-rank p"].tolist() == ["0.008"], "one comparison needs no correction"


def test_what_is_undecidable_for_every_arm_is_said_once() -> None:
    three = [frame.iloc[:3] for frame in (FELL, STOOD, SOME)]
    assert "Undecidable with so few seeds: every arm against ppo." in reading(figures(pd.concat(three)))[-1]


def test_the_test_of_all_arms_is_told_from_three_arms_on() -> None:
    three = figures(pd.concat([FELL, STOOD, SOME]))
    assert any(s.startswith("Log-rank test that all 3 arms collapse equally soon") for s in reading(three))
    assert three["all_logrank_degrees"].unique().tolist() == [2]
    assert not any("all 2 arms" in s for s in reading(figures(pd.concat([FELL, STOOD]))))


def test_the_time_to_collapse_is_told_with_what_is_not_reached() -> None:
    cells = time_to_collapse(figures(pd.concat([FELL, STOOD]))).set_index("arm")
    assert cells.loc["ppo"].tolist() == ["5", "5", "14 [10, -]", "14.4 [11.4, 17.4]"]
    assert cells.loc["st-ppo"].tolist() == ["5", "0", "not reached", "36.0"]
    assert cells.columns[-1] == "collapse-free of 36 steps"


def test_the_interval_of_the_iqm_is_called_narrow_where_it_is() -> None:
    few, enough = figures(STOOD), figures(runs("st-ppo", *[None] * 8))
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
    frame = figures(pd.concat([FELL, queued]))
    assert frame["arm"].tolist() == ["ppo", "st-ppo"]
    assert time_to_collapse(frame)["arm"].tolist() == ["ppo"]
    cells = against_reference(frame)
    assert cells["hazard ratio"].tolist() == ["not estimable: no run to compare"]
    assert cells["difference"].tolist() == ["-"]


@pytest.mark.parametrize("reference", ["ppo", "st-ppo"])
def test_every_other_arm_is_compared_with_the_reference(reference: str) -> None:
    frame = figures(pd.concat([FELL, STOOD, SOME]), reference)
    assert set(frame.loc[frame["reference"].isna(), "arm"]) == {reference}
    assert set(frame["reference"].dropna()) == {reference}

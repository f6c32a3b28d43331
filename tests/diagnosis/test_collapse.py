"""A collapse that no defect explains is put down to stale data or to one large step, and never without a collapse."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.diagnosis.logs import healthy, log
from workbench.diagnosis.diagnose import diagnose, text
from workbench.diagnosis.finding import Diagnosis

ONSET, DETECTED, SPIKE = 14, 19, 13
FELL = {
    "outcome": "collapsed", "collapse_step": ONSET, "onset_low": ONSET - 1, "onset_high": ONSET,
    "detection_step": DETECTED, "peak_success": 0.53, "final_success": 0.02, "status": "finished",
}  # fmt: skip
DOWN = FELL | {"outcome": "falling", "collapse_step": None, "detection_step": None}


def spiked(column: str, value: float) -> dict[str, pd.DataFrame]:
    tables = healthy()
    frame = tables["minibatch"]
    frame.loc[frame["step"] == SPIKE, column] = value
    tables["turn"] = pd.DataFrame(
        {"step": SPIKE, "trajectory": [2, 7], "turn_index": [1, 3], "gradient_share": [0.1, 0.7]}
    )
    return tables


def said(tables: dict[str, pd.DataFrame], settings: dict[str, Any] | None = None, **run: Any) -> Diagnosis:
    return diagnose(log(tables, {"learn.policy.max_grad_norm": None, **(settings or {})}, **run))


def test_large_ratios_on_stale_data_are_the_pattern_of_off_policy_updates() -> None:
    tables = spiked("ratio_max", 80.0)
    tables["step"]["staleness"] = 8.0
    found = said(tables, {"learn.staleness": 8}, **FELL).findings
    assert [(f.cause.name, f.clue.grade, f.clue.step) for f in found] == [("off_policy", "pattern", SPIKE)]
    assert (found[0].clue.trajectory, found[0].clue.turn) == (7, 3)


def test_a_leap_of_the_gradient_before_the_onset_is_the_pattern_of_too_large_a_step() -> None:
    found = said(spiked("grad_norm", 60.0), **FELL).findings
    assert [(f.cause.name, f.clue.step, f.clue.trajectory) for f in found] == [("step_size", SPIKE, 7)]
    assert "1 steps before" in found[0].clue.says


def test_a_leap_that_clipping_held_is_no_cause() -> None:
    assert not said(spiked("grad_norm", 60.0), {"learn.policy.max_grad_norm": 1.0}, **FELL).findings


@pytest.mark.parametrize(("column", "value"), [("ratio_max", 80.0), ("grad_norm", 60.0)])
def test_without_a_collapse_there_is_nothing_to_explain(column: str, value: float) -> None:
    assert not said(spiked(column, value), outcome="healthy").findings


def test_a_collapse_that_nothing_explains_is_said_to_be_unexplained() -> None:
    d = said(healthy(), **FELL)
    assert not d.findings
    assert f"onset at step {ONSET}" in text(d)
    assert "the fall began at step 14 (95 %: 13 to 14), and was certain at step 19" in text(d)
    assert "None of the known causes fits." in text(d)


def test_of_a_run_that_is_down_it_is_never_said_that_nothing_was_found() -> None:
    d = said(healthy(), **DOWN)
    assert "Success is down in its last steps: the fall began at step 13 (95 %: 13 to 14)" in text(d)
    assert "None of the known causes fits." in text(d)
    tables = healthy() | {"event": pd.DataFrame({"step": [20], "kind": ["format_collapse"], "severity": ["critical"]})}
    critical = said(tables, outcome="mild")
    assert "None of the known causes fits. Critical: format_collapse at step 20." in text(critical)
    assert all("Nothing found" not in text(one) for one in (d, critical, said(healthy(), **FELL)))
    assert "Nothing found." in text(said(healthy(), outcome="healthy"))


def test_the_fall_of_a_run_that_is_falling_is_explained_like_a_collapse() -> None:
    assert [f.cause.name for f in said(spiked("grad_norm", 60.0), **DOWN).findings] == ["step_size"]

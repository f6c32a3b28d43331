"""A collapse that no defect explains is put down to stale data or to one large step, and never without a collapse."""

import pandas as pd
import pytest

from tests.diagnosis.logs import healthy, log
from workbench.diagnosis.diagnose import diagnose, text

ONSET, DETECTED, SPIKE = 14, 19, 13
FELL = {
    "outcome": "collapsed", "collapse_step": ONSET, "onset_low": ONSET - 1, "onset_high": ONSET,
    "detection_step": DETECTED, "peak_success": 0.53, "final_success": 0.02, "status": "finished",
}  # fmt: skip
DOWN = FELL | {"outcome": "falling", "collapse_step": None, "detection_step": None}


def spiked(column, value):
    tables = healthy()
    frame = tables["minibatch"]
    frame.loc[frame["step"] == SPIKE, column] = value
    ids = {"step": SPIKE, "trajectory": [2, 7], "turn_index": [1, 3]}
    return tables | {"turn": pd.DataFrame(ids | {"gradient_share": [0.1, 0.7]})}


def said(tables, settings=None, **run):
    return diagnose(log(tables, {"learn.policy.max_grad_norm": None} | (settings or {}), **run))


def test_large_ratios_on_stale_data_are_the_pattern_of_off_policy_updates():
    tables = spiked("ratio_max", 80.0)
    tables["step"]["staleness"] = 8.0
    (found,) = said(tables, {"learn.staleness": 8}, **FELL).findings
    assert (found.cause.name, found.clue.grade, found.clue.step) == ("off_policy", "pattern", SPIKE)
    assert (found.clue.trajectory, found.clue.turn) == (7, 3)


@pytest.mark.parametrize(("run", "words"), [(FELL, "1 steps before"), (DOWN, "")])
def test_a_leap_of_the_gradient_before_a_fall_is_the_pattern_of_too_large_a_step(run, words):
    (found,) = said(spiked("grad_norm", 60.0), **run).findings
    assert (found.cause.name, found.clue.step, found.clue.trajectory) == ("step_size", SPIKE, 7)
    assert words in found.clue.says


@pytest.mark.parametrize(
    ("column", "value", "bound", "run"),
    [("grad_norm", 60.0, 1.0, FELL),  # clipping held the leap
     ("ratio_max", 80.0, None, {"outcome": "healthy"}), ("grad_norm", 60.0, None, {"outcome": "healthy"})],
)  # fmt: skip
def test_a_leap_that_clipping_held_or_that_nothing_followed_explains_nothing(column, value, bound, run):
    assert not said(spiked(column, value), {"learn.policy.max_grad_norm": bound}, **run).findings


def test_a_collapse_that_nothing_explains_is_said_to_be_unexplained():
    d = said(healthy(), **FELL)
    assert not d.findings
    assert f"onset at step {ONSET}" in text(d)
    assert "the fall began at step 14 (95 %: 13 to 14), and was certain at step 19" in text(d)
    assert "None of the known causes fits." in text(d)


def test_of_a_run_that_is_down_it_is_never_said_that_nothing_was_found():
    d = said(healthy(), **DOWN)
    assert "Success is down in its last steps: the fall began at step 13 (95 %: 13 to 14)" in text(d)
    assert "None of the known causes fits." in text(d)
    tables = healthy() | {"event": pd.DataFrame({"step": [20], "kind": ["format_collapse"], "severity": ["critical"]})}
    critical = said(tables, outcome="mild")
    assert "None of the known causes fits. Critical: format_collapse at step 20." in text(critical)
    assert all("Nothing found" not in text(one) for one in (d, critical, said(healthy(), **FELL)))
    assert "Nothing found." in text(said(healthy(), outcome="healthy"))

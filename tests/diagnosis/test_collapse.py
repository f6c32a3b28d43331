"""A collapse that no defect explains is put down to stale data or to one large step, and never without a
collapse.
"""

import math

import duckdb
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.analysis.forks import Removal, mantel_haenszel, permutation_p
from sorl.collapse.rule import judge
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.place import opened
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.report import as_dict, markdown, text
from sorl.diagnosis.sentences import likely
from sorl.diagnosis.standing import standing
from tests.diagnosis.logs import healthy, log
from tests.diagnosis.sentences import checked

ONSET = 14
DETECTED = 19
SPIKE = 13
FELL = {
    "outcome": "collapsed",
    "collapse_step": ONSET,
    "onset_low": ONSET - 1,
    "onset_high": ONSET,
    "detection_step": DETECTED,
    "peak_success": 0.53,
    "final_success": 0.02,
    "status": "finished",
}
STEPS_OF_RUN = ("collapse_step", "detection_step", "onset_low", "onset_high")
DOWN = FELL | {"outcome": "falling", "collapse_step": None, "detection_step": None}


def spiked(column, value):
    tables = healthy()
    frame = tables["minibatch"]
    frame.loc[frame["step"] == SPIKE, column] = value
    ids = {"step": SPIKE, "trajectory": [2, 7], "turn_index": [1, 3]}
    return tables | {"turn": pd.DataFrame(ids | {"gradient_share": [0.1, 0.7]})}


def said(tables, settings=None, **run):
    return diagnose(log(tables, {"learn.policy.max_grad_norm": None} | (settings or {}), **run))


def test_for_a_run_recorded_in_another_trainer_no_command_of_ours_is_offered():
    def asked(**run):
        return text(said(spiked("ratio_max", 80.0), {"learn.epochs": 4}, **FELL, experiment="e", **run))

    assert "sorl run e.toml --set learn.staleness=0" in asked(versions='{"sorl": "1"}')
    assert "train again with num_iterations at 1" in asked(versions='{"sorl": "1", "trainer": "trl"}')


def test_large_ratios_on_stale_data_are_the_pattern_of_off_policy_updates():
    tables = spiked("ratio_max", 80.0)
    tables["step"]["staleness"] = 8.0
    (found,) = said(tables, {"learn.staleness": 8}, **FELL).findings
    assert (found.cause.name, found.clue.grade, found.clue.step) == ("off_policy", "pattern", SPIKE)
    assert (found.clue.trajectory, found.clue.turn) == (7, 3)


@pytest.mark.parametrize(
    ("up", "plain", "grade", "words"),
    [
        (
            8,
            1,
            "intervention",
            "the cause (removing it saves 8 of 8, unchanged 1 of 8: +0.88 [+0.40, +0.98])",
        ),
        (
            0,
            0,
            "refuted",
            "not what it died of (removing it saves 0 of 8, unchanged 0 of 8: +0.00 [-0.32, +0.32])",
        ),
        (4, 2, "pattern", "not decided by a test (removing it saves 4 of 8, unchanged 2 of 8:"),
        (8, 8, "pattern", "unchanged, most children no longer fall"),
    ],
)
def test_forks_without_a_cause_show_it_refute_it_or_leave_it_as_it_was(up, plain, grade, words):
    made = log(spiked("grad_norm", 60.0), {"learn.policy.max_grad_norm": None}, **FELL)
    _, low, high = mantel_haenszel([(8 - up, 8, 8 - plain, 8)])
    made.tests = {
        "step_size": Removal(up, 8, plain, 8, -high, -low, permutation_p([(8 - up, 8, 8 - plain, 8)]))
    }
    found = diagnose(made)
    (finding,) = found.findings
    assert finding.clue.grade == grade
    assert words in likely(found, finding)
    assert words in text(found)
    assert as_dict(found)["findings"][0]["tested"]["up"] == up


@pytest.mark.parametrize(
    ("run", "words"), [(FELL, "1 step before the onset; no max_grad_norm is set"), (DOWN, "")]
)
def test_a_leap_of_the_gradient_before_a_fall_is_the_pattern_of_too_large_a_step(run, words):
    (found,) = said(spiked("grad_norm", 60.0), **run).findings
    assert (found.cause.name, found.clue.step, found.clue.trajectory) == ("step_size", SPIKE, 7)
    assert words in found.clue.says


@pytest.mark.parametrize(
    ("column", "value", "bound", "run"),
    [
        ("grad_norm", 60.0, 1.0, FELL),  # clipping held the leap
        ("ratio_max", 80.0, None, {"outcome": "healthy"}),
        ("grad_norm", 60.0, None, {"outcome": "healthy"}),
    ],
)
def test_a_leap_that_clipping_held_or_that_nothing_followed_explains_nothing(column, value, bound, run):
    assert not said(spiked(column, value), {"learn.policy.max_grad_norm": bound}, **run).findings


def test_of_a_run_that_is_down_it_is_never_said_that_nothing_was_found():
    d = said(healthy(), **FELL)
    assert not d.findings
    assert "Collapsed: success fell from " in text(d)
    assert "The fall began after step 14 (95 %: 13 to 14) and was certain at step 19" in text(d)
    assert "None of the known causes fits." in text(d)
    d = said(healthy(), **DOWN)
    assert "Falling at its end, too late for the collapse rule: success fell from" in text(d)
    assert "The fall began between steps 13 and 14 (95 %); the counts are at least 20 times likelier" in text(
        d
    )
    assert "None of the known causes fits." in text(d)
    tables = healthy() | {
        "event": pd.DataFrame({"step": [20], "kind": ["format_collapse"], "severity": ["critical"]})
    }
    critical = said(tables, outcome="mild")
    assert ": Not healthy, though success held. Its success was" in text(critical).splitlines()[0]
    assert "Critical: format collapse at step 20." in text(critical)
    assert "None of the known causes fits." in text(critical)
    assert all("Nothing found" not in text(one) for one in (d, critical, said(healthy(), **FELL)))
    fine = said(healthy(), outcome="healthy")
    assert "Nothing found." in text(fine)
    assert "Nothing found." in markdown(fine)


def test_what_shows_only_after_the_fall_is_a_consequence_and_comes_last():
    tables = spiked("ratio_max", 80.0)
    tables["step"]["staleness"] = 8.0
    tables["minibatch"].loc[tables["minibatch"]["step"] == ONSET + 2, ["grad_norm", "ratio_max"]] = [
        60.0,
        900.0,
    ]
    d = said(tables, {"learn.staleness": 8}, **FELL)
    assert [(f.cause.name, likely(d, f)) for f in in_order(d)] == [
        ("off_policy", "likely cause"),
        ("step_size", "a consequence, not the cause"),
    ]
    assert "token ratios reach 80 in step 13, 1 step before the onset" in text(d)
    assert "in step 16, 2 steps after the onset" in text(d)
    tables["minibatch"]["lr"] = [0.1] * 40 + [9.0] * 8
    assert "later than the fall, not its cause" in text(said(tables, {"learn.staleness": 8}, **FELL))


@pytest.mark.parametrize(("begins", "rising"), [(0.1, False), (0.02, True)])
def test_what_moved_during_a_warm_up_is_said_to_have_moved_then(begins, rising):
    tables = healthy()
    tables["step"].loc[SPIKE - 4 :, "kl_k3"] *= 20
    tables["minibatch"]["lr"] = (begins + 0.01 * tables["minibatch"]["step"]).clip(upper=0.1)
    found = text(said(tables, **FELL))
    assert f"Moved first: kl_k3 at step {SPIKE - 4}" in found
    assert ("The learning rate rose until step 8, which moves signals by itself." in found) == rising


def test_of_curves_alone_the_signals_that_left_their_past_are_named_and_not_that_no_cause_fits():
    tables = {"step": healthy()["step"]}
    tables["step"].loc[tables["step"]["step"] == ONSET + 1, ["kl_k3", "entropy"]] = [0.6, math.inf]
    told = text(said(tables, **FELL))
    assert (
        "Only curves are logged, and causes need the updates and the turn ledger. At the fall: entropy"
        in told
    )
    assert "-> inf (step 15); kl_k3 0.00" in told
    assert "-> 0.6 (step 15)" in told
    assert "table minibatch" in told
    early = {"outcome": "collapsed", "collapse_step": 2, "detection_step": 5}
    assert "Too few steps before the onset to know what was usual." in text(said(tables, **early))


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 14)), min_size=1, max_size=5), st.randoms())
@settings(max_examples=60, deadline=None)
def test_all_that_is_said_of_how_a_run_stands_is_what_its_rows_say(levels, draw):
    success = [min(1.0, max(0.0, level + draw.uniform(-0.03, 0.03))) for level, n in levels for _ in range(n)]
    step = pd.DataFrame({"run_id": "a", "step": range(len(success)), "success": success})
    verdict = {"run_id": "a", **judge(success, episodes=100).columns()}
    run = pd.DataFrame([verdict]).astype(dict.fromkeys(STEPS_OF_RUN, "Int64"))
    with duckdb.connect() as store:
        tables = {"step": step, "run": run}
        for name, frame in tables.items():
            store.register(name, frame)
        told = standing(log(tables, **verdict))
        assert checked(told, "a", lambda sql, given: store.execute(sql, given).df().to_dict("records")[0])


@given(
    st.permutations(range(5)), st.sets(st.integers(0, 6)), st.none() | st.integers(0, 6), st.integers(0, 5)
)
def test_a_link_names_a_trajectory_whose_tokens_were_kept_the_one_of_the_clue_first(order, kept, wanted, n):
    found = opened(7, order[:n], kept, wanted)
    assert bool(found) is (n > 0)
    if found:
        first = [one for one in (wanted, order[0]) if one in kept][:1]
        assert found == {"step": 7, **({"trajectory": first[0]} if first else {})}

"""The rules that raise events: alarms, findings on several values, and the guard's checks along a run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.collapse import events as r
from sorl.collapse.events import COOLDOWN, DRIFT, DRIFT_POINTS, SMOOTH, RuleWatch, alarms
from sorl.measures import CATALOGUE
from sorl.spec import RATIO_TOLERANCE, Alarm, Diagnostic, Level, Unit


def fire(alarm, values, name="x"):
    watch = RuleWatch(alarms([Diagnostic(name, Level.STEP, Unit.NONE, "x", "test", "x", alarm)]))
    return [
        e.step
        for step, value in enumerate(values)
        for e in watch.step(step, {name: value})
        if e.kind == "alarm"
    ]


RELATIVE = {"relative": "baseline"}


@pytest.mark.parametrize(
    ("alarm", "values", "steps"),
    [
        # it needs its points in a row; what was not measured neither counts nor clears
        (Alarm("above", 1.0, "test", points=3), [2, 2, 0, 2, 2, 2, 2], [5]),
        (Alarm("above", 1.0, "test", points=3), [2, 2, 1.0, 2, 2], []),
        (Alarm("above", 1.0, "test", points=2), [2.0, None, 2.0], [2]),
        # below means below
        (Alarm("below", 0.0, "test"), [0.1, 0.0, -0.1], [2]),
        # a relative one waits for its baseline and compares with the median; a baseline of zero arms nothing
        (Alarm("above", 10.0, "test", warmup=3, **RELATIVE), [1.0, 500.0, 2.0, 19.0, 21.0], [4]),
        (Alarm("above", 10.0, "test", warmup=2, **RELATIVE), [0.0, 0.0, 5.0], []),
        # it fires once until the value has come back and time has passed
        (Alarm("above", 1.0, "test"), [2.0] * 30, [0]),
        (Alarm("above", 1.0, "test"), [2.0, 0.0] * 15, [0, COOLDOWN, 2 * COOLDOWN]),
        (Alarm("above", 1.0, "test"), [2.0] + [0.0] * COOLDOWN + [2.0], [0, COOLDOWN + 1]),
        (Alarm("above", 1.0, "test"), [math.inf], [0]),
    ],
)
def test_an_alarm_fires_at(alarm, values, steps):
    assert fire(alarm, values) == steps


def test_an_alarm_says_value_and_mark_and_leaves_its_provenance_to_the_glossary():
    rows = [{"grad_norm_max": 0.33, "entropy": 1.0}] * 10 + [{"grad_norm_max": 5.7004, "entropy": 0.01}]
    (event,) = found(rows, "alarm")
    assert event.message == "grad_norm_max 5.7, above 3.3 (10 x the median of the run's first 10 points)"
    rows = [{"valid_action_frac": 0.9}, *[{"valid_action_frac": 0.2}] * 5]
    watch = RuleWatch(r.HARD)
    (event,) = [e for step, row in enumerate(rows) for e in watch.step(step, row)]
    said = "valid_action_frac 0.2, below 0.45 (0.5 x its running maximum), 5 points in a row: an"
    assert event.message.startswith(said)


def test_a_nan_is_an_event_of_its_own_until_the_value_is_finite_again():
    seen = found([{"kl_ref": value} for value in (1.0, math.nan, math.nan, 1.0, math.inf)], "non_finite")
    assert [(e.diagnostic, e.step) for e in seen] == [("kl_ref", 1), ("kl_ref", 4)]


def test_every_alarm_has_a_reason_and_verls_marks_are_its_own_only_where_its_ratio_is_measured():
    """Its health check judges pi_old / mu: the columns of the mismatch, not those of pi_theta / pi_old."""
    reasons = {d.name: d.alarm.reason for d in CATALOGUE if d.alarm}
    assert len(reasons) >= 8
    assert all(len(reason) > 20 for reason in reasons.values())
    verl = {name: reason for name, reason in reasons.items() if "verl" in reason}
    assert {name for name, reason in verl.items() if "ours" not in reason} == {"mismatch_kl"}
    assert {"ratio_mean", "chi2", "ess_frac_min"} <= set(verl)


def found(rows, kind):
    watch = RuleWatch(alarms(CATALOGUE))
    return [e for step, row in enumerate(rows) for e in watch.step(step, row) if e.kind == kind]


def rows(spread, entropy, **others):
    start = [{"group_reward_std": 0.4, "entropy": 1.0, "grad_norm_max": 1.0, "repetition_frac": 0.1}] * 10
    return start + [{"group_reward_std": spread, "entropy": entropy, **others}] * 15


def test_an_echo_trap_is_equal_rewards_and_certainty_says_which_later_signs_are_there_and_comes_once():
    (event,) = found(rows(0.01, 0.1), "echo_trap")
    # its ten points
    assert (event.step, event.severity, event.diagnostic) == (19, "warning", "group_reward_std")
    assert "spikes" not in event.message
    assert found(rows(0.01, 0.9), "echo_trap") == []
    assert found(rows(0.4, 0.1), "echo_trap") == []
    (event,) = found(rows(0.01, 0.1, grad_norm_max=50.0, repetition_frac=0.5), "echo_trap")
    assert "gradient norm spikes" in event.message
    assert "repeat themselves" in event.message
    trapped = rows(0.01, 0.1)
    assert len(found(trapped + trapped[10:], "echo_trap")) == 1
    assert len(found(trapped + trapped[:1] * 3 + trapped[10:], "echo_trap")) == 2
    unknown = [{k: v for k, v in row.items() if k != "entropy"} for row in trapped]
    assert found(unknown, "echo_trap") == [], "what was not measured is no sign"


def drifts(rewards):
    return found([{"reward": reward} for reward in rewards], "reward_drift")


def test_a_reward_that_never_turns_is_told_once_and_one_that_turns_or_hardly_moves_is_no_drift():
    steps = DRIFT_POINTS + SMOOTH
    for slope, words in ((0.004, "only up"), (-0.004, "only down")):
        (event,) = drifts(slope * t for t in range(steps + 40))
        assert (event.step, words in event.message) == (steps - 1, True)
    assert drifts(0.004 * abs(t - 40) for t in range(80)) == []
    assert drifts(0.5 * DRIFT * t / 200 for t in range(200)) == []


@given(st.lists(st.floats(-1, 1), max_size=120))
def test_a_drift_is_what_the_medians_say_whatever_came_before(rewards):
    medians = [sorted(rewards[t - SMOOTH + 1 : t + 1])[SMOOTH // 2] for t in range(SMOOTH - 1, len(rewards))]
    for event in drifts(rewards):
        stretch = medians[event.step - SMOOTH + 1 - DRIFT_POINTS : event.step - SMOOTH + 2]
        assert stretch in (sorted(stretch), sorted(stretch, reverse=True))


@pytest.mark.parametrize(
    ("kind", "severity", "column", "values", "steps", "words"),
    [
        # 3e-6 is the largest that float32 rounding gave; stale rollouts are not measured
        (
            "guard_first_ratio",
            "warning",
            "first_log_ratio_abs_max",
            [3e-6, RATIO_TOLERANCE, None, 0.02, 0.03, 0.0, math.inf],
            [3, 6],
            "0.02 nats",
        ),
        (
            "guard_stuck_batch",
            "warning",
            "batch_hash",
            [11, 12, 13, 12, 12, 14, 14],
            [3, 6],
            "tokens of step 1",
        ),
        (
            "guard_token_identity",
            "critical",
            "token_mismatches",
            [0, 2],
            [1],
            (
                "2 trained trajectories are not the tokens and turns that were sampled, first in trajectory"
                " 5, turn 3"
            ),
        ),
    ],
)
def test_the_guard_flags_a_finding_once_while_it_lasts_and_says_where(
    kind, severity, column, values, steps, words
):
    watch = RuleWatch(r.GUARD_RULES)
    found = [
        e for step, value in enumerate(values) for e in watch.step(step, {column: value}, [(5, 3), (9, 1)])
    ]
    assert [(e.kind, e.step) for e in found] == [(kind, step) for step in steps]
    assert (found[0].severity, found[0].diagnostic, found[0].value) == (severity, column, values[steps[0]])
    assert words in found[0].message

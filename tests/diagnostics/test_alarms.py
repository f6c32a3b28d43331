"""Alarms of declared diagnostics: consecutive points, baselines, re-arming, quiet in between."""

import math

from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.rules import COOLDOWN, AlarmWatch
from workbench.spec import Alarm, Diagnostic, Level, Unit


def fire(alarm, values, name="x"):
    watch = AlarmWatch([Diagnostic(name, Level.STEP, Unit.NONE, "x", "test", "x", alarm)])
    return [e.step for step, value in enumerate(values) for e in watch.step(step, {name: value}) if e.kind == "alarm"]


def test_an_alarm_needs_its_points_in_a_row():
    alarm = Alarm("above", 1.0, "test", points=3)
    assert fire(alarm, [2, 2, 0, 2, 2, 2, 2]) == [5]
    assert fire(alarm, [2, 2, 1.0, 2, 2]) == []


def test_below_means_below():
    assert fire(Alarm("below", 0.0, "test"), [0.1, 0.0, -0.1]) == [2]


def test_a_relative_alarm_waits_for_its_baseline_and_compares_with_the_median():
    alarm = Alarm("above", 10.0, "test", relative="baseline", warmup=3)
    assert fire(alarm, [1.0, 500.0, 2.0, 19.0, 21.0]) == [4]


def test_a_baseline_of_zero_arms_nothing():
    assert fire(Alarm("above", 10.0, "test", relative="baseline", warmup=2), [0.0, 0.0, 5.0]) == []


def test_an_alarm_fires_once_until_the_value_has_come_back_and_time_has_passed():
    alarm = Alarm("above", 1.0, "test")
    assert fire(alarm, [2.0] * 30) == [0]
    assert fire(alarm, [2.0, 0.0] * 15) == [0, COOLDOWN, 2 * COOLDOWN]
    assert fire(alarm, [2.0] + [0.0] * COOLDOWN + [2.0]) == [0, COOLDOWN + 1]


def test_what_was_not_measured_neither_counts_nor_clears():
    assert fire(Alarm("above", 1.0, "test", points=2), [2.0, None, 2.0]) == [2]


def test_a_nan_is_an_event_of_its_own_until_the_value_is_finite_again():
    watch = AlarmWatch([])
    seen = [
        (e.kind, e.diagnostic, e.step)
        for step, value in enumerate([1.0, math.nan, math.nan, 1.0, math.inf])
        for e in watch.step(step, {"kl_ref": value})
    ]
    assert seen == [("non_finite", "kl_ref", 1), ("non_finite", "kl_ref", 4)]


def test_an_infinite_value_sets_off_its_alarm_too():
    assert fire(Alarm("above", 1.0, "test"), [math.inf]) == [0]


def test_the_marks_of_verl_are_given_as_its_own_only_where_its_ratio_is_measured():
    """Its health check judges pi_old / mu: the columns of the mismatch, not those of pi_theta / pi_old."""
    told = {d.name: d.alarm.reason for d in CATALOGUE if d.alarm and "verl" in d.alarm.reason}
    assert {name for name, reason in told.items() if "ours" not in reason} == {"mismatch_kl"}
    assert {"ratio_mean", "chi2", "ess_frac_min"} <= set(told)


def test_every_declared_alarm_is_on_a_step_so_that_it_is_watched_and_has_a_reason():
    alarmed = [d for d in CATALOGUE if d.alarm]
    assert len(alarmed) >= 8
    assert all(d.level is Level.STEP for d in alarmed)
    assert all(len(d.alarm.reason) > 20 for d in alarmed)

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.published import AML, lung, rows
from workbench.analysis.survival import (
    by_arm,
    common_horizon,
    curve,
    median_time,
    observed,
    restricted_mean,
    restricted_mean_interval,
    survival_at,
)


def run(**changes: object) -> dict[str, object]:
    healthy = {"outcome": "healthy", "collapse_step": None, "onset_low": None, "detected": None, "steps": 36}
    return {"run_id": "r", "arm": "ppo", "seed": 0} | healthy | changes


@pytest.mark.parametrize(
    ("changes", "time", "event"),
    [
        ({}, 36, False),  # a run of 36 steps that stayed up is censored at 36
        ({"outcome": "collapsed", "collapse_step": 12, "steps": 20}, 12, True),  # at the onset, not where it stopped
        ({"outcome": "diverged", "steps": 9}, 8, True),  # its last step, counted from 0
        ({"outcome": "diverged", "collapse_step": 3, "steps": 9}, 3, True),  # it had fallen before it broke
        ({"outcome": None, "steps": 7}, 7, False),  # too short to be judged, interrupted or failed
        ({"outcome": "no_learning"}, 36, False),
        ({"outcome": "falling", "onset_low": 30}, 30, False),  # neither an event nor a survivor
        ({"outcome": "recovered", "collapse_step": 12, "onset_low": 11}, 12, True),
        ({"outcome": "mild"}, 36, False),
        ({"outcome": None, "detected": 15, "steps": 16}, 15, True),  # in training, the onset is not in its row yet
        ({"outcome": "diverged", "steps": 0}, 0, True),
    ],
)
def test_a_run_is_an_event_at_its_onset_or_censored_where_it_ends(
    changes: dict[str, object], time: float, event: bool
) -> None:
    seen = observed(pd.DataFrame([run(**changes)]))
    assert (seen["time"].tolist(), seen["event"].tolist()) == ([float(time)], [event])


def test_a_run_that_never_began_is_not_watched() -> None:
    assert observed(pd.DataFrame([run(outcome=None, steps=0), run(outcome=None, steps=None)])).empty


def test_the_curve_is_the_one_that_r_prints_for_the_leukaemia_data() -> None:
    drawn = curve(AML)
    maintained = drawn[(drawn["arm"] == "Maintained") & (drawn["events"] > 0)]
    assert maintained["time"].tolist() == [9, 13, 18, 23, 31, 34, 48]
    assert maintained["at_risk"].tolist() == [11, 10, 8, 7, 5, 4, 2]
    assert maintained["survival"].tolist() == pytest.approx([0.909, 0.818, 0.716, 0.614, 0.491, 0.368, 0.184], abs=5e-4)
    # The censored run at 13 was still at risk when another collapsed at 13: 10 / 11 * 9 / 10.
    assert maintained["survival"].iloc[1] == pytest.approx(9 / 11, abs=1e-12)
    last = drawn[drawn["arm"] == "Nonmaintained"].iloc[-1]
    assert (last["time"], last["survival"]) == (45, 0)
    assert np.isnan(last["high"]), "R has no interval there either"


def test_the_median_is_the_one_that_r_prints() -> None:
    by = {arm: median_time(group) for arm, group in AML.groupby("arm")}
    assert by["Maintained"].value == 31
    assert by["Nonmaintained"].value == 23
    by = {arm: median_time(group) for arm, group in lung().groupby("arm")}
    assert (by["male"].value, by["female"].value) == (270, 426)


def test_the_restricted_mean_and_its_error_are_those_that_r_prints_for_the_lung_data() -> None:
    # summary(survfit(Surv(time, status) ~ sex, lung))$table, common upper limit 1022 days
    for arm, mean, error in (("male", 326.0841, 22.91156), ("female", 460.6473, 34.68985)):
        found, variance = restricted_mean(lung()[lung()["arm"] == arm], 1022)
        assert found == pytest.approx(mean, abs=5e-5)
        assert variance**0.5 == pytest.approx(error, abs=5e-6)


def test_the_restricted_mean_of_three_runs_by_hand() -> None:
    # S: 1 to step 2, 2/3 to 6 (one censored at 4), then 0 of one run left: 2 + 4 * 2/3.
    three = rows("a", [2, 4, 6], [1, 0, 1])
    mean, variance = restricted_mean(three, 10)
    assert mean == pytest.approx(2 + 8 / 3)
    assert variance == pytest.approx((8 / 3) ** 2 / (3 * 2))  # after the last collapse no area is left
    assert restricted_mean(three, 5)[0] == pytest.approx(2 + 2)


def test_what_seeds_cannot_tell_has_no_interval() -> None:
    up = restricted_mean_interval(rows("a", [36, 36], [0, 0]), 36)
    assert (up.value, up.low, up.high) == (36, None, None)
    assert median_time(rows("a", [36, 36], [0, 0])).value is None
    at_once = restricted_mean_interval(rows("a", [9, 9], [1, 1]), 36)
    assert (at_once.value, at_once.low) == (9, None)
    # Five collapses of five: the probability that all fall on one side of the median is 2 / 32, more than 5 %.
    assert median_time(rows("a", [1, 2, 3, 4, 5], [1] * 5)).high is None


def test_the_interval_of_the_restricted_mean_stays_within_what_is_possible() -> None:
    mean = restricted_mean_interval(rows("a", [1, 35, 36], [1, 1, 0]), 36)
    assert mean.low is not None
    assert 0 <= mean.low <= 24 <= 36 == mean.high


def test_the_common_horizon_is_the_shortest_of_the_arms_that_did_not_all_fall() -> None:
    fell, up, short = rows("a", [10, 20], [1, 1]), rows("b", [36, 40], [0, 0]), rows("c", [5, 30], [1, 0])
    assert common_horizon(pd.concat([fell, up])) == 40, "a curve that has ended at 0 is known for ever"
    assert common_horizon(pd.concat([fell, up, short])) == 30
    assert common_horizon(fell) == 20
    assert common_horizon(rows("a", [20, 20], [1, 0])) == 20
    assert common_horizon(fell.iloc[:0]) is None


def test_every_arm_has_its_row_and_one_horizon() -> None:
    frame = by_arm(AML).set_index("arm")
    assert frame["watched"].to_dict() == {"Maintained": 11, "Nonmaintained": 12}
    assert frame["events"].to_dict() == {"Maintained": 7, "Nonmaintained": 11}
    assert set(frame["horizon"]) == {161}


watched = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=12)


def some(runs: list[tuple[int, bool]], arm: str = "a") -> pd.DataFrame:
    return rows(arm, [t for t, _ in runs], [e for _, e in runs])


@settings(max_examples=40)
@given(watched, watched, st.randoms())
def test_the_order_of_seeds_does_not_matter(one: list[tuple[int, bool]], two: list, random: object) -> None:
    mixed_one, mixed_two = list(one), list(two)
    random.shuffle(mixed_one)  # type: ignore[attr-defined]
    random.shuffle(mixed_two)  # type: ignore[attr-defined]
    before = by_arm(pd.concat([some(one), some(two, "b")]))
    after = by_arm(pd.concat([some(mixed_one), some(mixed_two, "b")]))
    pd.testing.assert_frame_equal(before, after)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 41))
def test_without_censoring_the_curve_is_the_share_of_runs_still_up(times: list[int], at: int) -> None:
    runs = rows("a", times, [1] * len(times))
    assert survival_at(runs, at) == pytest.approx(np.mean([t > at for t in times]), abs=1e-12)
    assert restricted_mean(runs, 41)[0] == pytest.approx(np.mean(times), abs=1e-9)
    assert median_time(runs).value == sorted(times)[(len(times) + 1) // 2 - 1]


@settings(max_examples=60)
@given(watched, st.data())
def test_to_watch_a_run_longer_never_lowers_the_restricted_mean(
    runs: list[tuple[int, bool]], data: st.DataObject
) -> None:
    up = [i for i, (_, event) in enumerate(runs) if not event]
    if not up:
        return
    i = data.draw(st.sampled_from(up))
    longer = list(runs)
    longer[i] = (runs[i][0] + data.draw(st.integers(1, 20)), False)
    assert restricted_mean(some(longer), 41)[0] >= restricted_mean(some(runs), 41)[0] - 1e-9


@settings(max_examples=40)
@given(watched)
def test_the_curve_falls_from_one_and_agrees_with_scipy(runs: list[tuple[int, bool]]) -> None:
    from scipy.stats import CensoredData, ecdf

    drawn = curve(some(runs))
    assert drawn["survival"].between(0, 1).all()
    assert (drawn["survival"].diff().dropna() <= 1e-12).all()
    if not any(event for _, event in runs):
        assert (drawn["survival"] == 1).all()
        return
    sample = CensoredData(
        uncensored=[float(t) for t, event in runs if event], right=[float(t) for t, event in runs if not event]
    )
    theirs = ecdf(sample).sf.evaluate(drawn["time"].to_numpy())
    assert drawn["survival"].to_numpy() == pytest.approx(theirs, abs=1e-9)

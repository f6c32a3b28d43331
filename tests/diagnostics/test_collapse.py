"""The collapse rule: worked curves, a slow literal reference, and the same verdict live and from the log."""

import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.diagnostics.collapse import Watch, judge
from workbench.diagnostics.hard import HARD_RULES
from workbench.spec import CollapseSettings

TOY = [0.10, 0.20, 0.40, 0.50, 0.52, 0.50, 0.30, 0.10, 0.05, 0.05]
TOY_RULE = CollapseSettings(window=1, baseline=1, points=2)
RISE = [0.2, 0.22, 0.19, 0.21, 0.2, 0.18, 0.2, 0.22, 0.2, 0.21, 0.3, 0.4, 0.5, 0.6, 0.68, 0.7, 0.72, 0.7, 0.69, 0.71]
DEAD = [0.3, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]

scores = st.lists(st.sampled_from([i / 16 for i in range(17)]), min_size=0, max_size=60)
rules = st.builds(
    CollapseSettings,
    window=st.integers(1, 5),
    baseline=st.integers(1, 10),
    points=st.integers(1, 5),
    severe=st.just(0.5),
    mild=st.just(0.2),
)


def test_the_toy_curve_collapses_at_8_from_5_and_stays_down():
    verdict = judge(TOY, TOY_RULE)
    assert verdict.outcome == "collapsed"
    assert verdict.peak == 0.52
    assert verdict.peak_step == 4
    assert verdict.onset == 5
    assert verdict.detection == 8
    assert verdict.first.speed == 3
    assert verdict.first.abrupt
    assert verdict.first.depth == 0.05
    assert verdict.first.drop == pytest.approx(0.903846, abs=5e-7)
    assert verdict.first.ending == "terminal"


@pytest.mark.parametrize(("share", "detected"), [(0.42, 7), (0.43, 8), (0.80, 8), (0.81, 9), (0.9, 9)])
def test_the_toy_drop_fractions_are_those_worked_by_hand(share, detected):
    # 0.423077, 0.807692, 0.903846, 0.903846 at points 6 to 9, two in a row
    assert judge(TOY, CollapseSettings(window=1, baseline=1, points=2, severe=share)).detection == detected


def test_a_fall_that_never_reaches_the_threshold_is_no_collapse():
    assert judge(TOY, CollapseSettings(window=1, baseline=1, points=2, severe=0.91)).onset is None


def test_a_fall_at_the_very_end_is_censored():
    assert judge(TOY[:9], TOY_RULE).first.ending == "censored"


def test_a_run_that_learns_and_keeps_it_is_healthy():
    assert judge(RISE + [0.7, 0.72, 0.69, 0.71, 0.7] * 4).outcome == "healthy"


def test_a_run_that_learns_and_dies_has_collapsed():
    verdict = judge(RISE + DEAD)
    assert verdict.outcome == "collapsed"
    assert 18 <= verdict.onset <= 22
    assert verdict.detection > verdict.onset
    assert verdict.final == 0


def test_a_fifth_of_the_peak_lost_for_good_is_mild():
    verdict = judge([*RISE, 0.5, 0.51, 0.49, 0.5, 0.5, 0.52, 0.5, 0.5, 0.49, 0.5, 0.5])
    assert verdict.outcome == "mild"
    assert verdict.onset is None
    assert verdict.mild_drops[0].onset >= 18


@pytest.mark.parametrize("flat", [[0.0] * 40, [0.3] * 40, [0.3, 0.28, 0.31, 0.29, 0.3, 0.27, 0.33, 0.3] * 5])
def test_a_run_that_never_rises_above_its_start_has_not_learned(flat):
    assert judge(flat).outcome == "no_learning"


@pytest.mark.parametrize("level", [0.01, 0.03, 0.1, 0.3])
def test_the_noise_of_a_run_that_never_learns_is_not_a_collapse(level):
    draw = np.random.default_rng(0)
    outcomes = [judge(draw.binomial(64, level, size=80) / 64, episodes=64).outcome for _ in range(100)]
    assert outcomes.count("no_learning") >= 95
    assert "collapsed" not in outcomes


def test_a_warm_start_that_the_first_update_kills_has_collapsed_from_the_first_step():
    verdict = judge([0.45] + [0.0, 0.015625] * 30, episodes=64)
    assert verdict.outcome == "collapsed"
    assert (verdict.first.peak, verdict.first.peak_step, verdict.onset) == (0.45, 0, 0)
    assert (verdict.peak, verdict.peak_step) == (0.45, 0)
    assert verdict.detection == 8  # the median needs five points, the rule five of them


def test_a_start_that_one_batch_of_few_episodes_only_suggests_is_nothing_to_lose():
    assert judge([0.5] + [0.125, 0.25] * 30, episodes=8).outcome == "no_learning"
    assert judge([0.28] + [0.0] * 30).outcome == "no_learning"  # of unknown size, and the mean of five is near 0
    assert judge([0.02] + [0.0] * 30, episodes=64).outcome == "no_learning"


def test_a_held_out_start_counts_whatever_the_first_batches_show():
    watch = Watch(episodes=64)
    watch.step(0, {"success": 0.0, "heldout_success": 0.4, "heldout_episodes": 256})
    for step in range(1, 20):
        watch.step(step, {"success": 0.0})
    assert (watch.verdict.outcome, watch.verdict.onset) == ("collapsed", 0)


def test_too_few_points_are_undecided():
    assert judge([0.5] * 4).outcome is None
    assert judge([]).outcome is None


def test_a_recovery_is_told_with_its_step_and_a_second_fall_counts_again():
    back = [0.7] * 12
    verdict = judge(RISE + DEAD + back + DEAD)
    first, second = verdict.drops
    assert first.ending == "recovered"
    assert first.recovered == len(RISE + DEAD) + 2 + 4  # the median needs three points, the rule five
    assert second.onset >= first.recovered
    assert second.ending == "terminal"
    assert verdict.outcome == "collapsed"


def test_steps_need_not_count_from_zero():
    shifted = judge(TOY, TOY_RULE, steps=range(100, 200, 10))
    assert (shifted.onset, shifted.detection) == (150, 180)


def test_a_missing_score_is_no_point():
    assert judge([None, *TOY, None], TOY_RULE, steps=range(-1, 11)).onset == 5


def test_events_come_once_and_when_they_happen():
    watch = Watch()
    seen = []
    for step, score in enumerate(RISE + DEAD + [0.7] * 12):
        seen += [(e.kind, e.step, step) for e in watch.step(step, {"success": score})]
    assert all(claimed == at for _, claimed, at in seen)
    assert [kind for kind, _, _ in seen] == ["mild", "collapse", "recovered"]
    assert watch.verdict.detection == seen[1][1]


@settings(max_examples=200)
@given(scores, rules)
def test_a_live_run_and_its_log_get_the_same_verdict(curve, rule):
    watch = Watch(rule)
    detections = []
    for step, score in enumerate(curve):
        detections += [e.step for e in watch.step(step, {"success": score}) if e.kind == "collapse"]
    verdict = judge(curve, rule)
    assert watch.verdict == verdict
    assert detections == [drop.detection for drop in verdict.drops]
    for cut in range(len(curve)):
        early = judge(curve[:cut], rule)
        assert early.drops == () or early.onset == verdict.onset  # what was said is never taken back
        assert (early.detection is not None) == (verdict.detection is not None and verdict.detection < cut)


@settings(max_examples=300)
@given(scores, rules, st.sampled_from([None, 4, 16]))
def test_onset_and_detection_follow_the_formulas_to_the_letter(curve, rule, episodes):
    verdict = judge(curve, rule, episodes=episodes)
    assert (verdict.onset, verdict.detection) == reference(curve, rule, episodes)


def reference(s, rule, episodes):
    """Onset and detection of the first severe fall, by the formulas alone."""
    w, points = rule.window, rule.points
    smooth = {t: median(s[t - w + 1 : t + 1]) for t in range(w - 1, len(s))}
    begun: dict[int, bool] = {}
    for t in range(len(s)):
        rest = [s[u] - smooth[u] for u in smooth if u <= t]
        if not rest or t + 1 < rule.baseline:
            continue
        sigma = 1.4826 * float(np.median(np.abs(np.array(rest) - np.median(rest))))

        def peak(u):
            return max(smooth[v] for v in smooth if v <= u)

        base = float(np.mean(s[: rule.baseline]))
        if episodes is not None:
            sigma = max(sigma, *(math.sqrt(x * (1 - x) / episodes) for x in (peak(t), base)))
        q = min(1.0, math.pi / (2 * w))
        noise = rule.sigmas * sigma * math.sqrt(q + 1 / rule.baseline)
        start, gone = base, noise
        if episodes is not None:
            start = s[0]
            gone = rule.sigmas * math.sqrt(sigma**2 * q + start * (1 - start) / episodes)

        def lost(u):
            return (peak(u) - smooth[u]) / max(peak(u), 1e-12) >= rule.severe

        lower = start - smooth[t] >= max(gone, rule.severe * start, 2e-12)
        begun[t] = lower and episodes is not None
        run = all(u in smooth and (lost(u) or begun.get(u, False)) for u in range(t - points + 1, t + 1))
        far = peak(t) - smooth[t] >= rule.sigmas * sigma * math.sqrt(2 * q)
        if run and ((far and (lower or peak(t) >= base + noise)) or begun[t]):
            top = max(peak(t), start)
            since = next(u for u in smooth if smooth[u] == peak(t)) if peak(t) >= start else 0
            near = [u for u in smooth if since <= u <= t and smooth[u] >= top - max(sigma, 0.05 * top)]
            return max(near, default=0), t
    return None, None


def fire(values, diagnostic, **others):
    watch, events = Watch(), []
    for step, value in enumerate(values):
        events += watch.step(step, {diagnostic: value, **others})
    return [(e.kind, e.step) for e in events], watch


def test_a_non_finite_update_is_a_divergence():
    events, watch = fire([0, 0, 3, 5], "non_finite")
    assert events == [("non_finite", 2)]
    assert watch.verdict.outcome == "diverged"


def test_a_score_that_is_not_a_number_is_a_divergence():
    events, watch = fire([0.5, math.nan], "success")
    assert events == [("non_finite", 1)]
    assert watch.verdict.outcome == "diverged"


def test_format_collapse_is_half_of_the_best_for_five_points():
    good, bad = [0.9, 0.95], [0.47] * 5
    assert fire(good + bad, "valid_action_frac")[0] == [("format_collapse", 6)]
    assert fire([*good, *bad[:4], 0.5, *bad[:4]], "valid_action_frac")[0] == []


def test_signal_collapse_is_nine_dead_groups_in_ten_for_five_points():
    assert fire([0.5, 0.9, 1, 1, 1, 0.9, 1], "zero_advantage_frac")[0] == [("signal_collapse", 5)]
    assert fire([0.89] * 20, "zero_advantage_frac")[0] == []


def test_entropy_is_compared_with_the_first_five_points():
    assert fire([1.0] * 5 + [0.11, 0.09], "entropy")[0] == [("entropy_collapse", 6)]
    assert fire([1.0] * 5 + [2.9, 3.1, 3.2], "entropy")[0] == [("entropy_explosion", 6)]
    assert fire([1.0] * 4 + [0.0], "entropy")[0] == []


def test_a_crash_is_a_divergence_whatever_the_score():
    watch = Watch()
    for step, score in enumerate(RISE):
        watch.step(step, {"success": score})
    event = watch.crashed(20, "sampling failed")
    assert (event.kind, event.severity, event.step) == ("diverged", "critical", 20)
    assert watch.verdict.outcome == "diverged"


def test_every_hard_rule_has_a_reason():
    assert all(len(rule.reason) > 20 for rule in HARD_RULES)


@pytest.mark.parametrize(("level", "ending"), [(0.6, "terminal"), (0.63, "recovered")])
def test_a_recovery_regains_four_fifths_of_what_was_lost(level, ending):
    # peak .7, trough .3: back from 0.7 - 0.2 * 0.4 = 0.62
    verdict = judge([*RISE, *[0.7] * 5, *[0.3] * 12, *[level] * 12])
    assert verdict.drops[0].ending == ending

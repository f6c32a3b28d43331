"""The collapse rule: worked counts, known noise, planted falls, and the same verdict live and
from the log.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from sorl.collapse.onset import RAMPS, find_onset
from sorl.collapse.rule import Watch, judge
from sorl.spec import COLLAPSED, OUTCOMES, CollapseSettings

# Successes of 64 episodes a step, as recorded: ppo, seed 1 of `sorl run experiments/quickstart.toml`. It ends
# at zero, and the rule of running medians called such runs healthy.
QUICKSTART = [
    35,
    35,
    31,
    34,
    31,
    32,
    38,
    29,
    28,
    30,
    34,
    25,
    33,
    34,
    29,
    29,
    38,
    33,
    35,
    27,
    32,
    24,
    30,
    32,
    34,
    30,
    39,
    41,
    39,
    40,
    33,
    8,
    5,
    0,
    0,
    0,
]
QUICKSTART = [count / 64 for count in QUICKSTART]
HELD_OUT = {"heldout_success": 0.38, "heldout_episodes": 256}


def counts(level, steps, seed=0, n=64):
    return (np.random.default_rng(seed).binomial(n, level, steps) / n).tolist()


def fed(watch, rows):
    """The events of a watch that gets these rows of table `step`, one a step."""
    return [event for step, row in enumerate(rows) for event in watch.step(step, row)]


def watched(scores, group=1, episodes=64, **first):
    watch = Watch(None, episodes, group)
    fed(watch, [{"success": score, **(first if step == 0 else {})} for step, score in enumerate(scores)])
    return watch


def learned(steps=30, seed=0):
    """A run that rises from .38 to .6 and stays there."""
    return counts(0.38, 3, seed) + counts(0.6, steps, seed + 1)


HALF = counts(0.5, 30)


@pytest.mark.parametrize(
    ("scores", "held", "outcome"),
    [
        (QUICKSTART, HELD_OUT, "collapsed"),
        ([*HALF, 0.53, 0.0, 0.0, 0.0, 0.0, 0.0], HELD_OUT, "collapsed"),
        ([*HALF, 0.0], HELD_OUT, "falling"),  # nought of 64 after one half is certain at the second batch
        ([*HALF, 0.0, 0.0], HELD_OUT, "collapsed"),
        ([0.4, 0.0, 0.0, 0.0], HELD_OUT, "collapsed"),  # too few points are undecided unless they fell
        ([0.5] * 4, {}, None),
        ([], {}, None),
        ([1 / 64] + [0.0] * 30, {}, "no_learning"),  # a start of which few episodes tell is nothing to lose
        # one dead batch among good ones
        ([*learned(20), 0.0, *counts(0.6, 12, seed=5)], HELD_OUT, "healthy"),
        (counts(0.5, 20), {"heldout_success": 0.1, "heldout_episodes": 256}, "healthy"),
        (learned(), HELD_OUT, "healthy"),
        ([*learned(), *counts(0.42, 40)], HELD_OUT, "mild"),  # a third of it lost
    ],
)
def test_the_outcome_of_64_episodes_a_step_is(scores, held, outcome):
    verdict = watched(scores, **held).verdict
    assert verdict.outcome == outcome
    assert bool(verdict.drops) == (outcome == "collapsed")


@pytest.mark.parametrize("scores", [[*counts(0.5, 30, n=8), 3 / 8], [0.25, 0.125] * 15])
def test_a_few_successes_of_eight_say_nothing(scores):
    assert not {"falling", *COLLAPSED} & {judge(scores, episodes=8).outcome}


def test_the_evidence_is_the_binomial_likelihood_ratio_of_the_counts():
    # One prompt an episode, a curve without any noise: phi is at its floor of 1, and the best is its 95 %
    # bound.
    level = 32 / 64
    n = 64
    watch = watched([level] * 20)
    bound = watch._curve.best.bound
    # of the first 5, 10 and 20 steps: the longest stretch has the highest bound
    z = norm.ppf(0.9)
    trials = 20 * n
    wilson = (
        level + z**2 / (2 * trials) - z * math.sqrt(level * (1 - level) / trials + (z / (2 * trials)) ** 2)
    ) / (1 + z**2 / trials)
    assert bound == pytest.approx(wilson, abs=1e-4)
    assert watch._curve.phi == 1
    lost = watch._curve.gain(20 / n, bound / 2, bound)
    assert lost == pytest.approx(binom.logpmf(20, n, bound / 2) - binom.logpmf(20, n, bound), abs=1e-9)


def test_a_run_that_learns_and_dies_has_collapsed_since_its_last_good_step():
    verdict = watched([*learned(), *counts(0.02, 10)], **HELD_OUT).verdict
    assert verdict.outcome == "collapsed"
    assert verdict.onset == 32
    assert verdict.drops[0].onset_low <= 32 <= verdict.drops[0].onset_high
    assert verdict.final == pytest.approx(np.mean(counts(0.02, 10)))
    quick = watched(QUICKSTART, **HELD_OUT).verdict
    assert (quick.onset, quick.detection) == (29, 32)
    # grpo at .566 of a region: a trailing median of five put the onset at step 4, where success was .02
    # already
    fast = judge([0.58, 0.53, 0.45, 0.12, 0.02, 0.0, 0.02], episodes=64, group=8)
    assert (fast.outcome, fast.onset in (1, 2)) == ("collapsed", True)


@pytest.mark.parametrize("episodes", [64, None])
def test_the_onset_is_the_most_likely_line_of_all_that_are_tried(episodes: int | None):
    draw = np.random.default_rng(3)
    for points in (1, 2, 3, 9, 40, 90):
        best = 0.6
        scores = draw.binomial(64, np.where(np.arange(points) < points / 2, 0.55, 0.4)) / 64
        curve = watched(scores, episodes=episodes)._curve
        likelihood = [1e-9] + [-math.inf] * (points - 1)
        for t in range(points - 1):
            high = best if t < 2 else sum(scores[: t + 1]) / (t + 1)
            for r in (r for r in RAMPS if t + r < points):
                level = min(high, sum(scores[t + r :]) / (points - t - r))
                means = [high + (level - high) * min(1, max(0, i - t) / r) for i in range(points)]
                gains = [float(curve.gain(x, m, best)) for x, m in zip(scores, means, strict=True)]
                likelihood[t] = max(likelihood[t], math.fsum(gains))
        for at in {points, max(1, points - 3)}:  # nothing at the detection or later begins the fall
            tried = likelihood[:at]
            near = [t for t in range(at) if tried[t] >= max(tried) - 1.92]
            assert find_onset(curve, 0, at, points, best) == (near[0], tried.index(max(tried)), near[-1])


@pytest.mark.parametrize(
    ("after", "runs", "least"),
    [
        ([0.2] * 20, 60, 54),  # 95 % of 60 is 57; 53 or fewer have a chance of 2 %
        ([*(0.6 - 0.03 * np.arange(1, 20)), *[0.0] * 10], 20, 17),  # a slow fall
    ],
)
def test_onset_intervals_cover_the_planted_step_as_often_as_they_say(after, runs, least):
    covered = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        fall = int(rng.integers(15, 40))
        scores = (rng.binomial(64, [*[0.6] * fall, *after]) / 64).tolist()
        drop, *_ = judge(scores, episodes=64).drops
        covered += drop.onset_low <= fall - 1 <= drop.onset_high
    assert covered >= least


@pytest.mark.parametrize("level", [0.0, 0.01, 0.1, 0.38])
def test_a_run_that_never_rises_above_its_start_has_not_learned(level):
    held = {"heldout_success": level, "heldout_episodes": 256}
    outcomes = [watched(counts(level, 80, seed), **held).verdict.outcome for seed in range(60)]
    assert outcomes.count("no_learning") >= 54
    assert sum(word in COLLAPSED for word in outcomes) <= 2


def grouped(level, steps, rng, prompts=8, rollouts=8, correlation=0.5):
    """Shares of rollouts that succeed, where those of one prompt are alike: a beta-binomial."""
    k = (1 - correlation) / correlation
    solved = rng.beta(level * k, (1 - level) * k, (steps, prompts))
    return (rng.binomial(rollouts, solved).sum(1) / (prompts * rollouts)).tolist()


@pytest.mark.parametrize("steps", [36, 180])
def test_the_noise_of_eight_prompts_is_no_collapse(steps):
    rng = np.random.default_rng(0)
    found = [judge(grouped(0.6, steps, rng), episodes=64, group=8) for _ in range(100)]
    assert sum(bool(verdict.drops) for verdict in found) <= 2
    assert sum(verdict.outcome == "falling" for verdict in found) <= 10


def test_a_fall_to_zero_of_eight_prompts_is_found_within_two_steps():
    rng = np.random.default_rng(0)
    delays = [
        judge([*grouped(0.65, 36, rng), *[0.0] * 6], episodes=64, group=8).detection - 35 for _ in range(60)
    ]
    assert sum(delay <= 2 for delay in delays) >= 54


def test_a_warm_start_that_the_first_update_kills_has_collapsed_from_the_first_step():
    for held, peak in ((HELD_OUT, 0.38), ({}, None)):
        verdict = watched([0.45] + [0.0, 0.015625] * 30, **held).verdict
        assert (verdict.outcome, verdict.onset) == ("collapsed", 0)
        assert peak is None or verdict.peak == peak
    first, *others = counts(0.5, 20)  # only the evaluation before the first point counts as untrained
    later = {"heldout_success": 0.1, "heldout_episodes": 256}
    fed(watch := Watch(None, 64), [{"success": first}, *({"success": success} | later for success in others)])
    assert watch.verdict.outcome == "no_learning"


def test_a_recovery_is_told_with_its_step_and_a_second_fall_counts_again():
    back = [*learned(), *counts(0.02, 10), *counts(0.6, 12)]
    verdict = watched(back, **HELD_OUT).verdict
    assert verdict.outcome == "recovered"
    assert 43 <= verdict.drops[0].recovered <= 46
    again = watched([*back, *counts(0.02, 8)], **HELD_OUT).verdict
    assert again.outcome == "collapsed"
    assert again.drops[0] == verdict.drops[0]
    assert again.drops[1].onset == 54


@pytest.mark.parametrize(
    ("start", "gain", "bottom", "noise"), [(1, 1, 0, 0.1), (40, 40, 0, 4), (-5, 4, -5, 0.2)]
)
def test_a_reward_of_unknown_size_is_judged_by_its_own_noise_and_from_its_start(start, gain, bottom, noise):
    rng = np.random.default_rng(0)
    up = start + gain * np.r_[np.linspace(0, 1, 10), np.ones(30)] + noise * rng.standard_normal(40)
    assert judge(up.tolist()).outcome == "healthy"
    assert judge([*up.tolist(), *(bottom + noise * rng.standard_normal(15)).tolist()]).outcome == "collapsed"
    assert judge(rng.standard_normal(40).tolist()).outcome == "no_learning"


def test_steps_need_not_count_from_zero_and_a_missing_score_is_no_point():
    scores = [*learned(), *counts(0.02, 10)]
    tens = range(100, 100 + 10 * len(scores), 10)
    plain = judge(scores, episodes=64)
    shifted = judge(scores, episodes=64, steps=tens)
    assert (shifted.onset, shifted.detection) == (100 + 10 * plain.onset, 100 + 10 * plain.detection)
    gaps = judge([None, *scores, None], episodes=64, steps=range(-1, len(scores) + 1))
    assert (gaps.onset, gaps.detection) == (plain.onset, plain.detection)


def test_events_come_once_and_when_they_happen():
    watch = Watch(None, 64)
    seen = []
    for step, score in enumerate([*learned(), *counts(0.02, 10), *counts(0.6, 12)]):
        seen += [(e.kind, e.step, step) for e in watch.step(step, {"success": score})]
    assert all(claimed == at for _, claimed, at in seen)
    assert [kind for kind, _, _ in seen if kind != "mild"] == ["collapse", "recovered"]
    assert watch.verdict.detection == next(step for kind, step, _ in seen if kind == "collapse")


shares = st.lists(st.integers(0, 16).map(lambda k: k / 16), min_size=0, max_size=40)
severe = st.sampled_from([0.3, 0.5, 0.8])
collapse = st.sampled_from([0.2, 0.01])
ending = st.sampled_from([0.2, 0.05])
rules = st.builds(CollapseSettings, severe=severe, false_collapse=collapse, false_ending=ending)


@settings(max_examples=80, deadline=None)
@given(shares, rules, st.sampled_from([None, 16, 64]))
def test_a_live_run_and_its_log_get_the_same_verdict(curve, rule, episodes):
    events = fed(watch := Watch(rule, episodes), [{"success": score} for score in curve])
    verdict = judge(curve, rule, episodes=episodes)
    assert watch.verdict == verdict
    assert [e.step for e in events if e.kind == "collapse"] == [drop.detection for drop in verdict.drops]
    for cut in range(len(curve)):  # a detection depends on nothing that comes later
        early = judge(curve[:cut], rule, episodes=episodes)
        assert (early.detection is not None) == (verdict.detection is not None and verdict.detection < cut)
    never_contradicts_itself(verdict)


def never_contradicts_itself(verdict):
    assert verdict.outcome is None or verdict.outcome in OUTCOMES
    assert (verdict.falling is not None) == (verdict.outcome == "falling")
    assert (verdict.onset is not None) == bool(verdict.drops)
    for drop in (*verdict.drops, *([verdict.falling] if verdict.falling else [])):
        assert drop.onset_low <= drop.onset <= drop.onset_high
        assert drop.onset <= drop.detection
        assert drop.recovered is None or drop.recovered > drop.detection
    columns = verdict.columns()
    assert (columns["onset_low"] is None) == (not verdict.drops and not verdict.falling)


def test_a_run_with_a_critical_event_is_never_healthy_and_a_crash_is_a_divergence_whatever_the_score():
    valid = [0.9] * 20 + [0.3] * 13
    rows = [{"success": s, "valid_action_frac": v} for s, v in zip(learned(), valid, strict=True)]
    fed(watch := Watch(None, 64), rows)
    assert watch.verdict.outcome == "mild"
    event = watch.crashed(20, "sampling failed")
    assert (event.kind, event.severity, event.step) == ("diverged", "critical", 20)
    assert watch.verdict.outcome == "diverged"


GOOD = [0.9, 0.95]
BAD = [0.47] * 5


@pytest.mark.parametrize(
    ("diagnostic", "values", "events"),
    [
        ("valid_action_frac", GOOD + BAD, [("format_collapse", 6)]),  # half of the best for five points
        ("valid_action_frac", [*GOOD, *BAD[:4], 0.5, *BAD[:4]], []),
        # nine in ten for five points
        ("zero_advantage_frac", [0.5, 0.9, 1, 1, 1, 0.9, 1], [("signal_collapse", 5)]),
        ("zero_advantage_frac", [0.89] * 20, []),
        ("entropy", [1.0] * 5 + [0.11, 0.09], [("entropy_collapse", 6)]),  # against the first five points
        ("entropy", [1.0] * 5 + [2.9, 3.1, 3.2], [("entropy_explosion", 6)]),
        ("entropy", [1.0] * 4 + [0.0], []),
        ("non_finite", [0, 0, 3, 5], [("non_finite", 2)]),
        ("success", [0.5, math.nan], [("non_finite", 1)]),
    ],
)
def test_a_hard_event_comes_once_where_its_mark_is_crossed(diagnostic, values, events):
    found = fed(watch := Watch(), [{diagnostic: value} for value in values])
    assert [(e.kind, e.step) for e in found] == events
    assert (watch.verdict.outcome == "diverged") == ("non_finite" in dict(events))

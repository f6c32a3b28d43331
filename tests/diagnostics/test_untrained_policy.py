import pytest

from workbench.diagnostics.collapse import Watch

# The policy has learned a third of the way within the first five steps; then it peaks and dies.
QUICK = [0.45, 0.55, 0.58, 0.56, 0.58, 0.58, 0.58, 0.57, 0.58, 0.58, 0.59, 0.58, 0.57, 0.58, 0.58] + [0.0] * 12


def outcome(heldout):
    watch = Watch(episodes=64)
    for step, success in enumerate(QUICK):
        watch.step(
            step, {"success": success, **({"heldout_success": 0.38, "heldout_episodes": 256} if heldout else {})}
        )
    return watch.verdict


def test_held_out_success_before_the_first_update_is_the_start_that_a_gain_is_measured_from():
    assert outcome(heldout=True).outcome == "collapsed"
    assert outcome(heldout=True).baseline == 0.38


def test_without_it_the_first_five_points_stand_in():
    assert outcome(heldout=False).baseline == pytest.approx(sum(QUICK[:5]) / 5)


def test_only_the_evaluation_before_the_first_point_counts_as_untrained():
    watch = Watch(episodes=64)
    for step, success in enumerate(QUICK):
        watch.step(step, {"success": success, **({"heldout_success": 0.1, "heldout_episodes": 256} if step else {})})
    assert watch.verdict.baseline != 0.1


def test_a_policy_that_only_loses_what_its_warm_start_could_do_has_collapsed():
    watch = Watch(episodes=64)
    for step, success in enumerate([0.44, 0.47, 0.45, 0.48, 0.46, 0.5, 0.47, 0.44] + [0.02] * 12):
        watch.step(
            step, {"success": success, **({"heldout_success": 0.43, "heldout_episodes": 256} if not step else {})}
        )
    assert watch.verdict.outcome == "collapsed"


def test_a_policy_that_stays_at_its_warm_start_has_not_learned():
    watch = Watch(episodes=64)
    for step, success in enumerate([0.44, 0.47, 0.45, 0.42, 0.46, 0.41, 0.47, 0.44] * 3):
        watch.step(
            step, {"success": success, **({"heldout_success": 0.43, "heldout_episodes": 256} if not step else {})}
        )
    assert watch.verdict.outcome == "no_learning"

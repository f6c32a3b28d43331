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


def test_without_it_the_first_points_hide_what_was_learned_in_them():
    assert outcome(heldout=False).outcome == "no_learning"


def test_only_the_evaluation_before_the_first_point_counts_as_untrained():
    watch = Watch(episodes=64)
    for step, success in enumerate(QUICK):
        watch.step(step, {"success": success, **({"heldout_success": 0.1, "heldout_episodes": 256} if step else {})})
    assert watch.verdict.baseline != 0.1

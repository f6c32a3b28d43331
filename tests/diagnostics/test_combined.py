"""Findings that take more than one value."""

from hypothesis import given
from hypothesis import strategies as st

from docs.render import diagnostics as page
from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.rules import COMBINED, DRIFT, DRIFT_POINTS, SMOOTH, AlarmWatch


def found(rows, kind):
    watch = AlarmWatch(CATALOGUE)
    return [e for step, row in enumerate(rows) for e in watch.step(step, row) if e.kind == kind]


def rows(spread, entropy, **others):
    start = [{"group_reward_std": 0.4, "entropy": 1.0, "grad_norm_max": 1.0, "repetition_frac": 0.1}] * 10
    return start + [{"group_reward_std": spread, "entropy": entropy, **others}] * 15


def test_an_echo_trap_is_equal_rewards_and_a_policy_that_no_longer_chooses():
    (event,) = found(rows(0.01, 0.1), "echo_trap")
    assert (event.step, event.severity, event.diagnostic) == (19, "warning", "group_reward_std")  # its ten points
    assert "spikes" not in event.message
    assert found(rows(0.01, 0.9), "echo_trap") == []
    assert found(rows(0.4, 0.1), "echo_trap") == []


def test_an_echo_trap_says_which_of_the_later_signs_are_there():
    (event,) = found(rows(0.01, 0.1, grad_norm_max=50.0, repetition_frac=0.5), "echo_trap")
    assert "gradient norm spikes" in event.message
    assert "repeat themselves" in event.message


def test_an_echo_trap_comes_once_until_it_is_over():
    trapped = rows(0.01, 0.1)
    assert len(found(trapped + trapped[10:], "echo_trap")) == 1
    assert len(found(trapped + trapped[:1] * 3 + trapped[10:], "echo_trap")) == 2


def test_what_was_not_measured_is_no_sign():
    none = [{k: v for k, v in row.items() if k != "entropy"} for row in rows(0.01, 0.1)]
    assert found(none, "echo_trap") == []


def test_a_reward_that_never_turns_is_told_once():
    steps = DRIFT_POINTS + SMOOTH
    rising = [{"reward": 0.004 * t} for t in range(steps + 40)]
    (event,) = found(rising, "reward_drift")
    assert event.step == steps - 1
    assert "only up" in event.message
    assert found([{"reward": -row["reward"]} for row in rising], "reward_drift")[0].message.startswith(
        "reward went only d"
    )


def test_a_reward_that_turns_or_hardly_moves_is_no_drift():
    assert found([{"reward": 0.004 * abs(t - 40)} for t in range(80)], "reward_drift") == []
    assert found([{"reward": 0.5 * DRIFT * t / 200} for t in range(200)], "reward_drift") == []


@given(st.lists(st.floats(-1, 1), max_size=120))
def test_a_drift_is_what_the_medians_say_whatever_came_before(rewards):
    events = found([{"reward": r} for r in rewards], "reward_drift")
    medians = [sorted(rewards[t - SMOOTH + 1 : t + 1])[SMOOTH // 2] for t in range(SMOOTH - 1, len(rewards))]
    for event in events:
        stretch = medians[event.step - SMOOTH + 1 - DRIFT_POINTS : event.step - SMOOTH + 2]
        assert stretch in (sorted(stretch), sorted(stretch, reverse=True))


def test_both_stand_in_the_documentation():
    assert all(f"| `{c.kind}` | {c.severity} |" in page() for c in COMBINED)

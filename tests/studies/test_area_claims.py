"""The claims by stable areas, where the right answer is known."""

import pytest

from studies.claims import area_verdicts, shifts
from studies.evidence import Comparison
from tests.studies.runs import region
from workbench.analysis.region import from_runs, region_of


def shifts_of(n: int = 5, conditions: tuple[int, ...] = (0, 3), **survives: float) -> list[Comparison]:
    """Arms (by algorithm, _ for -) that collapse in all of n runs above the learning rate they survive."""
    found = region(5, {name.replace("_", "-"): dict.fromkeys(conditions, most) for name, most in survives.items()}, n)
    file = region_of(found.toml)
    assert file is not None
    return shifts(from_runs(found.runs.assign(started_at=None), file, "demo"), found.runs)


def one(found: list[Comparison], letter: str) -> Comparison:
    (shift,) = [s for s in found if s.claim == letter]
    return shift


def test_an_arm_whose_boundary_lies_two_doublings_further_up_supports_its_claim_and_the_reverse_does_not() -> None:
    found = one(shifts_of(ppo=0.1, turn_ppo=0.4), "b")
    assert (found.more, found.less, found.seeds) == ("turn-ppo", "ppo", 5)
    assert found.effect == pytest.approx(2.0, abs=0.15)
    assert found.low is not None
    assert 1.0 <= found.low < 2.0 < found.high <= 3.0  # type: ignore[operator]  each boundary within its own gap
    assert (found.smallest_p is None, found.verdict) == (False, "supported")
    reverse = one(shifts_of(ppo=0.4, turn_ppo=0.1), "b")
    assert reverse.effect == pytest.approx(-2.0, abs=0.15)
    assert reverse.verdict == "not supported"
    few = one(shifts_of(n=4, ppo=0.1, turn_ppo=0.8), "b")
    assert (few.effect, few.verdict) == (None, "too few seeds"), "fewer than five seeds say nothing"
    single = one(shifts_of(conditions=(0,), ppo=0.1, turn_ppo=0.4), "b")  # boundaries instead of areas
    assert (single.effect, single.verdict) == (pytest.approx(2.0, abs=0.15), "supported")


def test_equal_boundaries_are_told_apart_from_boundaries_that_were_not_reached() -> None:
    within = one(shifts_of(ppo=0.2, turn_ppo=0.2), "b")
    assert (within.effect, within.smallest_p is None) == (pytest.approx(0.0, abs=0.1), False)
    beyond = one(shifts_of(ppo=1.6, turn_ppo=1.6), "b")
    assert (beyond.effect, beyond.smallest_p is None) == (pytest.approx(0.0, abs=0.1), True)
    assert beyond.verdict == "undecided at this power"


def test_both_together_must_beat_each_alone() -> None:
    found = shifts_of(ppo=0.1, turn_ppo=0.2, s_ppo=0.2, st_ppo=0.8)
    assert sorted((s.claim, s.more, s.less) for s in found) == [
        ("b", "turn-ppo", "ppo"), ("c", "s-ppo", "ppo"), ("d", "st-ppo", "s-ppo"), ("d", "st-ppo", "turn-ppo"),
    ]  # fmt: skip
    assert area_verdicts(found)["d"] == "supported"
    assert area_verdicts(shifts_of(ppo=0.1, turn_ppo=0.8, s_ppo=0.2, st_ppo=0.4))["d"] == "not supported"
    assert area_verdicts(found)["g2"] == "not tested here"


def test_two_cures_at_once_are_a_claim_of_their_own_only_where_neither_was_tried_alone() -> None:
    assert one(shifts_of(grpo=0.1, so_grpo=0.4), "bc").more == "so-grpo"
    assert "bc" not in {s.claim for s in shifts_of(ppo=0.1, turn_ppo=0.2, st_ppo=0.8)}

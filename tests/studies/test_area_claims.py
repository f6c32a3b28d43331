"""The claims by stable areas, where the right answer is known."""

from __future__ import annotations

import pytest

from studies.claims import area_verdicts, shifts
from studies.evidence import Comparison
from tests.analysis.frames import arm, down, frame, up
from workbench.analysis.region import from_runs, region_of
from workbench.analysis.results import results

RATES = (0.1, 0.2, 0.4, 0.8, 1.6)
FILE = """
kind = "region"
question = "How large a learning rate does each survive?"
seeds = [0, 1, 2, 3, 4]
[axes]
algorithm = ["ppo", "turn-ppo"]
"learn.staleness" = [0, 3]
[region]
low = 0.1
high = 1.6
points = 5
"""


def shifts_of(n: int = 5, conditions: tuple[int, ...] = (0, 3), **survives: float) -> list[Comparison]:
    """Arms (by algorithm, _ for -) that collapse in all of n runs above the learning rate they survive."""
    rows = []
    for name, most in survives.items():
        algorithm = name.replace("_", "-")
        for staleness in conditions:
            for rate in RATES:
                learn = {"epochs": 4, "staleness": staleness, "policy": {"lr": rate}}
                label = f"{algorithm} · staleness {staleness} · policy.lr {rate:g}"
                rows.append(arm(label, down(n) if rate > most else up(n), algorithm, learn=learn))
    found = results(frame(*rows), {"experiment": "demo", "question": "How large?", "toml": FILE})
    file = region_of(FILE)
    assert file is not None
    return shifts(from_runs(found.runs.assign(started_at=None), file, "demo"), found.runs)


def one(found: list[Comparison], letter: str) -> Comparison:
    (shift,) = [s for s in found if s.claim == letter]
    return shift


def test_an_arm_whose_boundary_lies_two_doublings_further_up_supports_its_claim() -> None:
    found = one(shifts_of(ppo=0.1, turn_ppo=0.4), "b")
    assert (found.more, found.less, found.seeds) == ("turn-ppo", "ppo", 5)
    assert found.effect == pytest.approx(2.0, abs=0.15)
    assert found.low is not None
    assert 1.0 <= found.low < 2.0 < found.high <= 3.0  # type: ignore[operator]  each boundary within its own gap
    assert (found.smallest_p is None, found.verdict) == (False, "supported")


def test_the_other_way_round_is_not_supported() -> None:
    found = one(shifts_of(ppo=0.4, turn_ppo=0.1), "b")
    assert found.effect == pytest.approx(-2.0, abs=0.15)
    assert found.verdict == "not supported"


def test_equal_boundaries_are_told_apart_from_boundaries_that_were_not_reached() -> None:
    within = one(shifts_of(ppo=0.2, turn_ppo=0.2), "b")
    assert (within.effect, within.smallest_p is None) == (pytest.approx(0.0, abs=0.1), False)
    beyond = one(shifts_of(ppo=1.6, turn_ppo=1.6), "b")
    assert (beyond.effect, beyond.smallest_p is None) == (pytest.approx(0.0, abs=0.1), True)
    assert beyond.verdict == "undecided at this power"


def test_fewer_than_five_seeds_say_nothing() -> None:
    found = one(shifts_of(n=4, ppo=0.1, turn_ppo=0.8), "b")
    assert (found.effect, found.verdict) == (None, "too few seeds")


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


def test_one_condition_compares_boundaries_instead_of_areas() -> None:
    found = one(shifts_of(conditions=(0,), ppo=0.1, turn_ppo=0.4), "b")
    assert found.effect == pytest.approx(2.0, abs=0.15)
    assert found.verdict == "supported"

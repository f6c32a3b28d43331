"""The verdicts of the claims by collapses and stable areas, and their statistics, where the right answer is
known.
"""

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from sorl.analysis.region import from_runs, region_of
from sorl.analysis.results import results
from sorl.analysis.stats import fisher_exact
from studies import evidence
from studies.claims import (
    Verdict,
    area_verdicts,
    as_well,
    controls,
    hypotheses,
    pooled,
    shifts,
    summary,
    verdicts,
)
from studies.evidence import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, TOO_FEW, UNDECIDED
from tests.analysis.frames import STEPS, arm, down, frame, on_policy, run, up
from tests.studies.runs import region


def test_the_interval_of_a_paired_difference_is_the_published_one() -> None:
    # Newcombe 1998, Statistics in Medicine 17:2635, method 10
    found = evidence.paired_proportions(36, 12, 2, 0)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)
    same = evidence.paired_proportions(0, 0, 0, 5)
    assert (same.value, same.low, same.high) == pytest.approx((0, -0.4345, 0.4345), abs=5e-5)


counts = st.integers(0, 12)


@given(counts, counts, counts, counts)
def test_a_paired_difference_mirrors_when_the_arms_are_exchanged(e: int, f: int, g: int, h: int) -> None:
    if e + f + g + h == 0:
        with pytest.raises(ValueError, match="n"):
            evidence.paired_proportions(e, f, g, h)
        return
    one = evidence.paired_proportions(e, f, g, h)
    other = evidence.paired_proportions(e, g, f, h)
    assert one.low - 1e-12 <= one.value <= one.high + 1e-12  # type: ignore[operator]
    turned = (-other.value, -other.high, -other.low)  # type: ignore[operator]
    assert (one.value, one.low, one.high) == pytest.approx(turned)


def test_the_power_of_fisher_counts_every_table() -> None:
    n = 6
    a = 0.8
    b = 0.2
    alpha = 0.05
    total = sum(
        scipy_stats.binom.pmf(x, n, a) * scipy_stats.binom.pmf(y, n, b)
        for x, y in product(range(n + 1), repeat=2)
        if fisher_exact(x, n, y, n) <= alpha
    )
    assert evidence.power_of_fisher(n, a, b, alpha) == pytest.approx(total)


def test_the_fewest_seeds_are_enough_and_one_fewer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    n = evidence.seeds_for_fisher(0.75, 0.25, 0.05) or 0
    assert (
        evidence.power_of_fisher(n, 0.75, 0.25, 0.05)
        >= 0.8
        > evidence.power_of_fisher(n - 1, 0.75, 0.25, 0.05)
    )
    monkeypatch.setattr(evidence, "MOST", 8)
    assert evidence.seeds_for_fisher(0.5, 0.45, 0.001) is None


def test_the_power_of_the_t_test_is_what_simulation_finds() -> None:
    n = 6
    deviation = 0.3
    effect = 0.4
    drawn = np.random.default_rng(0).normal(effect, deviation, (20_000, n))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(n))
    assert evidence.power_of_t(n, deviation, effect, 0.05) == pytest.approx(
        float((t > 2.5706).mean()), abs=0.01
    )


N = 10


def judged(runs: pd.DataFrame) -> dict[str, Verdict]:
    return {v.claim.letter: v for v in verdicts(runs)}


def cures(turn: list[Any], norm: list[Any], both: list[Any], plain: list[Any]) -> pd.DataFrame:
    cured = arm("green", turn, "turn-ppo"), arm("blue", norm, "s-ppo"), arm("white", both, "st-ppo")
    return frame(arm("red", plain), *cured)


PLAIN = arm("red", down(N))
CURED = arm("green", up(N), "turn-ppo")


@pytest.mark.parametrize(
    ("arms", "found"),
    [
        ([arm("x", down(N)), on_policy("y", up(N))], {"a1": SUPPORTED, "a2": NOT_TESTED}),
        # A collapse on-policy as well is no evidence of staleness.
        (
            [arm("x", down(N), "grpo"), on_policy("y", down(N), "grpo")],
            {"a2": NOT_SUPPORTED, "a1": NOT_TESTED},
        ),
        ([arm("x", down(4)), on_policy("y", up(4))], {"a1": TOO_FEW}),
        # A cure that makes it worse.
        ([arm("red", up(N)), arm("green", down(N), "turn-ppo")], {"b": NOT_SUPPORTED}),
        # Without a critic collapses must be rarer for the critic to drive them.
        ([arm("x", down(N)), arm("y", up(N), "grpo")], {"g2": SUPPORTED}),
        ([arm("x", down(N)), arm("y", down(N), "grpo")], {"g2": NOT_SUPPORTED}),
    ],
)
def test_a_claim_is_judged_by_how_often_two_arms_collapse(arms: list, found: dict[str, str]) -> None:
    seen = judged(frame(*arms))
    assert {letter: seen[letter].verdict for letter in found} == found


def test_a_verdict_rests_on_counts_effect_and_an_exact_p_value() -> None:
    row = judged(frame(arm("x", down(N)), on_policy("y", up(N))))["a1"].rows[0]
    assert (row.more, row.less, row.seeds, row.detail, row.effect) == (
        "x",
        "y",
        10,
        "10/10 against 0/10",
        1.0,
    )
    assert row.p == pytest.approx(2 / 184756)
    four = judged(frame(arm("x", down(4)), on_policy("y", up(4))))["a1"]
    assert four.rows[0].effect is None
    assert hypotheses([four]).empty
    assert "needs an off-policy arm" in summary(verdicts(frame(arm("x", down(N))))).loc[1, "because"]


def test_five_seeds_cannot_decide_in_a_family() -> None:
    five = judged(cures(up(5), up(5), up(5), down(5)))
    assert five["b"].verdict == SUPPORTED  # 5/5 against 0/5, p .008, of three tested hypotheses
    assert five["d"].verdict == UNDECIDED  # nothing is left to prevent
    assert not five["d"].rows[0].decidable
    some = judged(cures(up(5), up(5), up(5), [20, 20, 20, None, None]))
    assert {some[letter].verdict for letter in "bcd"} == {UNDECIDED}


def test_both_together_are_best_only_where_each_alone_leaves_collapses() -> None:
    found = judged(cures(down(N), down(N), up(N), down(N)))
    assert [found[letter].verdict for letter in "bcd"] == [NOT_SUPPORTED, NOT_SUPPORTED, SUPPORTED]
    half = judged(cures(up(N), down(N), up(N), down(N)))
    assert (half["b"].verdict, half["d"].verdict) == (SUPPORTED, UNDECIDED)
    row = half["d"].rows[0]
    assert (row.more, row.detail) == ("green; blue", "0/10 against 0/10; 10/10 against 0/10")


def test_controls_are_found_by_their_settings_and_shown_with_their_own_figure() -> None:
    calm = {"learn": {"epochs": 4, "staleness": 16, "policy": {"max_grad_norm": 1.0}}}
    slow = {"learn": {"epochs": 4, "staleness": 16, "policy": {"lr": 0.05}}}
    others = frame(
        arm("calm", up(N), **calm),
        arm("slow", down(N), **slow),
        arm("dual", down(N), slots={"clip": {"dual": 3.0}}),
        arm("other", up(N), **calm, world={"noise": 0.4}),
    )
    found = judged(pd.concat([cures(up(N), up(N), up(N), down(N)), others], ignore_index=True))["b"]
    seen = {(c.arm, c.collapsed, c.n) for c in found.rows[0].controls}
    assert seen == {("calm", 0, 10), ("slow", 10, 10), ("dual", 10, 10)}
    assert as_well(found.rows[0]) == ["calm"]
    table = controls([found]).set_index("control")
    assert table.loc["calm", "collapsed"] == "0/10 [0 %, 31 %]"
    assert table["does as well"].to_dict() == {"calm": "yes", "slow": "no", "dual": "no"}
    assert "as rare with calm" in summary([found]).loc[0, "because"]


def test_staleness_and_reuse_apart_are_controls_of_the_first_claim() -> None:
    reused = {"epochs": 4, "staleness": 0}
    stale = {"epochs": 1, "staleness": 16}
    parts = arm("reused", up(N), learn=reused), arm("stale", down(N), learn=stale)
    (row,) = judged(frame(arm("x", down(N)), on_policy("y", up(N)), *parts))["a1"].rows
    assert {(c.arm, c.collapsed) for c in row.controls} == {("reused", 0), ("stale", 10)}


@pytest.mark.parametrize(("level", "verdict"), [(0.02, SUPPORTED), (0.2, NOT_SUPPORTED)])
def test_clip_fractions_are_compared_while_both_runs_are_up(level: float, verdict: str) -> None:
    plain = arm("red", [20, 21, None, None, None, None])
    turns = arm("green", up(6), "turn-ppo")
    # They differ a little between seeds and run away after the onset.
    for rows, usual, wiggles in ((plain, 0.105, (1.0, 1.1, 0.95, 1.02, 1.2, 0.9)), (turns, level, [1] * 6)):
        for row, wiggle in zip(rows, wiggles, strict=True):
            row["clip_frac_curve"] = np.full(STEPS, usual * (1 + 0.03 * row["seed"]) * wiggle)
            row["clip_frac_curve"][int(row["time"]) :] = 0.9
    found = judged(frame(plain, turns))["e"]
    assert found.verdict == verdict
    one = found.rows[0]
    assert one.effect == pytest.approx(0.105 / level, rel=0.1)
    assert one.low < one.effect < one.high  # type: ignore[operator]


def grown(name: str, factor: float, also: float = 1.0) -> pd.DataFrame:
    """Runs that collapse at step 20 and runs of the same seeds that do not; a curve grows by a factor before
    it.
    """
    fell = arm("red", [20] * 6)
    stood = arm("green", up(6), "turn-ppo")
    for rows, by in ((fell, factor), (stood, also)):
        for row in rows:
            values = np.full(STEPS, 0.2)
            values[15:] = 0.2 * by * (1 + (0.03 * (row["seed"] % 3 - 1) if rows is fell else 0))
            row[f"{name}_curve"] = values
    return frame(fell, stood)


BIAS = grown("clip_bias_norm", 3.0)


@pytest.mark.parametrize(
    ("runs", "letter", "verdict"),
    [
        (BIAS, "f", SUPPORTED),
        # The same growth at the same age in runs that stay up is no herald of anything.
        (grown("clip_bias_norm", 3.0, also=3.0), "f", NOT_SUPPORTED),
        (grown("value_mae", 2.0), "g1", SUPPORTED),
        (grown("value_mae", 1.0), "g1", NOT_SUPPORTED),
        (BIAS[BIAS["arm"] == "red"], "f", TOO_FEW),  # no runs that stay up
        (BIAS.assign(clip_bias_norm_curve=None), "f", NOT_TESTED),
        (BIAS.assign(collapse_step=6.0), "f", NOT_TESTED),  # too early for the windows before it
    ],
)
def test_growth_before_the_collapse_is_set_against_runs_that_stay_up(runs, letter: str, verdict: str) -> None:
    found = judged(runs)[letter]
    assert found.verdict == verdict
    assert found.verdict != SUPPORTED or found.rows[0].effect == pytest.approx(
        3.0 if letter == "f" else 2, rel=0.01
    )


def test_only_seeds_that_both_arms_have_and_that_learned_are_compared() -> None:
    never = [
        row | {"outcome": "no_learning"} if row["seed"] < 2 else row
        for row in arm("green", up(6), "turn-ppo")
    ]
    found = judged(frame(arm("red", down(6)), never))["b"]
    assert found.verdict == TOO_FEW
    assert (found.rows[0].seeds, found.rows[0].left_out) == (4, 2)
    row = judged(frame(PLAIN[:7], CURED[:9]))["b"].rows[0]
    assert (row.seeds, row.detail, row.left_out) == (7, "7/7 against 0/7", 2)


def test_arms_without_known_settings_are_compared_with_nothing() -> None:
    runs = frame(PLAIN, CURED)
    for unknown in ({"config": None, "slots": None}, {"slots": "[]"}, {"config": "not json"}):
        assert {v.verdict for v in verdicts(runs.assign(**unknown))} == {NOT_TESTED}
    assert {v.verdict for v in verdicts(runs.iloc[:0])} == {NOT_TESTED}


BASE = frame(
    arm("red", [20, 21, 22, 20, None, 23, 20]),
    arm("green", [None] * 6 + [25], "turn-ppo"),
    arm("blue", up(7), "s-ppo"),
    arm("white", up(7), "st-ppo"),
    on_policy("calm", up(7)),
    arm("group", up(7), "grpo"),
)
KNOWN = summary(verdicts(BASE)), hypotheses(verdicts(BASE))


@settings(max_examples=4, deadline=None)
@given(st.permutations(range(len(BASE))))
def test_the_order_of_runs_is_irrelevant(order: list[int]) -> None:
    found = verdicts(BASE.iloc[list(order)])
    pd.testing.assert_frame_equal(summary(found), KNOWN[0])
    pd.testing.assert_frame_equal(hypotheses(found), KNOWN[1])


STRENGTH = {SUPPORTED: 1, NOT_SUPPORTED: 1, UNDECIDED: 0, TOO_FEW: 0, NOT_TESTED: 0}


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(["red", "green", "blue", "white", "calm", "group"]),
    st.integers(0, 12),
    st.sampled_from([{"status": "failed", "outcome": None}, {"outcome": None}, {"outcome": "no_learning"}]),
)
def test_a_run_without_a_verdict_never_makes_a_claim_stronger(
    name: str, seed: int, fate: dict[str, Any]
) -> None:
    like = BASE[BASE["arm"] == name].iloc[0]
    added = run(name, seed, settings=None) | {
        "config": like["config"],
        "slots": like["slots"],
        "run_id": "a-first",
    }
    nothing = {key: None for key in added if key.endswith("_curve")} | {"time": 0.0, "event": False}
    before = verdicts(BASE)
    after = verdicts(pd.concat([BASE, pd.DataFrame([added | nothing | fate])]))
    for old, new in zip(before, after, strict=True):
        assert STRENGTH[new.verdict] <= STRENGTH[old.verdict]
        if STRENGTH[new.verdict]:
            assert new.verdict == old.verdict


def test_equal_arms_of_two_experiments_are_one_and_equal_names_of_different_arms_are_two() -> None:
    about = {"question": "", "toml": ""}
    one = results(frame(arm("red", down(3)), arm("green", up(3), "turn-ppo")), about | {"experiment": "demo"})
    other = results(
        frame(arm("scarlet", down(5)), arm("green", up(5), "s-ppo")), about | {"experiment": "more"}
    )
    runs = pooled([one, other])
    assert runs.groupby("arm")["seed"].count().to_dict() == {"red": 5, "green": 3, "green (more)": 5}
    # A seed that both have counts once, as the first experiment recorded it.
    assert runs[runs["arm"] == "red"]["run_id"].tolist() == [
        "red-s0",
        "red-s1",
        "red-s2",
        "scarlet-s3",
        "scarlet-s4",
    ]
    pd.testing.assert_frame_equal(pooled([one]), one.runs)


# By stable areas


def shifts_of(
    n: int = 5, conditions: tuple[int, ...] = (0, 3), **survives: float
) -> list[evidence.Comparison]:
    """Arms (by algorithm, _ for -) that collapse in all of n runs above the learning rate they survive."""
    found = region(
        5, {name.replace("_", "-"): dict.fromkeys(conditions, most) for name, most in survives.items()}, n
    )
    return shifts(from_runs(found.runs.assign(started_at=None), region_of(found.toml), "demo"), found.runs)


def shift(letter: str, n: int = 5, **given: Any) -> evidence.Comparison:
    (found,) = [s for s in shifts_of(n, **given) if s.claim == letter]
    return found


def test_an_arm_whose_boundary_lies_two_doublings_up_supports_its_claim_the_reverse_does_not() -> None:
    found = shift("b", ppo=0.1, turn_ppo=0.4)
    assert (found.more, found.less, found.seeds) == ("turn-ppo", "ppo", 5)
    assert found.effect == pytest.approx(2.0, abs=0.15)
    # Each boundary lies within its own gap.
    assert 1.0 <= found.low < 2.0 < found.high <= 3.0  # type: ignore[operator]
    assert (found.smallest_p is None, found.verdict) == (False, "supported")
    few = shift("b", n=4, ppo=0.1, turn_ppo=0.8)
    assert (few.effect, few.verdict) == (None, "too few seeds"), "fewer than five seeds say nothing"
    for arms, effect, verdict in (
        ({"ppo": 0.4, "turn_ppo": 0.1}, -2.0, "not supported"),
        ({"conditions": (0,), "ppo": 0.1, "turn_ppo": 0.4}, 2.0, "supported"),  # boundaries instead of areas
    ):
        other = shift("b", **arms)
        assert (other.effect, other.verdict) == (pytest.approx(effect, abs=0.15), verdict)


def test_equal_boundaries_are_told_apart_from_boundaries_that_were_not_reached() -> None:
    within, beyond = (shift("b", ppo=most, turn_ppo=most) for most in (0.2, 1.6))
    assert (within.effect, beyond.effect) == pytest.approx((0.0, 0.0), abs=0.1)
    assert (within.smallest_p is None, beyond.smallest_p is None) == (False, True)
    assert beyond.verdict == "undecided at this power"


def test_both_together_must_beat_each_alone() -> None:
    found = shifts_of(ppo=0.1, turn_ppo=0.2, s_ppo=0.2, st_ppo=0.8)
    assert sorted((s.claim, s.more, s.less) for s in found) == [
        ("b", "turn-ppo", "ppo"),
        ("c", "s-ppo", "ppo"),
        ("d", "st-ppo", "s-ppo"),
        ("d", "st-ppo", "turn-ppo"),
    ]
    assert area_verdicts(found)["d"] == "supported"
    assert area_verdicts(shifts_of(ppo=0.1, turn_ppo=0.8, s_ppo=0.2, st_ppo=0.4))["d"] == "not supported"
    assert area_verdicts(found)["g2"] == "not tested here"
    # Two cures at once are a claim of their own only where neither was tried alone.
    assert shift("bc", grpo=0.1, so_grpo=0.4).more == "so-grpo"
    assert "bc" not in {s.claim for s in found}

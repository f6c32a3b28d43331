from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.frames import STEPS, arm, down, frame, on_policy, run, up
from workbench.analysis.claims import Verdict, as_well, controls, hypotheses, summary, verdicts
from workbench.analysis.evidence import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, TOO_FEW, UNDECIDED

N = 10


def told(runs: pd.DataFrame) -> dict[str, Verdict]:
    return {v.claim.letter: v for v in verdicts(runs)}


def cures(n: int, turn: list[Any], norm: list[Any], both: list[Any], plain: list[Any] | None = None) -> pd.DataFrame:
    return frame(
        arm("red", plain or down(n)), arm("green", turn, "turn-ppo"), arm("blue", norm, "s-ppo"),
        arm("white", both, "st-ppo"),
    )  # fmt: skip


def test_a_collapse_off_policy_that_is_absent_on_policy_is_supported() -> None:
    found = told(frame(arm("x", down(N)), on_policy("y", up(N))))
    assert found["a1"].verdict == SUPPORTED
    row = found["a1"].rows[0]
    assert (row.more, row.less, row.seeds, row.detail, row.effect) == ("x", "y", 10, "10/10 against 0/10", 1.0)
    assert row.p == pytest.approx(2 / 184756)
    assert found["a2"].verdict == NOT_TESTED
    assert "needs an off-policy arm" in summary(verdicts(frame(arm("x", down(N))))).loc[1, "because"]


def test_a_collapse_on_policy_as_well_is_no_evidence_of_staleness() -> None:
    found = told(frame(arm("x", down(N), "grpo"), on_policy("y", down(N), "grpo")))
    assert found["a2"].verdict == NOT_SUPPORTED
    assert found["a1"].verdict == NOT_TESTED


def test_four_seeds_say_nothing_and_five_cannot_decide_in_a_family() -> None:
    four = told(frame(arm("x", down(4)), on_policy("y", up(4))))["a1"]
    assert four.verdict == TOO_FEW
    assert four.rows[0].effect is None
    assert hypotheses([four]).empty
    five = told(cures(5, up(5), up(5), up(5)))
    assert five["b"].verdict == SUPPORTED  # 5/5 against 0/5, p .008, of three tested hypotheses
    assert five["d"].verdict == UNDECIDED  # nothing is left to prevent
    assert not five["d"].rows[0].decidable
    some = told(cures(5, up(5), up(5), up(5), [20, 20, 20, None, None]))
    assert {some[letter].verdict for letter in "bcd"} == {UNDECIDED}


def test_both_together_are_best_only_where_each_alone_leaves_collapses() -> None:
    found = told(cures(N, down(N), down(N), up(N)))
    assert (found["b"].verdict, found["c"].verdict, found["d"].verdict) == (NOT_SUPPORTED, NOT_SUPPORTED, SUPPORTED)
    half = told(cures(N, up(N), down(N), up(N)))
    assert (half["b"].verdict, half["d"].verdict) == (SUPPORTED, UNDECIDED)
    assert half["d"].rows[0].more == "green; blue"
    assert half["d"].rows[0].detail == "0/10 against 0/10; 10/10 against 0/10"


def test_a_cure_that_makes_it_worse_is_not_supported() -> None:
    found = told(frame(arm("red", up(N)), arm("green", down(N), "turn-ppo")))
    assert found["b"].verdict == NOT_SUPPORTED
    assert found["b"].rows[0].effect == -1


def test_controls_are_found_by_their_settings_and_told_with_their_own_figure() -> None:
    clip = {"learn": {"epochs": 4, "staleness": 16, "policy": {"max_grad_norm": 1.0}}}
    less = {"learn": {"epochs": 4, "staleness": 16, "policy": {"lr": 0.05}}}
    runs = pd.concat(
        [
            cures(N, up(N), up(N), up(N)),
            frame(
                arm("calm", up(N), **clip), arm("slow", down(N), **less),
                arm("dual", down(N), slots={"clip": {"dual": 3.0}}),
                arm("other", up(N), **clip, world={"noise": 0.4}),
            ),
        ],
        ignore_index=True,
    )  # fmt: skip
    found = told(runs)["b"]
    assert {(c.arm, c.collapsed, c.n) for c in found.rows[0].controls} == {
        ("calm", 0, 10), ("slow", 10, 10), ("dual", 10, 10),
    }  # fmt: skip
    assert as_well(found.rows[0]) == ["calm"]
    table = controls([found]).set_index("control")
    assert table.loc["calm", "collapsed"] == "0/10 [0 %, 31 %]"
    assert table["does as well"].to_dict() == {"calm": "yes", "slow": "no", "dual": "no"}
    assert "as rare with calm" in summary([found]).loc[0, "because"]


def test_staleness_and_reuse_apart_are_controls_of_the_first_claim() -> None:
    runs = frame(
        arm("x", down(N)), on_policy("y", up(N)), arm("reused", up(N), learn={"epochs": 4, "staleness": 0}),
        arm("stale", down(N), learn={"epochs": 1, "staleness": 16}),
    )  # fmt: skip
    rows = told(runs)["a1"].rows
    assert [(r.more, r.less) for r in rows] == [("x", "y")]
    assert {(c.arm, c.collapsed) for c in rows[0].controls} == {("reused", 0), ("stale", 10)}


def clipped(rows: list[dict[str, Any]], level: float) -> list[dict[str, Any]]:
    """The same runs with another clip fraction, which differs a little between seeds and runs away after the onset."""
    for row in rows:
        values = np.full(STEPS, level * (1 + 0.03 * row["seed"]) * (1.05 if row["arm"] == "red" else 1))
        values[int(row["time"]) :] = 0.9
        row["clip_frac_curve"] = values
    return rows


@pytest.mark.parametrize(("level", "verdict"), [(0.02, SUPPORTED), (0.2, NOT_SUPPORTED)])
def test_clip_fractions_are_compared_while_both_runs_are_up(level: float, verdict: str) -> None:
    plain = clipped(arm("red", [20, 21, None, None, None, None]), 0.1)
    for row, wiggle in zip(plain, (1.0, 1.1, 0.95, 1.02, 1.2, 0.9), strict=True):
        row["clip_frac_curve"] = row["clip_frac_curve"] * wiggle
    found = told(frame(plain, clipped(arm("green", up(6), "turn-ppo"), level)))["e"]
    assert found.verdict == verdict
    one = found.rows[0]
    assert one.effect == pytest.approx(0.1 * 1.05 / level, rel=0.1)
    assert one.low is not None
    assert one.low < one.effect < one.high  # type: ignore[operator]


def grown(name: str, factor: float, also: float = 1.0, n: int = 6) -> pd.DataFrame:
    """Runs that collapse at step 20 and runs of the same seeds that do not; a curve grows by a factor before it."""
    fell, stood = arm("red", [20] * n), arm("green", up(n), "turn-ppo")
    for rows, by in ((fell, factor), (stood, also)):
        for row in rows:
            values = np.full(STEPS, 0.2)
            values[15:] = 0.2 * by * (1 + (0.03 * (row["seed"] % 3 - 1) if rows is fell else 0))
            row[f"{name}_curve"] = values
    return frame(fell, stood)


def test_growth_before_the_collapse_is_told_against_runs_that_stay_up() -> None:
    found = told(grown("clip_bias_norm", 3.0))["f"]
    assert found.verdict == SUPPORTED
    assert found.rows[0].effect == pytest.approx(3.0, rel=0.01)
    # The same growth at the same age in runs that stay up is no herald of anything.
    assert told(grown("clip_bias_norm", 3.0, also=3.0))["f"].verdict == NOT_SUPPORTED
    assert told(grown("value_mae", 2.0))["g1"].verdict == SUPPORTED
    assert told(grown("value_mae", 1.0))["g1"].verdict == NOT_SUPPORTED


def test_growth_needs_runs_that_stay_up_and_a_measured_curve() -> None:
    alone = grown("clip_bias_norm", 3.0)
    assert told(alone[alone["arm"] == "red"])["f"].verdict == TOO_FEW
    assert told(grown("clip_bias_norm", 3.0).assign(clip_bias_norm_curve=None))["f"].verdict == NOT_TESTED
    early = grown("clip_bias_norm", 3.0).assign(collapse_step=6.0)
    assert told(early)["f"].verdict == NOT_TESTED


def test_without_a_critic_collapses_must_be_rarer_for_the_critic_to_drive_them() -> None:
    assert told(frame(arm("x", down(N)), arm("y", up(N), "grpo")))["g2"].verdict == SUPPORTED
    assert told(frame(arm("x", down(N)), arm("y", down(N), "grpo")))["g2"].verdict == NOT_SUPPORTED


def test_a_run_that_never_learned_is_no_evidence_of_stability() -> None:
    rows = arm("green", up(6), "turn-ppo")
    for row in rows[:2]:
        row["outcome"] = "no_learning"
    found = told(frame(arm("red", down(6)), rows))["b"]
    assert found.verdict == TOO_FEW
    assert (found.rows[0].seeds, found.rows[0].left_out) == (4, 2)


def test_only_seeds_that_both_arms_have_are_compared() -> None:
    runs = frame(arm("red", down(9)), arm("green", up(9), "turn-ppo"))
    runs = runs[~((runs["arm"] == "red") & (runs["seed"] > 6))]
    row = told(runs)["b"].rows[0]
    assert (row.seeds, row.detail, row.left_out) == (7, "7/7 against 0/7", 2)


def test_arms_without_known_settings_are_compared_with_nothing() -> None:
    runs = frame(arm("red", down(N)), arm("green", up(N), "turn-ppo"))
    assert {v.verdict for v in verdicts(runs.assign(config=None, slots=None))} == {NOT_TESTED}
    assert {v.verdict for v in verdicts(runs.assign(slots="[]"))} == {NOT_TESTED}
    assert {v.verdict for v in verdicts(runs.assign(config="not json"))} == {NOT_TESTED}
    assert {v.verdict for v in verdicts(runs.iloc[:0])} == {NOT_TESTED}


BASE = frame(
    arm("red", [20, 21, 22, 20, None, 23, 20]), arm("green", [None] * 6 + [25], "turn-ppo"),
    arm("blue", up(7), "s-ppo"), arm("white", up(7), "st-ppo"), on_policy("calm", up(7)), arm("group", up(7), "grpo"),
)  # fmt: skip
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
    st.sampled_from(["red", "green", "blue", "white", "calm", "group"]), st.integers(0, 12),
    st.sampled_from([{"status": "failed", "outcome": None}, {"outcome": None}, {"outcome": "no_learning"}]),
)  # fmt: skip
def test_a_run_without_a_verdict_never_makes_a_claim_stronger(name: str, seed: int, fate: dict[str, Any]) -> None:
    like = BASE[BASE["arm"] == name].iloc[0]
    added = run(name, seed, settings=None) | {"config": like["config"], "slots": like["slots"], "run_id": "a-first"}
    nothing = {key: None for key in added if key.endswith("_curve")} | {"time": 0.0, "event": False}
    before, after = verdicts(BASE), verdicts(pd.concat([BASE, pd.DataFrame([added | nothing | fate])]))
    for old, new in zip(before, after, strict=True):
        assert STRENGTH[new.verdict] <= STRENGTH[old.verdict]
        if STRENGTH[new.verdict]:
            assert new.verdict == old.verdict

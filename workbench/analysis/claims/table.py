"""The verdicts as text cells: the claims, and behind each the hypotheses with effect, interval, test and controls."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workbench.analysis.claims.comparison import COLLAPSE, MIN_SEEDS, Comparison, Control
from workbench.analysis.claims.paper import Verdict, as_well
from workbench.analysis.claims.rule import FACTOR, NOT_TESTED, SHARES, TOO_FEW, Judged
from workbench.analysis.comparison import ALPHA
from workbench.analysis.paired import MOST
from workbench.analysis.runs import KEPT

_LISTED = 3  # pairs with too few seeds that are named


def summary(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """One row per claim and reading of the paper: sentence, verdict, on what it rests, and what decides it.

    `kept` are the verdicts where only runs that learned and kept it survive.
    """
    other = {v.letter: v.verdict for v in kept}
    return pd.DataFrame(
        [
            {
                "claim": f"({v.claim.letter}) {v.claim.sentence}{f' As {v.reading}.' if v.reading else ''}",
                "verdict": v.verdict, f"verdict if {KEPT}": other.get(v.letter, NOT_TESTED), "because": _because(v),
                "what decides": v.claim.decides,
            }
            for v in found
        ]
    )  # fmt: skip


def _because(verdict: Verdict) -> str:
    if verdict.verdict == NOT_TESTED:
        return f"It needs {verdict.claim.needs}."
    parts = []
    few = [row for row in verdict.rows if row.verdict == TOO_FEW]
    if len(few) > _LISTED:
        parts.append(f"{len(few)} pairs of arms with fewer than the {MIN_SEEDS} shared seeds that it takes")
    for row in verdict.rows:
        one = row.comparison
        if row.verdict == TOO_FEW and len(few) > _LISTED:
            continue
        if row.verdict == TOO_FEW:
            parts.append(f"{named(one)}: {one.seeds} of the {MIN_SEEDS} shared seeds that it takes{_left(one)}")
            continue
        parts.append(f"{named(one)}: {effect(one)}, {one.seeds} seeds")
        if equal := as_well(row):
            parts[-1] += f"; as rare with {'; '.join(equal)}"
    return ". ".join(parts) + "."


def hypotheses(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """One row per hypothesis that has enough seeds, with everything that its verdict rests on, by both readings."""
    other = {_key(verdict, row): row for verdict in kept for row in verdict.rows}
    return pd.DataFrame(
        [
            {
                "claim": verdict.claim.letter,
                "compared": named(row.comparison),
                "found": row.comparison.told,
                "effect, 95 % interval": effect(row.comparison),
                "seeds in favour": f"{row.comparison.in_favour} of {row.comparison.seeds}{_left(row.comparison)}",
                "p (Holm)": f"{_p(row.comparison.p)} ({_p(row.p_holm)})",
                "so many seeds could show": _could(row),
                "verdict": row.verdict,
                **_kept(other.get(_key(verdict, row))),
            }
            for verdict in found
            for row in verdict.rows
            if row.verdict != TOO_FEW
        ]
    )


def _key(verdict: Verdict, row: Judged) -> tuple[str, str, str]:
    return verdict.letter, row.comparison.more, row.comparison.less


def _kept(row: Judged | None) -> dict[str, str]:
    one = None if row is None or row.comparison.measure != COLLAPSE else row.comparison
    if row is None or one is None:
        return {
            f"{KEPT}: effect": "-",
            f"{KEPT}: p (Holm)": "-",
            f"verdict if {KEPT}": "-" if row is None else row.verdict,
        }
    return {
        f"{KEPT}: effect": f"{effect(one)}, {one.told}" if one.told else effect(one),
        f"{KEPT}: p (Holm)": f"{_p(one.p)} ({_p(row.p_holm)})",
        f"verdict if {KEPT}": row.verdict,
    }


def controls(found: Sequence[Verdict]) -> pd.DataFrame:
    """One row per claim and what decides it, with the collapses of each control."""
    return pd.DataFrame(
        [
            {
                "claim": verdict.claim.letter,
                "reference": row.comparison.more,
                "favoured": f"{row.comparison.less}: {row.comparison.counts[1]}/{row.comparison.seeds}",
                "control": control.arm,
                "collapsed": incidence(control),
                "does as well": "yes" if control.arm in as_well(row) else "no",
            }
            for verdict in found
            for row in verdict.rows
            if row.comparison.counts is not None
            for control in row.comparison.controls
        ]
    )


def named(one: Comparison) -> str:
    """The two sides of a comparison."""
    return f"{one.more} against {one.less}"


def effect(one: Comparison) -> str:
    """`+60 % of runs [-2 %, +88 %]` that collapse more often, or `x 0.47 [0.40, 0.55]`."""
    if one.effect is None or one.low is None or one.high is None:
        return "-"
    if one.measure == COLLAPSE:
        value, low, high = (f"{100 * v:+.0f} %" for v in (one.effect, one.low, one.high))
        return f"{value} of runs [{low}, {high}]"
    return f"x {one.effect:.2f} [{one.low:.2f}, {one.high:.2f}]"


def incidence(control: Control) -> str:
    """`1/5 [1 %, 72 %]`."""
    return f"{control.collapsed}/{control.n} [{100 * control.low:.0f} %, {100 * control.high:.0f} %]"


def _left(one: Comparison) -> str:
    return f" ({one.left_out} left out)" if one.left_out else ""


def _could(row: Judged) -> str:
    one, power = row.comparison, "-" if row.power is None else f"{100 * row.power:.0f} %"
    if one.measure == COLLAPSE:
        least = "not even the best outcome" if not row.decidable else f"p as small as {_p(one.smallest_p)}"
        return f"{least}; power {power}, {row.needed or f'over {MOST}'} seeds for 80 %"
    return f"power {power}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def rule() -> str:
    """The rule in words."""
    a, b = (f"{100 * share:.0f} %" for share in SHARES)
    return (
        "Supported: the effect goes the claim's way and p, after Holm's correction over all hypotheses here, is at "
        f"most {ALPHA:g}. Not supported: it goes the other way with such a p, or the test could have shown it and the "
        f"95 % interval leaves out every effect that matters (half of the runs; a factor of {FACTOR:g}). Undecided at "
        f"this power: neither. Below {MIN_SEEDS} shared seeds nothing is said. Power: the probability to show {a} "
        f"against {b} of runs collapsing, or a factor of {FACTOR:g}, at {ALPHA:g} over the number of hypotheses. A "
        "claim holds if all its hypotheses do. Left out: seeds with a run that never learned or cannot be judged; the "
        f'columns of "{KEPT}" count every run that never learned or lost some of it as one that did not survive.'
    )

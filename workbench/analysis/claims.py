"""The claims of arXiv 2511.20718 as hypotheses about arms, their verdicts by one rule, and both as text.

Arms are found by their settings, never by their names. docs/statistics.md has the rule in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from workbench.analysis.evidence import (
    COLLAPSE,
    CREDIT,
    MIN_SEEDS,
    OFF_POLICY,
    OPTIMISER,
    RATIO,
    STABILISER,
    Comparison,
    Control,
    Design,
    before_collapse,
    collapses,
    control,
    designs,
    finished,
    judged,
    pairs,
    while_up,
)
from workbench.analysis.runs import KEPT, NOT_DEAD
from workbench.analysis.stats import ALPHA, MOST, holm, p_value, power_of_fisher, power_of_t, seeds_for_fisher

SUPPORTED, NOT_SUPPORTED, UNDECIDED = "supported", "not supported", "undecided at this power"
TOO_FEW, NOT_TESTED = "too few seeds", "not tested here"

MATTERS = 0.5  # difference in the share of runs that collapse: less than half of the runs is no cure
FACTOR = 1.25  # of a measurement: less than a quarter more is no growth
SHARES = (0.75, 0.25)  # the difference of MATTERS at which the power of Fisher's test is told


@dataclass(frozen=True)
class Judged:
    """A comparison with its verdict; p_holm is corrected over all hypotheses of the report.

    power: probability that so many seeds show an effect that matters, at alpha over the number of hypotheses;
    needed: seeds per arm with which it is 80 %, for collapses.
    """

    comparison: Comparison
    verdict: str
    p_holm: float | None = None
    decidable: bool = False
    power: float | None = None
    needed: int | None = None


def judge(found: Sequence[Comparison]) -> list[Judged]:
    """Return the verdict of each comparison, its p-value corrected over all of them (Holm)."""
    ps = [c.p if c.seeds >= MIN_SEEDS else None for c in found]
    family = sum(p is not None for p in ps)
    corrected = holm(ps)
    rows = []
    for i, one in enumerate(found):
        if one.seeds < MIN_SEEDS:
            rows.append(Judged(one, TOO_FEW))
            continue
        best = holm([*ps[:i], one.smallest_p if one.p is not None else None, *ps[i + 1 :]])[i]
        decidable = best is not None and best <= ALPHA
        verdict = _verdict(one, corrected[i], decidable)
        rows.append(Judged(one, verdict, corrected[i], decidable, *_power(one, ALPHA / max(family, 1))))
    return rows


def _verdict(one: Comparison, p: float | None, decidable: bool) -> str:
    none, matters = (0.0, MATTERS) if one.measure == COLLAPSE else (1.0, FACTOR)
    if one.effect is None or one.high is None:
        return UNDECIDED
    if p is not None and p <= ALPHA:
        return SUPPORTED if one.effect > none else NOT_SUPPORTED
    # Only a test that could have shown the effect tells something by not showing it.
    return NOT_SUPPORTED if decidable and one.high < matters else UNDECIDED


def _power(one: Comparison, alpha: float) -> tuple[float | None, int | None]:
    if one.measure == COLLAPSE:
        return power_of_fisher(one.seeds, *SHARES, alpha), seeds_for_fisher(*SHARES, alpha)
    return power_of_t(one.seeds, one.deviation or 0.0, math.log(FACTOR), alpha), None


def together(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim whose hypotheses must all hold."""
    if not verdicts:
        return NOT_TESTED
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    alike = set(verdicts)
    return verdicts[0] if len(alike) == 1 else UNDECIDED


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: its letter, its sentence, what decides it, and what is missing where it is not tested."""

    letter: str
    sentence: str
    decides: str
    needs: str
    hypotheses: Callable[[Arms], Iterator[Comparison]]


@dataclass(frozen=True)
class Verdict:
    """A claim, each hypothesis with its verdict, the verdict of all together, and the reading of the paper that ran."""

    claim: Claim
    rows: tuple[Judged, ...]
    verdict: str
    reading: str = ""

    @property
    def letter(self) -> str:
        """The claim's letter, with the reading behind it."""
        return f"{self.claim.letter}: {self.reading}" if self.reading else self.claim.letter


@dataclass(frozen=True)
class Arms:
    """The arms with known settings, their finished runs, those that can be judged, and the same with who survived."""

    designs: Sequence[Design]
    done: pd.DataFrame
    over: pd.DataFrame
    counted: pd.DataFrame

    def collapses(self, more: Design, less: Design, controls: Sequence[Design] = ()) -> Comparison:
        """Compare two arms; each control is told on the seeds of the pair."""
        found = collapses(self.counted, more.arm, less.arm)
        mine, theirs = (set(self.counted.loc[self.counted["arm"] == d.arm, "seed"]) for d in (more, less))
        beside = [control(self.counted, d.arm, sorted(mine & theirs)) for d in controls]
        return replace(found, controls=tuple(c for c in beside if c is not None), reading=less.reading)

    def ordinary(self, reference: Design) -> list[Design]:
        """Arms that change an ordinary thing of the reference: its optimizer, its clip, or turns into placebo turns."""
        placebo = (d for d in self.designs if d.ratio == "placebo" and d.only_in(reference, RATIO))
        return [*(d for d in self.designs if d.only_in(reference, OPTIMISER)), *placebo]


def _plain_tokens(design: Design) -> bool:
    return design.ratio == "token" and not design.stabilised and design.off_policy


def _off_policy(critic: bool) -> Callable[[Arms], Iterator[Comparison]]:
    """Token ratios, stale and reused, against fresh and used once; the controls change one of the two, or the step."""

    def hypotheses(arms: Arms) -> Iterator[Comparison]:
        for less in (d for d in arms.designs if not d.off_policy and d.critic == critic):
            mine = [d for d in arms.designs if _plain_tokens(d) and d.only_in(less, OFF_POLICY)]
            most = max((sum(d.reuse) for d in mine), default=0)
            for more in (d for d in mine if sum(d.reuse) == most):
                partly = [d for d in mine if sum(d.reuse) < most]
                yield arms.collapses(more, less, [*partly, *arms.ordinary(more)])

    return hypotheses


def _turns_alone(arms: Arms) -> Iterator[Comparison]:
    for more, less in pairs(arms.designs, RATIO):
        if _plain_tokens(more) and less.ratio == "turn":
            yield arms.collapses(more, less, arms.ordinary(more))


def _stabiliser_alone(arms: Arms) -> Iterator[Comparison]:
    for more, less in pairs(arms.designs, STABILISER):
        if _plain_tokens(more) and less.stabilised:
            yield arms.collapses(more, less, arms.ordinary(more))


def _both(arms: Arms) -> Iterator[Comparison]:
    """Both cures against each alone; of the two comparisons the one with the larger p-value counts."""
    for both in (d for d in arms.designs if d.ratio == "turn" and d.stabilised and d.off_policy):
        turns = [d for d in arms.designs if d.only_in(both, STABILISER) and not d.stabilised]
        tokens = [d for d in arms.designs if d.only_in(both, RATIO) and d.ratio == "token"]
        for turn in turns:
            for token in tokens:
                plain = [d for d in arms.designs if d.only_in(turn, RATIO) and _plain_tokens(d)]
                controls = [c for d in plain for c in arms.ordinary(d)]
                yield _weaker(arms.collapses(turn, both, controls), arms.collapses(token, both, controls))


def _weaker(one: Comparison, other: Comparison) -> Comparison:
    """Both must hold: the one that holds less, under both names."""
    floor = max((c.smallest_p for c in (one, other) if c.smallest_p is not None), default=None)
    ends = [(c.seeds if c.p is None else 10**6, -(c.p or 0.0), c.effect or 0.0) for c in (one, other)]
    told = one if ends[0] <= ends[1] else other
    words = f"{one.told}; {other.told}" if one.told and other.told else ""
    return replace(
        told, more=f"{one.more}; {other.more}", told=words, smallest_p=floor, left_out=one.left_out + other.left_out
    )


def _clipping(arms: Arms) -> Iterator[Comparison]:
    for more, less in pairs(arms.designs, RATIO):
        if more.ratio == "token" and less.ratio == "turn" and more.off_policy:
            yield while_up(arms.done, "clip_frac", more.arm, less.arm)


def _grows(name: str) -> Callable[[Arms], Iterator[Comparison]]:
    def hypotheses(arms: Arms) -> Iterator[Comparison]:
        found = before_collapse(arms.over, {d.arm: d for d in arms.designs}, name)
        if found is not None:
            yield found

    return hypotheses


def _critic(arms: Arms) -> Iterator[Comparison]:
    for more, less in pairs(arms.designs, CREDIT):
        if _plain_tokens(more) and more.critic and not less.critic:
            yield arms.collapses(more, less)


_APART = "staleness and reuse one by one; the same rollouts with a clipped gradient or a smaller step"
_OFF = "an off-policy arm with token ratios, and the same arm with learn.epochs = 1, learn.staleness = 0"
_ORDINARY = (
    "an ordinary cure on token ratios: gradient-norm clip, smaller or matched learning rate, dual clip, placebo turns"
)
CLAIMS = (
    Claim("a1", "Token PPO collapses off-policy, and not on-policy at the same settings.",
          _APART, _OFF, _off_policy(critic=True)),
    Claim("a2", "Token GRPO collapses off-policy, and not on-policy at the same settings.",
          _APART, _OFF, _off_policy(critic=False)),
    Claim("b", "Turn-level ratios alone help.", _ORDINARY,
          "two off-policy arms without normalisation that differ in slot ratio: token, turn", _turns_alone),
    Claim("c", "The normalisation alone helps.", _ORDINARY,
          "two off-policy arms with token ratios that differ in slot stabilise", _stabiliser_alone),
    Claim("d", "Both together are best.", _ORDINARY,
          "an off-policy arm with both cures, and one with each alone", _both),
    Claim("e", "Clip fractions are lower with turn ratios.",
          "the same seeds, over the steps before either run collapses: a dead run's clip fraction says nothing",
          "two off-policy arms that differ in slot ratio: token, turn", _clipping),
    Claim("f", "The clipping-bias norm grows before the collapse.",
          "its growth at the same steps in runs of the same seed, epochs and staleness that stay up",
          "off-policy runs that collapse with clip_bias_norm measured", _grows("clip_bias_norm")),
    Claim("g1", "The critic's errors drive the collapse: they grow before it.",
          "its growth at the same steps in runs of the same seed, epochs and staleness that stay up",
          "off-policy runs with a critic that collapse", _grows("value_mae")),
    Claim("g2", "The critic's errors drive the collapse: without a critic it is rarer.",
          "the same settings with group advantages instead of a critic",
          "two off-policy arms with token ratios, one with a critic and one without", _critic),
)  # fmt: skip


def verdicts(runs: pd.DataFrame, survival: str = NOT_DEAD) -> list[Verdict]:
    """Return the verdict of every claim from the rows of Results.runs; every p-value is corrected over all hypotheses.

    A claim has a verdict for each reading of the paper that ran. `survival` is the reading of who
    survived.
    """
    arms = Arms(designs(runs), finished(runs), judged(runs), judged(runs, survival))
    asked = [(claim, found) for claim in CLAIMS for found in _once(claim.hypotheses(arms))]
    rows = judge([found for _, found in asked])
    found = []
    for claim in CLAIMS:
        mine = [row for (its, _), row in zip(asked, rows, strict=True) if its is claim]
        for reading in dict.fromkeys(row.comparison.reading for row in mine) or [""]:
            part = tuple(row for row in mine if row.comparison.reading == reading)
            found.append(Verdict(claim, part, together([row.verdict for row in part]), reading))
    return found


def _once(found: Iterator[Comparison]) -> list[Comparison]:
    return list({(c.measure, c.more, c.less): c for c in found}.values())


def as_well(row: Judged) -> list[str]:
    """Return the controls that collapsed no more often than the arm that the claim favours."""
    one = row.comparison
    if one.counts is None:
        return []
    favoured = one.counts[1] / one.seeds
    return [c.arm for c in one.controls if c.collapsed / c.n <= favoured]


_LISTED = 3  # pairs with too few seeds that are named


def summary(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """Return one row per claim and reading of the paper: sentence, verdict, on what it rests, and what decides it.

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
                "p (Holm)": f"{p_value(row.comparison.p)} ({p_value(row.p_holm)})",
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
        f"{KEPT}: p (Holm)": f"{p_value(one.p)} ({p_value(row.p_holm)})",
        f"verdict if {KEPT}": row.verdict,
    }


def controls(found: Sequence[Verdict]) -> pd.DataFrame:
    """Return one row per claim and what decides it, with the collapses of each control."""
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
    """Return the two sides of a comparison."""
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
        least = "not even the best outcome" if not row.decidable else f"p as small as {p_value(one.smallest_p)}"
        return f"{least}; power {power}, {row.needed or f'over {MOST}'} seeds for 80 %"
    return f"power {power}"


def rule() -> str:
    """Return the rule in words."""
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

"""The claims of arXiv 2511.20718 as hypotheses about arms that are found by their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from workbench.analysis.claims import curves
from workbench.analysis.claims.comparison import Comparison, collapses, control, finished, judged
from workbench.analysis.claims.designs import CREDIT, OFF_POLICY, OPTIMISER, RATIO, STABILISER, Design, designs, pairs
from workbench.analysis.claims.rule import Judged, judge, together
from workbench.analysis.runs import NOT_DEAD


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
            yield curves.while_up(arms.done, "clip_frac", more.arm, less.arm)


def _grows(name: str) -> Callable[[Arms], Iterator[Comparison]]:
    def hypotheses(arms: Arms) -> Iterator[Comparison]:
        found = curves.before_collapse(arms.over, {d.arm: d for d in arms.designs}, name)
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
    """The verdict of every claim from the rows of Results.runs; every p-value is corrected over all hypotheses.

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
    """The controls that collapsed no more often than the arm that the claim favours."""
    one = row.comparison
    if one.counts is None:
        return []
    favoured = one.counts[1] / one.seeds
    return [c.arm for c in one.controls if c.collapsed / c.n <= favoured]

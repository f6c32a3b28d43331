"""The claims of arXiv 2511.20718 as hypotheses about arms, their verdicts, and both as text.

Arms are found by their settings, never by their names. docs/claims.md has the rule in words. The second
half judges the claims by stable areas: an area weighs every learning rate and every staleness that was
searched, so no single setting decides a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from sorl.analysis import stats
from sorl.analysis.region import Landscape, areas, edges, estimate, heights
from sorl.analysis.results import Results
from sorl.analysis.runs import KEPT, NOT_DEAD, settings
from sorl.analysis.stats import p_value, percent
from sorl.app.report.content import Figure, Part, Section, Table, Text, titled
from sorl.spec.evidence import ALPHA
from studies import evidence, forest
from studies.evidence import (
    COLLAPSE,
    FACTOR,
    MEASURES,
    MIN_SEEDS,
    NOT_TESTED,
    SHIFT,
    TOO_FEW,
    Comparison,
    Design,
)

# Which settings a change may touch: a key, or the beginning of one that ends in a dot.
# what an ordinary cure changes: step size, its norm, the clip itself
OPTIMISER = ("learn.policy.", "slot.clip.")
# what tells a critic from group advantages
CREDIT = ("slot.advantage.", "critic", "group_size", "learn.group_size")
OFF_POLICY = ("learn.epochs", "learn.staleness")
RATIO = ("slot.ratio.",)
STABILISER = ("slot.stabilise.",)
TONES = {evidence.SUPPORTED: "healthy", evidence.NOT_SUPPORTED: "collapsed"}
LISTED = 3  # pairs with too few seeds that are named


@dataclass(frozen=True)
class Arms:
    """The arms with known settings, their finished runs, those that can be judged, and the same with who
    survived.
    """

    designs: Sequence[Design]
    done: pd.DataFrame
    over: pd.DataFrame
    counted: pd.DataFrame

    def collapses(self, more: Design, less: Design, controls: Sequence[Design] = ()) -> Comparison:
        """Compare two arms; each control counts on the seeds of the pair."""
        found = evidence.collapses(self.counted, more.arm, less.arm)
        mine, theirs = (set(self.counted.loc[self.counted["arm"] == d.arm, "seed"]) for d in (more, less))
        counted = (evidence.control(self.counted, d.arm, sorted(mine & theirs)) for d in controls)
        return replace(found, controls=tuple(c for c in counted if c is not None), reading=less.reading)

    def controlled(self, more: Design, less: Design) -> Comparison:
        """Compare two arms, with every ordinary change of the first as a control."""
        return self.collapses(more, less, self.ordinary(more))

    def clipping(self, more: Design, less: Design) -> Comparison:
        """Compare the clip fractions of two arms while both are up."""
        return evidence.while_up(self.done, "clip_frac", more.arm, less.arm)

    def ordinary(self, reference: Design) -> list[Design]:
        """Arms that change an ordinary thing of the reference: its optimizer, its clip, or turns into placebo
        turns.
        """
        placebo = (d for d in self.designs if d.ratio == "placebo" and d.only_in(reference, RATIO))
        return [*(d for d in self.designs if d.only_in(reference, OPTIMISER)), *placebo]


PLAIN = {"ratio": "token", "stabilised": False, "off_policy": True}
Compare = Callable[[Arms, Design, Design], Comparison]


def one_change(
    arms: Arms, keys: Sequence[str], more: Mapping[str, Any], less: Mapping[str, Any], compare: Compare
) -> Iterator[Comparison]:
    """Pairs of arms that differ in nothing but `keys`, the one with the properties `more` and the other with
    `less`.
    """
    for a, b in evidence.pairs(arms.designs, keys):
        if a.fits(more) and b.fits(less):
            yield compare(arms, a, b)


def off_policy(arms: Arms, critic: bool) -> Iterator[Comparison]:
    """Token ratios, stale and reused, against fresh and used once; the controls change one of the two, or the
    step.
    """
    for less in (d for d in arms.designs if d.fits({"off_policy": False, "critic": critic})):
        mine = [d for d in arms.designs if d.fits(PLAIN) and d.only_in(less, OFF_POLICY)]
        most = max((sum(d.reuse) for d in mine), default=0)
        for more in (d for d in mine if sum(d.reuse) == most):
            partly = [d for d in mine if sum(d.reuse) < most]
            yield arms.collapses(more, less, [*partly, *arms.ordinary(more)])


def both_cures(arms: Arms) -> Iterator[Comparison]:
    """Both cures against each alone; of the two comparisons the one that holds less counts,
    under both names.
    """
    for both in (
        d for d in arms.designs if d.fits({"ratio": "turn", "stabilised": True, "off_policy": True})
    ):
        turns = [d for d in arms.designs if d.only_in(both, STABILISER) and not d.stabilised]
        tokens = [d for d in arms.designs if d.only_in(both, RATIO) and d.ratio == "token"]
        for turn in turns:
            for token in tokens:
                plain = [d for d in arms.designs if d.only_in(turn, RATIO) and d.fits(PLAIN)]
                controls = [c for d in plain for c in arms.ordinary(d)]
                two = [arms.collapses(alone, both, controls) for alone in (turn, token)]
                weaker = min(
                    two, key=lambda c: (c.seeds if c.p is None else 10**6, -(c.p or 0.0), c.effect or 0.0)
                )
                details = [c.detail for c in two]
                yield replace(
                    weaker,
                    more="; ".join(c.more for c in two),
                    detail="; ".join(details) if all(details) else "",
                    smallest_p=max((c.smallest_p for c in two if c.smallest_p is not None), default=None),
                    left_out=sum(c.left_out for c in two),
                )


def grows(arms: Arms, name: str) -> Iterator[Comparison]:
    """A curve before collapses, against the same steps of runs that stay up."""
    if found := evidence.before_collapse(arms.over, {d.arm: d for d in arms.designs}, name):
        yield found


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: its letter, its sentence, what decides it, and what is missing where it is not
    tested.
    """

    letter: str
    sentence: str
    decides: str
    needs: str
    hypotheses: Callable[[Arms], Iterator[Comparison]]


_APART = "staleness and reuse one by one; the same rollouts with a clipped gradient or a smaller step"
_OFF = "an off-policy arm with token ratios, and the same arm with learn.epochs = 1, learn.staleness = 0"
_ORDINARY = (
    "an ordinary cure on token ratios: gradient-norm clip, smaller or matched learning rate, dual clip,"
    " placebo turns"
)
_SAME_STEPS = "its growth at the same steps in runs of the same seed, epochs and staleness that stay up"
CLAIMS = (
    Claim(
        "a1",
        "Token PPO collapses off-policy, and not on-policy at the same settings.",
        _APART,
        _OFF,
        partial(off_policy, critic=True),
    ),
    Claim(
        "a2",
        "Token GRPO collapses off-policy, and not on-policy at the same settings.",
        _APART,
        _OFF,
        partial(off_policy, critic=False),
    ),
    Claim(
        "b",
        "Turn-level ratios alone help.",
        _ORDINARY,
        "two off-policy arms without normalisation that differ in slot ratio: token, turn",
        partial(one_change, keys=RATIO, more=PLAIN, less={"ratio": "turn"}, compare=Arms.controlled),
    ),
    Claim(
        "c",
        "The normalisation alone helps.",
        _ORDINARY,
        "two off-policy arms with token ratios that differ in slot stabilise",
        partial(one_change, keys=STABILISER, more=PLAIN, less={"stabilised": True}, compare=Arms.controlled),
    ),
    Claim(
        "d",
        "Both together are best.",
        _ORDINARY,
        "an off-policy arm with both cures, and one with each alone",
        both_cures,
    ),
    Claim(
        "e",
        "Clip fractions are lower with turn ratios.",
        "the same seeds, over the steps before either run collapses: a dead run's clip fraction says nothing",
        "two off-policy arms that differ in slot ratio: token, turn",
        partial(
            one_change,
            keys=RATIO,
            more={"ratio": "token", "off_policy": True},
            less={"ratio": "turn"},
            compare=Arms.clipping,
        ),
    ),
    Claim(
        "f",
        "The clipping-bias norm grows before the collapse.",
        _SAME_STEPS,
        "off-policy runs that collapse with clip_bias_norm measured",
        partial(grows, name="clip_bias_norm"),
    ),
    Claim(
        "g1",
        "The critic's errors drive the collapse: they grow before it.",
        _SAME_STEPS,
        "off-policy runs with a critic that collapse",
        partial(grows, name="value_mae"),
    ),
    Claim(
        "g2",
        "The critic's errors drive the collapse: without a critic it is rarer.",
        "the same settings with group advantages instead of a critic",
        "two off-policy arms with token ratios, one with a critic and one without",
        partial(
            one_change,
            keys=CREDIT,
            more=PLAIN | {"critic": True},
            less={"critic": False},
            compare=Arms.collapses,
        ),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A claim, its hypotheses, the verdict of all together, and the reading of the paper that ran."""

    claim: Claim
    rows: tuple[Comparison, ...]
    verdict: str
    reading: str = ""

    @property
    def letter(self) -> str:
        """The claim's letter, with the reading behind it."""
        return f"{self.claim.letter}: {self.reading}" if self.reading else self.claim.letter


def verdicts(runs: pd.DataFrame, survival: str = NOT_DEAD) -> list[Verdict]:
    """Return the verdict of every claim from the rows of Results.runs; every p-value is corrected over all
    hypotheses.

    A claim has a verdict for each reading of the paper that ran. `survival` is the reading of who survived.
    """
    arms = Arms(
        evidence.designs(runs),
        evidence.finished(runs),
        evidence.judged(runs),
        evidence.judged(runs, survival),
    )
    hypotheses: list[Comparison] = []
    for claim in CLAIMS:
        once = {(c.measure, c.more, c.less): replace(c, claim=claim.letter) for c in claim.hypotheses(arms)}
        hypotheses += once.values()
    rows = evidence.judge(hypotheses)
    found = []
    for claim in CLAIMS:
        mine = [row for row in rows if row.claim == claim.letter]
        for reading in dict.fromkeys(row.reading for row in mine) or [""]:
            part = tuple(row for row in mine if row.reading == reading)
            found.append(Verdict(claim, part, evidence.together([row.verdict for row in part]), reading))
    return found


def pooled(experiments: Sequence[Results]) -> pd.DataFrame:
    """The runs of several experiments as those of one: arms of equal settings are one arm, under the first's
    name.

    A seed that an arm has twice counts once, the first time. An arm whose name is taken by other settings
    carries the name of its experiment behind its own.
    """
    if len(experiments) == 1:
        return experiments[0].runs
    names: dict[str, str] = {}  # settings -> arm
    parts = []
    for found in experiments:
        renamed = {}
        for arm, rows in found.runs.groupby("arm", sort=False):
            known = settings(rows["config"].iloc[0], rows["slots"].iloc[0])
            key = json.dumps(known, sort_keys=True) if known else f"{found.experiment} {arm}"
            own = f"{arm} ({found.experiment})" if arm in names.values() else str(arm)
            renamed[arm] = names.setdefault(key, own)
        parts.append(found.runs.assign(arm=found.runs["arm"].map(renamed)))
    return pd.concat(parts, ignore_index=True).drop_duplicates(["arm", "seed"], ignore_index=True)


# Tables and words


def as_well(one: Comparison) -> list[str]:
    """Return the controls that collapsed no more often than the arm that the claim favours."""
    if one.counts is None:
        return []
    return [c.arm for c in one.controls if c.collapsed / c.n <= one.counts[1] / one.seeds]


def summary(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """Return one row per claim and reading of the paper: sentence, verdict, on what it rests, and what
    decides it.

    `kept` are the verdicts where only runs that learned and kept it survive.
    """
    other = {v.letter: v.verdict for v in kept}
    return pd.DataFrame(
        {
            "claim": f"({v.claim.letter}) {v.claim.sentence}{f' As {v.reading}.' if v.reading else ''}",
            "verdict": v.verdict,
            f"verdict if {KEPT}": other.get(v.letter, NOT_TESTED),
            "because": _because(v),
            "what decides": v.claim.decides,
        }
        for v in found
    )


def _because(verdict: Verdict) -> str:
    if verdict.verdict == NOT_TESTED:
        return f"It needs {verdict.claim.needs}."
    few = sum(one.verdict == TOO_FEW for one in verdict.rows)
    many = few > LISTED
    parts = (
        [f"{few} pairs of arms with fewer than the {MIN_SEEDS} shared seeds that it takes"] if many else []
    )
    for one in verdict.rows:
        if one.verdict != TOO_FEW:
            equal = as_well(one)
            also = f"; as rare with {'; '.join(equal)}" if equal else ""
            parts.append(f"{named(one)}: {effect(one)}, {one.seeds} seeds{also}")
        elif not many:
            parts.append(f"{named(one)}: {one.seeds} of the {MIN_SEEDS} shared seeds that it takes{one.left}")
    return ". ".join(parts) + "."


def hypotheses(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """One row per hypothesis that has enough seeds, with everything that its verdict rests on, by both
    readings.
    """
    other = {(v.letter, one.more, one.less): one for v in kept for one in v.rows}
    return pd.DataFrame(
        {
            "claim": v.claim.letter,
            "compared": named(one),
            "found": one.detail,
            "effect, 95 % interval": effect(one),
            "seeds in favour": f"{one.in_favour} of {one.seeds}{one.left}",
            "p (Holm)": tested(one),
            "so many seeds could show": _could(one),
            "verdict": one.verdict,
            **_kept(other.get((v.letter, one.more, one.less))),
        }
        for v in found
        for one in v.rows
        if one.verdict != TOO_FEW
    )


def _kept(one: Comparison | None) -> dict[str, str]:
    cells = ["-", "-", "-" if one is None else one.verdict]
    if one is not None and one.measure == COLLAPSE:
        cells[:2] = f"{effect(one)}, {one.detail}" if one.detail else effect(one), tested(one)
    return dict(zip((f"{KEPT}: effect", f"{KEPT}: p (Holm)", f"verdict if {KEPT}"), cells, strict=True))


def controls(found: Sequence[Verdict]) -> pd.DataFrame:
    """Return one row per claim and what decides it, with the collapses of each control."""
    return pd.DataFrame(
        {
            "claim": v.claim.letter,
            "reference": one.more,
            "favoured": f"{one.less}: {one.counts[1]}/{one.seeds}",
            "control": c.arm,
            "collapsed": "{}/{} [{}, {}]".format(
                c.collapsed, c.n, *map(percent, stats.clopper_pearson(c.collapsed, c.n))
            ),
            "does as well": "yes" if c.arm in as_well(one) else "no",
        }
        for v in found
        for one in v.rows
        if one.counts is not None
        for c in one.controls
    )


def named(one: Comparison) -> str:
    """Return the two sides of a comparison."""
    return f"{one.more} against {one.less}"


def effect(one: Comparison) -> str:
    """`+60 % of runs [-2 %, +88 %]` that collapse more often, or `x 0.47 [0.40, 0.55]`."""
    if one.effect is None or one.low is None or one.high is None:
        return "-"
    if one.measure == COLLAPSE:
        return f"{100 * one.effect:+z.0f} % of runs [{100 * one.low:+z.0f} %, {100 * one.high:+z.0f} %]"
    return f"x {one.effect:.2f} [{one.low:.2f}, {one.high:.2f}]"


def tested(one: Comparison) -> str:
    """`0.023 (0.046)`: the p-value, and Holm's over all hypotheses."""
    return f"{p_value(one.p)} ({p_value(one.p_holm)})"


def _could(one: Comparison) -> str:
    power = "power -" if one.power is None else f"power {percent(one.power)}"
    if one.measure != COLLAPSE:
        return power
    least = f"p as small as {p_value(one.smallest_p)}" if one.decidable else "not even the best outcome"
    return f"{least}; {power}, {one.needed or f'over {evidence.MOST}'} seeds for 80 %"


def rule() -> str:
    """Return the rule in words."""
    a, b = map(percent, evidence.SHARES)
    factor = MEASURES[FACTOR][1]
    return (
        "Supported: the effect goes the claim's way and p, after Holm's correction over all hypotheses here,"
        " is at "
        f"most {ALPHA:g}. Not supported: it goes the other way with such a p, or the test could have shown it"
        " and the "
        f"95 % interval leaves out every effect that matters (half of the runs; a factor of {factor:g})."
        " Undecided at "
        f"this power: neither. Below {MIN_SEEDS} shared seeds nothing is said. Power: the probability to show"
        f" {a} "
        f"against {b} of runs collapsing, or a factor of {factor:g}, at {ALPHA:g} over the number of"
        " hypotheses. A "
        "claim holds if all its hypotheses do. Left out: seeds with a run that never learned or cannot be"
        " judged; the "
        f'columns of "{KEPT}" count every run that never learned or lost some of it as one that did not'
        " survive."
    )


def section(experiments: Sequence[Results]) -> Section:
    """Return the claims as a section of a report: verdicts, and the figures and tables behind them."""
    runs = pooled(experiments)
    names = " and ".join(found.experiment for found in experiments)
    judged = verdicts(runs)
    kept = verdicts(runs, KEPT)
    parts: list[Part] = [
        Text(
            f"Claims of arXiv 2511.20718, judged on the runs of {names}. The paper's equations could be "
            "read in descriptions only; each verdict on the normalisation names the reading that ran."
        ),
        Table(summary(judged, kept), TONES),
        *effects(judged),
        *titled(
            [
                ("Every hypothesis: effect, interval, test.", hypotheses(judged, kept)),
                (
                    "Controls: other explanations on the same seeds, with 95 % Clopper-Pearson intervals.",
                    controls(judged),
                ),
            ],
            TONES,
        ),
    ]
    if down := int((runs["outcome"] == "falling").sum()):
        with_them = verdicts(runs.assign(outcome=runs["outcome"].replace("falling", "collapsed")))
        found, other = ({v.letter: v.verdict for v in each} for each in (judged, with_them))
        parts.append(Text(_falling(down, found, other), "note"))
    parts.append(Text(rule(), "note"))
    return Section("The paper's claims, one by one", parts)


def effects(found: Sequence[Verdict]) -> list[Figure]:
    """Return the figure of the hypotheses that were tested; none where there is nothing to draw."""
    drawn = [
        forest.Effect(
            f"({verdict.claim.letter}) {named(one)}",
            forest.SHARE if one.measure == COLLAPSE else forest.FACTOR,
            one.effect,
            one.low,
            one.high,
            f"{effect(one)}; {one.detail}; {one.seeds} seeds; {one.verdict}",
            TONES.get(one.verdict, ""),
        )
        for verdict in found
        for one in verdict.rows
        if one.effect is not None and one.low is not None and one.high is not None
    ]
    caption = (
        f"{len(drawn)} hypotheses. Shares: Newcombe's 95 % interval of a difference within seeds; factors: 95"
        " % t-interval of the geometric mean over seeds. Blue is supported, red not supported, grey"
        " undecided."
    )
    return (
        [Figure(lambda palette: forest.forest(drawn, palette), "Effects behind the claims", caption)]
        if drawn
        else []
    )


def _falling(down: int, found: Mapping[str, str], with_them: Mapping[str, str]) -> str:
    """Say what `down` runs that were falling at their end would change in the verdicts, claim by claim."""
    changed = [f"({claim}) {with_them[claim]}" for claim in found if found[claim] != with_them[claim]]
    does = f"they would change: {', '.join(changed)}" if changed else "they change no verdict"
    return f"{down} runs were falling at their end and count neither way; counted as collapsed {does}."


# The claims by stable areas

AREA_SENTENCES = {
    "b": "Turn-level ratios alone help.",
    "c": "The normalisation alone helps.",
    "bc": "Turn-level ratios and the normalisation together help, where neither was tried alone.",
    "d": "Both together are best.",
    "g2": "The critic's errors drive the collapse: without a critic it is rarer.",
}


def shifts(landscape: Landscape, runs: pd.DataFrame) -> list[Comparison]:
    """Return every hypothesis of the claims that areas can judge, corrected over all of them (Holm).

    Each says that the boundary of `more` lies further up than that of `less`. `runs` are the rows of
    Results.runs, for the settings that say what an arm is. Regions with further slices: [].
    """
    if len({piece for _, piece in landscape.parts}) > 1:
        return []
    known = landscape.runs[["series", "run_id"]].drop_duplicates("series").merge(runs, on="run_id")
    apart = (landscape.settings.along, landscape.across)  # searched and conditions: no part of what an arm is
    designs = []
    for name, config, slots in zip(known["series"], known["config"], known["slots"], strict=True):
        if own := settings(config, slots):
            designs.append(Design(name, {key: value for key, value in own.items() if key not in apart}))
    return evidence.judge([_shift(landscape, *hypothesis) for hypothesis in _pairs_of_areas(designs)])


def _pairs_of_areas(designs: Sequence[Design]) -> Iterator[tuple[str, Design, Design]]:
    """(claim, favoured, reference) of every pair of arms that differ in one thing."""
    for plain, turns in evidence.pairs(designs, RATIO):
        if plain.ratio == "token" and turns.ratio == "turn":
            yield ("d" if plain.stabilised else "b"), turns, plain
    for plain, stable in evidence.pairs(designs, STABILISER):
        if not plain.stabilised and stable.stabilised:
            yield ("c" if plain.ratio == "token" else "d"), stable, plain
    compared = {
        reference.arm
        for reference, _ in (*evidence.pairs(designs, RATIO), *evidence.pairs(designs, STABILISER))
    }
    for plain, both in evidence.pairs(designs, (*RATIO, *STABILISER)):
        cured = both.fits({"ratio": "turn", "stabilised": True})
        if plain.fits({"ratio": "token", "stabilised": False}) and cured and plain.arm not in compared:
            yield "bc", both, plain
    for critic, group in evidence.pairs(designs, CREDIT):
        if critic.fits({"critic": True, "ratio": "token", "stabilised": False}) and not group.critic:
            yield "g2", group, critic


def _shift(landscape: Landscape, letter: str, favoured: Design, reference: Design) -> Comparison:
    """Two-sided p: the share of draws on the other side of none, doubled."""
    keys = [(design.arm, next(iter(landscape.parts))[1]) for design in (favoured, reference)]
    one, other = (set(landscape.parts[key]["seed"]) for key in keys)
    seeds = len(one & other)
    drawn, _ = landscape.fitted
    found = Comparison(SHIFT, favoured.arm, reference.arm, seeds, claim=letter, reading=favoured.reading)
    shared = sorted(set(drawn[keys[0]]) & set(drawn[keys[1]]))
    if seeds < MIN_SEEDS or not shared:
        return found
    mine, theirs = (_mean(landscape, {y: drawn[key][y] for y in shared}) for key in keys)
    gap = mine - theirs
    shift = estimate(gap, seeds)
    p = min(1.0, 2 * max(1 / len(gap), min(float(np.mean(gap <= 0)), float(np.mean(gap >= 0)))))
    # Where a boundary lies beyond what was searched a small shift may be the prior's: none can be ruled out.
    beyond = any(
        edge.beyond for key in keys for y, edge in edges(landscape.parts[key]).items() if y in shared
    )
    return replace(
        found,
        effect=shift.value,
        low=shift.low,
        high=shift.high,
        p=p,
        smallest_p=None if beyond else 1 / len(gap),
    )


def _mean(landscape: Landscape, drawn: dict[float, np.ndarray]) -> np.ndarray:
    """Mean of log2 of the boundary over the conditions in each draw, (D,), weighted as in an area."""
    part = areas(drawn, landscape.settings)
    if part is None:
        (only,) = drawn.values()
        return only
    order = heights(sorted(drawn))
    return part / (order[-1] - order[0])


def area_verdicts(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Letter of a claim -> the verdict of all its hypotheses together."""
    verdicts = {}
    for letter in AREA_SENTENCES:
        hypotheses = [comparison.verdict for comparison in comparisons if comparison.claim == letter]
        verdicts[letter] = evidence.together(hypotheses)
    return verdicts


def readable_shifts(found: Sequence[Comparison], kept: Sequence[Comparison]) -> pd.DataFrame:
    """One row per hypothesis: whose boundary lies how many doublings further up, by both readings of
    survival.
    """
    rows = []
    for one, other in zip(found, kept, strict=True):
        row = {"claim": one.claim, "compared": f"{one.more} less {one.less}"}
        row |= {"reading of the paper": one.reading or "-", "seeds": str(one.seeds)}
        for shift, survival in ((one, NOT_DEAD), (other, KEPT)):
            row[f"{survival}: further up by (doublings)"] = doublings(shift)
            row[f"{survival}: p (Holm)"] = "-" if shift.p is None else tested(shift)
            row["verdict" if survival == NOT_DEAD else f"verdict if {survival}"] = shift.verdict
        rows.append(row)
    return pd.DataFrame(rows)


def doublings(one: Comparison) -> str:
    """`+0.72 [+0.03, +1.32], x 1.65`; a tilde before it where the prior has a part in it."""
    if one.effect is None:
        return "-"
    sign = "~ " if one.smallest_p is None else ""
    return f"{sign}{one.effect:+z.2f} [{one.low:+z.2f}, {one.high:+z.2f}], x {2**one.effect:.2f}"


def area_rule() -> str:
    """Return the rule of these verdicts in words."""
    return (
        "Supported: the boundary lies further up and the two-sided p of the fit, after Holm's correction over"
        " all "
        f"hypotheses here, is at most {ALPHA:g}. Not supported: it lies further down with such a p, or the"
        " 95 % "
        f"interval leaves out a shift of {MEASURES[SHIFT][1]:g} doublings. Undecided at this power: neither."
        " Below "
        f'{MIN_SEEDS} shared seeds nothing is said. "{NOT_DEAD.capitalize()}" counts every run that did not'
        " collapse "
        f'as a survivor, "{KEPT}" only those that rose and did not lose it. ~: a boundary lies beyond what'
        " was "
        "searched, so that the prior has a part in the shift. How often these intervals hold the truth: "
        "docs/regions.md."
    )


def area_sections(landscape: Landscape, kept: Landscape, runs: pd.DataFrame, level: int) -> list[Section]:
    """Return the claims by stable areas as sections of a report, by both readings of survival; none without a
    pair.
    """
    found = shifts(landscape, runs)
    other = shifts(kept, runs)
    if not found:
        return []
    verdicts = area_verdicts(found)
    by_kept = area_verdicts(other)
    summary = pd.DataFrame(
        [
            (f"({letter}) {AREA_SENTENCES[letter]}", verdict, by_kept[letter])
            for letter, verdict in verdicts.items()
        ],
        columns=["claim", "verdict", f"verdict if {KEPT}"],
    )
    parts: list[Part] = [Table(summary, TONES), Table(readable_shifts(found, other), TONES)]
    if len(landscape.fading):
        fading = area_verdicts(shifts(landscape.with_fading(), runs))
        parts.append(Text(_falling(len(landscape.fading), verdicts, fading), "note"))
    parts.append(Text(area_rule(), "note"))
    return [Section("The paper's claims, by stable areas", parts, level)]

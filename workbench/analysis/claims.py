"""The claims of arXiv 2511.20718 as hypotheses about two arms, seed by seed; their verdicts by one rule, and as text.

Arms are found by their settings, never by their names. docs/statistics.md has the rule in words.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.runs import (
    CREDIT,
    KEPT,
    NOT_DEAD,
    OFF_POLICY,
    OPTIMISER,
    RATIO,
    STABILISER,
    Design,
    designs,
    pairs,
    survived,
)
from workbench.analysis.stats import (
    ALPHA,
    MOST,
    clopper_pearson,
    fisher_exact,
    holm,
    mean_interval,
    p_value,
    paired_proportions,
    percent,
    power_of_fisher,
    power_of_t,
    seeds_for_fisher,
)
from workbench.spec import UNDECIDED as UNDECIDED_RUN

SUPPORTED, NOT_SUPPORTED, UNDECIDED = "supported", "not supported", "undecided at this power"
TOO_FEW, NOT_TESTED = "too few seeds", "not tested here"
MIN_SEEDS = 5  # nothing is said of fewer

COLLAPSE, FACTOR, SHIFT = "collapse", "factor", "shift"
# What is measured -> no effect, and the least effect that matters: half of the runs are no more to collapse, a quarter
# more of a measurement, half a doubling of the searched setting (a factor of 1.41).
MEASURES = {COLLAPSE: (0.0, 0.5), FACTOR: (1.0, 1.25), SHIFT: (0.0, 0.5)}
SHARES = (0.75, 0.25)  # a difference that matters, at which the power of Fisher's test is stated
WINDOW = 5  # steps right before the onset, and as many before these
LEAST = 2  # values that a window needs
LISTED = 3  # pairs with too few seeds that are named


@dataclass(frozen=True)
class Control:
    """An arm that offers another explanation: its own collapses with their 95 % interval, of as many seeds."""

    arm: str
    collapsed: int
    n: int


@dataclass(frozen=True)
class Comparison:
    """One hypothesis about two arms with its verdict; effect, interval and test are None below MIN_SEEDS.

    `more` is the arm in which the claim expects more: collapses, clipping, growth, a boundary further up. effect: by
    `measure` collapses of `more` minus those of `less` as shares of runs, the factor of `more` over `less`, or the
    doublings between their boundaries; in_favour: seeds on the claim's side of none; counts: collapses of `more` and of
    `less`; smallest_p: what the test gives where `less` does all that the claim expects of it, None where no p-value
    could rule an effect out; deviation: of the log factors, in nats; left_out: seeds that one arm has and no pair could
    use; reading: of the paper, that ran. p_holm is corrected over all hypotheses of the report; power: probability that
    so many seeds show an effect that matters, at alpha over the number of hypotheses; needed: seeds per arm with which
    it is 80 %, for collapses.
    """

    measure: str
    more: str
    less: str
    seeds: int
    detail: str = ""
    counts: tuple[int, int] | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    in_favour: int = 0
    p: float | None = None
    smallest_p: float | None = None
    deviation: float = 0.0
    left_out: int = 0
    controls: tuple[Control, ...] = ()
    reading: str = ""
    claim: str = ""
    p_holm: float | None = None
    decidable: bool = False
    power: float | None = None
    needed: int | None = None
    verdict: str = TOO_FEW


# Comparing two arms


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs, one per arm and seed: of several the first that was judged."""
    over = runs[runs["status"] == "finished"]
    order = over.assign(undecided=over["outcome"].isna()).sort_values(["undecided", "run_id"]).index
    return over.loc[order].drop_duplicates(["arm", "seed"])


def judged(runs: pd.DataFrame, survival: str = NOT_DEAD) -> pd.DataFrame:
    """Return the finished runs that can be called survivors or not, with `dead`; one per arm and seed.

    A run that never learned cannot fall: it is no evidence of either, nor is one that is too short for the rule or was
    falling at its end. With KEPT, a run that never learned or lost some of it is no survivor.
    """
    over = finished(runs)
    neither = UNDECIDED_RUN if survival == KEPT else ("no_learning", *UNDECIDED_RUN)
    over = over[over["outcome"].notna() & ~over["outcome"].isin(neither)]
    return over.assign(dead=~survived(over["outcome"], survival))


def collapses(over: pd.DataFrame, more: str, less: str) -> Comparison:
    """Compare collapses on the seeds that both arms have; `over` as `judged` gives it.

    The test is Fisher's, which ignores the pairing and is therefore conservative where seeds make runs alike; an exact
    test within pairs could not reach 0.05 below six seeds whatever happens.
    """
    dead = over.pivot(index="seed", columns="arm", values="dead").reindex(columns=[more, less])
    both = dead.dropna()
    n, left_out = len(both), int(dead.notna().any(axis=1).sum()) - len(both)
    if n < MIN_SEEDS:
        return Comparison(COLLAPSE, more, less, n, left_out=left_out)
    one, other = (both[arm].to_numpy(bool) for arm in (more, less))
    first, a, b = int((one & ~other).sum()), int(one.sum()), int(other.sum())
    found = paired_proportions(int((one & other).sum()), first, int((other & ~one).sum()), int((~one & ~other).sum()))
    return Comparison(
        COLLAPSE, more, less, n, f"{a}/{n} against {b}/{n}", (a, b), found.value, found.low, found.high, first,
        fisher_exact(a, n, b, n), fisher_exact(a, n, 0, n), left_out=left_out,
    )  # fmt: skip


def of_factors(logs: Mapping[Any, float], more: str, less: str, detail: str = "", left_out: int = 0) -> Comparison:
    """Compare by the logarithms of the factors within seeds: geometric mean, t-interval and paired t-test on logs."""
    values = [logs[seed] for seed in sorted(logs)]
    n, found = len(values), mean_interval(values)
    if n < MIN_SEEDS:
        return Comparison(FACTOR, more, less, n, left_out=left_out)
    effect, low, high = (math.exp(max(-500.0, min(500.0, v or 0.0))) for v in (found.value, found.low, found.high))
    return Comparison(
        FACTOR, more, less, n, detail, None, effect, low, high, sum(v > 0 for v in values), found.p, 0.0,
        float(np.std(values, ddof=1)), left_out,
    )  # fmt: skip


def control(over: pd.DataFrame, arm: str, seeds: Sequence[Any]) -> Control | None:
    """Return the collapses of an arm on these seeds; None below MIN_SEEDS."""
    mine = over[(over["arm"] == arm) & over["seed"].isin(list(seeds))]
    return Control(arm, int(mine["dead"].sum()), len(mine)) if len(mine) >= MIN_SEEDS else None


def mean_between(run: Mapping[Hashable, Any], name: str, first: float, last: float) -> float | None:
    """Mean of the finite values of a curve in the steps [first, last); None with fewer than LEAST of them."""
    step, values = (np.asarray(run.get(key), dtype=float) for key in ("step", f"{name}_curve"))
    if values.ndim == 0 or step.shape != values.shape:
        return None
    inside = values[(step >= first) & (step < last) & np.isfinite(values)]
    return float(inside.mean()) if len(inside) >= LEAST else None


def log_factor(over: float | None, under: float | None) -> float | None:
    """log(over / under); None unless both are measured and positive."""
    return math.log(over / under) if over is not None and under is not None and over > 0 and under > 0 else None


def growth(run: Mapping[Hashable, Any], name: str, onset: float) -> float | None:
    """Log of the mean over the WINDOW steps before `onset` over that of the WINDOW steps before these."""
    late = mean_between(run, name, onset - WINDOW, onset)
    return log_factor(late, mean_between(run, name, onset - 2 * WINDOW, onset - WINDOW))


def while_up(over: pd.DataFrame, name: str, more: str, less: str) -> Comparison:
    """Factor of a curve's mean in arm `more` over `less`, within seeds, over the steps before either collapses."""
    one, other = ({r["seed"]: r for r in over[over["arm"] == arm].to_dict("records")} for arm in (more, less))
    logs, means = {}, []
    for seed in set(one) & set(other):
        end = min(float(one[seed]["time"]), float(other[seed]["time"]))
        a, b = (mean_between(run[seed], name, 0, end) for run in (one, other))
        if (value := log_factor(a, b)) is not None:
            logs[seed] = value
            means.append((a or 0.0, b or 0.0))
    detail = "{} {:.3g} against {:.3g}".format(name, *np.mean(means, axis=0)) if means else ""
    return of_factors(logs, more, less, detail, len(set(one) | set(other)) - len(logs))


def before_collapse(over: pd.DataFrame, arms: Mapping[str, Design], name: str) -> Comparison | None:
    """Growth of a curve before collapses of off-policy runs, over its growth at the same steps in runs that stay up.

    The runs that stay up share seed, epochs, staleness and kind of advantage with the run that collapses; growths are
    averaged within seeds, which are the replicates. None where no run collapsed with the curve measured.
    """
    rows = [r for r in over.to_dict("records") if r["arm"] in arms and arms[r["arm"]].off_policy]
    fell = [r for r in rows if r["dead"] and not pd.isna(r["collapse_step"])]
    grown: dict[Any, list[float]] = defaultdict(list)
    measured, compared = False, []
    for run in fell:
        onset, seed = float(run["collapse_step"]), run["seed"]
        up = [
            growth(other, name, onset)
            for other in rows
            if other["seed"] == seed and not other["dead"] and float(other["time"]) >= onset
            and _alike(arms[other["arm"]], arms[run["arm"]])
        ]  # fmt: skip
        mine, theirs = growth(run, name, onset), [value for value in up if value is not None]
        measured = measured or mine is not None
        if mine is not None and theirs:
            usual = sum(theirs) / len(theirs)
            grown[seed].append(mine - usual)
            compared.append((mine, usual))
    if not measured:
        return None
    detail = ""
    if compared:
        mine, usual = (math.exp(v) for v in np.mean(compared, axis=0))
        detail = f"x {mine:.3g} in {len(compared)} runs, against x {usual:.3g}"
    logs = {seed: sum(values) / len(values) for seed, values in grown.items()}
    left_out = len({run["seed"] for run in fell} - set(grown))
    return of_factors(logs, f"growth of {name} before a collapse", "its growth in runs that stay up", detail, left_out)


def _alike(a: Design, b: Design) -> bool:
    keys = ("learn.epochs", "learn.staleness", "critic", "slot.advantage.kind")
    return all(a.settings.get(key) == b.settings.get(key) for key in keys)


# The rule


def judge(found: Sequence[Comparison]) -> list[Comparison]:
    """Return each comparison with its verdict, its p-value corrected over all of them (Holm)."""
    ps = [one.p for one in found]
    family = sum(p is not None for p in ps)
    rows = []
    for i, (one, p) in enumerate(zip(found, holm(ps), strict=True)):
        if one.effect is None or one.high is None:
            rows.append(one)
            continue
        none, matters = MEASURES[one.measure]
        best = holm([*ps[:i], one.smallest_p if one.p is not None else None, *ps[i + 1 :]])[i]
        decidable = best is not None and best <= ALPHA
        verdict = UNDECIDED
        if p is not None and p <= ALPHA:
            verdict = SUPPORTED if one.effect > none else NOT_SUPPORTED
        elif decidable and one.high < matters:  # only a test that could have shown the effect says something here
            verdict = NOT_SUPPORTED
        power, needed = _power(one, ALPHA / max(family, 1))
        rows.append(replace(one, p_holm=p, decidable=decidable, power=power, needed=needed, verdict=verdict))
    return rows


def _power(one: Comparison, alpha: float) -> tuple[float | None, int | None]:
    if one.measure == COLLAPSE:
        return power_of_fisher(one.seeds, *SHARES, alpha), seeds_for_fisher(*SHARES, alpha)
    if one.measure == FACTOR:
        return power_of_t(one.seeds, one.deviation, math.log(MEASURES[FACTOR][1]), alpha), None
    return None, None


def together(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim whose hypotheses must all hold."""
    if not verdicts:
        return NOT_TESTED
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    return verdicts[0] if len(set(verdicts)) == 1 else UNDECIDED


# The claims


@dataclass(frozen=True)
class Arms:
    """The arms with known settings, their finished runs, those that can be judged, and the same with who survived."""

    designs: Sequence[Design]
    done: pd.DataFrame
    over: pd.DataFrame
    counted: pd.DataFrame

    def collapses(self, more: Design, less: Design, controls: Sequence[Design] = ()) -> Comparison:
        """Compare two arms; each control counts on the seeds of the pair."""
        found = collapses(self.counted, more.arm, less.arm)
        mine, theirs = (set(self.counted.loc[self.counted["arm"] == d.arm, "seed"]) for d in (more, less))
        counted = (control(self.counted, d.arm, sorted(mine & theirs)) for d in controls)
        return replace(found, controls=tuple(c for c in counted if c is not None), reading=less.reading)

    def controlled(self, more: Design, less: Design) -> Comparison:
        """Compare two arms, with every ordinary change of the first as a control."""
        return self.collapses(more, less, self.ordinary(more))

    def clipping(self, more: Design, less: Design) -> Comparison:
        """Compare the clip fractions of two arms while both are up."""
        return while_up(self.done, "clip_frac", more.arm, less.arm)

    def ordinary(self, reference: Design) -> list[Design]:
        """Arms that change an ordinary thing of the reference: its optimizer, its clip, or turns into placebo turns."""
        placebo = (d for d in self.designs if d.ratio == "placebo" and d.only_in(reference, RATIO))
        return [*(d for d in self.designs if d.only_in(reference, OPTIMISER)), *placebo]


PLAIN = {"ratio": "token", "stabilised": False, "off_policy": True}
Compare = Callable[[Arms, Design, Design], Comparison]


def one_change(
    arms: Arms, keys: Sequence[str], more: Mapping[str, Any], less: Mapping[str, Any], compare: Compare
) -> Iterator[Comparison]:
    """Pairs of arms that differ in nothing but `keys`, the one with the properties `more` and the other with `less`."""
    for a, b in pairs(arms.designs, keys):
        if a.fits(more) and b.fits(less):
            yield compare(arms, a, b)


def off_policy(arms: Arms, critic: bool) -> Iterator[Comparison]:
    """Token ratios, stale and reused, against fresh and used once; the controls change one of the two, or the step."""
    for less in (d for d in arms.designs if d.fits({"off_policy": False, "critic": critic})):
        mine = [d for d in arms.designs if d.fits(PLAIN) and d.only_in(less, OFF_POLICY)]
        most = max((sum(d.reuse) for d in mine), default=0)
        for more in (d for d in mine if sum(d.reuse) == most):
            partly = [d for d in mine if sum(d.reuse) < most]
            yield arms.collapses(more, less, [*partly, *arms.ordinary(more)])


def both_cures(arms: Arms) -> Iterator[Comparison]:
    """Both cures against each alone; of the two comparisons the one that holds less counts, under both names."""
    for both in (d for d in arms.designs if d.fits({"ratio": "turn", "stabilised": True, "off_policy": True})):
        turns = [d for d in arms.designs if d.only_in(both, STABILISER) and not d.stabilised]
        tokens = [d for d in arms.designs if d.only_in(both, RATIO) and d.ratio == "token"]
        for turn in turns:
            for token in tokens:
                plain = [d for d in arms.designs if d.only_in(turn, RATIO) and d.fits(PLAIN)]
                controls = [c for d in plain for c in arms.ordinary(d)]
                two = [arms.collapses(alone, both, controls) for alone in (turn, token)]
                weaker = min(two, key=lambda c: (c.seeds if c.p is None else 10**6, -(c.p or 0.0), c.effect or 0.0))
                details = [c.detail for c in two]
                yield replace(
                    weaker, more="; ".join(c.more for c in two), detail="; ".join(details) if all(details) else "",
                    smallest_p=max((c.smallest_p for c in two if c.smallest_p is not None), default=None),
                    left_out=sum(c.left_out for c in two),
                )  # fmt: skip


def grows(arms: Arms, name: str) -> Iterator[Comparison]:
    """A curve before collapses, against the same steps of runs that stay up."""
    if found := before_collapse(arms.over, {d.arm: d for d in arms.designs}, name):
        yield found


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: its letter, its sentence, what decides it, and what is missing where it is not tested."""

    letter: str
    sentence: str
    decides: str
    needs: str
    hypotheses: Callable[[Arms], Iterator[Comparison]]


_APART = "staleness and reuse one by one; the same rollouts with a clipped gradient or a smaller step"
_OFF = "an off-policy arm with token ratios, and the same arm with learn.epochs = 1, learn.staleness = 0"
_ORDINARY = (
    "an ordinary cure on token ratios: gradient-norm clip, smaller or matched learning rate, dual clip, placebo turns"
)
_SAME_STEPS = "its growth at the same steps in runs of the same seed, epochs and staleness that stay up"
CLAIMS = (
    Claim("a1", "Token PPO collapses off-policy, and not on-policy at the same settings.",
          _APART, _OFF, partial(off_policy, critic=True)),
    Claim("a2", "Token GRPO collapses off-policy, and not on-policy at the same settings.",
          _APART, _OFF, partial(off_policy, critic=False)),
    Claim("b", "Turn-level ratios alone help.", _ORDINARY,
          "two off-policy arms without normalisation that differ in slot ratio: token, turn",
          partial(one_change, keys=RATIO, more=PLAIN, less={"ratio": "turn"}, compare=Arms.controlled)),
    Claim("c", "The normalisation alone helps.", _ORDINARY,
          "two off-policy arms with token ratios that differ in slot stabilise",
          partial(one_change, keys=STABILISER, more=PLAIN, less={"stabilised": True}, compare=Arms.controlled)),
    Claim("d", "Both together are best.", _ORDINARY,
          "an off-policy arm with both cures, and one with each alone", both_cures),
    Claim("e", "Clip fractions are lower with turn ratios.",
          "the same seeds, over the steps before either run collapses: a dead run's clip fraction says nothing",
          "two off-policy arms that differ in slot ratio: token, turn",
          partial(one_change, keys=RATIO, more={"ratio": "token", "off_policy": True}, less={"ratio": "turn"},
                  compare=Arms.clipping)),
    Claim("f", "The clipping-bias norm grows before the collapse.", _SAME_STEPS,
          "off-policy runs that collapse with clip_bias_norm measured", partial(grows, name="clip_bias_norm")),
    Claim("g1", "The critic's errors drive the collapse: they grow before it.", _SAME_STEPS,
          "off-policy runs with a critic that collapse", partial(grows, name="value_mae")),
    Claim("g2", "The critic's errors drive the collapse: without a critic it is rarer.",
          "the same settings with group advantages instead of a critic",
          "two off-policy arms with token ratios, one with a critic and one without",
          partial(one_change, keys=CREDIT, more=PLAIN | {"critic": True}, less={"critic": False},
                  compare=Arms.collapses)),
)  # fmt: skip


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
    """Return the verdict of every claim from the rows of Results.runs; every p-value is corrected over all hypotheses.

    A claim has a verdict for each reading of the paper that ran. `survival` is the reading of who survived.
    """
    arms = Arms(designs(runs), finished(runs), judged(runs), judged(runs, survival))
    hypotheses: list[Comparison] = []
    for claim in CLAIMS:
        once = {(c.measure, c.more, c.less): replace(c, claim=claim.letter) for c in claim.hypotheses(arms)}
        hypotheses += once.values()
    rows = judge(hypotheses)
    found = []
    for claim in CLAIMS:
        mine = [row for row in rows if row.claim == claim.letter]
        for reading in dict.fromkeys(row.reading for row in mine) or [""]:
            part = tuple(row for row in mine if row.reading == reading)
            found.append(Verdict(claim, part, together([row.verdict for row in part]), reading))
    return found


# Tables and words


def as_well(one: Comparison) -> list[str]:
    """Return the controls that collapsed no more often than the arm that the claim favours."""
    if one.counts is None:
        return []
    return [c.arm for c in one.controls if c.collapsed / c.n <= one.counts[1] / one.seeds]


def summary(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """Return one row per claim and reading of the paper: sentence, verdict, on what it rests, and what decides it.

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
    parts = [f"{few} pairs of arms with fewer than the {MIN_SEEDS} shared seeds that it takes"] if many else []
    for one in verdict.rows:
        if one.verdict != TOO_FEW:
            equal = as_well(one)
            also = f"; as rare with {'; '.join(equal)}" if equal else ""
            parts.append(f"{named(one)}: {effect(one)}, {one.seeds} seeds{also}")
        elif not many:
            parts.append(f"{named(one)}: {one.seeds} of the {MIN_SEEDS} shared seeds that it takes{_left(one)}")
    return ". ".join(parts) + "."


def hypotheses(found: Sequence[Verdict], kept: Sequence[Verdict] = ()) -> pd.DataFrame:
    """One row per hypothesis that has enough seeds, with everything that its verdict rests on, by both readings."""
    other = {(v.letter, one.more, one.less): one for v in kept for one in v.rows}
    return pd.DataFrame(
        {
            "claim": v.claim.letter,
            "compared": named(one),
            "found": one.detail,
            "effect, 95 % interval": effect(one),
            "seeds in favour": f"{one.in_favour} of {one.seeds}{_left(one)}",
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
    cells = ["-", "-"]
    if one is not None and one.measure == COLLAPSE:
        cells = [f"{effect(one)}, {one.detail}" if one.detail else effect(one), tested(one)]
    return {
        f"{KEPT}: effect": cells[0],
        f"{KEPT}: p (Holm)": cells[1],
        f"verdict if {KEPT}": "-" if one is None else one.verdict,
    }


def controls(found: Sequence[Verdict]) -> pd.DataFrame:
    """Return one row per claim and what decides it, with the collapses of each control."""
    return pd.DataFrame(
        {
            "claim": v.claim.letter,
            "reference": one.more,
            "favoured": f"{one.less}: {one.counts[1]}/{one.seeds}",
            "control": c.arm,
            "collapsed": "{}/{} [{}, {}]".format(c.collapsed, c.n, *map(percent, clopper_pearson(c.collapsed, c.n))),
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
        return f"{100 * one.effect:+.0f} % of runs [{100 * one.low:+.0f} %, {100 * one.high:+.0f} %]"
    return f"x {one.effect:.2f} [{one.low:.2f}, {one.high:.2f}]"


def tested(one: Comparison) -> str:
    """`0.023 (0.046)`: the p-value, and Holm's over all hypotheses."""
    return f"{p_value(one.p)} ({p_value(one.p_holm)})"


def _left(one: Comparison) -> str:
    return f" ({one.left_out} left out)" if one.left_out else ""


def _could(one: Comparison) -> str:
    power = "power -" if one.power is None else f"power {percent(one.power)}"
    if one.measure != COLLAPSE:
        return power
    least = f"p as small as {p_value(one.smallest_p)}" if one.decidable else "not even the best outcome"
    return f"{least}; {power}, {one.needed or f'over {MOST}'} seeds for 80 %"


def rule() -> str:
    """Return the rule in words."""
    a, b = map(percent, SHARES)
    factor = MEASURES[FACTOR][1]
    return (
        "Supported: the effect goes the claim's way and p, after Holm's correction over all hypotheses here, is at "
        f"most {ALPHA:g}. Not supported: it goes the other way with such a p, or the test could have shown it and the "
        f"95 % interval leaves out every effect that matters (half of the runs; a factor of {factor:g}). Undecided at "
        f"this power: neither. Below {MIN_SEEDS} shared seeds nothing is said. Power: the probability to show {a} "
        f"against {b} of runs collapsing, or a factor of {factor:g}, at {ALPHA:g} over the number of hypotheses. A "
        "claim holds if all its hypotheses do. Left out: seeds with a run that never learned or cannot be judged; the "
        f'columns of "{KEPT}" count every run that never learned or lost some of it as one that did not survive.'
    )

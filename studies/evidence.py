"""Two arms, seed by seed: how often they collapse, by what factor a measurement differs, and the rule of a
verdict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from sorl.analysis import stats
from sorl.analysis.runs import KEPT, NOT_DEAD, settings, survived
from sorl.analysis.stats import LEVEL, Estimate, holm
from sorl.spec import NOT_RISEN
from sorl.spec import UNDECIDED as UNDECIDED_RUN
from sorl.spec.evidence import ALPHA

SUPPORTED = "supported"
NOT_SUPPORTED = "not supported"
UNDECIDED = "undecided at this power"
TOO_FEW = "too few seeds"
NOT_TESTED = "not tested here"
MIN_SEEDS = 5  # nothing is said of fewer

COLLAPSE = "collapse"
FACTOR = "factor"
SHIFT = "shift"
# What is measured -> no effect, and the least effect that matters: half of the runs are no more to collapse,
# a quarter more of a measurement, half a doubling of the searched setting (a factor of 1.41).
MEASURES = {COLLAPSE: (0.0, 0.5), FACTOR: (1.0, 1.25), SHIFT: (0.0, 0.5)}
SHARES = (0.75, 0.25)  # a difference that matters, at which the power of Fisher's test is stated
WINDOW = 5  # steps right before the onset, and as many before these
LEAST = 2  # values that a window needs
MOST = 60  # seeds per arm up to which `seeds_for_fisher` looks
# of runs whose curves are compared
ALIKE = ("learn.epochs", "learn.staleness", "critic", "slot.advantage.kind")


@dataclass(frozen=True)
class Control:
    """An arm that offers another explanation: its own collapses with their 95 % interval, of as
    many seeds.
    """

    arm: str
    collapsed: int
    n: int


@dataclass(frozen=True)
class Comparison:
    """One hypothesis about two arms with its verdict; effect, interval and test are None below MIN_SEEDS.

    `more` is the arm in which the claim expects more: collapses, clipping, growth, a boundary further up.
    effect: by `measure` collapses of `more` minus those of `less` as shares of runs, the factor of `more`
    over `less`, or the doublings between their boundaries; in_favour: seeds on the claim's side of none;
    counts: collapses of `more` and of `less`; smallest_p: what the test gives where `less` does all that the
    claim expects of it, None where no p-value could rule an effect out; deviation: of the log factors, in
    nats; left_out: seeds that one arm has and no pair could use; reading: of the paper, that ran. p_holm is
    corrected over all hypotheses of the report; power: probability that so many seeds show an effect that
    matters, at alpha over the number of hypotheses; needed: seeds per arm with which it is 80 %, for
    collapses.
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

    @property
    def left(self) -> str:
        """The seeds left out, in words."""
        return f" ({self.left_out} left out)" if self.left_out else ""


# Arms by their settings


@dataclass(frozen=True)
class Design:
    """An arm with its settings by dotted key; those of its algorithm's slots as slot.SLOT.OPTION."""

    arm: str
    settings: Mapping[str, Any]

    @property
    def ratio(self) -> str:
        """The unit over which ratios are pooled: token, turn, placebo, ..."""
        return str(self.settings.get("slot.ratio.level"))

    @property
    def stabilised(self) -> bool:
        """Whether a normalisation may shrink its updates."""
        return self.settings.get("slot.stabilise.kind") != "none"

    @property
    def critic(self) -> bool:
        """Whether its advantages come from a critic."""
        return bool(self.settings.get("critic"))

    @property
    def reuse(self) -> tuple[bool, bool]:
        """Whether rollouts are used for several epochs, and whether they are stale."""
        return self.settings.get("learn.epochs", 1) > 1, self.settings.get("learn.staleness", 0) > 0

    @property
    def off_policy(self) -> bool:
        """Whether rollouts are reused or stale."""
        return any(self.reuse)

    @property
    def reading(self) -> str:
        """Which reading of the paper's turn ratio and normalisation ran, in words; empty where there is but
        one.

        The authors' fork divides by the RMS of the ratios where it exceeds tau; equations 7 and 8 of the
        paper are known from a description; a note has arithmetic turn ratios and a KL term times the clip
        fraction.
        """
        kind = str(self.settings.get("slot.stabilise.kind"))
        tau = self.settings.get("slot.stabilise.tau")
        over = f", rho > {tau:g}" if isinstance(tau, (int, float)) else ""
        known = {
            "None": "",
            "none": "",
            "rms_batch": f"authors' fork: RMS of the batch{over}",
            "rms_seq": f"authors' fork: RMS of each sequence{over}",
            "rms_turn": f"RMS of each turn{over}",
            "cnorm": "equations 7 and 8 as described",
            "kl_clipfrac": "KL times clip fraction, of a note",
            "adv_norm": "advantages whitened when clipped",
            "subtract": "clipping bias subtracted",
        }
        arithmetic = self.ratio == "turn" and self.settings.get("slot.ratio.mean") == "arithmetic"
        parts = (known.get(kind, kind), "arithmetic turn ratios, of a note" if arithmetic else "")
        return "; ".join(part for part in parts if part)

    def fits(self, wanted: Mapping[str, Any]) -> bool:
        """Whether it has these properties: `{"ratio": "turn", "stabilised": False}`."""
        return all(getattr(self, name) == value for name, value in wanted.items())

    def agrees(self, other: Design, keys: Sequence[str]) -> bool:
        """Whether both have the same value of these keys."""
        return all(self.settings.get(key) == other.settings.get(key) for key in keys)

    def only_in(self, other: Design, keys: Sequence[str]) -> bool:
        """Whether the two differ, and in nothing but `keys` (a key, or the beginning of one that ends in a
        dot).
        """
        mine = self.settings
        theirs = other.settings
        changed = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
        return bool(changed) and all(
            any(c == k or (k[-1] == "." and c.startswith(k)) for k in keys) for c in changed
        )


def designs(runs: pd.DataFrame) -> list[Design]:
    """Return the arms whose settings are known, in the order of their names."""
    first = runs.sort_values(["arm", "run_id"]).drop_duplicates("arm")
    found = [
        Design(str(r["arm"]), settings(r["config"], r["slots"])) for r in first.to_dict(orient="records")
    ]
    return [design for design in found if design.settings]


def pairs(arms: Sequence[Design], keys: Sequence[str]) -> Iterator[tuple[Design, Design]]:
    """Return every ordered pair of arms that differ in nothing but `keys`."""
    return ((a, b) for a in arms for b in arms if a.only_in(b, keys))


# Comparing two arms


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs, one per arm and seed: of several the first that was judged."""
    over = runs[runs["status"] == "finished"]
    order = over.assign(undecided=over["outcome"].isna()).sort_values(["undecided", "run_id"]).index
    return over.loc[order].drop_duplicates(["arm", "seed"])


def judged(runs: pd.DataFrame, survival: str = NOT_DEAD) -> pd.DataFrame:
    """Return the finished runs that can be called survivors or not, with `dead`; one per arm and seed.

    A run that never learned cannot fall: it is no evidence of either, nor is one that is too short for the
    rule or was falling at its end. With KEPT, a run that never learned or lost some of it is no survivor.
    """
    over = finished(runs)
    neither = UNDECIDED_RUN if survival == KEPT else (*NOT_RISEN, *UNDECIDED_RUN)
    over = over[over["outcome"].notna() & ~over["outcome"].isin(neither)]
    return over.assign(dead=~survived(over["outcome"], survival))


def collapses(over: pd.DataFrame, more: str, less: str) -> Comparison:
    """Compare collapses on the seeds that both arms have; `over` as `judged` gives it.

    The test is Fisher's, which ignores the pairing and is therefore conservative where seeds make runs alike;
    an exact test within pairs could not reach 0.05 below six seeds whatever happens.
    """
    dead = over.pivot(index="seed", columns="arm", values="dead").reindex(columns=[more, less])
    both = dead.dropna()
    n = len(both)
    left_out = int(dead.notna().any(axis=1).sum()) - len(both)
    if n < MIN_SEEDS:
        return Comparison(COLLAPSE, more, less, n, left_out=left_out)
    one, other = (both[arm].to_numpy(bool) for arm in (more, less))
    first = int((one & ~other).sum())
    a = int(one.sum())
    b = int(other.sum())
    found = paired_proportions(
        int((one & other).sum()), first, int((other & ~one).sum()), int((~one & ~other).sum())
    )
    return Comparison(
        COLLAPSE,
        more,
        less,
        n,
        f"{a}/{n} against {b}/{n}",
        (a, b),
        found.value,
        found.low,
        found.high,
        first,
        stats.fisher_exact(a, n, b, n),
        stats.fisher_exact(a, n, 0, n),
        left_out=left_out,
    )


def of_factors(
    logs: Mapping[Any, float], more: str, less: str, detail: str = "", left_out: int = 0
) -> Comparison:
    """Compare by the logarithms of the factors within seeds: geometric mean, t-interval and paired t-test on
    logs.
    """
    values = [logs[seed] for seed in sorted(logs)]
    n = len(values)
    found = stats.mean_interval(values)
    if n < MIN_SEEDS:
        return Comparison(FACTOR, more, less, n, left_out=left_out)
    effect, low, high = (
        math.exp(max(-500.0, min(500.0, v or 0.0))) for v in (found.value, found.low, found.high)
    )
    return Comparison(
        FACTOR,
        more,
        less,
        n,
        detail,
        None,
        effect,
        low,
        high,
        sum(v > 0 for v in values),
        found.p,
        0.0,
        float(np.std(values, ddof=1)),
        left_out,
    )


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
    return (
        math.log(over / under) if over is not None and under is not None and over > 0 and under > 0 else None
    )


def growth(run: Mapping[Hashable, Any], name: str, onset: float) -> float | None:
    """Log of the mean over the WINDOW steps before `onset` over that of the WINDOW steps before these."""
    late = mean_between(run, name, onset - WINDOW, onset)
    return log_factor(late, mean_between(run, name, onset - 2 * WINDOW, onset - WINDOW))


def while_up(over: pd.DataFrame, name: str, more: str, less: str) -> Comparison:
    """Factor of a curve's mean in arm `more` over `less`, within seeds, over the steps before either
    collapses.
    """
    one, other = ({r["seed"]: r for r in over[over["arm"] == arm].to_dict("records")} for arm in (more, less))
    logs = {}
    means = []
    for seed in set(one) & set(other):
        end = min(float(one[seed]["time"]), float(other[seed]["time"]))
        a, b = (mean_between(run[seed], name, 0, end) for run in (one, other))
        if (value := log_factor(a, b)) is not None:
            logs[seed] = value
            means.append((a or 0.0, b or 0.0))
    detail = "{} {:.3g} against {:.3g}".format(name, *np.mean(means, axis=0)) if means else ""
    return of_factors(logs, more, less, detail, len(set(one) | set(other)) - len(logs))


def before_collapse(over: pd.DataFrame, arms: Mapping[str, Design], name: str) -> Comparison | None:
    """Growth of a curve before collapses of off-policy runs, over its growth at the same steps in runs that
    stay up.

    The runs that stay up share seed, epochs, staleness and kind of advantage with the run that collapses;
    growths are averaged within seeds, which are the replicates. None where no run collapsed with the curve
    measured.
    """
    rows = [r for r in over.to_dict("records") if r["arm"] in arms and arms[r["arm"]].off_policy]
    fell = [r for r in rows if r["dead"] and not pd.isna(r["collapse_step"])]
    grown: dict[Any, list[float]] = defaultdict(list)
    measured = False
    compared = []
    for run in fell:
        onset = float(run["collapse_step"])
        seed = run["seed"]
        up = (r for r in rows if r["seed"] == seed and not r["dead"] and float(r["time"]) >= onset)
        up = (r for r in up if arms[r["arm"]].agrees(arms[run["arm"]], ALIKE))
        mine = growth(run, name, onset)
        theirs = [value for r in up if (value := growth(r, name, onset)) is not None]
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
    return of_factors(
        logs, f"growth of {name} before a collapse", "its growth in runs that stay up", detail, left_out
    )


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
        # only a test that could have shown the effect says something here
        elif decidable and one.high < matters:
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


# Statistics of pairs and of power


def paired_proportions(both: int, first: int, second: int, neither: int) -> Estimate:
    """Difference of two proportions of the same n pairs, with Newcombe's score interval (1998, method 10).

    d = (first - second) / n, where `first` pairs have the event in the first arm only. Low = d - sqrt(a^2 - 2
    phi a b + b^2) with a, b the distances to Wilson's limits, phi the pairs' correlation. Raises ValueError
    without pairs.
    """
    from scipy.stats import binomtest

    n = both + first + second + neither
    ones = both + first
    twos = both + second
    one, two = (binomtest(k, n).proportion_ci(LEVEL, method="wilson") for k in (ones, twos))
    scale = math.sqrt(ones * (n - ones) * twos * (n - twos))
    cross = both * neither - first * second
    # Newcombe's continuity correction of a positive correlation.
    phi = 0.0 if scale == 0 else (max(cross - n / 2, 0.0) if cross > 0 else cross) / scale
    p1 = ones / n
    p2 = twos / n

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    low = p1 - p2 - distance(p1 - one.low, two.high - p2)
    high = p1 - p2 + distance(one.high - p1, p2 - two.low)
    return Estimate(p1 - p2, low, high).cut(-1, 1)


def power_of_t(n: int, deviation: float, effect: float, alpha: float) -> float:
    """Probability that a paired t-test of n differences with this standard deviation finds a mean of
    `effect`.
    """
    from scipy.stats import nct, t

    if deviation <= 0:
        return 1.0
    shift = abs(effect) / deviation * math.sqrt(n)
    bound = float(t.ppf(1 - alpha / 2, n - 1))
    return float(nct.sf(bound, n - 1, shift))


@lru_cache(maxsize=256)
def _fisher(n: int) -> np.ndarray:
    """Two-sided p-values of Fisher's test for every pair of counts in two arms of n, (n + 1, n + 1)."""
    from scipy.stats import hypergeom

    table = np.ones((n + 1, n + 1))
    for total in range(2 * n + 1):
        first = np.arange(max(0, total - n), min(n, total) + 1)
        chance = hypergeom.pmf(first, 2 * n, total, n)
        table[first, total - first] = [chance[chance <= c * (1 + 1e-7)].sum() for c in chance]
    return table


def power_of_fisher(n: int, share_a: float, share_b: float, alpha: float) -> float:
    """Probability that Fisher's test of n runs against n tells these two true shares apart, by
    enumeration.
    """
    from scipy.stats import binom

    a, b = (binom.pmf(np.arange(n + 1), n, share) for share in (share_a, share_b))
    return float((np.outer(a, b) * (_fisher(n) <= alpha)).sum())


@lru_cache(maxsize=256)
def seeds_for_fisher(share_a: float, share_b: float, alpha: float, power: float = 0.8) -> int | None:
    """Fewest seeds per arm with which `power_of_fisher` is at least `power`; None above MOST."""
    return next((n for n in range(2, MOST + 1) if power_of_fisher(n, share_a, share_b, alpha) >= power), None)

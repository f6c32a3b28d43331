"""The rule of verdicts, one for every hypothesis of every experiment; docs/statistics.md says it in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.analysis.claims.comparison import COLLAPSE, MIN_SEEDS, Comparison
from workbench.analysis.comparison import ALPHA
from workbench.analysis.paired import power_of_fisher, power_of_t, seeds_for_fisher
from workbench.analysis.statistics import holm

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
    """The verdict of each comparison, its p-value corrected over all of them (Holm)."""
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
    """The verdict of a claim whose hypotheses must all hold."""
    if not verdicts:
        return NOT_TESTED
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    alike = set(verdicts)
    return verdicts[0] if len(alike) == 1 else UNDECIDED

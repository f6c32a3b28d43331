"""The paper's claims judged by stable areas: who survives larger learning rates over all conditions of a region.

An area weighs every learning rate and every staleness that was searched, so no single setting decides a verdict. The
difference of two areas over the width of the conditions is a mean: by how many doublings further up the boundary lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from workbench.analysis.claims import NOT_SUPPORTED, SUPPORTED, TOO_FEW, UNDECIDED, together
from workbench.analysis.evidence import CREDIT, MIN_SEEDS, RATIO, STABILISER, Design, pairs, settings
from workbench.analysis.region import Landscape, areas, heights, interval
from workbench.analysis.runs import KEPT, NOT_DEAD
from workbench.analysis.stats import ALPHA, holm, p_value

MATTERS = 0.5  # doublings: a method that bears a learning rate a factor 1.41 larger is worth naming
SENTENCES = {
    "b": "Turn-level ratios alone help.",
    "c": "The normalisation alone helps.",
    "bc": "Turn-level ratios and the normalisation together help, where neither was tried alone.",
    "d": "Both together are best.",
    "g2": "The critic's errors drive the collapse: without a critic it is rarer.",
}


@dataclass(frozen=True)
class Shift:
    """One hypothesis: the boundary of `favoured` lies `doublings` further up than that of `reference`, on the mean.

    doublings, low, high: median and 95 % interval of the fit; p: two-sided, the share of its draws on the other side of
    none, doubled; bound: a boundary lies beyond what was searched, so that the prior has a part in the shift.
    """

    letter: str
    favoured: str
    reference: str
    seeds: int
    doublings: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    bound: bool = False
    verdict: str = TOO_FEW
    reading: str = ""  # of the paper, that ran


def shifts(landscape: Landscape, runs: pd.DataFrame) -> list[Shift]:
    """Return every hypothesis of the claims that areas can judge, corrected over all of them (Holm).

    `runs` are the rows of Results.runs, for the settings that tell what an arm is. Regions with further slices: [].
    """
    if len({piece for _, piece in landscape.parts}) > 1:
        return []
    designs = _designs(landscape, runs)
    reading = {design.arm: design.reading for design in designs}
    found = [_shift(landscape, letter, favoured, reference) for letter, favoured, reference in _hypotheses(designs)]
    corrected = holm([shift.p for shift in found])
    return [
        replace(shift, p_holm=p, verdict=_verdict(shift, p), reading=reading[shift.favoured])
        for shift, p in zip(found, corrected, strict=True)
    ]


def verdicts(found: Sequence[Shift]) -> dict[str, str]:
    """Letter of a claim -> the verdict of all its hypotheses together."""
    return {letter: together([s.verdict for s in found if s.letter == letter]) for letter in SENTENCES}


def rule() -> str:
    """Return the rule of these verdicts in words."""
    return (
        "Supported: the boundary lies further up and the two-sided p of the fit, after Holm's correction over all "
        f"hypotheses here, is at most {ALPHA:g}. Not supported: it lies further down with such a p, or the 95 % "
        f"interval leaves out a shift of {MATTERS:g} doublings. Undecided at this power: neither. Below {MIN_SEEDS} "
        f'shared seeds nothing is said. "{NOT_DEAD.capitalize()}" counts every run that did not collapse as a '
        f'survivor, "{KEPT}" only those that rose and did not lose it. ~: a boundary lies beyond what was searched, '
        "so that the prior has a part in the shift. How often these intervals hold the truth: docs/regions.md."
    )


def readable(found: Sequence[Shift], kept: Sequence[Shift]) -> pd.DataFrame:
    """One row per hypothesis: whose boundary lies how many doublings further up, by both readings of survival."""
    rows = []
    for one, other in zip(found, kept, strict=True):
        row = {"claim": one.letter, "compared": f"{one.favoured} less {one.reference}"}
        row |= {"reading of the paper": one.reading or "-", "seeds": str(one.seeds)}
        for shift, survival in ((one, NOT_DEAD), (other, KEPT)):
            row[f"{survival}: further up by (doublings)"] = _doublings(shift)
            row[f"{survival}: p (Holm)"] = "-" if shift.p is None else f"{p_value(shift.p)} ({p_value(shift.p_holm)})"
            row["verdict" if survival == NOT_DEAD else f"verdict if {survival}"] = shift.verdict
        rows.append(row)
    return pd.DataFrame(rows)


def _doublings(one: Shift) -> str:
    if one.doublings is None:
        return "-"
    sign = "~ " if one.bound else ""
    return f"{sign}{one.doublings:+.2f} [{one.low:+.2f}, {one.high:+.2f}], x {2**one.doublings:.2f}"


def _designs(landscape: Landscape, runs: pd.DataFrame) -> list[Design]:
    """The arms of the region by what sets them apart; the searched setting and the conditions are not part of it."""
    first = landscape.runs.drop_duplicates("series").set_index("run_id")["series"]
    known = runs[runs["run_id"].isin(first.index)]
    found = {
        str(first[row["run_id"]]): settings(row["config"], row["slots"]) for row in known.to_dict(orient="records")
    }
    apart = {landscape.settings.along, *([landscape.across] if landscape.across else [])}
    return [
        Design(name, {key: value for key, value in found[name].items() if key not in apart})
        for name in first
        if found.get(name)
    ]


def _hypotheses(designs: Sequence[Design]) -> Iterator[tuple[str, str, str]]:
    """(claim, favoured, reference) of every pair of arms that differ in one thing."""
    for plain, turns in pairs(designs, RATIO):
        if plain.ratio == "token" and turns.ratio == "turn":
            yield ("d" if plain.stabilised else "b"), turns.arm, plain.arm
    for plain, stable in pairs(designs, STABILISER):
        if not plain.stabilised and stable.stabilised:
            yield ("c" if plain.ratio == "token" else "d"), stable.arm, plain.arm
    compared = {reference.arm for reference, _ in (*pairs(designs, RATIO), *pairs(designs, STABILISER))}
    for plain, both in pairs(designs, (*RATIO, *STABILISER)):
        cured = both.ratio == "turn" and both.stabilised
        if plain.ratio == "token" and not plain.stabilised and cured and plain.arm not in compared:
            yield "bc", both.arm, plain.arm
    for critic, group in pairs(designs, CREDIT):
        if critic.critic and not group.critic and critic.ratio == "token" and not critic.stabilised:
            yield "g2", group.arm, critic.arm


def _shift(landscape: Landscape, letter: str, favoured: str, reference: str) -> Shift:
    piece = landscape.parts[0][1]
    keys = ((favoured, piece), (reference, piece))
    one, other = (set(landscape.part(*key)["seed"]) for key in keys)
    seeds = len(one & other)
    shared = sorted(set(landscape.drawn[keys[0]]) & set(landscape.drawn[keys[1]]))
    if seeds < MIN_SEEDS or not shared:
        return Shift(letter, favoured, reference, seeds)
    mine, theirs = (_mean(landscape, {y: landscape.drawn[key][y] for y in shared}) for key in keys)
    gap = mine - theirs
    low, high = interval(gap, seeds)
    p = 2 * max(1 / len(gap), min(float(np.mean(gap <= 0)), float(np.mean(gap >= 0))))
    bound = any(edge.beyond for key in keys for y, edge in landscape.edges(*key).items() if y in shared)
    return Shift(letter, favoured, reference, seeds, float(np.median(gap)), low, high, min(1.0, p), bound=bound)


def _mean(landscape: Landscape, drawn: dict[float, np.ndarray]) -> np.ndarray:
    """Mean of log2 of the boundary over the conditions in each draw, (D,), weighted as in an area."""
    part = areas(drawn, landscape.settings)
    if part is None:
        (only,) = drawn.values()
        return only
    order = heights(sorted(drawn))
    return part / (order[-1] - order[0])


def _verdict(shift: Shift, p: float | None) -> str:
    if shift.doublings is None or shift.high is None:
        return TOO_FEW
    if p is not None and p <= ALPHA:
        return SUPPORTED if shift.doublings > 0 else NOT_SUPPORTED
    # Where a boundary lies beyond what was searched a small shift may be the prior's.
    return NOT_SUPPORTED if shift.high < MATTERS and not shift.bound else UNDECIDED

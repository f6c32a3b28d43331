"""The paper's claims judged by stable areas: who survives larger learning rates over all conditions of a region.

An area weighs every learning rate and every staleness that was searched, so no single setting decides a verdict. The
difference of two areas over the width of the conditions is a mean: by how many doublings further up the boundary lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from workbench.analysis.claims.comparison import MIN_SEEDS
from workbench.analysis.claims.designs import CREDIT, RATIO, STABILISER, Design, pairs, settings
from workbench.analysis.claims.rule import NOT_SUPPORTED, SUPPORTED, TOO_FEW, UNDECIDED, together
from workbench.analysis.comparison import ALPHA
from workbench.analysis.region.bootstrap import RESAMPLES, Draws, areas, edges, interval, positions
from workbench.analysis.region.boundary import area, heights
from workbench.analysis.region.landscape import Landscape
from workbench.analysis.statistics import holm

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

    low, high: 95 % bootstrap over seeds; p: two-sided, the share of draws on the other side of none, doubled; bound: a
    boundary lies beyond what was searched, so that the shift is cut off there.
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


def shifts(landscape: Landscape, runs: pd.DataFrame) -> list[Shift]:
    """Every hypothesis of the claims that areas can judge, corrected over all of them (Holm).

    `runs` are the rows of Results.runs, for the settings that tell what an arm is. Regions with further slices: [].
    """
    if len({piece for _, piece in landscape.parts}) > 1:
        return []
    draws = Draws.of(sorted(int(seed) for seed in landscape.runs["seed"].unique()))
    asked = _hypotheses(_designs(landscape, runs))
    found = [_shift(landscape, draws, letter, favoured, reference) for letter, favoured, reference in asked]
    corrected = holm([shift.p for shift in found])
    return [replace(shift, p_holm=p, verdict=_verdict(shift, p)) for shift, p in zip(found, corrected, strict=True)]


def verdicts(found: Sequence[Shift]) -> dict[str, str]:
    """Letter of a claim -> the verdict of all its hypotheses together."""
    return {letter: together([s.verdict for s in found if s.letter == letter]) for letter in SENTENCES}


def rule() -> str:
    """The rule of these verdicts in words."""
    return (
        f"Supported: the boundary lies further up and the two-sided p of {RESAMPLES:,} draws of the seeds, after "
        f"Holm's correction over all hypotheses here, is at most {ALPHA:g} (the smallest there is: {2 / RESAMPLES:g}). "
        f"Not supported: it lies further down with such a p, or the 95 % interval leaves out a shift of {MATTERS:g} "
        f"doublings. Undecided at this power: neither. Below {MIN_SEEDS} shared seeds nothing is said. Five seeds can "
        "be drawn in 126 ways: where the passage from never to always takes several values, the interval is too narrow."
    )


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


def _shift(landscape: Landscape, draws: Draws, letter: str, favoured: str, reference: str) -> Shift:
    piece = landscape.parts[0][1]
    one, other = (landscape.part(name, piece) for name in (favoured, reference))
    seeds = len(set(one["seed"]) & set(other["seed"]))
    shared = sorted(set(one["y"]) & set(other["y"]))
    nothing = Shift(letter, favoured, reference, seeds)
    if seeds < MIN_SEEDS or not shared:
        return nothing
    known = [side[side["y"].isin(shared)] for side in (one, other)]
    recorded, drawn = zip(
        *(_means(side, name, draws, landscape) for side, name in zip(known, (favoured, reference), strict=True)),
        strict=True,
    )
    gap = drawn[0] - drawn[1]
    gap = gap[~np.isnan(gap)]
    span = interval(gap, draws)
    if span is None:
        return nothing
    worst = max(1, min(int((gap <= 0).sum()), int((gap >= 0).sum())))
    return Shift(
        letter,
        favoured,
        reference,
        seeds,
        recorded[0] - recorded[1],
        *span,
        min(1.0, 2 * worst / RESAMPLES),
        bound=any(_beyond(side, draws) for side in known),
    )


def _means(side: pd.DataFrame, name: str, draws: Draws, landscape: Landscape) -> tuple[float, np.ndarray]:
    """Mean of log2 of the boundary over the conditions, weighted as in an area: as recorded, and drawn (D,)."""
    low, high = landscape.settings.low, landscape.settings.high
    found = {y: edge for y, (edge,) in edges(side, Draws.once(draws.seeds)).items() if edge is not None}
    placed = positions(edges(side, draws), draws, f"{name} ")
    if len(found) == 1:
        (y,) = found
        return found[y].at, placed[y]
    order = heights(sorted(found))
    whole, parts = area(found, math.log2(low), math.log2(high)), areas(placed, low, high)
    assert whole is not None
    assert parts is not None
    return whole.value / (order[-1] - order[0]), parts / (order[-1] - order[0])


def _beyond(side: pd.DataFrame, draws: Draws) -> bool:
    once = edges(side, Draws.once(draws.seeds))
    return any(edge is not None and bool(edge.beyond) for (edge,) in once.values())


def _verdict(shift: Shift, p: float | None) -> str:
    if shift.doublings is None or shift.high is None:
        return TOO_FEW
    if p is not None and p <= ALPHA:
        return SUPPORTED if shift.doublings > 0 else NOT_SUPPORTED
    # Where a boundary lies beyond what was searched the shift is cut off, and its smallness says nothing.
    return NOT_SUPPORTED if shift.high < MATTERS and not shift.bound else UNDECIDED

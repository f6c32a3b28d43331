"""The paper's claims judged by stable areas: who survives larger learning rates over all conditions of a region.

An area weighs every learning rate and every staleness that was searched, so no single setting decides a verdict. The
difference of two areas over the width of the conditions is a mean: by how many doublings further up the boundary lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from workbench.analysis.claims import MEASURES, MIN_SEEDS, SHIFT, Comparison, judge, tested, together
from workbench.analysis.region import Landscape, areas, estimate, heights
from workbench.analysis.runs import CREDIT, KEPT, NOT_DEAD, RATIO, STABILISER, Design, pairs, settings
from workbench.analysis.stats import ALPHA

SENTENCES = {
    "b": "Turn-level ratios alone help.",
    "c": "The normalisation alone helps.",
    "bc": "Turn-level ratios and the normalisation together help, where neither was tried alone.",
    "d": "Both together are best.",
    "g2": "The critic's errors drive the collapse: without a critic it is rarer.",
}


def shifts(landscape: Landscape, runs: pd.DataFrame) -> list[Comparison]:
    """Return every hypothesis of the claims that areas can judge, corrected over all of them (Holm).

    Each says that the boundary of `more` lies further up than that of `less`. `runs` are the rows of Results.runs, for
    the settings that say what an arm is. Regions with further slices: [].
    """
    if len({piece for _, piece in landscape.parts}) > 1:
        return []
    first = landscape.runs.drop_duplicates("series").set_index("series")["run_id"]
    known = runs.set_index("run_id")[["config", "slots"]]
    apart = (landscape.settings.along, landscape.across)  # searched and conditions: no part of what an arm is
    designs = []
    for name, run in first.items():
        own = settings(*known.loc[run]) if run in known.index else {}
        if own:
            designs.append(Design(str(name), {key: value for key, value in own.items() if key not in apart}))
    return judge([_shift(landscape, *hypothesis) for hypothesis in _hypotheses(designs)])


def _hypotheses(designs: Sequence[Design]) -> Iterator[tuple[str, Design, Design]]:
    """(claim, favoured, reference) of every pair of arms that differ in one thing."""
    for plain, turns in pairs(designs, RATIO):
        if plain.ratio == "token" and turns.ratio == "turn":
            yield ("d" if plain.stabilised else "b"), turns, plain
    for plain, stable in pairs(designs, STABILISER):
        if not plain.stabilised and stable.stabilised:
            yield ("c" if plain.ratio == "token" else "d"), stable, plain
    compared = {reference.arm for reference, _ in (*pairs(designs, RATIO), *pairs(designs, STABILISER))}
    for plain, both in pairs(designs, (*RATIO, *STABILISER)):
        cured = both.fits({"ratio": "turn", "stabilised": True})
        if plain.fits({"ratio": "token", "stabilised": False}) and cured and plain.arm not in compared:
            yield "bc", both, plain
    for critic, group in pairs(designs, CREDIT):
        if critic.fits({"critic": True, "ratio": "token", "stabilised": False}) and not group.critic:
            yield "g2", group, critic


def _shift(landscape: Landscape, letter: str, favoured: Design, reference: Design) -> Comparison:
    """Two-sided p: the share of draws on the other side of none, doubled."""
    keys = [(design.arm, landscape.parts[0][1]) for design in (favoured, reference)]
    one, other = (set(landscape.part(*key)["seed"]) for key in keys)
    seeds, (drawn, _) = len(one & other), landscape.fitted
    found = Comparison(SHIFT, favoured.arm, reference.arm, seeds, claim=letter, reading=favoured.reading)
    shared = sorted(set(drawn[keys[0]]) & set(drawn[keys[1]]))
    if seeds < MIN_SEEDS or not shared:
        return found
    mine, theirs = (_mean(landscape, {y: drawn[key][y] for y in shared}) for key in keys)
    gap = mine - theirs
    shift = estimate(gap, seeds)
    p = min(1.0, 2 * max(1 / len(gap), min(float(np.mean(gap <= 0)), float(np.mean(gap >= 0)))))
    # Where a boundary lies beyond what was searched a small shift may be the prior's: none can be ruled out.
    beyond = any(edge.beyond for key in keys for y, edge in landscape.edges(*key).items() if y in shared)
    return replace(
        found, effect=shift.value, low=shift.low, high=shift.high, p=p, smallest_p=None if beyond else 1 / len(gap)
    )


def _mean(landscape: Landscape, drawn: dict[float, np.ndarray]) -> np.ndarray:
    """Mean of log2 of the boundary over the conditions in each draw, (D,), weighted as in an area."""
    part = areas(drawn, landscape.settings)
    if part is None:
        (only,) = drawn.values()
        return only
    order = heights(sorted(drawn))
    return part / (order[-1] - order[0])


def verdicts(found: Sequence[Comparison]) -> dict[str, str]:
    """Letter of a claim -> the verdict of all its hypotheses together."""
    return {letter: together([one.verdict for one in found if one.claim == letter]) for letter in SENTENCES}


def readable(found: Sequence[Comparison], kept: Sequence[Comparison]) -> pd.DataFrame:
    """One row per hypothesis: whose boundary lies how many doublings further up, by both readings of survival."""
    rows = []
    for one, other in zip(found, kept, strict=True):
        row = {"claim": one.claim, "compared": f"{one.more} less {one.less}"}
        row |= {"reading of the paper": one.reading or "-", "seeds": str(one.seeds)}
        for shift, survival in ((one, NOT_DEAD), (other, KEPT)):
            row[f"{survival}: further up by (doublings)"] = _doublings(shift)
            row[f"{survival}: p (Holm)"] = "-" if shift.p is None else tested(shift)
            row["verdict" if survival == NOT_DEAD else f"verdict if {survival}"] = shift.verdict
        rows.append(row)
    return pd.DataFrame(rows)


def _doublings(one: Comparison) -> str:
    if one.effect is None:
        return "-"
    sign = "~ " if one.smallest_p is None else ""
    return f"{sign}{one.effect:+.2f} [{one.low:+.2f}, {one.high:+.2f}], x {2**one.effect:.2f}"


def rule() -> str:
    """Return the rule of these verdicts in words."""
    return (
        "Supported: the boundary lies further up and the two-sided p of the fit, after Holm's correction over all "
        f"hypotheses here, is at most {ALPHA:g}. Not supported: it lies further down with such a p, or the 95 % "
        f"interval leaves out a shift of {MEASURES[SHIFT][1]:g} doublings. Undecided at this power: neither. Below "
        f'{MIN_SEEDS} shared seeds nothing is said. "{NOT_DEAD.capitalize()}" counts every run that did not collapse '
        f'as a survivor, "{KEPT}" only those that rose and did not lose it. ~: a boundary lies beyond what was '
        "searched, so that the prior has a part in the shift. How often these intervals hold the truth: "
        "docs/regions.md."
    )

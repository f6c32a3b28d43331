"""In which order a run saw its data: where it went back to what it had seen, and what it passed over.

A pass over the data in a fixed order sees each question again after the same number of steps; in a shuffled
order, and when questions are drawn at random, after any number. Only a run that was set back sees many
questions in a row again after one and the same number of steps, and then goes on as if nothing had been.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

MOST = 0.8  # share of a step's questions that were seen so many steps ago, for it to count as seen again
NEAR = 1  # steps by which questions of asynchronous rollouts come early or late
FEWEST = 4  # questions of a step, without which it says nothing
RARE = 1e-3  # expected number of such stretches in a run by chance
REGULAR = 3  # stretches with one distance, which are a habit of the trainer and no accident
MIXED = (0.02, 0.5)  # share seen again of an order that was drawn again in the first half of a pass
SOON = 3.0  # over that share: questions after a resume, among which the first seen again is
STILL_NEW = 0.05  # share of new questions, long after the first were seen again
MANY = 3.0  # times the largest gap elsewhere, which filters leave
MOST_PLACES = 8  # of one run that pass over ids
SETTLED = 2  # last steps of a run, whose neighbours may still be under way


@dataclass(frozen=True)
class SeenAgain:
    """A stretch of steps whose questions were all seen the same number of steps before."""

    first: int  # step
    last: int
    steps_back: int
    questions: int  # seen again in it
    usual: int | None  # steps between two visits before it; None: no question had come twice
    is_from_start: bool  # it goes back to the first step, as a second pass over the data would
    is_open: bool  # the run ends in it


@dataclass(frozen=True)
class Reshuffled:
    """Questions of an unfinished pass come again among new ones, from a step on."""

    first: int
    seen_again: float  # share of the questions since
    p: float  # that a random draw with return has none before and so many after


@dataclass(frozen=True)
class PassedOver:
    """Sample ids in a row that were never trained."""

    steps: tuple[int, ...]  # the first one beyond each gap
    missing: int  # ids in all of the gaps
    elsewhere: int  # most in a row that are missing anywhere else
    of: int  # ids from the first to the last


class Visits:
    """Questions by step, each with how many steps ago it was seen: `steps` (S,), `lags` an array a step."""

    def __init__(self, visits: pd.DataFrame) -> None:
        """`visits`: a row a prompt group, columns step and key."""
        self.steps = np.sort(visits["step"].unique())
        place = pd.Series(np.arange(len(self.steps)), self.steps)
        index = visits["step"].map(place).astype(int)
        pairs = pd.DataFrame({"index": index.to_numpy(), "key": visits["key"].to_numpy()})
        # of a question that a step has twice, the two visits are one
        pairs = pairs.drop_duplicates().sort_values("index", kind="stable")
        lag = pairs.groupby("key")["index"].diff()
        self.lags = [part.to_numpy(float) for _, part in lag.groupby(pairs["index"])]
        self.sizes = np.array([len(lags) for lags in self.lags])

    def seen_again(self) -> list[SeenAgain]:
        """Every stretch that went back, the first one first."""
        modes = [self._distance(lags) for lags in self.lags]
        stretches = []
        start = 0
        while start < len(modes):
            distance = modes[start]
            if distance is None:
                start += 1
                continue
            end = start
            while end + 1 < len(modes) and _is_near(modes[end + 1], distance):
                end += 1
            stretches.append(self._stretch(start, end, distance))
            start = end + 1
        return [stretch for stretch in stretches if self._is_accident(stretch, stretches)]

    def reshuffled(self, resume: int) -> Reshuffled | None:
        """Whether the order was drawn again at a resume: no question had come twice, and now some do."""
        at = int(np.searchsorted(self.steps, resume))
        before = self.lags[:at]
        after = self.lags[at:]
        n_before = sum(map(len, before))
        if any(np.isfinite(lags).any() for lags in before) or len(after) < 4 or n_before < FEWEST:
            return None
        flags = np.concatenate([np.isfinite(lags) for lags in after])[:n_before]
        share = float(flags.mean())
        if not MIXED[0] < share < MIXED[1]:
            return None
        # where a pass ends later on, everything is new first, and nothing from then on
        begins_here = int(flags.argmax()) <= SOON / share
        still_new = 1 - flags[len(flags) // 2 :].mean()
        if not begins_here or still_new < STILL_NEW:
            return None
        # Drawn with return from one pool, each was seen before in proportion to how many came before it.
        chance_before = n_before**2 / (n_before + len(flags)) ** 2
        p = (1 - chance_before) ** int(flags.sum())
        return Reshuffled(int(self.steps[at]), share, p) if p < RARE else None

    def _distance(self, lags: np.ndarray) -> int | None:
        """How many steps ago nearly all questions of a step were seen; None where they were not, or not
        together.
        """
        known = lags[np.isfinite(lags)]
        if len(lags) < FEWEST or len(known) < MOST * len(lags):
            return None
        values, counts = np.unique(known, return_counts=True)
        distance = int(values[counts.argmax()])
        near = (np.abs(known - distance) <= NEAR).sum()
        return distance if near >= MOST * len(lags) else None

    def _stretch(self, start: int, end: int, distance: int) -> SeenAgain:
        earlier = np.concatenate([np.zeros(0), *self.lags[:start]])
        earlier = earlier[np.isfinite(earlier)]
        usual = int(np.median(earlier)) if len(earlier) > FEWEST else None
        return SeenAgain(
            int(self.steps[start]),
            int(self.steps[end]),
            distance,
            int(self.sizes[start : end + 1].sum()),
            usual,
            is_from_start=distance >= start,
            is_open=end == len(self.steps) - 1,
        )

    def _is_accident(self, stretch: SeenAgain, stretches: list[SeenAgain]) -> bool:
        """Whether neither passes over the data nor habits of the trainer nor chance explain a stretch."""
        start, end = (int(np.searchsorted(self.steps, step)) for step in (stretch.first, stretch.last))
        if end - start > stretch.steps_back + NEAR:  # it goes on: a pass over the data
            return False
        if self._comes_sooner_after(end, stretch.steps_back):  # a pass that something behind it cut short
            return False
        alike = [one for one in stretches if _is_near(one.steps_back, stretch.steps_back)]
        if len(alike) >= REGULAR:
            return False
        elsewhere = np.concatenate([np.zeros(0), *self.lags[:start], *self.lags[end + 1 :]])
        near = (np.abs(elsewhere - stretch.steps_back) <= NEAR).sum()
        chance = (near + 1) / (len(elsewhere) + 1)
        return self.steps.size * chance_of(MOST, int(self.sizes[start : end + 1].sum()), chance) < RARE

    def _comes_sooner_after(self, end: int, distance: int) -> bool:
        """Whether the step behind a stretch sees most questions again after fewer steps than the stretch."""
        if end + 1 >= len(self.lags):
            return False
        return float((self.lags[end + 1] < distance - NEAR).mean()) > 0.5


def chance_of(share: float, size: int, chance: float) -> float:
    """Chernoff's bound on the chance that a `share` of `size` draws succeed, each with probability
    `chance`.
    """
    if chance >= share:
        return 1.0
    divergence = share * math.log(share / chance) + (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-size * divergence)


def _is_near(a: int | None, b: int) -> bool:
    return a is not None and abs(a - b) <= NEAR


def passed_over(samples: pd.DataFrame) -> PassedOver | None:
    """Where a run passed over sample ids that it never trained, far more than anywhere else; None where it
    did not.

    `samples`: a row a trajectory, columns step and sample. Ids count up in the order of the data. Filters
    drop some everywhere, and the last steps wait for stragglers: both are no skip.
    """
    known = samples.dropna().astype({"sample": "int64"})
    steps = np.sort(known["step"].unique())
    if len(steps) < 2 * SETTLED + 2:
        return None
    newest = known.groupby("step")["sample"].max().cummax().to_numpy()
    ids = np.sort(known["sample"].unique())
    missing = np.diff(ids) - 1
    # the step whose newest id is the first beyond a gap
    place = np.searchsorted(newest, ids[1:])
    missing[place >= len(steps) - SETTLED] = 0
    order = np.argsort(-missing, kind="stable")
    a_step = float(known.groupby("step")["sample"].nunique().median())
    for places in range(1, min(MOST_PLACES, len(order) - 1) + 1):
        least = int(missing[order[places - 1]])
        elsewhere = int(missing[order[places]])
        if least < a_step:
            return None
        if least >= MANY * max(elsewhere, 1):
            gaps = order[:places]
            at = tuple(sorted({int(steps[i]) for i in place[gaps]}))
            return PassedOver(at, int(missing[gaps].sum()), elsewhere, int(ids[-1] - ids[0] + 1))
    return None

"""Every detector on every run of a corpus: the highest score so far, step by step, and when a threshold is
reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from studies.early_warning.corpus import Run
from studies.early_warning.detectors import DETECTORS, SIGNALS, Side, score

# quantiles of what healthy runs reach, which become 0 and 1
TYPICAL = 0.5
WORST = 0.95
_CAP = 5.0  # of a score in these units
_FEWEST = 8  # healthy runs that they are taken from


@dataclass(frozen=True)
class Watched:
    """A detector on one side of a signal."""

    signal: str
    side: Side
    detector: str

    def __str__(self) -> str:
        return f"{self.signal} {self.side}: {self.detector}"


EVERY = tuple(Watched(s, side, d) for s, sides in SIGNALS.items() for side in sides for d in DETECTORS)
# Success, policy and protocol, each against the run's own beginning: chosen on the runs of the first half of
# the region (EARLIER), before the others were trained.
TOGETHER = (
    Watched("success", "below", "slump"),
    Watched("entropy", "above", "start"),
    Watched("valid_action_frac", "below", "start"),
)


@dataclass(frozen=True)
class Scored:
    """The highest score so far at each step of each run (None: the run did not log the signal); -Inf before
    the first.

    `last` is the index of the last step that counts: the detection of a collapse, or the end of the run.
    """

    runs: tuple[Run, ...]
    so_far: tuple[np.ndarray | None, ...]
    last: np.ndarray

    @cached_property
    def top(self) -> np.ndarray:
        """The highest score that counts, (N,); NaN where the detector was not tried."""
        ends = zip(self.so_far, self.last, strict=True)
        found = np.array([np.nan if s is None else s[end] for s, end in ends])
        return np.where(np.isneginf(found), np.nan, found)

    def alarm(self, i: int, threshold: float) -> int | None:
        """The step at which the score of run i first reaches the threshold, of the steps that count; None if
        never.
        """
        scores = self.so_far[i]
        if scores is None:
            return None
        reached = np.flatnonzero(scores[: self.last[i] + 1] >= threshold)
        return int(self.runs[i].steps[reached[0]]) if len(reached) else None


def last_steps(runs: Sequence[Run]) -> np.ndarray:
    """Index of the last step that counts of each run."""
    ends = [int(r.detection) if r.collapsed and r.detection is not None else int(r.steps[-1]) for r in runs]
    return np.array(
        [np.searchsorted(r.steps, end, side="right") - 1 for r, end in zip(runs, ends, strict=True)]
    )


def scored(runs: Sequence[Run], watched: Watched) -> Scored:
    """One detector on every run."""
    return Scored(tuple(runs), tuple(_so_far(run, watched) for run in runs), last_steps(runs))


def _so_far(run: Run, watched: Watched) -> np.ndarray | None:
    if watched.signal not in run.curves:
        return None
    values, known = run.curves[watched.signal]
    scores = score(watched.detector, values, watched.side, known)
    if np.isnan(scores).all():
        return None
    return np.asarray(np.maximum.accumulate(np.where(np.isnan(scores), -np.inf, scores)))


def joined(parts: Sequence[Scored], tuning: np.ndarray) -> Scored:
    """The mean of several scores, each in units of what the healthy runs of `tuning` (N,) reach: median 0, 95
    % 1.

    A signal that a run did not log is left out of its mean; so is one that too few healthy runs logged.
    """
    units = [_unit(part, tuning) for part in parts]
    so_far: list[np.ndarray | None] = []
    for i in range(len(parts[0].runs)):
        rows = []
        for part, unit in zip(parts, units, strict=True):
            scores = part.so_far[i]
            if scores is not None and unit is not None:
                rows.append(np.clip((scores - unit[0]) / unit[1], -_CAP, _CAP))
        so_far.append(np.maximum.accumulate(np.mean(rows, axis=0)) if rows else None)
    return Scored(parts[0].runs, tuple(so_far), parts[0].last)


def _unit(part: Scored, tuning: np.ndarray) -> tuple[float, float] | None:
    healthy = np.array([run.healthy for run in part.runs])
    top = part.top[tuning & healthy]
    top = top[~np.isnan(top)]
    if len(top) < _FEWEST:
        return None
    low, high = (float(x) for x in np.quantile(top, (TYPICAL, WORST)))
    return low, max(high - low, 1e-9)

"""How well an alarm warns: thresholds from one half of a corpus, judged on the other, and the halves change
places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from studies import Share
from studies.early_warning.corpus import Run, distinct
from studies.early_warning.scores import EVERY, TOGETHER, Scored, Watched, joined, scored

TARGET = 0.05  # of healthy runs alarmed, that thresholds are set for
RESAMPLES = 1000
Make = Callable[[np.ndarray], Scored]  # runs that may be learned from (N,) -> scores of all


@dataclass(frozen=True)
class Verdict:
    """An alarm at thresholds that other runs gave: who was alarmed, of those that logged what it needs."""

    healthy: tuple[bool, ...]  # one a healthy run: alarmed
    lasting: tuple[bool, ...]  # one a run that did not collapse: healthy, mild, or one that never learned
    collapsed: tuple[bool, ...]  # one a collapsed run: alarmed by the detection step
    late: tuple[bool, ...]  # of those that collapsed after their first steps
    leads: tuple[int, ...]  # onset - alarm, of every collapse that was alarmed; positive before the onset
    ahead: tuple[int, ...]  # detection - alarm

    @property
    def false_alarms(self) -> Share:
        """Healthy runs that were alarmed."""
        return Share(sum(self.healthy), len(self.healthy))

    @property
    def all_false_alarms(self) -> Share:
        """Runs that were alarmed and did not collapse, of all that did not: healthy, mild, never learned."""
        return Share(sum(self.lasting), len(self.lasting))

    @property
    def precision(self) -> Share:
        """Alarms of runs that did collapse, of all alarms; at the mix of runs that this corpus has."""
        right = sum(self.collapsed)
        return Share(right, right + sum(self.lasting))

    @property
    def recall(self) -> Share:
        """Collapses that were alarmed by the step at which the collapse rule says so."""
        return Share(sum(self.collapsed), len(self.collapsed))

    @property
    def cells(self) -> tuple[Share, ...]:
        """The four rates that every table begins with."""
        return self.false_alarms, self.all_false_alarms, self.recall, self.precision

    @property
    def recall_late(self) -> Share:
        """The same of collapses with an onset after the first steps."""
        return Share(sum(self.late), len(self.late))

    @property
    def before(self) -> Share:
        """Collapses that were alarmed before their onset."""
        return Share(sum(lead > 0 for lead in self.leads), len(self.collapsed))


def halves(runs: Sequence[Run], by: str) -> np.ndarray:
    """0 or 1 for each run (N,): by the parity of its seed, or every other condition in alphabetical order.

    Runs of one condition lie on one side, whichever experiment trained them, so that a run trained again
    (with the same settings and seed) never lies opposite its copy.
    """
    if by == "seed":
        return np.array([run.seed % 2 for run in runs])
    order = {name: i for i, name in enumerate(sorted({run.condition for run in runs}))}
    return np.array([order[run.condition] % 2 for run in runs])


def threshold(top: np.ndarray, target: float) -> float:
    """The lowest threshold that at most a share `target` of the scores (n,) reaches; Inf without any."""
    known = np.sort(top[~np.isnan(top)])
    allowed = int(target * len(known) + 1e-9)
    if not len(known):
        return np.inf
    return -np.inf if allowed >= len(known) else float(np.nextafter(known[-1 - allowed], np.inf))


FIRST_STEPS = 5  # an onset before this step leaves no beginning to compare with


def judged(scores: Scored, at: float, among: np.ndarray) -> Verdict:
    """The alarm at threshold `at` on the runs `among` (N,)."""
    healthy = []
    lasting = []
    collapsed = []
    late = []
    leads = []
    ahead = []
    tried = ~np.isnan(scores.top)
    for i, run in enumerate(scores.runs):
        if not (among[i] and tried[i]):
            continue
        step = scores.alarm(i, at)
        if run.healthy:
            healthy.append(step is not None)
        if run.lasting:
            lasting.append(step is not None)
        elif run.collapsed and run.onset is not None and run.detection is not None:
            collapsed.append(step is not None)
            if run.onset >= FIRST_STEPS:
                late.append(step is not None)
            if step is not None:
                leads.append(run.onset - step)
                ahead.append(run.detection - step)
    return Verdict(tuple(healthy), tuple(lasting), tuple(collapsed), tuple(late), tuple(leads), tuple(ahead))


def added(parts: Iterable[Verdict]) -> Verdict:
    """Several verdicts as one."""
    found = list(parts)
    return Verdict(*(tuple(x for part in found for x in getattr(part, f.name)) for f in fields(Verdict)))


def held_out(make: Make, runs: Sequence[Run], half: np.ndarray, target: float = TARGET) -> Verdict:
    """Each half judged at the threshold that the other half's healthy runs give."""
    healthy = np.array([run.healthy for run in runs])
    parts = []
    for tuning in (half == 0, half == 1):
        scores = make(tuning)
        parts.append(judged(scores, threshold(scores.top[tuning & healthy], target), ~tuning))
    return added(parts)


class Bench:
    """The scores of every detector on a corpus, made once; a run that was trained twice counts once."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(distinct(runs))
        self.copies = len(runs) - len(self.runs)
        self.healthy = np.array([run.healthy for run in self.runs])
        self.collapsed = np.array([run.collapsed for run in self.runs])
        self.scores = {watched: scored(self.runs, watched) for watched in EVERY}

    def single(self, watched: Watched) -> Make:
        """One detector; it learns nothing but its threshold."""
        return lambda tuning: self.scores[watched]

    def together(self) -> Make:
        """The combined alarm."""
        return lambda tuning: joined([self.scores[watched] for watched in TOGETHER], tuning)

    def best(self, among: Sequence[Watched]) -> Make:
        """Of several detectors the one with the largest area under the ROC of the tuning half."""
        return lambda tuning: self.scores[self.chosen(among, tuning)]

    def chosen(self, among: Sequence[Watched], tuning: np.ndarray) -> Watched:
        """That detector; of equal ones the first."""

        def worth(watched: Watched) -> float:
            top = self.scores[watched].top
            return area(top[tuning & self.collapsed], top[tuning & self.healthy])

        return max(among, key=worth)

    def tried(self, watched: Watched) -> bool:
        """Whether enough runs of both kinds logged the signal to say anything."""
        top = self.scores[watched].top
        return all(int((~np.isnan(top[kind])).sum()) >= 10 for kind in (self.healthy, self.collapsed))


def area(collapsed: np.ndarray, healthy: np.ndarray) -> float:
    """Area under the ROC: P(score of a collapsed run > that of a healthy one) + P(equal) / 2; 0.5 without
    either.
    """
    wins = _wins(collapsed, healthy)
    return float(wins.mean()) if wins.size else 0.5


def areas(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """The mean area over several sets of (collapsed, healthy) scores that share no scale, weighted by their
    pairs.

    With its 95 % percentile interval, by resampling runs of either kind within each set; 0.5 and (0, 1)
    without any.
    """
    found = [wins for pair in parts if (wins := _wins(*pair)).size]
    if not found:
        return 0.5, 0.0, 1.0
    weights = np.array([wins.size for wins in found]) / sum(wins.size for wins in found)
    draw = np.random.default_rng(0)
    resampled = np.zeros(RESAMPLES)
    for weight, wins in zip(weights, found, strict=True):
        rows, columns = (draw.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in wins.shape)
        resampled += weight * np.einsum("rn,rn->r", rows @ wins, columns)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(weights @ [wins.mean() for wins in found]), float(low), float(high)


def _wins(collapsed: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    a = collapsed[~np.isnan(collapsed)][:, None]
    b = healthy[~np.isnan(healthy)][None]
    return np.asarray((a > b) + 0.5 * (a == b), float)


def median_interval(values: Sequence[int]) -> tuple[float, float, float] | None:
    """Median with its 95 % percentile bootstrap interval; None without values."""
    if not values:
        return None
    draw = np.random.default_rng(0)
    sample = np.median(draw.choice(np.array(values, float), (RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(sample, (0.025, 0.975))
    return float(np.median(values)), float(low), float(high)


def recall_at(
    scores: Scored, runs: Sequence[Run], rates: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Points of the ROC: recall by the detection step at each share of healthy runs alarmed, with 95 %
    intervals.

    Runs of either kind are resampled, the threshold with them.
    """
    top = scores.top
    a = top[np.array([run.collapsed for run in runs]) & ~np.isnan(top)]
    b = top[np.array([run.healthy for run in runs]) & ~np.isnan(top)]
    draw = np.random.default_rng(0)

    def recalls(p: np.ndarray, n: np.ndarray) -> list[float]:
        return [
            float((p >= at).mean()) if len(p) else np.nan for at in (threshold(n, rate) for rate in rates)
        ]

    resampled = [recalls(draw.choice(a, len(a)), draw.choice(b, len(b))) for _ in range(RESAMPLES)]
    low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
    return list(zip(recalls(a, b), low.tolist(), high.tolist(), strict=True))


def crossed(make: Make, runs: Sequence[Run], half: np.ndarray) -> Scored:
    """The scores of each half in units of the other, as one."""
    parts = [make(half != side) for side in (0, 1)]
    return replace(parts[0], so_far=tuple(parts[int(side)].so_far[i] for i, side in enumerate(half)))

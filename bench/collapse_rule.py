"""How often the collapse rule is wrong, against the rule of running medians before it.

`python bench/collapse_rule.py` prints one Markdown table (`make bench-collapse`). `--shipped` looks instead
for runs of experiments/results that end down by half and are not called so. There are two kinds of runs that
lose nothing:

recorded: held-out start and first 14 steps of a healthy run, then the rest of it, drawn in blocks of 6 steps.
  Healthy: called so by running medians, and without a fall by the present rule. Only of runs whose rest is
  `stationary`.
synthetic: held-out start .38, then success .6 at every step: 64 independent episodes (PPO-like), or 8 prompts
  with 8 rollouts each, beta-binomial with a correlation of .5 within a prompt (GRPO-like).

In a planted fall every success stays one with probability f: the noise of the counts stays what it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.special import xlogy

from sorl.analysis import results
from sorl.analysis.stats import clopper_pearson
from sorl.collapse.onset import Onset
from sorl.collapse.rule import Watch
from sorl.spec import NOT_RISEN
from sorl.spec.markdown import markdown_table

RESULTS = Path(__file__).parents[1] / "experiments" / "results"
# seeds 0, 5 and 11 were used while the rule was chosen
EPISODES = 64
LEARNING = 14
BLOCK = 6
SEED = 2026
HELD = (0.38, 256)  # success before training, and of how many questions
GROUPS = {"PPO-like": 1, "GRPO-like": 8}  # rollouts of a prompt
# steps -> runs
LENGTHS = {36: 2000, 180: 2000, 2000: 300}
FLAT = {36: 1000, 180: 1000, 1000: 300}
# runs with a planted fall, and how many of them have their onset judged
PLANTED = 1000
DATED = 200
FALLS = {  # -> f at each step of the fall, and steps from its first within which it is to be found
    "to 0": (np.zeros(30), 2),
    "to half": (np.full(30, 0.5), 10),
    "over 20 steps to a tenth": (np.r_[np.linspace(1, 0.1, 21)[1:], np.full(30, 0.1)], 30),
    "by 30 %, no collapse,": (np.full(40, 0.7), 40),
}
*_, MINOR = FALLS
PLANS = [*itertools.product(("to 0", "to half"), (36, 72)), ("over 20 steps to a tenth", 36), (MINOR, 36)]

# success of each step, and held-out success before training
Run = tuple[np.ndarray, tuple[float, int] | None]


class Called(NamedTuple):
    """What a rule says: outcome, index of its first detection, onset of that fall with its interval."""

    outcome: str | None
    detection: int | None = None
    onset: int | None = None
    interval: tuple[int, int] | None = None

    def delay(self, at: int) -> float:
        """Steps from `at` to the detection, both counted; infinite if there is none, or one before."""
        return self.detection - at + 1 if self.detection is not None and self.detection >= at else math.inf


def by_medians(
    run: Run,
    group: int = 1,
    episodes: int | None = EPISODES,
    window: int = 5,
    baseline: int = 5,
    points: int = 5,
    sigmas: float = 3.0,
    severe: float = 0.5,
    mild: float = 0.2,
) -> Called:
    """Judge by the rule of running medians, to its first detection; `group` is not asked.

    m_t is the trailing median of `window` scores, P the highest so far, sigma 1.4826 MAD of s - m, at least
    the noise of a share. A fall is called at the last of `points` steps in a row with m <= (1 - loss) P, or
    the start lost, if P lies `sigmas` noise widths above m and the start. Its onset is the last m within
    max(sigma, .05 P) of P.
    """
    s, held = run
    w = window
    q = min(1.0, math.pi / (2 * window))
    smooth = np.array([np.median(s[t - w + 1 : t + 1]) if t >= w - 1 else np.nan for t in range(len(s))])
    peaks = np.fmax.accumulate(smooth)
    base = held[0] if held else float(np.mean(s[:baseline]))
    start = held[0] if held else float(s[0]) if episodes else base
    asked = held[1] if held else episodes  # behind the start

    def sigma(t: int) -> float:
        rest = (s - smooth)[w - 1 : t + 1]
        spread = max(x * (1 - x) for x in (peaks[t], base)) / episodes if episodes else 0.0
        return max(1.4826 * float(np.median(np.abs(rest - np.median(rest)))), math.sqrt(spread))

    def noise(t: int, error: float | None) -> float:
        error = sigma(t) / math.sqrt(baseline) if error is None else error
        return sigmas * math.hypot(sigma(t) * math.sqrt(q), error)

    start_error = math.sqrt(start * (1 - start) / asked) if asked else None
    gain_error = start_error if held else None

    def fall(loss: float) -> tuple[int, int] | None:
        row = 0
        for t in range(w - 1, len(s)):
            lower = start - smooth[t] >= max(severe * start, 2e-12) and start - smooth[t] >= noise(
                t, start_error
            )
            begun = lower and asked is not None
            row = row + 1 if peaks[t] - smooth[t] >= loss * max(peaks[t], 1e-12) or begun else 0
            if row < points or t + 1 < (1 if held else baseline):
                continue
            far = peaks[t] - smooth[t] >= sigmas * sigma(t) * math.sqrt(2 * q)
            if begun or (far and (lower or peaks[t] >= base + noise(t, gain_error))):
                since = int(np.flatnonzero(smooth == peaks[t])[0]) if peaks[t] >= start else 0
                top = max(peaks[t], start)
                near = [u for u in range(since, t + 1) if smooth[u] >= top - max(sigma(t), 0.05 * top)]
                return max(near, default=0), t
        return None

    if found := fall(severe):
        return Called("collapsed", found[1], found[0])
    if fall(mild):
        return Called("mild")
    return Called("healthy" if peaks[-1] > base + noise(len(s) - 1, gain_error) else "no_learning")


# The search for onsets takes most of the time of a run that falls; no detection depends on it.
undated = patch(
    "sorl.collapse.rule.find_onset", lambda curve, first, at, end, best: Onset(first, first, first)
)


def watched(run: Run, group: int, episodes: int = EPISODES) -> tuple[Watch, int | None]:
    """The present rule after a run, and its first detection."""
    watch = Watch(None, episodes, group)
    found = None
    held = {"heldout_success": run[1][0], "heldout_episodes": run[1][1]} if run[1] else {}
    with undated:
        for t, score in enumerate(run[0]):
            events = watch.step(t, {"success": float(score), **(held if t == 0 else {})})
            found = t if found is None and any(event.kind == "collapse" for event in events) else found
    return watch, found


def by_counts(run: Run, group: int, dated: bool = False) -> Called:
    """Judge by the present rule; the onset only if `dated`, of a fall that lasts."""
    watch, found = watched(run, group)
    if dated and found is not None and (fall := watch.verdict.drops[0]).recovered is None:
        return Called("collapsed", found, fall.onset, (fall.onset_low, fall.onset_high))
    with undated:
        return Called(watch.verdict.outcome, found)


def shipped() -> pd.DataFrame:
    """Every run of the shipped results, with `file`, `group` and `episodes`."""
    files = sorted([*RESULTS.glob("*.parquet"), *RESULTS.glob("search/*.parquet")])
    runs = pd.concat([results.read(file).runs.assign(file=file.stem) for file in files], ignore_index=True)
    runs["group"] = [json.loads(slots)["group_size"] for slots in runs.slots]
    runs["episodes"] = [json.loads(config)["learn"]["episodes"] for config in runs.config]
    return runs


def curve(row: pd.Series) -> Run:
    """Success of a shipped run and its held-out start."""
    held = float(row.heldout_success_curve[0]), int(row.heldout_episodes_curve[0])
    return np.asarray(row.success_curve, float), held


def stationary(scores: np.ndarray) -> bool:
    """Whether no stretch of 3 steps or more lies over 3 standard errors from the mean.

    Errors come from successive differences, which a slow change hardly enters: sd^2 = mean (s_t - s_(t-1))^2
    / 2.
    """
    n = len(scores)
    sums = np.r_[0, np.cumsum(scores - scores.mean())]
    i, j = np.triu_indices(n + 1, 3)
    inside = j - i < n
    i = i[inside]
    j = j[inside]
    off = np.abs(sums[j] - sums[i]) / np.sqrt((j - i) * (1 - (j - i) / n))
    return bool(off.max() <= 3 * math.sqrt(np.mean(np.diff(scores) ** 2) / 2))


def recorded(runs: pd.DataFrame, group: int) -> list[Run]:
    """The runs that neither rule calls a fall, with a stationary rest. adamw_long goes on with runs of
    adamw_search.
    """
    use = runs[(runs.outcome != "diverged") & (runs.group == group) & (runs.episodes == EPISODES)]
    found = [curve(row) for _, row in use[use.file != "adamw_long"].iterrows()]
    found = [run for run in found if len(run[0]) >= 36 and stationary(run[0][LEARNING:])]
    return [run for run in found if by_medians(run).outcome == "healthy" and watched(run, group)[1] is None]


def resampled(pool: list[Run], steps: int, rng: np.random.Generator) -> Run:
    """A run of any length with the start of a recorded one and the noise of its rest."""
    scores, held = pool[rng.integers(len(pool))]
    rest = scores[LEARNING:]
    starts = rng.integers(0, len(rest) - BLOCK + 1, math.ceil(steps / BLOCK))
    return np.r_[scores[:LEARNING], rest[(starts[:, None] + np.arange(BLOCK)).ravel()]][:steps], held


def synthetic(
    level: float, steps: int, group: int, rng: np.random.Generator, held: tuple[float, int] = HELD
) -> Run:
    """Success `level` at every step; prompts from a beta of a + b = 1, so rho = 1 / (a + b + 1) = .5."""
    prompts = EPISODES // group
    solved = rng.beta(level, 1 - level, (steps, prompts)) if group > 1 else np.full((steps, prompts), level)
    return rng.binomial(group, solved).sum(1) / EPISODES, held


def planted(run: Run, at: int, kept: np.ndarray, rng: np.random.Generator) -> Run:
    """The run, of whose successes from step `at` on each stays one with the probability in `kept`."""
    counts = np.rint(run[0][at : at + len(kept)] * EPISODES).astype(int)
    return np.r_[run[0][:at], rng.binomial(counts, kept) / EPISODES], run[1]


def share(hits: Iterable[bool]) -> str:
    """Count, share and its 95 % Clopper-Pearson interval, in percent."""
    found = list(hits)
    low, high = (round(100 * end, 2) for end in clopper_pearson(sum(found), len(found)))
    return f"{sum(found)}/{len(found)} = {100 * np.mean(found):.3g} % [{low:.3g}, {high:.3g}]"


def told(called: list[Called], at: int) -> str:
    """Of the falls from step `at` that were found: median delay, median of onset less true
    onset, coverage.
    """
    found = [c for c in called if c.delay(at) < math.inf]
    off = [c.onset - (at - 1) for c in found if c.onset is not None]
    covers = [c.interval[0] <= at - 1 <= c.interval[1] for c in found if c.interval]
    delay = f"{np.median([c.delay(at) for c in found]):g}" if found else "-"
    return f"{delay}; {f'{np.median(off):+g}' if off else '-'}; {share(covers) if covers else '-'}"


def measure(
    draw: Callable[[int], Run], group: int, rng: np.random.Generator, scale: float
) -> dict[str, list[str]]:
    """The error rates over runs of `draw`: a cell of the present rule and one of running medians in every
    row.
    """
    cells: dict[str, list[str]] = {}
    for steps, n in LENGTHS.items():
        runs = [draw(steps) for _ in range(math.ceil(scale * n))]
        counts = [by_counts(run, group) for run in runs]
        medians = [by_medians(run) for run in runs]
        found = [share(c.detection is not None for c in called) for called in (counts, medians)]
        cells[f"none in {steps:,} steps: called collapse"] = found
        cells[f"none in {steps:,} steps: `falling` at the end"] = [
            share(c.outcome == "falling" for c in counts),
            "-",
        ]
    for name, at in PLANS:
        kept, within = FALLS[name]
        runs = [planted(draw(at + len(kept)), at, kept, rng) for _ in range(math.ceil(scale * PLANTED))]
        dated = math.ceil(scale * DATED) if name != MINOR else 0
        both = (
            [by_counts(run, group, i < dated) for i, run in enumerate(runs)],
            [by_medians(run) for run in runs],
        )
        cells[f"{name} at step {at}: called within {within}"] = [
            share(c.delay(at) <= within for c in b) for b in both
        ]
        if dated:
            cells[f"{name} at step {at}: delay; onset off by; interval covers"] = [told(b, at) for b in both]
    return cells


def never_learns(group: int, rng: np.random.Generator, scale: float) -> dict[str, list[str]]:
    """The share of runs at .38 throughout that are called healthy; the held-out start exact, or drawn as
    well.
    """
    cells = {}
    level, asked = HELD
    for kind, (steps, n) in itertools.product(("exact", "drawn"), FLAT.items()):
        starts = np.full(math.ceil(scale * n), level)
        if kind == "drawn":
            starts = rng.binomial(asked, starts) / asked
        runs = [synthetic(level, steps, group, rng, (float(start), asked)) for start in starts]
        cells[f"never learns, start {kind}: `healthy` at {steps:,}"] = [
            share(rule(run, group).outcome == "healthy" for run in runs) for rule in (by_counts, by_medians)
        ]
    return cells


def table(scale: float = 1.0, seed: int = SEED) -> str:
    """The Markdown table of both rules, over `scale` times as many runs as the docs have."""
    rng = np.random.default_rng(seed)
    runs = shipped()
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for group in GROUPS.values():
        pool = recorded(runs, group)
        for noise, cells in {
            "recorded": measure(lambda steps: resampled(pool, steps, rng), group, rng, scale),  # noqa: B023
            "synthetic": (
                measure(lambda steps: synthetic(0.6, steps, group, rng), group, rng, scale)  # noqa: B023
                | never_learns(group, rng, scale)
            ),
        }.items():
            for name, pair in cells.items():
                rows[noise, name] += pair
    head = ["noise", "fall", *(f"{like}: {rule}" for like in GROUPS for rule in ("counts", "medians"))]
    return markdown_table(head, [[*key, *cells] for key, cells in rows.items()])


def down(scores: np.ndarray, episodes: int, phi: float) -> bool:
    """Whether a run ends down by half, the last three steps 1,000 times likelier at their own rate than at
    the best.
    """
    best = max(
        float(np.median(scores[max(0, end - 5) : end])) for end in range(min(5, len(scores)), len(scores) + 1)
    )
    n = episodes * len(scores[-3:])
    rate = float(np.mean(scores[-3:]))
    best = min(best, 1 - 1e-12)
    if np.median(scores[-3:]) > best / 2 or rate >= best:
        return False
    ratio = n * (xlogy(rate, rate / best) + xlogy(1 - rate, (1 - rate) / (1 - best))) / phi
    return bool(ratio >= math.log(1000))


def ends() -> str:
    """What the present rule calls the shipped runs that end down, by their dispersion and by raw counts."""
    lines = []
    runs = shipped()
    for name in ("the run's dispersion", "raw counts (phi = 1)"):
        found: list[tuple[str, str]] = []
        for _, row in runs.iterrows():
            watch, _ = watched(curve(row), row.group, row.episodes)
            phi = watch._curve.phi if name.startswith("the") else 1.0
            if down(curve(row)[0], row.episodes, phi):
                outcome = "diverged" if row.outcome == "diverged" else str(watch.verdict.outcome)
                tail = " ".join(f"{score:.2f}" for score in row.success_curve[-6:])
                found.append((outcome, f"{row.file}, {row.arm}, seed {row.seed}: ends {tail}"))
        lines.append(f"By {name}, {len(found)} of {len(runs)} runs end down by half:")
        lines += [
            f"- {outcome}: {count}"
            for outcome, count in Counter(outcome for outcome, _ in found).most_common()
        ]
        lines += [
            f"  - {outcome}: {run}" for outcome, run in found if outcome in ("healthy", "mild", *NOT_RISEN)
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shipped", action="store_true", help="look at the shipped runs that end down by half instead"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times as many runs as the table of the docs has"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    print(ends() if options.shipped else table(options.scale, options.seed))

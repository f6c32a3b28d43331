"""On which curves the collapse rule keeps its 1 in 100: `python bench/healthy_curves.py`.

Draws curves that lose nothing, judges each by the rule and counts the false collapses. Prints one Markdown
table. `bench/collapse_rule.py` does so on the noise of recorded runs; here is noise that the rule may not
expect: few episodes a step, slow drift, and scores of unknown size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from bench.collapse_rule import share, undated
from sorl.collapse.rule import Watch
from sorl.spec.markdown import markdown_table

RUNS = 1000
LENGTHS = (60, 200, 700)  # steps at which a run is judged; a shorter one is the beginning of a longer one
SEED = 2026
LEARNING_STEPS = 20  # steps of the rise of a curve that learns
NOISE = 0.1  # standard deviation of a step
CORRELATION = 0.5  # between neighbouring steps of a drifting curve

Draw = Callable[[np.random.Generator, int], np.ndarray]


class HealthyCurve(NamedTuple):
    """A kind of curve that loses nothing; `episodes` is None where the size of the score is not known."""

    name: str
    episodes: int | None
    draw: Draw  # the scores of a run of so many steps


class Count(NamedTuple):
    """Of one run at one length: whether a collapse has been called, and whether it is called falling."""

    collapsed: bool
    falling: bool


def rise(start: float, end: float, steps: int) -> np.ndarray:
    """A level that rises along a straight line and then stays."""
    learning = np.linspace(start, end, LEARNING_STEPS)
    return np.concatenate([learning, np.full(steps, end)])[:steps]


def draw_normal(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Independent normal noise."""
    return NOISE * rng.standard_normal(steps)


def draw_heavy_tails(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Independent noise of Student's t with three degrees of freedom, scaled to the deviation NOISE."""
    return NOISE * rng.standard_t(3, steps) / np.sqrt(3)


def draw_drift(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Normal noise in which a step is correlated with the one before: AR(1) of deviation NOISE."""
    noise = np.empty(steps)
    noise[0] = rng.standard_normal()
    fresh = np.sqrt(1 - CORRELATION**2) * rng.standard_normal(steps)
    for step in range(1, steps):
        noise[step] = CORRELATION * noise[step - 1] + fresh[step]
    return NOISE * noise


def share_of_episodes(start: float, end: float, episodes: int, drift: bool = False) -> HealthyCurve:
    """Success as a share of so many episodes, whose probability rises from `start` to `end`."""

    def draw(rng: np.random.Generator, steps: int) -> np.ndarray:
        probability = rise(start, end, steps)
        if drift:
            probability = np.clip(probability + draw_drift(rng, steps), 0, 1)
        return rng.binomial(episodes, probability) / episodes

    level = f"flat at {end:g}" if start == end else f"rises from {start:g} to {end:g}"
    noise = ", drifting" if drift else ""
    return HealthyCurve(f"success of {episodes} episodes, {level}{noise}", episodes, draw)


def score_of_unknown_size(start: float, end: float, noise: Draw, name: str) -> HealthyCurve:
    """A reward of which nobody says how many episodes it is the mean of."""

    def draw(rng: np.random.Generator, steps: int) -> np.ndarray:
        return rise(start, end, steps) + noise(rng, steps)

    level = f"flat at {end:g}" if start == end else f"rises from {start:g} to {end:g}"
    return HealthyCurve(f"reward of unknown size, {level}, {name}", None, draw)


CURVES = (
    share_of_episodes(0.2, 0.6, 256),
    share_of_episodes(0.2, 0.6, 64),
    share_of_episodes(0.2, 0.6, 8),
    share_of_episodes(0.5, 0.5, 64),
    share_of_episodes(0.5, 0.5, 8),
    share_of_episodes(0.1, 0.1, 64),
    share_of_episodes(0.2, 0.6, 64, drift=True),
    score_of_unknown_size(0.0, 1.0, draw_normal, "normal noise"),
    score_of_unknown_size(0.0, 0.3, draw_normal, "normal noise"),
    score_of_unknown_size(0.0, 0.3, draw_heavy_tails, "heavy tails"),
    score_of_unknown_size(0.0, 0.3, draw_drift, "drifting"),
    score_of_unknown_size(0.3, 0.3, draw_normal, "normal noise"),
    score_of_unknown_size(0.0, 0.0, draw_normal, "normal noise"),
)


def judge_healthy(scores: np.ndarray, episodes: int | None) -> list[Count]:
    """What the rule says of a curve at each of LENGTHS."""
    watch = Watch(None, episodes)
    collapsed = False
    counts = []
    with undated:
        for step, score in enumerate(scores):
            events = watch.step(step, {"success": float(score)})
            collapsed = collapsed or any(event.kind == "collapse" for event in events)
            if step + 1 in LENGTHS:
                counts.append(Count(collapsed, watch.verdict.outcome == "falling"))
    return counts


def measure(curve: HealthyCurve, runs: int, rng: np.random.Generator) -> list[str]:
    """One row of the table."""
    judged = [judge_healthy(curve.draw(rng, max(LENGTHS)), curve.episodes) for _ in range(runs)]
    by_length = list(zip(*judged, strict=True))
    collapsed = [share_collapsed(counts) for counts in by_length]
    falling = share(count.falling for count in by_length[-1])
    return [curve.name, *collapsed, falling]


def share_collapsed(counts: Iterable[Count]) -> str:
    """The share of runs that are called collapsed at one length."""
    return share(count.collapsed for count in counts)


def table(runs: int = RUNS, seed: int = SEED) -> str:
    """The table, one row a kind of curve, each with a random stream of its own."""
    streams = np.random.default_rng(seed).spawn(len(CURVES))
    rows = [measure(curve, runs, stream) for curve, stream in zip(CURVES, streams, strict=True)]
    header = ["curve that loses nothing"]
    header += [f"called collapsed within {length} steps" for length in LENGTHS]
    header.append(f"`falling` at step {max(LENGTHS)}")
    return markdown_table(header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="curves of each kind")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    print(table(options.runs, options.seed))

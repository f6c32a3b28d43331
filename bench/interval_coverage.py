"""How often the intervals of `sorl compare` hold the truth at few seeds: `python bench/interval_coverage.py`.

Prints two Markdown tables. Success: arms whose seeds are normal, with the interval of the mean and that of
the interquartile mean. Collapse-free steps: pairs of arms, equal or not, whose true difference is known.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import pandas as pd

from bench.collapse_rule import share
from sorl.analysis.stats import Estimate, interquartile_mean, mean_interval
from sorl.analysis.survival import restricted_mean_difference
from sorl.spec.markdown import markdown_table

ARMS = 1500
SEEDS_OF_SUCCESS = (3, 4, 5, 8, 10)
SEEDS_OF_COLLAPSE = (5, 10, 20)
INCIDENCES = ((0.2, 0.2), (0.5, 0.5), (0.8, 0.8), (0.8, 0.2))  # shares of runs that collapse in each arm
STEPS = 36
SUCCESS = 0.6
DEVIATION = 0.1  # of success between seeds
SEED = 2026


def holds(interval: Estimate, truth: float) -> bool:
    """Whether an interval holds the truth; an estimate without an interval does not."""
    return interval.low is not None and interval.high is not None and interval.low <= truth <= interval.high


def success_row(seeds: int, arms: int, rng: np.random.Generator) -> list[str]:
    """The coverage of both intervals of success, over so many arms of normal seeds."""
    values = rng.normal(SUCCESS, DEVIATION, (arms, seeds))
    mean = share(holds(mean_interval(arm), SUCCESS) for arm in values)
    iqm = share(holds(interquartile_mean([arm]), SUCCESS) for arm in values)
    return [str(seeds), mean, iqm]


def draw_arm(name: str, seeds: int, incidence: float, rng: np.random.Generator) -> pd.DataFrame:
    """Times to collapse of one arm: a share of the runs falls, at any step with the same probability."""
    event = rng.random(seeds) < incidence
    onset = rng.integers(1, STEPS, seeds)
    return pd.DataFrame({"arm": name, "time": np.where(event, onset, STEPS), "event": event})


def true_difference(incidence: float, incidence_of_reference: float) -> float:
    """The difference of the means of collapse-free steps: a collapse costs the steps behind its onset."""
    lost = STEPS - np.arange(1, STEPS).mean()
    return float((incidence_of_reference - incidence) * lost)


def collapse_row(
    seeds: int, incidences: tuple[float, float], pairs: int, rng: np.random.Generator
) -> list[str]:
    """How often the interval of the difference of two arms leaves out the true one."""
    of_reference, of_other = incidences
    truth = true_difference(of_other, of_reference)
    left_out = []
    without = 0
    for _ in range(pairs):
        reference = draw_arm("reference", seeds, of_reference, rng)
        other = draw_arm("other", seeds, of_other, rng)
        difference, _ = restricted_mean_difference(pd.concat([reference, other]), "reference")
        if difference.low is None:
            without += 1
        else:
            left_out.append(not holds(difference, truth))
    return [str(seeds), f"{100 * of_reference:g} and {100 * of_other:g} %", share(left_out), str(without)]


def tables(arms: int = ARMS, seed: int = SEED) -> str:
    """Both tables."""
    rng = np.random.default_rng(seed)
    success = [success_row(seeds, arms, rng) for seeds in SEEDS_OF_SUCCESS]
    cells = itertools.product(SEEDS_OF_COLLAPSE, INCIDENCES)
    collapses = [collapse_row(seeds, incidences, arms, rng) for seeds, incidences in cells]
    return "\n\n".join(
        [
            markdown_table(
                ("seeds", "interval of the mean holds it", "interval of the IQM holds it"), success
            ),
            markdown_table(
                ("seeds an arm", "runs that collapse", "interval leaves out the truth", "no interval"),
                collapses,
            ),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", type=int, default=ARMS, help="simulated arms, or pairs of arms, a row")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    print(tables(options.arms, options.seed))

"""How many seeds tell two arms apart: Schoenfeld's number of collapses, and the seeds that yield them.

Assumed: proportional hazards, arms of one size, every run trained to its end, a two-sided log-rank test. Where a share
p of the reference arm collapses within a run, a share 1 - (1 - p)^HR of the other arm then does. With fewer than ten
collapses or so, and with a hazard ratio far from 1, the numbers are a rough guide.
"""

from __future__ import annotations

import math

ALPHA = 0.05


def collapses_needed(hazard_ratio: float, power: float = 0.8, alpha: float = ALPHA) -> float:
    """Collapses, of both arms together, that show `hazard_ratio` with this power: 4 (z_{1-a/2} + z_power)^2 / log^2 HR.

    Schoenfeld's d = (z + z)^2 / (p1 p2 log^2 HR) at p1 = p2 = 1/2. Raises ValueError for a ratio that is not positive
    or is 1, and for a power or alpha outside (0, 1).
    """
    from scipy.stats import norm

    if hazard_ratio <= 0 or hazard_ratio == 1 or not (0 < power < 1 and 0 < alpha < 1):
        raise ValueError(f"no number of collapses for hazard ratio {hazard_ratio}, power {power}, alpha {alpha}")
    reach = float(norm.ppf(1 - alpha / 2) + norm.ppf(power))
    return 4 * (reach / math.log(hazard_ratio)) ** 2


def collapses_expected(hazard_ratio: float, incidence: float) -> float:
    """Collapses per seed of each arm: p of the reference and 1 - (1 - p)^HR of the other."""
    return incidence + 1 - (1 - incidence) ** hazard_ratio


def seeds_needed(hazard_ratio: float, incidence: float, power: float = 0.8, alpha: float = ALPHA) -> int:
    """Seeds per arm that yield `collapses_needed`, when a share `incidence` of the reference arm's runs collapses."""
    return math.ceil(collapses_needed(hazard_ratio, power, alpha) / collapses_expected(hazard_ratio, incidence) - 1e-9)


def power_of(seeds: int, hazard_ratio: float, incidence: float, alpha: float = ALPHA) -> float:
    """Probability that the test with `seeds` per arm finds `hazard_ratio`: Phi(sqrt(d / 4) |log HR| - z_{1-a/2})."""
    from scipy.stats import norm

    collapses = seeds * collapses_expected(hazard_ratio, incidence)
    shift = math.sqrt(collapses / 4) * abs(math.log(hazard_ratio))
    return float(norm.cdf(shift - norm.ppf(1 - alpha / 2)))


def detectable(seeds: int, incidence: float, power: float = 0.8, alpha: float = ALPHA) -> float:
    """The hazard ratio nearest to 1, below it, that `seeds` per arm find with this power."""
    from scipy.optimize import brentq

    def missing(log_ratio: float) -> float:
        return power_of(seeds, math.exp(log_ratio), incidence, alpha) - power

    # Power falls from 1 (log HR -> -inf) to alpha / 2 (log HR -> 0) and the log ratio has no natural end below.
    low = -1.0
    while missing(low) < 0:
        low *= 2
    return math.exp(float(brentq(missing, low, -1e-9)))

"""Advantages: their spread, their signs, and where the gradient they cause goes."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens, quotient
from workbench.spec import Alarm, Level, Unit

STEP, TRAJECTORY, TURN, UPDATE = Level.STEP, Level.TRAJECTORY, Level.TURN, Level.UPDATE


@diagnostic((TURN, TRAJECTORY), Unit.REWARD, "<A>_m", "this project", roll="tokens")
def advantage(t: Tokens, by: Segments) -> np.ndarray:
    """Mean advantage of the tokens, as trained on (after whitening, if any)."""
    return by.mean(t.advantage)


@diagnostic((UPDATE,), Unit.REWARD, "<A>_m", "verl (critic/advantages/mean)")
def advantage_mean(t: Tokens, by: Segments) -> np.ndarray:
    """Mean advantage of the tokens of the update."""
    return by.mean(t.advantage)


@diagnostic(
    (UPDATE, TURN, STEP),
    Unit.REWARD,
    "population std of A over tokens",
    "rlwatch (advantage variance)",
    alarms={STEP: Alarm("above", 3.0, "rlwatch: advantage std above 3 times its baseline", relative="baseline")},
)
def advantage_std(t: Tokens, by: Segments) -> np.ndarray:
    """Spread of the advantages of the tokens."""
    return by.std(t.advantage)


@diagnostic((UPDATE,), Unit.REWARD, "max |A|", "verl (critic/advantages/max, min)")
def advantage_abs_max(t: Tokens, by: Segments) -> np.ndarray:
    """Largest advantage of one token."""
    return by.maximum(np.abs(t.advantage))


@diagnostic((UPDATE,), Unit.FRACTION, "<1[A > 0]>_m", "arXiv 2510.18927 (BAPO)")
def advantage_positive_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens with a positive advantage."""
    return by.mean(t.advantage > 0)


@diagnostic((UPDATE,), Unit.FRACTION, "<1[A < 0]>_m", "arXiv 2510.18927 (BAPO)")
def advantage_negative_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens with a negative advantage; what is missing to 1 with the positive ones is exactly 0."""
    return by.mean(t.advantage < 0)


@diagnostic((UPDATE,), Unit.FRACTION, "<1[|A| < 0.01]>_m", "arXiv 2502.01600 (LOOP drops these)")
def advantage_zero_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens that teach nothing."""
    return by.mean(np.abs(t.advantage) < 0.01)


@diagnostic(
    (UPDATE,),
    Unit.FRACTION,
    "P / (P + Q), P = sum over A > 0 of min(r, 1.2) A, Q = sum over A < 0 of max(r, 0.8) |A|",
    "arXiv 2510.18927 (BAPO), at PPO's bounds",
)
def positive_advantage_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the surrogate's weight on what should become likelier; low = negative samples dominate."""
    good = by.total(np.where(t.advantage > 0, np.minimum(t.ratio, 1.2) * t.advantage, 0.0))
    bad = by.total(np.where(t.advantage < 0, np.maximum(t.ratio, 0.8) * -t.advantage, 0.0))
    return quotient(good, good + bad)


@diagnostic(
    (TURN,), Unit.FRACTION, "sum |d loss / d log_prob| of the turn / that of its update", "this project", roll="share"
)
def gradient_share(t: Tokens, by: Segments) -> np.ndarray:
    """Share of the update's gradient signal that comes from the turn: finds the culprit."""
    return quotient(by.total(t.weight), t.by_update.total(t.weight)[by.first(t.update)])

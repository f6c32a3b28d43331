"""Rules of reference.py for methods against staleness: surrogates of a token, and what is dropped.

As there: formulas of the papers as plain loops over floats, nothing of sorl imported.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from tests.learn.reference import Sequence_, Token

Slopes = list[tuple["Token", float]]  # derivatives by log-probs


class Loss(NamedTuple):
    """Loss of a token, its derivatives, and those without the clip."""

    value: float
    slopes: Slopes
    free: Slopes


def log_sampler_ratio(k: Token) -> float:
    """log pi_theta - log mu, clamped."""
    return min(max(k.log_prob - k.s.behaviour[k.t], -20.0), 20.0)


def by_sequence(tokens: list[Token]) -> list[list[Token]]:
    rows: dict[int, list[Token]] = {}
    for k in tokens:
        rows.setdefault(k.s.index, []).append(k)
    return list(rows.values())


def drop(clip: str, micro: list[Token]) -> None:
    """Say of each token of a micro-batch whether its loss is dropped."""
    for row in by_sequence(micro):
        fallen = math.fsum(-k.e for k in row) / len(row)
        farthest = max(log_sampler_ratio(k) ** 2 / 2 for k in row)
        for k in row:
            if clip == "opsm":
                k.dropped = k.a < 0 and fallen > 1e-4
            elif clip == "trm":
                k.dropped = farthest > 2.5
            elif clip == "tv_gate":
                moved = math.exp(k.log_prob) - math.exp(k.s.behaviour[k.t])
                k.dropped = (k.a > 0 and moved > 0.2) or (k.a < 0 and moved < -0.2)
    if clip == "m2po":
        drop_until_in_budget([k for k in micro if k.a * (k.r - 1) > 0], 0.04)


def drop_until_in_budget(judged: list[Token], budget: float) -> None:
    """Algorithm 1 of 2510.01161."""
    while judged and math.fsum(k.e**2 for k in judged) / len(judged) > budget:
        farthest = max(judged, key=lambda k: k.e**2)
        farthest.dropped = True
        judged = [k for k in judged if k is not farthest]


def surrogate(clip: str, k: Token, low: float, high: float) -> Loss:
    """Loss of a token; sets its ratio and flags."""
    if clip in ("trm", "tv_gate"):
        k.w = math.exp(log_sampler_ratio(k))
        inside = abs(k.log_prob - k.s.behaviour[k.t]) <= 20
        k.dw = [(k, k.w * inside)]
    if clip == "topr":
        return tapered(k)
    if clip == "aspo":
        return flipped(k, low, high)
    free = [(x, -k.a * d) for x, d in k.dw]
    k.low = k.dropped and k.a < 0
    k.high = k.dropped and k.a > 0
    if k.dropped:
        return Loss(0.0, [], free)
    if clip == "opsm" and k.a < 0 and k.w < low:
        k.low = True
        return Loss(-k.a * low, [], free)
    if clip == "opsm" and k.a > 0 and k.w > high:
        k.high = True
        return Loss(-k.a * high, [], free)
    return Loss(-k.a * k.w, free, free)


def tapered(k: Token) -> Loss:
    """TOPR: the log-prob with weight 1, or by the sequence's product ratio to the sampler, at most 1."""
    row = [x for x, _ in k.dw]
    k.w = math.exp(min(max(math.fsum(log_sampler_ratio(x) for x in row), -20.0), 20.0))
    k.dual = k.a < 0 and k.w > 1
    plain = k.w if k.a < 0 else 1.0
    weight = min(plain, 1.0)
    return Loss(-weight * k.a * k.log_prob, [(k, -weight * k.a)], [(k, -plain * k.a)])


def flipped(k: Token, low: float, high: float) -> Loss:
    """ASPO: the weight of the gradient is 1 / r for A > 0 and r for A < 0, capped at 3 on the log-prob."""
    k.low = k.a < 0 and k.w < low
    k.high = k.a > 0 and k.w > high
    weight = 1 / k.w if k.a > 0 else k.w
    k.dual = k.a != 0 and weight > 3
    free = [(k, -k.a * weight * k.open)]
    if k.dual:
        return Loss(-3 * k.a * k.log_prob, [(k, -3 * k.a)], free)
    if k.low:
        return Loss(-k.a * low, [], free)
    if k.high:
        return Loss(-k.a / high, [], free)
    return Loss(-k.a * weight, free, free)


# --- the proximal policy


def anchored(
    kind: str, batch: list[Sequence_], history: list[np.ndarray], phi: np.ndarray
) -> list[Sequence_]:
    """The sequences with the proximal policy's log-probs as the old ones.

    `average`: of the mean of the tables before each update, the one j updates ago weighing 0.889^j.
    `between`: 1 / d of the sampler's log-prob and the rest of the present one's, d the staleness, at least 1.
    """
    policy = history[-1] if kind == "between" else mean_table(history, 0.889)
    moved = []
    for s in batch:
        old = list(s.old)
        for t in s.written:
            at = policy[s.tokens[t - 1]]
            top = max(at)
            log_prob = at[s.tokens[t]] - top - math.log(math.fsum(math.exp(x - top) for x in at))
            own = 0.0 if kind == "average" else 1 / max(1, s.staleness)
            old[t] = own * s.behaviour[t] + (1 - own) * log_prob
        moved.append(replace(s, old=old))
    return moved


def mean_table(history: list[np.ndarray], decay: float) -> np.ndarray:
    """Mean of the tables, the newest first with weight 1."""
    weights = [decay**j for j in range(len(history))]
    total = sum(w * table for w, table in zip(weights, reversed(history), strict=True))
    return total / math.fsum(weights)

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


# --- advantages of turns


def z(x: float, peers: list[float], eps: float | None) -> float:
    """Less the mean of the peers, over their unbiased std + eps; 0 without another peer."""
    if len(peers) == 1:
        return 0.0
    centre = math.fsum(peers) / len(peers)
    if eps is None:
        return x - centre
    deviation = math.sqrt(math.fsum((y - centre) ** 2 for y in peers) / (len(peers) - 1))
    return (x - centre) / (deviation + eps)


def discounted(rewards: list[float], gamma: float) -> list[float]:
    """Sum of what comes from each turn on."""
    found = []
    total = 0.0
    for r in reversed(rewards):
        total = r + gamma * total
        found.append(total)
    return found[::-1]


def states(s: Sequence_) -> list[tuple[int, ...]]:
    """What was read before each turn, since the turn before it."""
    found = []
    begin = 0
    for turn in s.turns:
        found.append(tuple(s.tokens[begin : turn[0]]))
        begin = turn[-1] + 1
    return found


class Rollout(NamedTuple):
    """A sequence with what it earned: in each turn, and as a whole."""

    s: Sequence_
    earned: list[float]
    total: float


def sum_at(rewards: dict[int, float], places: list[int]) -> float:
    return math.fsum(rewards[t] for t in places)


def turn_advantages(kind: str, batch: list[Sequence_], rewards: list[dict[int, float]]) -> list[list[float]]:
    """Advantage of each turn of each sequence; `rewards` of its tokens hold the outcome."""
    rollouts = []
    for s, u in zip(batch, rewards, strict=True):
        earned = [sum_at(u, turn) for turn in s.turns]
        rollouts.append(Rollout(s, earned, math.fsum(earned) if u else s.score))
    made = []
    for own in rollouts:
        mine = [x for x in rollouts if x.s.group == own.s.group]
        outcome = own.total
        if len(mine) > 1:
            eps = {"gigpo": None, "a2tgpo": 1e-6}.get(kind, 1e-4)
            outcome = z(own.total, [x.total for x in mine], eps)
        of_turn = {"gigpo": of_state, "igpo": of_gains, "a2tgpo": of_scaled}.get(kind, of_process)
        extra = [of_turn(kind, k, own, mine) for k in range(len(own.s.turns))]
        made.append([x if kind == "igpo" else outcome + x for x in extra])
    return made


def of_state(kind: str, k: int, own: Rollout, mine: list[Rollout]) -> float:
    """GiGPO: the return from turn k on against turns of the group in the same state."""
    peers = []
    for x in mine:
        returns = discounted(x.earned, 0.95)
        peers += [q for q, state in zip(returns, states(x.s), strict=True) if state == states(own.s)[k]]
    return z(discounted(own.earned, 0.95)[k], peers, None)


def of_process(kind: str, k: int, own: Rollout, mine: list[Rollout]) -> float:
    """MT-GRPO: process rewards from turn k on, each against those of its index, or their sum against sums."""
    if kind == "mt_grpo_fixed":
        sums = [discounted(x.s.process, 1.0) for x in mine if len(x.s.turns) > k]
        return z(discounted(own.s.process, 1.0)[k], [x[k] for x in sums], 1e-4)
    total = 0.0
    for later in range(k, len(own.s.turns)):
        peers = [x.s.process[later] for x in mine if len(x.s.turns) > later]
        total += z(own.s.process[later], peers, 1e-4)
    return total


def of_scaled(kind: str, k: int, own: Rollout, mine: list[Rollout]) -> float:
    """A2TGPO: process rewards but the last turn's, each against its index, over the root of their number."""
    gains = []
    for later in range(len(own.s.turns) - 1):
        peers = [x.s.process[later] for x in mine if len(x.s.turns) > later + 1]
        gains.append(z(own.s.process[later], peers, 1e-6))
    own.s.gains = [*gains, 0.0]
    return math.fsum(gains[k:]) / math.sqrt(max(1, len(gains[k:])))


def of_gains(kind: str, k: int, own: Rollout, mine: list[Rollout]) -> float:
    """IGPO: rewards of turns, the outcome at the last, against all of the group, from turn k on."""
    everything = []
    for x in mine:
        everything += [*x.s.process[:-1], x.total] if x.s.turns else []
    return math.fsum(z(r, everything, 1e-6) for r in [*own.s.process[:-1], own.total][k:])


def token_advantages(batch: list[Sequence_], rewards: list[dict[int, float]]) -> list[dict[int, float]]:
    """The optimal token baseline of 2602.07078, at the n-th written token of each sequence."""
    energies = []
    returns = []
    for s, u in zip(batch, rewards, strict=True):
        scores = [1 - 2 * math.exp(s.old[t]) + s.squares[t] for t in s.written]
        energies.append([math.fsum(scores[: n + 1]) for n in range(len(scores))])
        returns.append(discounted([u[t] for t in s.written], 1.0))
    made = []
    for i, s in enumerate(batch):
        peers = [j for j, x in enumerate(batch) if x.group == s.group and x.written]
        made.append({})
        for n, t in enumerate(s.written):
            at = [j for j in peers if len(returns[j]) > n]
            weight = math.fsum(energies[j][n] for j in at)
            baseline = math.fsum(returns[j][n] * energies[j][n] for j in at) / (weight + 1e-8)
            made[-1][t] = returns[i][n] - (0.0 if at == [i] else baseline)
    return made


def rate_factor(tokens: list[Token]) -> float:
    """VCPO: root of the effective share of sequences, by their product ratios to the sampler."""
    if not tokens:
        return 1.0
    weights = []
    for row in by_sequence(tokens):
        moved = math.fsum(k.log_prob - k.s.behaviour[k.t] for k in row)
        weights.append(math.exp(min(max(moved, -20.0), 20.0)))
    effective = math.fsum(weights) ** 2 / math.fsum(w * w for w in weights)
    return math.sqrt(effective / len(weights))


def sequence_weight(s: Sequence_) -> float:
    """Product over the sequence of pi_old / mu, each and all clamped."""
    moves = [min(max(s.old[t] - s.behaviour[t], -20.0), 20.0) for t in s.written]
    return math.exp(min(max(math.fsum(moves), -20.0), 20.0))

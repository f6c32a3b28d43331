"""The training step once more, as plain loops over floats: advantages, losses with gradients, SGD and
columns.

Formulas are those of the papers and of docs/diagnostics.md; nothing of sorl is imported. The policy is a
table of logits by the token before, theta[a][v], and the critic a table of values, phi[a]: d log p(b | a) / d
theta[a][v] = 1[v = b] - p(v | a), so every gradient is known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tests.learn import methods

PPO = (0.8, 1.2)
EVERYTHING = (0.0, math.inf)
CRITICS = ("gae", "turn_mean", "turn_gae", "bilevel")
Columns = dict[str, float | None]


@dataclass(frozen=True)
class Rule:
    """What an algorithm does, by names of formulas.

    `clip`: ppo, weight (CISPO), mask (MiniRL), tv (DPPO), sigmoid (SAPO), log (GMPO), gamma (VESPO), bapo,
    band (SSPO) or none; or one of methods.py: opsm, trm, m2po, tv_gate (prime-rl), topr, aspo.
    """

    advantage: str
    discounts: tuple[float, float] = (1.0, 1.0)  # gamma and lambda of GAE
    level: str = "token"  # token, turn, sentence, sequence, none (a ratio of 1)
    arithmetic: bool = False  # the mean of a unit
    shared: bool = True  # the gradient flows through the mean of the unit
    clip: str = "ppo"
    bounds: tuple[float, float] = PPO
    dual: float | None = None
    unit_gate: bool = False
    guard: str = ""  # center, full
    aggregate: str = "token_mean"
    stabilise: str = ""  # batch, sequence, cnorm, subtract, kl
    weight: float = 1.0  # lambda of kl
    omega: str = ""  # tis, mis, icepop, free, sequence (VCPO)
    extra: str = ""  # lld, positive, square
    kl: str = ""  # reward, loss: asked for beside the algorithm
    select: str = ""  # spread, unequal, large, void
    overlong: tuple[float, float] | None = None  # limit and margin of DAPO's penalty
    horizon: float = 1.0  # tokens that divide, of the aggregate constant
    skip: float | None = None  # LOOP's limit on the mean log-ratio of a trajectory
    last_turn_first: bool = False  # SeeUPO
    scaled_rate: bool = False  # VCPO
    proximal: str = ""  # average (PPO-EWMA), between (A-3PO)
    beta: float = 0.05
    tau: float = 3.0


@dataclass(eq=False)
class Sequence_:
    """A trajectory: lists along its tokens."""

    index: int
    group: int
    score: float
    tokens: list[int]
    mask: list[bool]
    sentence: list[int]
    old: list[float]
    behaviour: list[float]
    reference: list[float]
    values: list[float]  # V_old
    staleness: int  # policy versions since it was sampled
    squares: list[float]  # sum over the vocabulary of the squared old probabilities
    gains: list[float]  # of each turn, for A2TGPO's clip
    process: list[float]  # reward of each turn
    void: list[bool]  # of each turn: neither a tool call nor an answer
    first: int = 1  # number of the first turn that is written
    advantage: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    @property
    def written(self) -> list[int]:
        return [t for t, m in enumerate(self.mask) if m]

    @property
    def turns(self) -> list[list[int]]:
        """Maximal stretches of written tokens."""
        found: list[list[int]] = []
        for t in self.written:
            if found and found[-1][-1] == t - 1:
                found[-1].append(t)
            else:
                found.append([t])
        return found


# --- means


def mean(xs: Sequence[float]) -> float | None:
    return math.fsum(xs) / len(xs) if xs else None


def spread(xs: Sequence[float]) -> float | None:
    """Population standard deviation."""
    return float(np.std(xs)) if xs else None


def variance(xs: Sequence[float]) -> float | None:
    """Unbiased."""
    return float(np.var(xs, ddof=1)) if len(xs) > 1 else None


def spread_of_sample(xs: Sequence[float]) -> float:
    return math.sqrt(variance(xs) or 0.0)


def quantile(xs: Sequence[float], q: float) -> float | None:
    return float(np.quantile(xs, q)) if xs else None


def ratio_of(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def norm(g: np.ndarray) -> float:
    return float(np.linalg.norm(g))


def k3(x: float) -> float:
    """exp(x) - 1 - x with x within +-20."""
    x = clamp(x, -20, 20)
    return max(math.expm1(x) - x, 0.0)


# --- before the updates: selection, advantages


def prepare(rule: Rule, batch: list[Sequence_]) -> None:
    """Fill advantages and returns; sequences that are not selected lose their mask."""
    groups: dict[int, list[Sequence_]] = {}
    for s in batch:
        groups.setdefault(s.group, []).append(s)
    if rule.select == "spread":  # the quarter of the groups whose rewards spread most, at least one
        width = {g: spread_of_sample([s.score for s in ss]) for g, ss in groups.items()}
        order = sorted(sorted(width), key=lambda g: -width[g])
        kept = {g for g in order[: max(1, int(0.25 * len(order)))] if width[g] > 0}
        for s in batch:
            s.mask = [m and s.group in kept for m in s.mask]
    if rule.select == "unequal":
        for s in batch:
            told = [x.score for x in groups[s.group]]
            s.mask = [m and (len(told) == 1 or len(set(told)) > 1) for m in s.mask]
    rewards: list[dict[int, float]] = []
    totals: list[float] = []
    for s in batch:
        u = dict.fromkeys(s.written, 0.0)
        total = s.score
        if rule.overlong:
            limit, margin = rule.overlong
            total += clamp((limit - margin - len(u)) / margin, -1, 0)
        if u:
            u[s.written[-1]] += total
        if rule.kl == "reward":
            for t in u:
                penalty = rule.beta * clamp(s.old[t] - s.reference[t], -20, 20)
                u[t] -= penalty
                total -= penalty
        rewards.append(u)
        totals.append(total)
    raw: list[dict[int, float]] = []
    for s, u, total in zip(batch, rewards, totals, strict=True):
        if rule.advantage in ("gae", "turn_mean"):
            a = gae(s.written, u, s.values, *rule.discounts)
        elif rule.advantage == "turn_gae":
            paid = {turn[0]: math.fsum(u[t] for t in turn) for turn in s.turns}
            of_turns = gae(list(paid), paid, s.values, *rule.discounts)
            a = {t: of_turns[turn[0]] for turn in s.turns for t in turn}
        elif rule.advantage == "bilevel":
            ends = [turn[-1] for turn in s.turns]
            between = gae(ends, u, s.values, 0.95, rule.discounts[1])
            a = {}
            for turn in s.turns:
                a |= gae(
                    turn, u | {turn[-1]: between[turn[-1]] + s.values[turn[-1]]}, s.values, *rule.discounts
                )
        elif rule.advantage == "turn_by_turn":
            a = {
                t: of_turn_alone(batch, totals, h)[s.index] for h, turn in enumerate(s.turns, 1) for t in turn
            }
        elif rule.advantage == "otb":
            a = methods.token_advantages(batch, rewards)[len(raw)]
        elif rule.advantage in ("gigpo", "mt_grpo", "mt_grpo_fixed", "igpo", "a2tgpo"):
            a = {}
            for x, turn in zip(
                methods.turn_advantages(rule.advantage, batch, rewards)[len(raw)], s.turns, strict=True
            ):
                a |= dict.fromkeys(turn, x)
        elif rule.advantage == "reinforce_pp":
            a = {t: math.fsum(u[later] for later in u if later >= t) for t in u}
        else:
            mine = groups[s.group] if rule.advantage != "batch_mean" else [x for x in batch if x.written]
            rest = [totals[batch.index(x)] for x in mine]
            centre = math.fsum(rest) / len(rest)
            deviation = spread_of_sample(rest)
            if len(mine) == 1 or s not in mine:
                value = total
            elif rule.advantage == "grpo":
                value = (total - centre) / (deviation + 1e-6)
            elif rule.advantage == "rloo":
                value = total - (math.fsum(rest) - total) / (len(rest) - 1)
            else:
                value = total - centre
            a = dict.fromkeys(s.written, value)
        raw.append(a)
        # read where the critic has a target
        s.returns = [a.get(t, 0.0) + value for t, value in enumerate(s.values)]
    if rule.advantage in ("gae", "turn_mean", "bilevel", "reinforce_pp"):
        every = [x for a in raw for x in a.values()]
        centre = mean(every) or 0.0
        var = variance(every) or 0.0
        raw = [{t: (x - centre) / math.sqrt(var + 1e-8) for t, x in a.items()} for a in raw]
    for s, a in zip(batch, raw, strict=True):
        if rule.advantage == "turn_mean":
            a = {t: math.fsum(a[x] for x in turn) / len(turn) for turn in s.turns for t in turn}
        s.advantage = [a.get(t, 0.0) for t in range(len(s.tokens))]
        if rule.select == "void" and any(s.void):
            s.mask = [False] * len(s.mask)
        if rule.select == "large" and max(map(abs, a.values()), default=0.0) < 0.01:
            s.mask = [False] * len(s.mask)


def of_turn_alone(batch: list[Sequence_], totals: list[float], h: int) -> dict[int, float]:
    """SeeUPO's advantages of turn h: less the mean of the group, whitened, both over those who have that
    turn.
    """
    here = [(s, total) for s, total in zip(batch, totals, strict=True) if len(s.turns) >= h]
    centred = {}
    for s, total in here:
        own = [x for other, x in here if other.group == s.group]
        centred[s.index] = total - (math.fsum(own) / len(own) if len(own) > 1 else 0.0)
    xs = list(centred.values())
    centre = mean(xs) or 0.0
    deviation = spread_of_sample(xs)
    none = 1e-12 * max(map(abs, xs))
    scale = deviation if deviation > 1e-6 else 1.0
    return {
        i: 0.0 if abs(x - centre) <= none else clamp((x - centre) / scale, -3, 3) for i, x in centred.items()
    }


def gae(
    steps: list[int], u: dict[int, float], values: list[float], gamma: float, lam: float
) -> dict[int, float]:
    """A_t = d_t + gamma lam A_next, d_t = u_t + gamma V_next - V_t over the positions `steps`."""
    found: dict[int, float] = {}
    beyond_value = beyond = 0.0
    for t in reversed(steps):
        beyond = u[t] + gamma * beyond_value - values[t] + gamma * lam * beyond
        found[t] = beyond
        beyond_value = values[t]
    return found


# --- the loss of a micro-batch


@dataclass(eq=False)
class Token:
    """One written token in an update; lists of (token, derivative) are by log-probs of the micro-batch's
    tokens.
    """

    s: Sequence_
    t: int
    turn: int
    log_p: list[float]  # of the vocabulary
    log_prob: float
    entropy: float
    value: float
    a: float = 0.0
    delta: float = 0.0
    e: float = 0.0  # the log-ratio that is pooled
    open: float = 1.0  # d e / d log-prob
    r: float = 1.0
    w: float = 1.0
    dw: list[tuple[Token, float]] = field(default_factory=list)
    low: bool = False
    high: bool = False
    dual: bool = False
    out: bool = False
    dropped: bool = False  # by methods.drop
    omega: float | None = None
    corrected: bool = False
    factor: float = 1.0
    rho: float | None = None
    pull: float = 0.0  # d loss / d log-prob
    clipped: float = 0.0  # of the surrogate before the factor
    free: float = 0.0  # of the surrogate without a clip

    @cached_property
    def p(self) -> list[float]:
        return [math.exp(x) for x in self.log_p]

    def mismatch(self) -> float:
        return self.s.old[self.t] - self.s.behaviour[self.t]

    def doubt(self) -> float:
        """1 - p by the trainer, and a little."""
        return -math.expm1(min(0.0, self.s.old[self.t])) + 1e-3


class Counts:
    """A minibatch, and what it divides by: its tokens, sequences, turns, and tokens of sequences with a good
    advantage.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.minibatch = tokens
        seen = list({id(k.s): k.s for k in tokens}.values())
        good = sum(len(s.written) for s in seen if math.fsum(s.advantage[t] for t in s.written) >= 0)
        found = len(tokens), len(seen), sum(len(s.turns) for s in seen), good
        self.tokens, self.sequences, self.turns, self.good = (max(1, n) for n in found)


def look(batch: list[Sequence_], theta: np.ndarray, phi: np.ndarray) -> list[Token]:
    """The written tokens of `batch` under the policy and the critic as they are."""
    found = []
    for s in batch:
        for turn, t in ((k, t) for k, places in enumerate(s.turns, s.first) for t in places):
            z = theta[s.tokens[t - 1]]
            top = max(z)
            total = math.fsum(math.exp(x - top) for x in z)
            log_p = [x - top - math.log(total) for x in z]
            entropy = -math.fsum(math.exp(x) * x for x in log_p)
            k = Token(s, t, turn, log_p, log_p[s.tokens[t]], entropy, phi[s.tokens[t - 1]], s.advantage[t])
            k.delta = k.log_prob - s.old[t]
            k.e = clamp(k.delta, -20, 20)
            k.open = float(abs(k.delta) <= 20)
            k.r = math.exp(k.e)
            found.append(k)
    return found


def by(tokens: list[Token], key: Callable[[Token], Any]) -> list[list[Token]]:
    found: dict[Any, list[Token]] = {}
    for k in tokens:
        found.setdefault(key(k), []).append(k)
    return list(found.values())


def sequences(tokens: list[Token]) -> list[list[Token]]:
    return by(tokens, lambda k: k.s.index)


def turns(tokens: list[Token]) -> list[list[Token]]:
    return by(tokens, lambda k: (k.s.index, k.turn))


def losses(rule: Rule, micro: list[Token], whole: Counts) -> tuple[float, float, list[float]]:
    """Fill ratios, flags and derivatives of a micro-batch; its policy loss, its KL loss, and the four
    energies.
    """
    if rule.guard:
        everything = [k.e for k in micro]
        for column in by(micro, lambda k: k.turn):
            own = [k.e for k in column]
            if len(own) > 1:
                m = math.fsum(own) / len(own)
                scale = (
                    max(spread(everything) or 0, 1e-3) / max(spread(own) or 0, 1e-3)
                    if rule.guard == "full"
                    else 1
                )
                for k in column:
                    moved = scale * (k.e - m)
                    k.e = clamp(moved, -20, 20)
                    k.open = k.open * scale * (abs(moved) <= 20)

    def unit_of(k: Token) -> tuple[int, int]:
        return k.s.index, {"turn": k.turn, "sequence": 0, "sentence": k.s.sentence[k.t]}.get(rule.level, k.t)

    low, high = rule.bounds
    if rule.clip == "bapo":
        low, high = _bapo(whole.minibatch)
    methods.drop(rule.clip, micro)
    surprisal = mean([-k.s.old[k.t] for k in micro]) or 0.0
    value: dict[int, tuple[float, list[tuple[Token, float]], list[tuple[Token, float]]]] = {}
    for unit in by(micro, unit_of):
        n = len(unit)
        m = math.fsum(k.e for k in unit) / n
        sign = math.fsum(k.a for k in unit) / n
        if rule.clip == "band":
            relative = (
                math.fsum(-k.s.old[k.t] for k in unit) / n / max(surprisal, 1e-12) if surprisal > 0 else 1.0
            )
            low = 1 - 0.2 * clamp(relative, 0.5, 2.0)
            high = 1 + 0.2 * clamp(relative, 0.5, 2.0)
        if rule.clip == "gain":
            gain = unit[0].s.gains[unit[0].turn - 1]
            low = 1 - 0.2 * (1 + 0.3 * math.tanh(gain / 2))  # 2 sigmoid(x) - 1 = tanh(x / 2)
            high = 1 + 0.2 * (1 + 0.3 * math.tanh(gain / 2))
        for k in unit:
            if rule.level == "none":
                k.w = 1.0
                k.dw = [(k, 1.0)]
            elif rule.arithmetic:
                k.w = math.fsum(x.r for x in unit) / n
                k.dw = [(x, x.r * x.open / n) for x in unit]
            else:
                product = rule.clip in ("gamma", "topr")
                k.w = math.exp(clamp(m * n, -20, 20)) if product else math.exp(m)
                k.dw = [(x, k.w * x.open / n) for x in unit] if rule.shared else [(k, k.w * k.open)]
            if rule.clip == "log":  # of all tokens, before the first of them is looked at
                k.low = k.a < 0 and k.e < low
                k.high = k.a > 0 and k.e > high
        for k in unit:
            value[id(k)] = _surrogate(rule, k, unit, sign if rule.unit_gate else k.a, low, high)
    for k in micro:
        band = (math.exp(low), math.exp(high)) if rule.clip == "log" else rule.bounds
        k.out = not band[0] <= k.r <= band[1]
    energies = [0.0, 0.0, 0.0, 0.0]
    for k in micro:
        place = 0 if k.out else 2
        energies[place] += 1
        energies[place + 1] += (k.r * k.a) ** 2
    for unit in {"batch": [micro], "sequence": sequences(micro)}.get(rule.stabilise, []):
        out, kept = ([(k.r * k.a) ** 2 for k in unit if k.out is side] for side in (True, False))
        c, n = (math.sqrt(math.fsum(x) / len(x)) if x else 0.0 for x in (out, kept))
        rho = c / ((1.0 if c > 0 and n == 0 else n) + 1e-8)
        for k in unit:
            k.rho = rho
            k.factor = 1 / rho if rho > rule.tau else 1.0
    policy = 0.0
    for k in micro:
        weight = _weight(rule, k, whole)
        if rule.omega:
            omega = math.exp(clamp(k.mismatch(), -20, 20))
            if rule.omega == "sequence":
                omega = methods.sequence_weight(k.s)
            kept = {
                "tis": min(omega, 2.0),
                "free": omega,
                "sequence": min(omega, 8.0),
                "mis": omega if omega <= 2 else 0.0,
                "icepop": omega if 0.5 <= omega <= 5 else 0.0,
            }[rule.omega]
            k.omega = kept
            k.corrected = kept != omega
        weight *= 1.0 if k.omega is None else k.omega
        v, dv, free = value[id(k)]
        policy += weight * k.factor * v
        for x, d in dv:
            x.pull += weight * k.factor * d
            x.clipped += weight * d
        for x, d in free:
            x.free += weight * d
    return policy, _beside(rule, micro, whole), energies


def _weight(rule: Rule, k: Token, n: Counts) -> float:
    """1 / N, or the share of the token in its sequence or turn."""
    turn = len(k.s.turns[k.turn - k.s.first])
    return {
        "token_mean": 1 / n.tokens,
        "seq_mean_token_mean": 1 / (n.sequences * len(k.s.written)),
        "seq_mean_token_sum": 1 / n.sequences,
        "turn_mean_global": 1 / (turn * n.turns),
        "turn_mean": 1 / (turn * len(k.s.turns) * n.sequences),
        "constant": 1 / (n.sequences * rule.horizon),
    }[rule.aggregate]


def _surrogate(
    rule: Rule, k: Token, unit: list[Token], sign: float, low: float, high: float
) -> tuple[float, list[tuple[Token, float]], list[tuple[Token, float]]]:
    """Loss of the token, its derivatives, and those without the clip; sets the flags."""
    free = [(x, -k.a * d) for x, d in k.dw]
    if rule.clip in ("opsm", "trm", "m2po", "tv_gate", "topr", "aspo"):
        return methods.surrogate(rule.clip, k, low, high)
    if rule.clip in ("ppo", "band", "bapo", "gain"):
        k.low = sign < 0 and k.w < low
        k.high = sign > 0 and k.w > high
        k.dual = rule.dual is not None and sign < 0 and k.w > rule.dual
        if k.low or k.high or k.dual:
            kept = low if k.low else high if k.high else float(rule.dual or 0)
            return -k.a * kept, [], free
        return -k.a * k.w, free, free
    if rule.clip == "log":
        n = len(unit)
        w = math.exp(math.fsum(clamp(x.e, low, high) if x.low or x.high else x.e for x in unit) / n)
        k.w = w
        return -k.a * w, [(x, -k.a * w * x.open / n) for x in unit if not (x.low or x.high)], free
    if rule.clip == "sigmoid":
        tau = 1.0 if k.a > 0 else 1.05
        p = 1 / (1 + math.exp(-tau * (k.w - 1)))
        own = [(x, -k.a * 4 * p * (1 - p) * d) for x, d in k.dw]
        return -k.a * 4 / tau * p, own, own
    if rule.clip == "none":
        return -k.a * k.w, free, free
    plain = k.w  # the weight of the log-prob, detached
    if rule.clip == "weight":
        weight = clamp(k.w, low, high)
    elif rule.clip == "tv":  # by the probability under the sampler, and weighed against it
        k.w = math.exp(clamp(k.log_prob - k.s.behaviour[k.t], -20, 20))
        moved = math.exp(k.log_prob) - math.exp(k.s.behaviour[k.t])
        k.low = k.a < 0 and moved < -0.2
        k.high = k.a > 0 and moved > 0.2
        k.dual = k.w > 20 and not (k.low or k.high)
        plain = min(k.w, 20.0)
        weight = 0.0 if k.low or k.high else plain
    elif rule.clip == "mask":
        k.low = k.a < 0 and k.w < low
        k.high = k.a > 0 and k.w > high
        weight = 0.0 if k.low or k.high else k.w
    else:  # gamma, with W against the sampler
        moves = [x.e + clamp(x.mismatch(), -20, 20) for x in unit]
        log_w = clamp(math.fsum(moves), math.log(1e-8), 20)
        power, lam = (2.0, 3.0) if k.a >= 0 else (3.0, 2.0)
        weight = plain = math.exp(lam + power * log_w - lam * math.exp(log_w))
    return -weight * k.a * k.log_prob, [(k, -weight * k.a)], [(k, -plain * k.a)]


def _bapo(minibatch: list[Token]) -> tuple[float, float]:
    """Raise the lower bound, then the upper one, until positive advantages have half of the weight."""
    steps = (
        [(0.6 + 0.05 * i, 1.2) for i in range(6)] + [(0.9, 1.2)] + [(0.9, 1.2 + 0.05 * i) for i in range(36)]
    )
    for low, high in steps:
        p = math.fsum(min(k.r, high) * k.a for k in minibatch if k.a > 0)
        q = math.fsum(max(k.r, low) * -k.a for k in minibatch if k.a < 0)
        if p >= 0.5 * (p + q):
            return low, high
    return 0.9, 3.0


def _beside(rule: Rule, micro: list[Token], n: Counts) -> float:
    """What a KL term or a guard of good responses adds to the loss; its derivatives go into `pull`."""
    total = 0.0
    for own in sequences(micro):
        share = mean([k.out for k in own]) if rule.stabilise == "kl" else 0.0
        good = math.fsum(k.a for k in own) >= 0
        less_likely = math.fsum(-k.delta for k in own) > 0
        for k in own:
            if rule.kl == "loss":
                x = clamp(k.log_prob - k.s.reference[k.t], -20, 20)
                at = math.expm1(-x) + x
                total += rule.beta * min(at, 10.0) / n.tokens
                k.pull += rule.beta * (1 - math.exp(-x)) / n.tokens if at < 10 and abs(x) < 20 else 0.0
            if share:  # of KL(theta, old): r d - r + 1, and its derivative r d
                k.pull += rule.weight * share * k.r * k.e * k.open / (len(own) * n.sequences)
            if rule.extra == "square":
                x = k.log_prob - k.s.behaviour[k.t]
                total += 1e-3 * clamp(x, -20, 20) ** 2 / n.tokens
                k.pull += 1e-3 * 2 * x * (abs(x) <= 20) / n.tokens
            if rule.extra == "lld" and good and less_likely and k.delta < 0:
                total += 0.2 * -k.delta / n.tokens
                k.pull -= 0.2 / n.tokens
            if rule.extra == "positive" and good and k.delta <= 0:
                total += 0.1 * min(-k.delta, 20) / n.good
                k.pull -= 0.1 * (k.delta >= -20) / n.good
    return total


def pulled(tokens: list[Token], pull: Callable[[Token], float], size: int) -> np.ndarray:
    """Sum of pull x d log-prob / d theta."""
    g = np.zeros((size, size))
    for k in tokens:
        before = k.s.tokens[k.t - 1]
        x = pull(k)
        g[before] -= x * np.array(k.p)
        g[before, k.s.tokens[k.t]] += x
    return g


# --- an update


@dataclass
class Update:
    """What one update saw and did."""

    tokens: list[Token]
    scalars: Columns
    value_clip: float | None


class Trainer:
    """The tables and what they remember between updates."""

    def __init__(self, rule: Rule, theta: list[list[float]], phi: list[float], settings: Any) -> None:
        self.rule = rule
        self.theta = np.array(theta)
        self.phi = np.array(phi)
        self.settings = settings
        self.updates = 0
        self.history = [self.theta]  # the table before each update
        self.skipped = False  # whether the last step was left out
        self.before: np.ndarray | None = None  # gradient of the last probe

    def update(self, batch: list[Sequence_]) -> Update:
        rule = self.rule
        settings = self.settings
        size = len(self.theta)
        if rule.proximal:
            batch = methods.anchored(rule.proximal, batch, self.history, self.phi)
        told = self._probe(batch) if self.updates % settings.probe_every == 0 else {}
        n = settings.micro_batch or len(batch)
        lr = settings.policy.lr
        most = settings.policy.max_grad_norm
        parts = [look(batch[i : i + n], self.theta, self.phi) for i in range(0, len(batch), n)]
        tokens = [k for part in parts for k in part]
        whole = Counts(tokens)
        policy = kl = 0.0
        energy = [0.0] * 4
        for part in parts:
            found, beside, energies = losses(rule, part, whole)
            policy = policy + found
            kl = kl + beside
            energy = [x + y for x, y in zip(energy, energies, strict=True)]
        g = pulled(tokens, lambda k: k.pull, size)
        for k in tokens:
            slope = -np.array(k.p) * (np.array(k.log_p) + k.entropy)
            g[k.s.tokens[k.t - 1]] -= settings.entropy_coef * slope / whole.tokens
        # Of J = -loss, to be made large.
        free = pulled(tokens, lambda k: -k.free, size)
        bias = pulled(tokens, lambda k: k.clipped - k.free, size)
        factor = None
        if rule.stabilise in ("batch", "sequence"):
            factor = mean([k.factor for k in tokens]) if tokens else 1.0
        if rule.stabilise == "cnorm":
            factor = 1 / max(norm(bias), 1.0)
            g = g * factor
        if rule.stabilise == "subtract":
            g = g + bias  # -(grad J - C)
        if rule.scaled_rate:
            lr = lr * methods.rate_factor(tokens)
        length = norm(g)
        after = length if most is None else min(length, most)
        told |= {
            "grad_norm": length,
            "grad_norm_after": after,
            "policy_loss": policy,
            "kl_loss": kl,
            "lr": lr,
            "stabiliser_factor": factor,
            "non_finite": 0,
            "stabiliser_ratio": (
                max((k.rho for k in tokens if k.rho is not None), default=0.0)
                if rule.stabilise in ("batch", "sequence")
                else None
            ),
            "clipped_rms": math.sqrt(energy[1] / max(1, energy[0])),
            "unclipped_rms": math.sqrt(energy[3] / max(1, energy[2])),
        }
        if self.updates % settings.clip_bias_every == 0 or rule.stabilise in ("cnorm", "subtract"):
            c = norm(bias)
            all_of_it = norm(free)
            c = c if c > 1e-13 * all_of_it else 0.0  # nothing was clipped, and the two differ by rounding
            told |= {
                "clip_bias_norm": c,
                "clip_bias_ratio": c / all_of_it if all_of_it else None,
                "clip_bias_cosine": float((bias * free).sum()) / (c * all_of_it) if c and all_of_it else None,
            }
        told |= self._critic(tokens)
        gone = math.fsum(k.delta for k in tokens) / max(1, len(sequences(tokens)))
        self.skipped = rule.skip is not None and abs(gone) > rule.skip
        if self.skipped:
            told["grad_norm_after"] = 0.0
        else:
            self.theta = self.theta - lr * (after / length if length else 1.0) * g
        self.updates += 1
        self.history.append(self.theta)
        return Update(tokens, told, settings.value_clip)

    def parts(self, batch: list[Sequence_]) -> Iterator[list[Sequence_]]:
        """What is trained on, one after the other: the batch, or SeeUPO's turns, the last first.

        Each turn has the policy that its training begins with as the old one, and advantages times M, how
        much likelier the training on the later turns made these.
        """
        if not self.rule.last_turn_first:
            yield batch
            return
        m = dict.fromkeys((s.index for s in batch), 1.0)
        for h in range(max(len(s.turns) for s in batch), 0, -1):
            old = {(k.s.index, k.t): k.log_prob for k in look(batch, self.theta, self.phi)}
            part = [
                replace(
                    s,
                    mask=[t in s.turns[h - 1] for t in range(len(s.tokens))],
                    first=h,
                    old=[old.get((s.index, t), 0.0) for t in range(len(s.tokens))],
                    advantage=[m[s.index] * x for x in s.advantage],
                )
                for s in batch
                if len(s.turns) >= h
            ]
            yield part
            for own in sequences(look(part, self.theta, self.phi)):
                moved = math.exp(clamp(math.fsum(k.delta for k in own) / len(own), -10, 10))
                m[own[0].s.index] = clamp(m[own[0].s.index] * clamp(moved, 0.8, 1.2), 0.8, 1.2)

    def _critic(self, tokens: list[Token]) -> Columns:
        if self.rule.advantage not in CRITICS:
            return {}
        where = targets(self.rule, tokens)
        total = 0.0
        g = np.zeros(len(self.phi))
        for k in where:
            old = k.s.values[k.t]
            goal = k.s.returns[k.t]
            width = self.settings.value_clip
            error = (k.value - goal) ** 2
            slope = k.value - goal
            if width is not None:
                near = old + clamp(k.value - old, -width, width)
                if (near - goal) ** 2 > error and abs(k.value - old) > width:
                    error = (near - goal) ** 2
                    slope = 0.0
            total += 0.5 * error / len(where)
            g[k.s.tokens[k.t - 1]] += slope / len(where)
        clipped = min(1.0, (self.settings.critic.max_grad_norm or math.inf) / max(norm(g), 1e-300))
        self.phi = self.phi - self.settings.critic.lr * clipped * g
        return {"value_loss": total, "critic_grad_norm": norm(g)}

    def _probe(self, batch: list[Sequence_]) -> Columns:
        """Four parts of the minibatch, as one micro-batch and before anything is trained."""
        tokens = look(batch, self.theta, self.phi)
        if not tokens:
            return {}
        losses(self.rule, tokens, Counts(tokens))
        trained = sequences(tokens)
        size = len(self.theta)
        n = len(trained)
        sizes = [n // 4 + (i < n % 4) for i in range(4)]
        parts = [trained[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(min(4, n))]
        made = [pulled([k for s in part for k in s], lambda k: k.pull, size) for part in parts]
        total = pulled(tokens, lambda k: k.pull, size)
        pairs = [cosine(made[i], made[j]) for i in range(len(made)) for j in range(i)]
        told: Columns = {"gradient_cosine": mean([x for x in pairs if x is not None])}
        told["gradient_cosine_previous"] = None if self.before is None else cosine(total, self.before)
        self.before = total
        if len(parts) > 1:
            squares = [(norm(g) * n / len(part)) ** 2 for g, part in zip(made, parts, strict=True)]
            inverse = math.fsum(1 / len(part) for part in parts) / len(parts)
            trace = (math.fsum(squares) / len(parts) - norm(total) ** 2) / (inverse - 1 / n)
            signal = norm(total) ** 2 - trace / n
            told |= {"noise_trace": trace, "noise_signal": signal, "noise_scale": ratio_of(trace, signal)}
        power = 0.0
        for k in tokens:
            score = 1 - 2 * k.p[k.s.tokens[k.t]] + math.fsum(x * x for x in k.p)
            power += (k.a * (1.0 if k.omega is None else k.omega)) ** 2 * score / n
        told |= {"proxy_signal": norm(total) ** 2, "proxy_power": power}
        told["proxy_noise"] = (power - norm(total) ** 2) / (n - 1) if n > 1 else None
        for name, ids in {
            "control": (1, 2, 3, 4),
            "search": (1,),
            "search_end": (2,),
            "answer": (3,),
        }.items():
            on = [k for k in tokens if k.s.tokens[k.t] in ids]
            told[f"{name}_on_prob"] = mean([k.p[k.s.tokens[k.t]] for k in on])
            off = [k for k in tokens if k.s.tokens[k.t] not in ids]
            told[f"{name}_off_prob"] = mean([math.fsum(k.p[v] for v in ids) for k in off])
        return told


def cosine(g: np.ndarray, h: np.ndarray) -> float | None:
    length = norm(g) * norm(h)
    return float((g * h).sum()) / length if length else None


def targets(rule: Rule, tokens: list[Token]) -> list[Token]:
    """Where the critic has a target: everywhere, or where a turn begins."""
    return [k for k in tokens if rule.advantage != "turn_gae" or k.t == k.s.turns[k.turn - 1][0]]


# --- columns


def of_tokens(rule: Rule, tokens: list[Token], value_clip: float | None) -> Columns:
    """The columns that tables minibatch, turn, trajectory and step share, over any set of tokens."""
    n = len(tokens)
    r = [k.r for k in tokens]
    moves = [k.delta for k in tokens]
    told: Columns = {
        "ratio_mean": mean(r),
        "ratio_std": spread(r),
        "ratio_max": max(r, default=None),
        "ratio_min": min(r, default=None),
        "ess_frac": min(1.0, math.fsum(r) ** 2 / (n * math.fsum(x * x for x in r))) if n else None,
        "chi2": math.fsum(x * x for x in r) / n - 1 if n else None,
        "clip_frac": mean([k.low or k.high for k in tokens]),
        "clip_low_frac": mean([k.low for k in tokens]),
        "clip_high_frac": mean([k.high for k in tokens]),
        "out_of_range_frac": mean([k.out for k in tokens]),
        "dual_clip_frac": mean([k.dual for k in tokens]),
        "approx_kl": mean([-x for x in moves]),
        "kl_k2": mean([x * x / 2 for x in moves]),
        "kl_k3": mean([k3(x) for x in moves]),
        "entropy": mean([k.entropy for k in tokens]),
        "kl_ref": mean([k3(k.s.reference[k.t] - k.log_prob) for k in tokens]),
        "mismatch": mean([abs(k.mismatch()) for k in tokens]),
        "gap": mean([abs(k.mismatch()) for k in tokens]),
        "mismatch_kl": mean([-k.mismatch() for k in tokens]),
        "advantage": mean([k.a for k in tokens]),
        "advantage_mean": mean([k.a for k in tokens]),
        "advantage_std": spread([k.a for k in tokens]),
    }
    told["corrected_frac"] = mean([k.corrected for k in tokens]) if rule.omega else None
    if rule.omega:
        told |= of_correction(tokens)
    if rule.advantage in CRITICS:
        where = targets(rule, tokens)
        errors = [k.s.values[k.t] - k.s.returns[k.t] for k in where]
        off = variance(errors)
        of_returns = variance([k.s.returns[k.t] for k in where])
        told |= {
            "explained_variance": (
                None if off is None or of_returns is None else 1 - off / (of_returns + 1e-5)
            ),
            "value_mae": mean([abs(x) for x in errors]),
            "value_bias": mean(errors),
            "value_mae_out_of_range": mean([abs(x) for k, x in zip(where, errors, strict=True) if k.out]),
            "vf_clip_frac": (
                None
                if value_clip is None
                else mean(
                    [
                        (
                            clamp(k.value, k.s.values[k.t] - value_clip, k.s.values[k.t] + value_clip)
                            - k.s.returns[k.t]
                        )
                        ** 2
                        > (k.value - k.s.returns[k.t]) ** 2
                        for k in where
                    ]
                )
            ),
        }
    return told


def of_correction(tokens: list[Token]) -> Columns:
    """The columns that speak of the weights of the rollout correction."""
    weights = [k.omega or 0.0 for k in tokens]
    pull = [abs(k.a) for k in tokens]
    taken_out = math.fsum(a for w, a in zip(weights, pull, strict=True) if w == 0)
    weighed = math.fsum(w * a for w, a in zip(weights, pull, strict=True))
    squares = len(tokens) * math.fsum(w * w for w in weights)
    return {
        "correction_mean": mean(weights),
        "correction_scale": ratio_of(weighed, math.fsum(pull)),
        "correction_masked_frac": ratio_of(taken_out, math.fsum(pull)),
        "correction_ess_frac": ratio_of(math.fsum(weights) ** 2, squares),
    }


def of_gap(tokens: list[Token]) -> Columns:
    """The columns that tell reasons of a gap between trainer and sampler apart; the old policy is the
    trainer's.
    """
    differing = [k for k in tokens if abs(k.mismatch()) > 1e-4]
    likely = [k for k in differing if k.s.old[k.t] > math.log(0.5)]
    open_ = [k.mismatch() / k.doubt() for k in tokens if k.doubt() > 0.05]
    rises = [_largest_rise(row) for row in sequences(tokens) if len(row) >= 8]
    trainer = [k.s.old[k.t] for k in tokens]
    sampler = [k.s.behaviour[k.t] for k in tokens]
    return {
        "gap_slope": _slope(trainer, sampler),
        "gap_sharper_frac": mean([k.mismatch() < 0 for k in likely]) if len(likely) >= 8 else None,
        "gap_likelier_frac": mean([k.mismatch() < 0 for k in differing]) if len(differing) >= 8 else None,
        "gap_kurtosis": _kurtosis(open_),
        "gap_broken_frac": mean([rise > 1.5 for rise in rises]),
    }


def _slope(x: list[float], y: list[float]) -> float | None:
    """Slope of the line of least squares through (x, y); None where all x are the same."""
    if not x:
        return None
    x_mean = math.fsum(x) / len(x)
    y_mean = math.fsum(y) / len(y)
    together = math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return ratio_of(together, math.fsum((a - x_mean) ** 2 for a in x))


def _kurtosis(x: list[float]) -> float | None:
    if not x:
        return None
    second = math.fsum(a**2 for a in x) / len(x)
    fourth = math.fsum(a**4 for a in x) / len(x)
    return ratio_of(fourth, second**2)


def _largest_rise(row: list[Token]) -> float:
    """Rise of the mean of log10(|x| / doubt) at the cut that explains most of its variance upwards."""
    size = [math.log10(abs(k.mismatch()) / k.doubt() + 1e-6) for k in row]
    found = []
    for cut in range(2, len(size) - 1):
        before = math.fsum(size[:cut]) / cut
        after = math.fsum(size[cut:]) / (len(size) - cut)
        rise = after - before
        found.append((cut * (len(size) - cut) * rise * abs(rise), rise))
    return max(found)[1]


def of_update(rule: Rule, update: Update) -> Columns:
    """Table minibatch."""
    tokens = update.tokens
    told = of_tokens(rule, tokens, update.value_clip) | update.scalars | of_gap(tokens)
    w = [k.w for k in tokens]
    moves = [k.delta for k in tokens]
    told |= {
        "tokens": len(tokens),
        "stabiliser_factor_mean": mean([k.factor for k in tokens]),
        "unit_ratio_mean": mean(w),
        "unit_ratio_max": max(w, default=None),
        "unit_ratio_min": min(w, default=None),
        "log_ratio_std": spread(moves),
        "log_ratio_abs_max": max(map(abs, moves), default=None),
        "clamp_hits": sum(abs(x) > 20 for x in moves) if tokens else None,
        "ratio_positive_q50": quantile([k.r for k in tokens if k.a > 0], 0.5),
        "entropy_low_frac": mean([k.entropy < 0.01 for k in tokens]),
        "mismatch_max": max((abs(k.mismatch()) for k in tokens), default=None),
        "mismatch_k3": mean([k3(k.mismatch()) for k in tokens]),
        "clip_bias_proxy": mean([(k.w * k.a) ** 2 * (k.low or k.high) for k in tokens]),
        "clip_bias_proxy_range": mean([(k.r * k.a) ** 2 * k.out for k in tokens]),
        "advantage_abs_max": max((abs(k.a) for k in tokens), default=None),
        "advantage_positive_frac": mean([k.a > 0 for k in tokens]),
        "advantage_negative_frac": mean([k.a < 0 for k in tokens]),
        "advantage_zero_frac": mean([abs(k.a) < 0.01 for k in tokens]),
    }
    told |= {f"log_ratio_q{q:02d}": quantile(moves, q / 100) for q in (1, 5, 50, 95, 99)}
    for place, name in enumerate(("think", "search", "answer"), 1):
        told[f"entropy_{name}"] = mean([k.entropy for k in tokens if k.s.tokens[k.t] % 4 == place])
    good = math.fsum(min(k.r, 1.2) * k.a for k in tokens if k.a > 0)
    bad = math.fsum(max(k.r, 0.8) * -k.a for k in tokens if k.a < 0)
    told["positive_advantage_frac"] = ratio_of(good, good + bad)
    if rule.omega:
        told |= {
            "corrected_positive_frac": mean([k.corrected and k.a > 0 for k in tokens]),
            "corrected_negative_frac": mean([k.corrected and k.a < 0 for k in tokens]),
        }
    if tokens:
        p, q = (np.exp([getattr(k.s, side)[k.t] for k in tokens]) for side in ("old", "behaviour"))
        p = p - p.mean()
        q = q - q.mean()
        told["mismatch_pearson"] = ratio_of(float((p * q).sum()), norm(p) * norm(q))
    of_turns = turns(tokens)
    of_sequences = sequences(tokens)
    means = [mean([clamp(k.delta, -20, 20) for k in turn]) or 0.0 for turn in of_turns]
    sums = [math.fsum(clamp(k.delta, -20, 20) for k in s) for s in of_sequences]
    moved = [abs(x) * len(turn) for x, turn in zip(means, of_turns, strict=True)]
    told |= {
        "turn_ratio_geo_max": max((math.exp(x) for x in means), default=None),
        "turn_ratio_arith_max": max((math.fsum(k.r for k in t) / len(t) for t in of_turns), default=None),
        "turn_log_ratio_sum_abs_max": max(moved, default=None),
        "chi2_sequence": mean([math.exp(2 * clamp(x, -20, 20)) - 1 for x in sums]),
    }
    if sums:
        weights = [math.exp(x - max(sums)) for x in sums]
        told["ess_sequence_frac"] = math.fsum(weights) ** 2 / (len(sums) * math.fsum(x * x for x in weights))
    for name, units in (("turn", of_turns), ("sequence", of_sequences)):
        hit = [any(k.low or k.high for k in unit) for unit in units]
        told[f"{name}_clip_frac"] = mean(hit)
        within = sum(len(unit) for unit, x in zip(units, hit, strict=True) if x)
        told[f"{name}_clip_token_frac"] = within / len(tokens) if tokens else None
    shifts = [
        (math.fsum(k.a for k in s) >= 0, math.fsum(k.delta for k in s) / len(s), s) for s in of_sequences
    ]
    ups = [(x, s) for good_one, x, s in shifts if good_one]
    told |= {
        "displacement_positive": mean([x for x, _ in ups]),
        "displacement_negative": mean([x for good_one, x, _ in shifts if not good_one]),
        "log_prob_positive": mean([math.fsum(k.log_prob for k in s) / len(s) for _, s in ups]),
        "displaced_positive_frac": mean([x < 0 for x, _ in ups]),
    }
    surprise = [math.fsum(-k.mismatch() for k in s) / len(s) for s in of_sequences]
    told |= {"mismatch_log_ppl": mean(surprise), "mismatch_ppl_ratio": mean([math.exp(x) for x in surprise])}
    return told


def of_turn(rule: Rule, turn: list[Token], update: Update) -> Columns:
    """Table turn."""
    told = of_tokens(rule, turn, update.value_clip)
    total = math.fsum(k.e if not rule.guard else clamp(k.delta, -20, 20) for k in turn)
    everything = update.tokens
    told |= {
        "n_tokens": len(turn),
        "ratio_geo": math.exp(total / len(turn)),
        "ratio_arith": told["ratio_mean"],
        "ratio_prod": math.exp(clamp(total, -20, 20)),
        "log_ratio_sum": total,
        "ratio_mass_frac": math.fsum(k.r for k in turn) / math.fsum(k.r for k in everything),
        "gradient_share": ratio_of(
            math.fsum(abs(k.pull) for k in turn), math.fsum(abs(k.pull) for k in everything)
        ),
    }
    if rule.advantage in CRITICS:
        k = turn[0]
        told |= {"value": k.s.values[k.t], "value_error": k.s.values[k.t] - k.s.returns[k.t]}
    return told


def of_turn_step(rule: Rule, turns: list[tuple[list[Token], Columns]], step: list[Columns]) -> Columns:
    """Table turn_step, from the turns with an index and their rows, and the rows of all turns of the step."""
    tokens = [k for turn, _ in turns for k in turn]
    rows = [row for _, row in turns]

    def known(name: str, rows: list[Columns] = rows) -> list[Any]:
        return [x for row in rows if (x := row.get(name)) is not None]

    told = of_tokens(rule, tokens, None) | {"n_turns": len({k.s.index for k in tokens})}
    told |= {
        name: mean(known(name))
        for name in (
            "n_tokens",
            "ratio_geo",
            "ratio_arith",
            "ratio_prod",
            "log_ratio_sum",
            "value",
            "value_error",
            "retrieval_seconds",
            "retrieval_empty_frac",
            "retrieval_failed_frac",
        )
    }
    told |= {
        name: ratio_of(math.fsum(known(name)), math.fsum(known(name, step)))
        for name in ("ratio_mass_frac", "gradient_share")
    }
    told |= {
        f"{x}_frac": mean([status == x for status in known("status")])
        for x in ("search", "answer", "invalid")
    }
    values = known("value")
    errors = known("value_error")
    off = variance(errors)
    of_returns = variance([v - e for v, e in zip(values, errors, strict=True)])
    told["explained_variance"] = None if off is None or of_returns is None else 1 - off / (of_returns + 1e-5)
    return told | {"value_mae": mean([abs(x) for x in errors])}


def of_trajectory(rule: Rule, index: int, updates: list[tuple[int, Update]]) -> Columns:
    """Table trajectory; `updates` with their epochs."""
    mine = [(epoch, k) for epoch, u in updates for k in u.tokens if k.s.index == index]
    told = of_tokens(rule, [k for _, k in mine], None)
    last = [k for epoch, k in mine if epoch == max(e for e, _ in mine)]
    everything = math.fsum(abs(k.pull) for _, u in updates for k in u.tokens)
    if mine:
        told |= {
            "log_ratio_sum": math.fsum(clamp(k.delta, -20, 20) for k in last),
            "likelihood_displacement": mean([k.delta for k in last]),
            "gradient_share": ratio_of(math.fsum(abs(k.pull) for _, k in mine), everything),
        }
    return told


def of_step(rule: Rule, updates: list[Update]) -> Columns:
    """The columns of table step that speak of the updates."""
    told = of_tokens(rule, [k for u in updates for k in u.tokens], None)
    rows = [of_update(rule, u) for u in updates]

    def all_of(name: str) -> list[float]:
        return [x for row in rows if (x := row.get(name)) is not None]

    norms, after, bias, ess = map(all_of, ("grad_norm", "grad_norm_after", "clip_bias_norm", "ess_frac"))
    told |= {
        "grad_norm_max": max(norms),
        "grad_norm_mean": mean(norms),
        "clip_bias_norm_max": max(bias, default=None),
        "grad_clipped_frac": mean([0 < b < a * (1 - 1e-6) for a, b in zip(norms, after, strict=True)]),
        "ess_frac_min": min(ess, default=None),
        "stabiliser_factor": mean(all_of("stabiliser_factor")),
        "non_finite": 0,
        "updates": len(updates),
        "tokens_trained": sum(len(u.tokens) for u in updates),
        "first_log_ratio_abs_max": rows[0]["log_ratio_abs_max"],
    }
    return told

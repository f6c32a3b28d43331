"""A small simulation of an RL run: skill, entropy, KL, length and noise, with what goes wrong as terms of it.

No curve is drawn for a metric. A term acts on the state of the policy, and the metrics are measured from that
state: prompts have difficulties, a group of responses succeeds by chance, lengths have a distribution that a
token limit cuts, so that side effects (groups without an advantage, a smaller gradient, a lower evaluation)
follow by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

Term = Callable[[float], float]  # of the share of the run that is over (0 to 1)
Row = dict[str, float]
# what a number that is none does: to the weights, to some updates, to all
LOST = 1.0
SKIPPED = 2.0
FROZEN = 3.0
# nats per token of entropy, relative to which text starts to degenerate when entropy has doubled
_QUIET = 0.45
_SPREAD = 1.4  # logits: how far the difficulties of prompts lie apart
_TAIL = 0.45  # standard deviation of the logarithm of response lengths in a batch


def always(size: float) -> Term:
    """A term that acts from the first step on."""
    return lambda t: size


def from_(at: float, size: float, over: float = 0.0) -> Term:
    """A term that begins at a share of the run, and grows to its size over another share."""
    return lambda t: 0.0 if t < at else size * min(1.0, (t - at) / over if over else 1.0)


def between(at: float, until: float, size: float) -> Term:
    """A term that acts during a part of the run."""
    return lambda t: size if at <= t < until else 0.0


def steps_of(*levels: float) -> Term:
    """A term that goes through levels that last equally long."""
    return lambda t: levels[min(len(levels) - 1, int(t * len(levels)))]


@dataclass(frozen=True)
class World:
    """How a run is set up: settings of the trainer and of its task. Rates are per run, so that curves scale
    with it.
    """

    steps: int
    prompts: int = 64
    group: int = 8
    start: float = -1.0  # logit of success on a prompt of middle difficulty
    ceiling: float = 1.6
    gain: float = 3.2  # how much of the way to the ceiling a run of full learning rate goes (e-folds)
    entropy: float = 0.5  # nats per token at the start
    floor: float = 0.15  # that entropy falls to
    length: float = 500.0
    limit: float = 2048.0
    longer: float = 0.4  # of the logarithm of length, for a success that goes from 0 to 1
    schedule: str = "constant"
    warmup: float = 0.03
    peak_lr: float = 1e-6
    kl_pull: float = 1.0  # pull to the reference
    kl_rate: float = 0.08
    on_policy: bool = False
    critic: bool = False
    age: float = 0.0
    grad: float = 0.3
    noise: float = 1.0
    eval_every: int = 20
    eval_size: int = 500
    eval_gap: float = 0.3  # logits that the evaluation is harder
    restart: float | None = None  # share of the run after which it goes on from an older checkpoint
    fooled: float = 0.9  # share of failed responses that an exploit can get paid for
    form_weight: float = 0.0  # of the format in the reward
    scale: tuple[float, float] = (0.0, 1.0)  # the reward of a failure and of a success
    terms: Mapping[str, Term] = field(default_factory=dict)

    def lr(self, t: float) -> float:
        """The learning rate relative to its peak."""
        if t < self.warmup:
            return t / self.warmup
        if self.schedule == "cosine":
            return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * t))
        return 1.0 - 0.9 * t if self.schedule == "linear" else 1.0


@dataclass
class Policy:
    """The state of a run that nobody sees."""

    skill: float
    entropy: float
    kl: float = 0.002
    long: float = 0.0  # change of the logarithm of length that skill does not explain
    exploit: float = 0.0  # share of failed responses that the reward pays all the same
    form: float = 0.3  # share of responses in the format that a component of the reward pays
    mismatch: float = 0.0  # logarithm, against the healthy level
    critic: float = 0.0  # error of the critic, in standard deviations of the return
    blowup: float = 0.0  # logarithm of the gradient's growth


def simulate(world: World, rng: np.random.Generator) -> list[Row]:
    """Train once. One row a step, of metrics under the names of `trainers.NAMES`; what was not measured is
    absent.
    """
    policy = Policy(world.start, world.entropy)
    wander = dict.fromkeys(("entropy", "length", "grad", "clip", "kl", "mismatch", "value"), 0.0)
    level = float(np.exp(rng.normal(0, 0.4)))
    rows = []
    order = list(range(world.steps))
    back = -1
    checkpoint = None
    if world.restart is not None:  # it broke here, and went on from a checkpoint some steps before
        broken = int(world.restart * world.steps)
        back = max(0, broken - max(5, world.steps // 40))
        order[broken:broken] = range(back, broken)
    for step in order:
        if step == back:
            policy, checkpoint = checkpoint or policy, replace(policy)
        t = step / max(world.steps - 1, 1)
        for name in wander:  # slow noise, next to the white one of each metric
            wander[name] = 0.85 * wander[name] + math.sqrt(1 - 0.85**2) * rng.normal()
        rows.append(_step(world, policy, t, step, level, wander, rng))
    if (at := world.terms.get("non_finite")) is not None:
        _spoil(rows, world, at, rng)
    return rows


def _sigmoid(x: np.ndarray | float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


def _step(
    world: World,
    policy: Policy,
    t: float,
    step: int,
    level: float,
    wander: dict[str, float],
    rng: np.random.Generator,
) -> Row:
    def term(name: str) -> float:
        return world.terms[name](t) if name in world.terms else 0.0

    def jitter(name: str, size: float, white: float = 0.5) -> float:
        return math.exp(world.noise * size * (wander[name] + white * rng.normal()))

    lr = world.lr(t)
    dt = 1.0 / world.steps
    size = world.prompts * world.group
    # Sampling: who succeeds, how long the responses are, which of them are cut.
    age = world.age + term("age")
    garbled = 1 - math.exp(-(max(0.0, policy.entropy / max(world.entropy, _QUIET) - 1.6) ** 2) / 2)
    far = 1 - math.exp(-(max(0.0, policy.kl - 0.6) ** 1.5))
    sound = (1 - garbled) * (1 - far)
    explained = world.longer * (float(_sigmoid(policy.skill)) - float(_sigmoid(world.start)))
    mean_length = max(3.0, world.length * math.exp(explained + policy.long))
    limit = world.limit * math.exp(term("limit"))
    lengths = np.exp(rng.normal(math.log(mean_length) - _TAIL**2 / 2, _TAIL, size))
    lengths *= jitter("length", 0.02)
    cut = float((lengths > limit).mean())
    too_short = 1 - math.exp(-(max(0.0, -policy.long - 0.7) ** 2))
    whole = sound * (1 - too_short) * (1 - float(np.clip(np.mean(lengths > limit), 0, 1)))
    ease = term("ease")
    difficulty = rng.normal(0, _SPREAD, world.prompts)
    if (apart := term("apart")) > 0:  # most prompts hopeless, some trivial
        difficulty = np.where(rng.random(world.prompts) < apart, -9.0, 4.0)
    solves = _sigmoid(policy.skill + ease + difficulty) * whole
    paid = solves + (1 - solves) * policy.exploit
    diverse = policy.entropy / (policy.entropy + 0.03)
    same = rng.random(world.prompts) > diverse  # a group whose responses are all but one text
    won = np.where(same, world.group * (rng.random(world.prompts) < paid), rng.binomial(world.group, paid))
    share = won / world.group
    mixed = float(((won > 0) & (won < world.group)).mean())
    before = replace(policy)
    # The update: how much of the gradient is signal, how far the policy moves.
    oversize = 1.0 + term("oversize")
    base = 0.015 * level * lr * oversize * (1 + 0.12 * age) * jitter("clip", 0.25)
    clip = 0.0 if world.on_policy else float(1 - math.exp(-base * (0.3 + mixed)))
    stride = lr * math.sqrt(mixed + 0.02) * (1 - clip)
    move = stride * min(2.5, oversize**0.3)
    spike = 1.0
    if rng.random() < term("spikes") * dt:
        spike = float(np.exp(rng.uniform(math.log(15), math.log(120))))
        policy.skill -= term("harm") * rng.uniform(0.6, 1.4)
        policy.entropy *= 1 + 0.1 * term("harm")
    policy.blowup += dt * term("blowup")
    stale = max(0.0, age - 6) / 10
    drifted = max(0.0, policy.mismatch - 1.2)
    lost = 2.5 * stale**1.5 + 1.2 * drifted**2 + 6 * max(0.0, policy.blowup - 2.5) + 5 * max(0.0, clip - 0.25)
    signal = move * diverse / (1 + 2 * max(0.0, policy.critic)) / (1 + stale) * (1 - term("stuck"))
    ahead = (world.ceiling - policy.skill) / max(0.5, world.ceiling - world.start)
    competing = 1 - policy.exploit / world.fooled
    policy.skill += dt * (world.gain * (world.ceiling - world.start) * signal * ahead * competing - lost)
    policy.skill += dt * (-0.8 * policy.critic - 4 * policy.exploit / world.fooled * term("exploit_costs"))
    policy.skill += 0.15 * math.sqrt(dt) * rng.normal()
    found = policy.exploit / world.fooled
    policy.exploit = world.fooled * min(
        1.0, found + dt * term("exploit") * (0.02 + found) * max(0.0, 1 - found)
    )
    policy.form += dt * 25 * lr * (0.99 - policy.form) * (1 - term("forms"))
    resting = max(0.0, policy.entropy - world.floor)
    policy.entropy += dt * (-1.6 * move * resting - term("sharpen") * policy.entropy)
    policy.entropy += dt * term("soften") * policy.entropy
    policy.entropy += (
        dt * policy.entropy * (1.5 * stale * rng.normal() + 0.8 * drifted + max(0.0, policy.blowup - 2.5))
    )
    policy.entropy = min(max(policy.entropy, 5e-4), 8.0)
    policy.kl += dt * (world.kl_rate * 5 * stride**2 * oversize**0.5 - world.kl_pull * policy.kl * lr)
    policy.kl += dt * (
        term("drift") * policy.kl + 0.15 * max(0.0, term("soften")) * min(1.5, policy.entropy) + 0.4 * drifted
    )
    policy.kl = max(policy.kl, 1e-4)
    policy.long += dt * (term("pad") - term("shrink"))
    policy.mismatch += dt * term("part")
    policy.critic = max(0.0, policy.critic + dt * term("critic") * (0.3 + policy.critic))
    if term("non_finite") == FROZEN:  # a gradient that is no number is left out: nothing changes any more
        policy.__dict__ |= before.__dict__
    # What is logged.
    n = math.sqrt(size)
    gone = math.exp(policy.mismatch)
    apart_now = 0.008 * level * gone * (1 + 0.15 * age) * jitter("mismatch", 0.12)
    second = 2.5 * apart_now**2 * jitter("mismatch", 0.2) * 10
    kick = 1 + (abs(rng.standard_t(3)) ** 1.5) * 0.08
    norm = world.grad * math.sqrt(mixed + 0.01) * jitter("grad", 0.18) * kick * spike
    norm *= math.exp(policy.blowup) * (1 + 0.4 * stale) * gone**0.3 * (1 + 0.5 * policy.critic * world.critic)
    score = float(share.mean())
    explained_variance = float(
        np.tanh(0.9 * min(1.0, 6 * t)) * 0.8 - 1.2 * policy.critic + 0.05 * rng.normal()
    )
    row: Row = {
        "step": step,
        "reward": score,
        "reward_std": float(np.sqrt(share * (1 - share)).mean()),
        "zero_std": float(1 - mixed),
        "solved_all": float((won == world.group).mean()),
        "solved_none": float((won == 0).mean()),
        "entropy": policy.entropy * jitter("entropy", 0.05),
        "kl": policy.kl * jitter("kl", 0.08),
        "clip": clip,
        "approx_kl": 0.0 if world.on_policy else 0.004 * base * jitter("clip", 0.5) + 2e-4 * rng.normal() / n,
        "grad_norm": norm,
        "lr": world.peak_lr * lr,
        "loss": 0.02 * rng.normal() * (1 + norm / 5),
        "length": float(np.minimum(lengths, limit).mean()),
        "truncated": cut,
        "mismatch": apart_now,
        "mismatch_kl": second,
        "ess": 1 / (1 + 4 * second + 0.02 * age),
        "turns": 1.0 + 2 * float(_sigmoid(policy.skill)),
    }
    row["form"] = float(rng.binomial(size, min(1.0, policy.form))) / size
    low, high = world.scale
    row["correct"], row["solved"] = (
        (low + (high - low) * score) * (1 - term("worthless")),
        float(solves.mean()),
    )
    row["paid"] = score
    row["reward"] = row["correct"] + (world.form_weight + term("form_weight")) * row["form"]
    row["reward_std"] *= (high - low) * (1 - term("worthless"))
    if age or world.age:
        row |= {
            "staleness": max(0.0, age + 0.3 * rng.normal()),
            "staleness_max": max(0.0, math.ceil(age) + 1.0),
        }
    if world.critic:
        row["explained_variance"] = max(-50.0, explained_variance)
        row["value_loss"] = (
            (0.05 + 0.2 * policy.critic**2) * max(0.05, 1 - explained_variance) * jitter("value", 0.15)
        )
        row["critic_grad_norm"] = 0.8 * (1 + 2 * policy.critic) * jitter("value", 0.3)
    if step % world.eval_every == 0 or step == world.steps - 1:
        truly = float((_sigmoid(policy.skill - world.eval_gap + rng.normal(0, _SPREAD, 400)) * whole).mean())
        row["eval"] = rng.binomial(world.eval_size, min(1.0, truly)) / world.eval_size
    return row


def _spoil(rows: list[Row], world: World, at: Term, rng: np.random.Generator) -> None:
    """From the step on that the term says, what a run logs whose losses are not numbers."""
    steps = len(rows)
    for i, row in enumerate(rows):
        kind = at(i / max(steps - 1, 1))
        if kind == LOST:  # the weights are gone: responses run to the limit, and nothing is solved
            row |= dict.fromkeys(
                ("grad_norm", "loss", "entropy", "kl", "approx_kl", "mismatch", "mismatch_kl"), math.nan
            )
            row |= {"reward": world.scale[0], "correct": world.scale[0], "reward_std": 0.0, "zero_std": 1.0}
            row |= {"solved_none": 1.0, "solved_all": 0.0, "form": 0.0, "solved": 0.0, "clip": 0.0}
            row |= {"length": world.limit, "truncated": 1.0} | ({"eval": 0.0} if "eval" in row else {})
        elif kind == SKIPPED and rng.random() < 0.3:
            row |= {"grad_norm": math.inf if rng.random() < 0.5 else math.nan, "loss": math.nan}
        elif kind == FROZEN:
            row |= {"kl": math.nan, "loss": math.nan, "grad_norm": math.nan}

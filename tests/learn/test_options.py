"""Every option of every slot of every algorithm, changed from its value, changes what a training step does.

A step is the trainer's own: advantages, schedule, minibatches, micro-batches, optimizer. Its batch is a real
rollout with log-probs, values, rewards and groups that leave no rule idle; an option is shown to act when one
of a few such batches and one of a few values give another update (or, for what is drawn again, another number
of sampled episodes).
"""

import copy
import functools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor

from sorl.agent.tokenizer import build_tokenizer
from sorl.algorithms import ALGORITHMS
from sorl.batch import Batch
from sorl.learn import loop, networks
from sorl.learn.loop import Trainer
from sorl.learn.rollout import Rollout, batch_of
from sorl.learn.warmstart import ensure
from sorl.objective import KINDS, Algorithm, Slot
from sorl.objective.credit import GiGpo
from sorl.objective.ratio import Guard
from sorl.recording.recorder import Recorder
from sorl.spec import InputError, RunSettings
from tests.learn.tiny import TINY, merged

SETTINGS: dict[str, Any] = {
    "world": {"max_turns": 4},
    "learn": {
        "episodes": 16,
        "group_size": 2,
        "epochs": 2,
        "minibatches": 2,
        "staleness": 0,
        "clip_bias_every": 0,
        "policy": {"lr": 0.05},
    },
    # micro-batches of different numbers of sequences, turns and tokens
    "compute": {"micro_batch_tokens": 150},
    "evaluation": {"every": 0, "episodes": 2},
    "record": {"batches": {"mb": 0}},
}
# Old log-probs, times the policy's own and nats of noise: ratios about the clips, far beyond them, and mostly
# below 1.
MOVES = ((1.0, 0.25), (1.0, 0.8), (0.3, 0.2))
CHANGED = 1e-4  # of the length of the update; the same update in another order differs by 1e-6
SAME = 1e-5


@dataclass(frozen=True)
class Case:
    """An option of an algorithm's slot, and the values to put in place of its own."""

    algorithm: Algorithm
    slot: str
    option: str
    values: tuple[Any, ...]

    @property
    def choice(self) -> Slot:
        return getattr(self.algorithm, self.slot)

    @property
    def name(self) -> str:
        value = self.values[0] if isinstance(self.values[0], str | bool | None) else "number"
        return f"{self.algorithm.name}-{self.slot}-{self.choice.kind}-{self.option}-{value}"

    def made(self) -> Iterator[Algorithm]:
        """The algorithm, with what the option needs beside it, and then with each other value
        of the option.
        """
        word = self.values[0] if isinstance(self.values[0], str) else None
        own = replace(self.choice, **BESIDE.get((self.choice.kind, self.option, word), {}))
        changes: list[dict[str, Any]] = [{}, *({self.option: value} for value in self.values)]
        for change in changes:
            with suppress(InputError):  # out of range for this one
                slot: Any = {self.slot: replace(own, **change)}
                elsewhere: Any = ELSEWHERE.get((self.algorithm.name, self.slot, self.option), {})
                yield replace(self.algorithm, **elsewhere, **slot)


# Values that a rule tells from its own, where half and twice of it do not.
VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("overlong", "limit"): (20.0, 30.0),
    ("overlong", "margin"): (20480.0, 10000.0),
    ("seq_mean_token_sum_norm", "horizon"): (7.0,),
    ("mean_kl", "target"): (1e-6, 10.0),
    ("trajectory_kl", "limit"): (1e-6,),
    ("dynamic_sampling", "tries"): (1,),
    ("bapo", "low"): (0.1, 0.9),
    ("bapo", "high"): (1.0, 2.5),
    ("bapo", "low_max"): (0.6, 1.0),
    ("large_advantage", "threshold"): (0.6, 1.2),
    ("kl_clipfrac", "weight"): (0.1,),
}

# Options of the same slot that an option needs beside it, before and after its change.
BESIDE: dict[tuple[str, str, Any], dict[str, Any]] = {
    ("gae", "whiten", "a"): {"skip_obs": False},
    ("turn_mean", "whiten", "a"): {"skip_obs": False},
    ("overlong", "limit", None): {"margin": 10.0},
    # the search ends between its bounds
    ("bapo", "step", None): {"high": 1.0, "high_max": 20.0, "share": 0.46},
}


# Choices of other slots that an option needs: turns of a sequence with advantages of both signs.
ELSEWHERE: dict[tuple[str, str, str], dict[str, Slot]] = {
    ("sampo", "clip", "gate"): {"advantage": GiGpo(weight=50.0)},
}


def values_of(choice: Slot, option: str, hint: Any) -> Iterator[tuple[Any, ...]]:
    """The values to try: each word and each truth value for itself, numbers together."""
    own = getattr(choice, option)
    if get_origin(hint) is Literal:
        yield from ((word,) for word in get_args(hint) if word != own)
    elif hint is bool:
        yield (not own,)
    elif (choice.kind, option) in VALUES:
        yield VALUES[choice.kind, option]
    elif get_origin(hint) in (UnionType, Union):
        yield (1.05, 5.0) if own is None else (None,)
        if own is not None:
            yield own / 4, own * 4
    else:
        yield own / 4, own * 0.8, own * 4, own * 40, 0.0, 0.5


def cases_of(algorithm: Algorithm, slots: tuple[str, ...] = tuple(KINDS)) -> Iterator[Case]:
    for slot in slots:
        choice = getattr(algorithm, slot)
        hints = get_type_hints(type(choice))
        for option in (f.name for f in fields(choice)):
            for values in values_of(choice, option, hints[option]):
                yield Case(algorithm, slot, option, values)


def having(slot: str, kind: type[Slot]) -> Algorithm:
    """An algorithm with that kind: a named one, or one in which it has something to do."""
    for algorithm in ALGORITHMS.values():
        if type(getattr(algorithm, slot)) is kind:
            return algorithm
    base = ALGORITHMS["grpo" if slot in ("select", "shaping") else "turn-ppo"]
    changed: Any = {slot: kind()}
    return replace(base, name=f"{base.name} with", **changed)


KINDS_OF_SLOTS = [(slot, kind) for slot, kinds in KINDS.items() for kind in kinds.values()]
CASES = [case for algorithm in ALGORITHMS.values() for case in cases_of(algorithm)]
for slot, kind in KINDS_OF_SLOTS:
    if (other := having(slot, kind)).name not in ALGORITHMS:
        CASES += cases_of(other, (slot,))


class Given(Trainer):
    """A trainer whose rollouts are what the test says, in sentences of three tokens."""

    given: Batch

    def _batch(self, rollout: Rollout) -> Batch:
        return self.given

    def of(self, batch: Batch) -> Tensor:
        return (torch.arange(batch.tokens.shape[1]) // 3 + 1).expand_as(batch.tokens)


@dataclass(eq=False)
class Steps:
    """Takes the training step of an algorithm on a batch, from the same weights each time."""

    start: Path
    rollout: Rollout
    tokenizer: Any

    @functools.cache  # noqa: B019  a session has one of it
    def taken(self, algorithm: Algorithm, move: tuple[float, float]) -> tuple[Tensor, int]:
        """What the step adds to the weights of policy and critic, and how many episodes the next rollouts
        sample.
        """
        settings = RunSettings.model_validate(merged(merged(TINY, SETTINGS), {"algorithm": "ppo"}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "resolve", lambda *_: algorithm)
            trainer = Given(settings, self.start, Recorder(None, "", settings), self.tokenizer)
            trainer.given = self.batch(trainer, *move)
            trainer.sentences = trainer
            before = weights(trainer)
            trainer._optimise(trainer._advantages(trainer._values(trainer._old_log_probs(self.rollout))), 0)
            numbers = range(1, 4) if algorithm.select.kind == "dynamic_sampling" else ()
            return weights(trainer) - before, sum(
                trainer.sampler.rollout(number, 0).sampled for number in numbers
            )

    def batch(self, trainer: Trainer, times: float, spread: float) -> Batch:
        """The rollout with log-probs that have moved, and rewards, groups and values that differ."""
        made = batch_of(self.rollout, trainer.tokenizer.pad_token_id)
        now = trainer._log_probs(made)
        stream = torch.Generator().manual_seed(1)

        def near(x: Tensor, much: float) -> Tensor:
            moved = x + much * torch.randn(x.shape, generator=stream)
            return torch.where(made.mask, moved.clamp(max=-1e-3), 0)

        old = near(times * now, spread)
        return replace(
            made,
            group=torch.tensor([0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]),
            score=torch.tensor([0, 1, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 1, 0, 0, 0.9, 0.8, 0, 1, 0]),
            log_prob_old=old,
            log_prob_behaviour=near(old, spread),
            log_prob_ref=near(old, spread),
            squared_probs=torch.rand(made.mask.shape, generator=stream) * made.mask,
            turn_reward=torch.where(made.mask, torch.arange(16)[:, None] * made.turn % 3 / 2, 0),
            staleness=torch.tensor([0, 1, 2, 3] * 4),
            void=made.turn == torch.tensor([1, 2, 0, 0, 3, 0, 0, 2] * 2)[:, None],
            values=torch.where(made.response, 0.5 * torch.randn(made.tokens.shape, generator=stream), 0),
        )


def weights(trainer: Trainer) -> Tensor:
    networks = filter(None, (trainer.learner.policy, trainer.learner.critic))
    return torch.cat([p.detach().flatten() for network in networks for p in network.parameters()])


@pytest.fixture(scope="module")
def steps(cache: Path) -> Iterator[Steps]:
    settings = RunSettings.model_validate(merged(TINY, SETTINGS))
    start = ensure(settings, cache)
    tokenizer = build_tokenizer()
    loaded = networks.load(start, settings.compute)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "load", lambda *_: copy.deepcopy(loaded))
        first = Trainer(settings, start, Recorder(None, "", settings), tokenizer)
        yield Steps(start, first.sampler.rollout(0, 0), tokenizer)


def difference(steps: Steps, algorithm: Algorithm, *variants: Algorithm) -> float:
    """The largest change of the step over batches and variants, as a share of the longer of the
    two updates.
    """
    largest = 0.0
    for move in MOVES:
        own, sampled = steps.taken(algorithm, move)
        for variant in variants:
            other, drawn = steps.taken(variant, move)
            if drawn != sampled:
                return float("inf")
            length = max(float(own.norm()), float(other.norm()))
            largest = max(largest, float((own - other).norm()) / length if length else 0.0)
            if largest > CHANGED:
                return largest
    return largest


# Estimators that give all tokens of a turn one advantage.
OF_TURNS = ("turn_gae", "turn_mean", "group_batch_z", "gigpo", "mt_grpo", "igpo", "a2tgpo")


def inert(case: Case) -> list[str]:
    """Why the option may change nothing; empty where it must change the step."""
    a = case.algorithm
    at = (case.slot, case.option)
    alone = a.ratio.level in ("token", "none")
    one_turn = a.ratio.level in ("turn", "sentence") or a.schedule.kind == "reverse_turns"
    # Whether all tokens that share a ratio have one advantage.
    per_sequence = a.advantage.kind in ("grpo", "mean_only", "rloo", "batch_mean", "batch_z")
    equal = per_sequence or (one_turn and a.advantage.kind in OF_TURNS)
    reasons = {
        "a token is a unit of its own: there is nothing to pool": (
            alone and at in (("ratio", "mean"), ("ratio", "grad"), ("clip", "gate"))
        ),
        "the unit's advantages have one sign": at == ("clip", "gate") and not alone and equal,
        "equal advantages: the shared gradient is the mean of equal ones (GSPO-token is GSPO)": (
            at == ("ratio", "grad") and not alone and equal and a.ratio.mean != "arithmetic"
        ),
        "VESPO weighs by the product of the sequence, whatever else is pooled": (
            case.slot == "ratio" and a.clip.kind == "gamma"
        ),
        "without the std nothing is divided by it and eps": (
            case.option == "eps" and case.choice.kind == "gigpo" and a.advantage.norm == "mean"
        ),
        "only the scale has a floor, not the mean": (
            case.option == "floor" and case.choice == Guard(mode="center")
        ),
        "each part of the schedule holds one turn of a sequence": (
            a.schedule.kind == "reverse_turns" and case.values == ("turn",)
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_option_changes_the_step_or_is_inert_for_a_reason(steps, case):
    found = difference(steps, *case.made())
    if reasons := inert(case):
        assert found < SAME, f"not inert after all: {reasons}"
    else:
        assert found > CHANGED, "the option changes nothing"


NOTHING = ("none", "outcome", "together")  # what every other kind of the slot is a change from
BARE = [
    (slot, kind)
    for slot, kind in KINDS_OF_SLOTS
    # of a dense model nothing: test_routing
    if not fields(kind) and kind.kind not in NOTHING and slot != "routing"
]


@pytest.mark.parametrize(("slot", "kind"), BARE, ids=[f"{slot}-{kind.kind}" for slot, kind in BARE])
def test_a_kind_without_options_makes_a_step_of_its_own(steps, slot, kind):
    own = replace(ALGORITHMS["grpo"], **{slot: kind()})
    for other in KINDS[slot].values():
        if other is not kind and not getattr(other, "needs_values", False):
            changed: Any = {slot: other()}
            assert difference(steps, own, replace(own, **changed)) > CHANGED, other.kind

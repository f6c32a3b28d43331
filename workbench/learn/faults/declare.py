"""A fault is one decorated function: its bug, strength, the runs it can affect, the change. Imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from sorl.agent.draws import FAULT, generator
from sorl.agent.engines import Engine, engine_for
from sorl.objective import Algorithm
from sorl.spec import FaultSettings, InputError, RunSettings, first_paragraph, nearest
from sorl.tensors import Tensor, torch

T = TypeVar("T")
Change = TypeVar("Change", bound=Callable[..., Any])
# Where the trainer calls: what a function of each hook gets, may change and returns. `step` is the iteration
# of the call; that of "batch" is the iteration that trains on it.
HOOKS = {
    "learn": "LearnSettings that the step is carried out with",
    "engine": "the Engine that samples rollouts; held-out evaluation has its own",
    "world": "the World that rollouts are sampled in; held-out evaluation has its own",
    "episodes": "list[Episode] that the sampler hands over",
    "take": "the Rollout that comes out of the queue",
    "batch": "Batch of the episodes, before anything is computed from them",
    "estimate": "Batch that advantages are estimated from, with log-probs; its groups are only used for that",
    "reference": "the frozen reference of the KL term",
}
NEEDS = {
    "": "every algorithm",
    "critic": "algorithms with a critic",
    "groups": "algorithms that compare inside prompt groups",
    "clipping": "every algorithm, with learn.policy.max_grad_norm",
    "reference": "every algorithm, with a KL term to the reference",
    "experts": "every algorithm, with a mixture of experts",
}


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `strength` says what its number is, in which unit, and `default` what it is unless
    set.
    """

    change: Callable[[Fault, Any, int], Any]
    hook: str  # of `HOOKS`
    strength: str
    unit: str
    default: float
    low: float = 0.0  # least strength allowed
    high: float = float("inf")
    whole: bool = False  # the strength is a whole number
    turn: bool = False  # it can be confined to one turn
    needs: Literal["", "critic", "groups", "clipping", "reference", "experts"] = ""
    lead: int = 0  # iterations before `at_step` from which on it has to look at what it will misuse
    remembers: bool = False  # what came before `at_step` or an iteration with it: in no checkpoint
    caught: str = ""  # what in the trainer catches it without looking for it

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.change.__name__

    @property
    def bug(self) -> str:
        """The bug that it stands for: the first paragraph of its function's docstring."""
        return first_paragraph(self.change)

    @property
    def concerns(self) -> str:
        """The runs that it can affect, in words."""
        return NEEDS[self.needs]


FAULTS: dict[str, Kind] = {}


def fault(hook: str, strength: str, unit: str, default: float, **options: Any) -> Callable[[Change], Change]:
    """Register the function below as a fault of its name; the arguments are the fields of `Kind`."""

    def register(change: Change) -> Change:
        FAULTS[change.__name__] = Kind(change, hook, strength, unit, default, **options)
        return change

    return register


@dataclass
class Fault:
    """The fault of a run, called at every hook, with random numbers of its own; without one it changes
    nothing.
    """

    run: RunSettings
    policy: Any = None
    tokenizer: Any = None
    kept: dict[Any, Any] = field(default_factory=dict)  # what a fault remembers between calls

    def __call__(self, hook: str, value: T, step: int) -> T:
        """Return `value`, changed if the fault sits in this hook and acts in iteration `step`."""
        if self.run.fault is None:
            return value
        found = FAULTS[self.run.fault.kind]
        end = self.run.fault.until_step
        acts = step >= self.run.fault.at_step - found.lead and (end is None or step < end)
        return found.change(self, value, step) if acts and hook == found.hook else value

    @property
    def settings(self) -> FaultSettings:
        """Table [fault] of the run."""
        assert self.run.fault is not None
        return self.run.fault

    @property
    def strength(self) -> float:
        """The strength of the fault, its kind's default where the settings do not say."""
        given = self.settings.strength
        return FAULTS[self.settings.kind].default if given is None else given

    def stream(self, *key: int) -> torch.Generator:
        """Random numbers addressed by `key`."""
        return generator(self.run.seed, FAULT, *key)

    def below(self, n: int, stream: torch.Generator) -> int:
        """Draw a whole number from 0 to n - 1."""
        return int(torch.randint(n, (1,), generator=stream))

    def some(self, n: int, *key: int) -> Tensor:
        """Return True at the share `strength` of `n` rows, drawn at random, at least one of
        them, (n,) bool.
        """
        chosen = torch.zeros(n, dtype=torch.bool)
        if self.strength > 0:
            chosen[torch.randperm(n, generator=self.stream(*key))[: max(1, round(n * self.strength))]] = True
        return chosen

    @cached_property
    def copy(self) -> Any:
        """Return a copy of the policy for a sampler of its own."""
        return deepcopy(self.policy).requires_grad_(False)

    def sampler(self, model: Any, temperature: float = 1.0) -> Engine:
        """Return an engine that samples from `model` at `temperature` times the run's temperature."""
        engine = self.run.engine.model_copy(update={"temperature": self.run.engine.temperature * temperature})
        return engine_for(model, self.tokenizer, engine, self.run.wording)


def check(run: RunSettings, algorithm: Algorithm) -> None:
    """Raise InputError where the fault of `run` does not exist, or cannot happen to it."""
    if run.fault is None:
        return
    name = run.fault.kind
    if name not in FAULTS:
        raise InputError(
            f"unknown fault.kind '{name}'{nearest(name, FAULTS)}; use one of: {', '.join(FAULTS)}"
        )
    kind = FAULTS[name]
    strength = Fault(run).strength
    if not kind.low <= strength <= kind.high or (kind.whole and strength != int(strength)):
        most = "" if kind.high == float("inf") else f" to {kind.high:g}"
        allowed = f"must be {'a whole number' if kind.whole else 'a number'} from {kind.low:g}{most}"
        meaning = f"{kind.strength} ({kind.unit or 'no unit'})"
        raise InputError(f"fault.strength = {strength:g} of '{name}' {allowed}: {meaning}")
    if run.fault.turn is not None and not kind.turn:
        able = ", ".join(k.name for k in FAULTS.values() if k.turn)
        raise InputError(
            f"fault.kind '{name}' concerns no single turn; delete fault.turn, or use one of: {able}"
        )
    for reason, holds in _lacks(run, algorithm, kind).items():
        if holds:
            raise InputError(f"fault.kind '{name}' concerns {kind.concerns}: {reason}")


def _lacks(run: RunSettings, algorithm: Algorithm, kind: Kind) -> dict[str, bool]:
    """Why a fault cannot happen to a run, each with whether it is so."""
    assert run.fault is not None
    name = run.fault.kind
    micro_batches = run.learn.micro_batch or run.compute.micro_batch_tokens
    return {
        f"{algorithm.name} has no critic": kind.needs == "critic" and not algorithm.critic,
        f"{algorithm.name} compares nothing inside prompt groups": (
            kind.needs == "groups" and algorithm.group_size <= 1
        ),
        "learn.policy.max_grad_norm is not set": (
            kind.needs == "clipping" and run.learn.policy.max_grad_norm is None
        ),
        "the run has no KL term to a reference; set slots.kl": (
            kind.needs == "reference" and not algorithm.needs_reference
        ),
        f'policy.family = "{run.policy.family}" is dense': (
            kind.needs == "experts" and run.model is None and not run.policy.mixture
        ),
        f'engine.kind = "{run.engine.kind}" samples outside the trainer; set engine.kind = "hf"': (
            kind.hook == "engine" and run.engine.kind != "hf"
        ),
        "a run with `model` has no untrained network of its own to go back to": (
            name == "reference_wrong" and run.model is not None
        ),
        "a micro-batch leaves out the padding beyond its longest row; "
        "unset learn.micro_batch and compute's": (name == "padding_leak" and bool(micro_batches)),
    }

"""The kinds of fault, declared once: the bug, its strength, and the runs that it can affect.

Nothing heavy is imported here: `sorl plan` checks a grid's faults with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.objective import Algorithm
from workbench.spec import FaultSettings, InputError, RunSettings, nearest

Needs = Literal["", "critic", "groups", "clipping", "reference"]
Hook = Literal["engine", "world", "episodes", "take", "batch", "estimate", "learn", "reference"]


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `strength` says what its number is, in which unit, and `default` what it is unless set."""

    name: str
    hook: Hook
    bug: str  # the bug that it stands for, in a sentence
    strength: str
    unit: str
    default: float
    low: float = 0.0  # least strength allowed
    high: float = float("inf")
    whole: bool = False  # the strength is a whole number
    turn: bool = False  # it can be confined to one turn
    needs: Needs = ""
    lead: int = 0  # iterations before `at_step` from which on it has to look at what it will misuse
    caught: str = ""  # what in the trainer catches it without looking for it

    @property
    def concerns(self) -> str:
        """The runs that it can affect, in words."""
        words: dict[str, str] = {
            "": "every algorithm",
            "critic": "algorithms with a critic",
            "groups": "algorithms that compare inside prompt groups",
            "clipping": "every algorithm, with learn.policy.max_grad_norm",
            "reference": "every algorithm, with a KL term to the reference",
        }
        return words[self.needs]


_EVERY = "share of the trajectories"

KINDS: tuple[Kind, ...] = (
    # What samples
    Kind("stale_weights", "engine",
         "The weight sync to the sampler stops unnoticed: it keeps its old weights, and the log "
         "says that its rollouts are fresh.",
         "age at which the sampler's weights stop falling behind", "iterations", 1000.0, low=1.0, whole=True, lead=1,
         caught="nothing in-process; vLLM's sync check where a sampler has a copy of its own"),
    Kind("low_precision", "engine",
         "The sampler runs on rounded weights, such as bfloat16 or FP8, and the trainer on float32.",
         "bits of the mantissa that the sampler's weights keep (bfloat16 7, FP8 E4M3 3)", "bits", 7.0, low=1.0,
         high=22.0, whole=True),
    Kind("temperature", "engine",
         "The sampler draws at another temperature than the trainer computes log-probs at, and reports the log-probs "
         "of what it drew from.",
         "factor on engine.temperature in the sampler", "times", 1.5, low=0.01),
    Kind("temperature_hidden", "engine",
         "The sampler draws at another temperature and reports log-probs from before the temperature (vLLM's raw "
         "log-probs): the two sides agree about tokens that were drawn from something else.",
         "factor on engine.temperature in the sampler", "times", 1.5, low=0.01),
    # What it learns from: the world
    Kind("retriever_empty", "world", "The retriever finds nothing: an index that is gone, a filter that fits nothing.",
         "share of the searches", "fraction", 1.0, high=1.0, turn=True),
    Kind("retriever_slow", "world", "The retriever answers slowly: an overloaded server. The numbers stay right.",
         "wall time added to each search", "s", 0.01, turn=True),
    Kind("retriever_junk", "world",
         "The retriever returns the passages of another query: results out of step with their requests.",
         "share of the searches", "fraction", 1.0, high=1.0, turn=True),
    Kind("truncated", "world", "The budget of turns is cut, and episodes end before they can answer.",
         "turns that an episode may have", "turns", 2.0, low=1.0, whole=True),
    Kind("turn_cut", "world", "The budget of tokens of a turn is cut, and actions end before their closing tag.",
         "tokens that a turn may have", "tokens", 5.0, low=1.0, whole=True),
    # What it learns from: the reward
    Kind("reward_format", "episodes",
         "The reward pays for the format: an answer after valid turns, whatever it says.",
         "weight of the format in the reward, of which the rest is the right one", "fraction", 1.0, high=1.0),
    Kind("reward_noise", "episodes", "The reward is noisy: a judge that is wrong at random.",
         "probability that a reward R becomes 1 - R", "fraction", 0.3, high=1.0),
    Kind("reward_inverted", "episodes", "The reward has the wrong sign: a loss handed over as a score.",
         "factor on the reward, besides the wrong sign", "times", 1.0),
    Kind("reward_shifted", "episodes",
         "The rewards come back in another order than the trajectories: each has that of a row before it.",
         "rows by which they are off", "rows", 1.0, low=1.0, whole=True),
    # What it is trained on
    Kind("retokenised", "episodes",
         "A turn is decoded and encoded again on its way to the trainer: one of its tokens comes back as another.",
         _EVERY, "fraction", 0.25, high=1.0, turn=True, caught="guard_token_identity"),
    Kind("batch_reused", "take",
         "The loader hands out the batch of the step before once more, and the one whose turn it is is lost.",
         "times that a batch is trained on again before the next one", "steps", 1.0, low=1.0, whole=True, lead=1,
         caught="guard_stuck_batch"),
    Kind("staleness", "learn",
         "Rollouts pile up: the sampler runs ahead of the trainer, and the queue between them grows.",
         "rollouts by which the queue grows, one an iteration", "rollouts", 8.0, low=1.0, whole=True),
    Kind("observation_leak", "batch",
         "The loss mask lets observations through: the agent is trained on what the world wrote.",
         _EVERY, "fraction", 1.0, high=1.0, turn=True, caught="guard_token_identity"),
    Kind("prompt_leak", "batch", "The loss mask lets the prompt through.",
         _EVERY, "fraction", 1.0, high=1.0, caught="guard_token_identity"),
    Kind("padding_leak", "batch", "The loss mask lets padding through.",
         _EVERY, "fraction", 1.0, high=1.0, caught="guard_token_identity"),
    Kind("turn_shift", "batch",
         "The loss mask is off by one: turns lose their first tokens and gain those after their last.",
         "tokens by which turns are shifted", "tokens", 1.0, low=1.0, whole=True, turn=True,
         caught="guard_token_identity"),
    Kind("corrupt_log_prob", "estimate",
         "The old log-prob of one token of a step is stale or corrupt, and its ratio is out of proportion.",
         "what is taken off the old log-prob", "nats", 8.0, low=-1000.0, turn=True, caught="guard_first_ratio"),
    Kind("wrong_groups", "estimate",
         "Advantages are normalised across the wrong groups: the group of a row is taken from another row.",
         "rows by which groups are off", "rows", 4.0, low=1.0, whole=True, needs="groups"),
    # How it is trained
    Kind("learning_rate", "learn", "The schedule multiplies the policy's learning rate.",
         "factor", "times", 10.0, low=0.0),
    Kind("clipping_off", "learn",
         "Gradient clipping is configured and not applied.",
         "norm to which gradients are still clipped, in multiples of learn.policy.max_grad_norm", "times", 1e9,
         low=1.0, needs="clipping"),
    Kind("critic_diverges", "learn",
         "The critic's learning rate is far too high: its values run away and soon say nothing of a state.",
         "factor on learn.critic.lr", "times", 300.0, needs="critic"),
    Kind("entropy_bonus", "learn", "The entropy bonus is too high.", "learn.entropy_coef in effect", "", 0.3),
    Kind("reference_wrong", "reference",
         "The reference of the KL term is not the warm start but an earlier checkpoint of it.",
         "way back from the warm start to the untrained network", "fraction", 0.3, high=1.0, needs="reference"),
)  # fmt: skip


def kind(name: str) -> Kind:
    """Return the kind `name`. Raises InputError for one that does not exist."""
    known = {k.name: k for k in KINDS}
    if name not in known:
        raise InputError(f"unknown fault.kind '{name}'{nearest(name, known)}; use one of: {', '.join(known)}")
    return known[name]


def check(run: RunSettings, algorithm: Algorithm) -> None:
    """Whether the fault of `run` can happen to it. Raises InputError where it cannot."""
    if run.fault is None:
        return
    declared, fault = kind(run.fault.kind), run.fault
    _check_strength(declared, fault)
    if fault.turn is not None and not declared.turn:
        able = ", ".join(k.name for k in KINDS if k.turn)
        raise InputError(f"fault.kind '{fault.kind}' concerns no single turn; delete fault.turn, or use one of: {able}")
    lacks = {
        "critic": "" if algorithm.critic else f"{algorithm.name} has no critic",
        "groups": "" if algorithm.group_size > 1 else f"{algorithm.name} compares nothing inside prompt groups",
        "clipping": "learn.policy.max_grad_norm is not set" if run.learn.policy.max_grad_norm is None else "",
        "reference": "" if algorithm.needs_reference else "the run has no KL term to a reference; set slots.kl",
        "": "",
    }[declared.needs]
    if declared.hook == "engine" and run.engine.kind != "hf":
        lacks = f'engine.kind = "{run.engine.kind}" samples outside the trainer; set engine.kind = "hf"'
    if declared.name == "reference_wrong" and run.model is not None:
        lacks = "a run with `model` has no untrained network of its own to go back to"
    if declared.name == "padding_leak" and (run.learn.micro_batch or run.compute.micro_batch_tokens):
        lacks = "a micro-batch leaves out the padding beyond its longest row; unset learn.micro_batch and compute's"
    if lacks:
        raise InputError(f"fault.kind '{fault.kind}' concerns {declared.concerns}: {lacks}")


def strength(fault: FaultSettings) -> float:
    """Return the strength of the fault, its kind's default where the settings do not say."""
    return kind(fault.kind).default if fault.strength is None else fault.strength


def _check_strength(declared: Kind, fault: FaultSettings) -> None:
    given = strength(fault)
    if not declared.low <= given <= declared.high or (declared.whole and given != int(given)):
        number = "a whole number" if declared.whole else "a number"
        most = "" if declared.high == float("inf") else f" to {declared.high:g}"
        raise InputError(
            f"fault.strength = {given:g} of '{declared.name}' must be {number} from {declared.low:g}{most}: "
            f"{declared.strength} ({declared.unit or 'no unit'})"
        )

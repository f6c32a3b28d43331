"""Faults of the rollouts: weights, temperature, world, rewards."""

from __future__ import annotations

import time
from copy import copy, deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from workbench.agent.engines import Engine
from workbench.agent.episode import Episode, collate
from workbench.agent.worlds import Question, Retrieved, World
from workbench.learn.faults.declare import Fault, fault
from workbench.tensors import Tensor, torch

Found = str | Retrieved


@fault(
    "engine", "age at which the sampler's weights stop falling behind", "iterations", 1000.0, low=1.0, whole=True,
    lead=1, remembers=True, caught="nothing in-process; vLLM's sync check where a sampler has a copy of its own",
)  # fmt: skip
def stale_weights(bug: Fault, engine: Engine, step: int) -> Engine:
    """The weight sync to the sampler stops unnoticed: it keeps its old weights, and the log says that its rollouts are
    fresh.

    It samples from the weights of iteration max(at_step - 1, step - strength).
    """
    first, age = max(bug.settings.at_step - 1, 0), int(bug.strength)
    if step not in bug.kept and (step == first or step + age < bug.run.iterations):
        bug.kept[step] = {name: x.detach().clone() for name, x in bug.policy.state_dict().items()}
    if step < bug.settings.at_step:
        return engine
    wanted = max(first, step - age)
    bug.kept = {at: weights for at, weights in bug.kept.items() if at >= wanted}
    bug.copy.load_state_dict(bug.kept[wanted])
    return bug.sampler(bug.copy)


@fault(
    "engine", "bits of the mantissa that the sampler's weights keep (bfloat16 7, FP8 E4M3 3)", "bits", 7.0, low=1.0,
    high=22.0, whole=True,
)  # fmt: skip
def low_precision(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler runs on rounded weights, such as bfloat16 or FP8, and the trainer on float32."""
    with torch.no_grad():
        for copied, weight in zip(bug.copy.parameters(), bug.policy.parameters(), strict=True):
            copied.copy_(rounded(weight, int(bug.strength)))
    return bug.sampler(bug.copy)


@fault("engine", "noise on the router's weights, in their standard deviations", "times", 0.3, needs="experts")
def route_mismatch(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler's routers are not the trainer's: other kernels, a quantised gate, weights that were loaded wrong. All
    other weights are.
    """
    from workbench.agent.routing import routers

    bug.copy.load_state_dict(bug.policy.state_dict())
    with torch.no_grad():
        for i, router in enumerate(routers(bug.copy)):
            noise = torch.randn(router.weight.shape, generator=bug.stream(i)).to(router.weight)
            router.weight.add_(bug.strength * router.weight.std() * noise)
    return bug.sampler(bug.copy)


def rounded(x: Tensor, bits: int) -> Tensor:
    """`x` to the nearest number with `bits` bits of mantissa after the leading one, ties to even."""
    mantissa, exponent = torch.frexp(x)
    scale = 2.0 ** (bits + 1)  # frexp's mantissa is in [1/2, 1)
    return torch.ldexp((mantissa * scale).round() / scale, exponent)


@fault("engine", "factor on engine.temperature in the sampler", "times", 1.5, low=0.01)
def temperature(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler draws at another temperature than the trainer computes log-probs at, and reports the log-probs of
    what it drew from.
    """
    return bug.sampler(bug.policy, bug.strength)


@fault("engine", "factor on engine.temperature in the sampler", "times", 1.5, low=0.01)
def temperature_hidden(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler draws at another temperature and reports log-probs from before the temperature (vLLM's raw
    log-probs): the two sides agree about tokens that were drawn from something else.
    """
    from workbench.learn.rollouts import scored

    sampler = bug.sampler(bug.policy, bug.strength)

    def rollout(*arguments: Any) -> list[Episode]:
        episodes = sampler.rollout(*arguments)
        batch = collate(episodes, bug.tokenizer.pad_token_id)
        # In float64: by the trainer's own arithmetic they would agree to the last bit, as two programs never do.
        found, _ = scored(deepcopy(bug.policy).double(), batch, bug.run.engine.temperature)
        return [replace(e, log_prob=row[: len(e.tokens)].tolist()) for e, row in zip(episodes, found, strict=True)]

    return SimpleNamespace(rollout=rollout)


def _changed(world: World, **attributes: Any) -> World:
    changed = copy(world)
    vars(changed).update(attributes)
    return changed


def _found(found: Found, text: str, **columns: Any) -> Found:
    """Return what a search found with another text, and with other columns where a retriever found it."""
    return found._replace(text=text, **columns) if isinstance(found, Retrieved) else text


def _searching(bug: Fault, world: World, step: int, share: float, change: Any) -> World:
    """Return the world with `change(found, hit)` on what a search finds; `hit` at random, in the turn concerned."""
    stream = bug.stream(step)

    def search(question: Question, query: str, turn: int) -> Found | None:
        found = world.search(question, query, turn)
        if found is None:  # a query that the world cannot read stays unread
            return None
        hit = float(torch.rand(1, generator=stream)) < share
        return change(found, hit and bug.settings.turn in (None, turn))

    return _changed(world, search=search)


@fault("world", "share of the searches", "fraction", 1.0, high=1.0, turn=True)
def retriever_empty(bug: Fault, world: World, step: int) -> World:
    """The retriever finds nothing: an index that is gone, a filter that fits nothing."""
    return _searching(bug, world, step, bug.strength, lambda x, hit: _found(x, "", status="empty") if hit else x)


@fault("world", "wall time added to each search", "s", 0.01, turn=True)
def retriever_slow(bug: Fault, world: World, step: int) -> World:
    """The retriever answers slowly: an overloaded server. The numbers stay right."""

    def change(found: Found, hit: bool) -> Found:
        late = bug.strength if hit else 0.0
        time.sleep(late)
        return found._replace(seconds=found.seconds + late) if isinstance(found, Retrieved) else found

    return _searching(bug, world, step, 1.0, change)


@fault("world", "share of the searches", "fraction", 1.0, high=1.0, turn=True, remembers=True)
def retriever_junk(bug: Fault, world: World, step: int) -> World:
    """The retriever returns the passages of another query: results out of step with their requests.

    They are those of the last search for something else; the first search gets its own.
    """

    def change(found: Found, hit: bool) -> Found:
        own = found.text if isinstance(found, Retrieved) else found
        if own != bug.kept.get("last"):
            bug.kept = {"last": own, "other": bug.kept.get("last")}
        return _found(found, bug.kept["other"] if hit and bug.kept["other"] is not None else own)

    return _searching(bug, world, step, bug.strength, change)


@fault("world", "turns that an episode may have", "turns", 2.0, low=1.0, whole=True)
def truncated(bug: Fault, world: World, step: int) -> World:
    """The budget of turns is cut, and episodes end before they can answer."""
    return _changed(world, max_turns=min(world.max_turns, int(bug.strength)))


@fault("world", "tokens that a turn may have", "tokens", 5.0, low=1.0, whole=True)
def turn_cut(bug: Fault, world: World, step: int) -> World:
    """The budget of tokens of a turn is cut, and actions end before their closing tag."""
    return _changed(world, max_turn_tokens=min(world.max_turn_tokens, int(bug.strength)))


@fault("episodes", "weight of the format in the reward, of which the rest is the right one", "fraction", 1.0, high=1.0)
def reward_format(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The reward pays for the format: an answer after valid turns, whatever it says."""
    s, formed = bug.strength, [e.answer is not None and e.valid_turns == e.turns for e in episodes]
    return [replace(e, reward=(1 - s) * e.reward + s * good) for e, good in zip(episodes, formed, strict=True)]


@fault("episodes", "probability that a reward R becomes 1 - R", "fraction", 0.3, high=1.0)
def reward_noise(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The reward is noisy: a judge that is wrong at random."""
    wrong = torch.rand(len(episodes), generator=bug.stream(step, episodes[0].question_id)) < bug.strength
    return [replace(e, reward=1 - e.reward) if w else e for e, w in zip(episodes, wrong.tolist(), strict=True)]


@fault("episodes", "factor on the reward, besides the wrong sign", "times", 1.0)
def reward_inverted(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The reward has the wrong sign: a loss handed over as a score."""
    return [replace(e, reward=-bug.strength * e.reward) for e in episodes]


@fault("episodes", "rows by which they are off", "rows", 1.0, low=1.0, whole=True)
def reward_shifted(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The rewards come back in another order than the trajectories: each has that of a row before it."""
    rows = int(bug.strength)
    return [replace(e, reward=episodes[(i - rows) % len(episodes)].reward) for i, e in enumerate(episodes)]

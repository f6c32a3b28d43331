"""The kinds of fault: of rollouts (weights, temperature, world, rewards), then of training (tokens, masks,
rates).
"""

from __future__ import annotations

import time
from copy import copy, deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sorl.agent.engines import Engine
from sorl.agent.episode import Episode, collate
from sorl.agent.worlds import Question, Retrieved, World
from sorl.batch import Batch, turn_ids
from sorl.learn.faults.declare import Fault, fault
from sorl.spec import LearnSettings
from sorl.tensors import Tensor, torch

if TYPE_CHECKING:
    from sorl.learn.rollout import Rollout


@fault(
    "engine",
    "age at which the sampler's weights stop falling behind",
    "iterations",
    1000.0,
    low=1.0,
    whole=True,
    lead=1,
    remembers=True,
    caught="nothing in-process; vLLM's sync check where a sampler has a copy of its own",
)
def stale_weights(bug: Fault, engine: Engine, step: int) -> Engine:
    """The weight sync to the sampler stops unnoticed: it keeps old weights, and the log calls its rollouts
    fresh.

    It samples from the weights of iteration max(at_step - 1, step - strength).
    """
    first = max(bug.settings.at_step - 1, 0)
    age = int(bug.strength)
    if step not in bug.kept and (step == first or step + age < bug.run.iterations):
        bug.kept[step] = {name: x.detach().clone() for name, x in bug.policy.state_dict().items()}
    if step < bug.settings.at_step:
        return engine
    wanted = max(first, step - age)
    bug.kept = {at: weights for at, weights in bug.kept.items() if at >= wanted}
    bug.copy.load_state_dict(bug.kept[wanted])
    return bug.sampler(bug.copy)


@fault(
    "engine",
    "bits of the mantissa that the sampler's weights keep (bfloat16 7, FP8 E4M3 3)",
    "bits",
    7.0,
    low=1.0,
    high=22.0,
    whole=True,
)
def low_precision(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler runs on rounded weights, such as bfloat16 or FP8, and the trainer on float32."""
    with torch.no_grad():
        for copied, weight in zip(bug.copy.parameters(), bug.policy.parameters(), strict=True):
            copied.copy_(rounded(weight, int(bug.strength)))
    return bug.sampler(bug.copy)


@fault("engine", "noise on the router's weights, in their standard deviations", "times", 0.3, needs="experts")
def route_mismatch(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler's routers alone are not the trainer's: other kernels, a quantised gate, weights loaded
    wrong.
    """
    from sorl.agent.routing import routers

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
    """The sampler draws at another temperature than the trainer's, and reports log-probs of what it drew
    from.
    """
    return bug.sampler(bug.policy, bug.strength)


@fault("engine", "factor on engine.temperature in the sampler", "times", 1.5, low=0.01)
def temperature_hidden(bug: Fault, engine: Engine, step: int) -> Engine:
    """The sampler draws at another temperature and reports log-probs from before the temperature (vLLM's raw
    log-probs): the two sides agree about tokens that were drawn from something else.
    """
    from sorl.learn.networks import scored

    sampler = bug.sampler(bug.policy, bug.strength)

    def rollout(*arguments: Any) -> list[Episode]:
        episodes = sampler.rollout(*arguments)
        batch = collate(episodes, bug.tokenizer.pad_token_id)
        # In float64: by the trainer's own arithmetic they would agree to the last bit, as two programs never
        # do.
        found, _ = scored(deepcopy(bug.policy).double(), batch, bug.run.engine.temperature)
        return [
            replace(e, log_prob=row[: len(e.tokens)].tolist()) for e, row in zip(episodes, found, strict=True)
        ]

    return SimpleNamespace(rollout=rollout)


def _changed(world: World, **attributes: Any) -> World:
    changed = copy(world)
    vars(changed).update(attributes)
    return changed


def _searching(bug: Fault, world: World, step: int, share: float, change: Any) -> World:
    """Return the world with `change(found, hit)` on what a search finds; `hit` at random, in the turn
    concerned.
    """
    stream = bug.stream(step)

    def search(question: Question, query: str, turn: int) -> Retrieved | None:
        found = world.search(question, query, turn)
        if found is None:  # a query that the world cannot read stays unread
            return None
        hit = float(torch.rand(1, generator=stream)) < share
        return change(found, hit and bug.settings.turn in (None, turn))

    return _changed(world, search=search)


@fault("world", "share of the searches", "fraction", 1.0, high=1.0, turn=True)
def retriever_empty(bug: Fault, world: World, step: int) -> World:
    """The retriever finds nothing: an index that is gone, a filter that fits nothing."""

    def change(found: Retrieved, hit: bool) -> Retrieved:
        return found._replace(text="", status=found.status and "empty") if hit else found

    return _searching(bug, world, step, bug.strength, change)


@fault("world", "wall time added to each search", "s", 0.01, turn=True)
def retriever_slow(bug: Fault, world: World, step: int) -> World:
    """The retriever answers slowly: an overloaded server. The numbers stay right."""

    def change(found: Retrieved, hit: bool) -> Retrieved:
        late = bug.strength if hit else 0.0
        time.sleep(late)
        return found if found.seconds is None else found._replace(seconds=found.seconds + late)

    return _searching(bug, world, step, 1.0, change)


@fault("world", "share of the searches", "fraction", 1.0, high=1.0, turn=True, remembers=True)
def retriever_junk(bug: Fault, world: World, step: int) -> World:
    """The retriever returns the passages of another query: results out of step with their requests.

    They are those of the last search for something else; the first search gets its own.
    """

    def change(found: Retrieved, hit: bool) -> Retrieved:
        if found.text != bug.kept.get("last"):
            bug.kept = {"last": found.text, "other": bug.kept.get("last")}
        other = bug.kept["other"]
        return found._replace(text=other) if hit and other is not None else found

    return _searching(bug, world, step, bug.strength, change)


@fault("world", "turns that an episode may have", "turns", 2.0, low=1.0, whole=True)
def truncated(bug: Fault, world: World, step: int) -> World:
    """The budget of turns is cut, and episodes end before they can answer."""
    return _changed(world, max_turns=min(world.max_turns, int(bug.strength)))


@fault("world", "tokens that a turn may have", "tokens", 5.0, low=1.0, whole=True)
def turn_cut(bug: Fault, world: World, step: int) -> World:
    """The budget of tokens of a turn is cut, and actions end before their closing tag."""
    return _changed(world, max_turn_tokens=min(world.max_turn_tokens, int(bug.strength)))


@fault(
    "episodes",
    "weight of the format in the reward, of which the rest is the right one",
    "fraction",
    1.0,
    high=1.0,
)
def reward_format(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The reward pays for the format: an answer after valid turns, whatever it says."""
    s = bug.strength
    formed = [e.answer is not None and e.valid_turns == e.turns for e in episodes]
    return [
        replace(e, reward=(1 - s) * e.reward + s * good) for e, good in zip(episodes, formed, strict=True)
    ]


@fault("episodes", "probability that a reward R becomes 1 - R", "fraction", 0.3, high=1.0)
def reward_noise(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The reward is noisy: a judge that is wrong at random."""
    wrong = torch.rand(len(episodes), generator=bug.stream(step, episodes[0].question_id)) < bug.strength
    return [
        replace(e, reward=1 - e.reward) if w else e for e, w in zip(episodes, wrong.tolist(), strict=True)
    ]


@fault("episodes", "factor on the reward, besides the wrong sign", "times", 1.0)
def reward_inverted(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The reward has the wrong sign: a loss handed over as a score."""
    return [replace(e, reward=-bug.strength * e.reward) for e in episodes]


@fault("episodes", "rows by which they are off", "rows", 1.0, low=1.0, whole=True)
def reward_shifted(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """The rewards come back in another order than the trajectories: each has that of a row before it."""
    rows = int(bug.strength)
    return [replace(e, reward=episodes[(i - rows) % len(episodes)].reward) for i, e in enumerate(episodes)]


_SHARE = ("share of the trajectories", "fraction")


@fault("episodes", *_SHARE, 0.25, high=1.0, turn=True, caught="guard_token_identity")
def retokenised(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """A turn is decoded and encoded again on its way to the trainer: one of its tokens comes back as another.

    The turn is any unless one is named; the sampler's log-probs stay those of what it sampled.
    """
    stream = bug.stream(step, episodes[0].question_id)
    chosen = bug.some(len(episodes), step, episodes[0].question_id, 1)
    vocabulary = len(bug.tokenizer)
    found = list(episodes)
    for i in chosen.nonzero()[:, 0].tolist():
        tokens = list(found[i].tokens)
        sizes = [len(stretch) for stretch in found[i].stretches]
        turn = bug.settings.turn or 1 + bug.below(found[i].turns, stream)
        if turn <= found[i].turns:
            at = sum(sizes[: 2 * turn - 1]) + bug.below(sizes[2 * turn - 1], stream)
            tokens[at] = (tokens[at] + 1 + bug.below(vocabulary - 1, stream)) % vocabulary
            found[i] = replace(found[i], tokens=tokens)
    return found


@fault(
    "take",
    "times that a batch is trained on again before the next one",
    "steps",
    1.0,
    low=1.0,
    whole=True,
    lead=1,
    remembers=True,
    caught="guard_stuck_batch",
)
def batch_reused(bug: Fault, rollout: Rollout, step: int) -> Rollout:
    """The loader hands out the batch of the step before once more, and the one whose turn it is is lost."""
    again = (step - bug.settings.at_step) % (int(bug.strength) + 1) != int(bug.strength)
    if step < bug.settings.at_step or not again:
        bug.kept["last"] = rollout
    return bug.kept.setdefault("last", rollout)


@fault("learn", "rollouts by which the queue grows, one an iteration", "rollouts", 8.0, low=1.0, whole=True)
def staleness(bug: Fault, learn: LearnSettings, step: int) -> LearnSettings:
    """Rollouts pile up: the sampler runs ahead of the trainer, and the queue between them grows.

    It stays as long after the fault's end.
    """
    more = min(int(bug.strength), step - bug.settings.at_step + 1)
    return learn.model_copy(update={"staleness": learn.staleness + more})


def _leaking(bug: Fault, batch: Batch, step: int, tokens: Tensor) -> Batch:
    rows = bug.some(len(batch.tokens), step)[:, None]
    return replace(batch, mask=batch.mask | (rows & tokens), turn_id=None)


@fault("batch", *_SHARE, 1.0, high=1.0, turn=True, caught="guard_token_identity")
def observation_leak(bug: Fault, batch: Batch, step: int) -> Batch:
    """The loss mask lets observations through: the agent is trained on what the world wrote."""
    observed = batch.response & ~batch.mask
    if bug.settings.turn is not None:
        observed = observed & (turn_ids(batch.mask).cummax(1).values == bug.settings.turn)
    return _leaking(bug, batch, step, observed)


@fault("batch", *_SHARE, 1.0, high=1.0, caught="guard_token_identity")
def prompt_leak(bug: Fault, batch: Batch, step: int) -> Batch:
    """The loss mask lets the prompt through."""
    before = batch.inside & ~batch.response & ~batch.mask
    before[:, 0] = False  # nothing predicts the first token
    return _leaking(bug, batch, step, before)


@fault("batch", *_SHARE, 1.0, high=1.0, caught="guard_token_identity")
def padding_leak(bug: Fault, batch: Batch, step: int) -> Batch:
    """The loss mask lets padding through."""
    return _leaking(bug, batch, step, ~batch.inside)


@fault(
    "batch",
    "tokens by which turns are shifted",
    "tokens",
    1.0,
    low=1.0,
    whole=True,
    turn=True,
    caught="guard_token_identity",
)
def turn_shift(bug: Fault, batch: Batch, step: int) -> Batch:
    """The loss mask is off by one: turns lose their first tokens and gain those after their last."""
    turn = turn_ids(batch.mask)
    s = int(bug.strength)
    moving = batch.mask if bug.settings.turn is None else turn == bug.settings.turn
    moved = torch.zeros_like(moving)
    moved[:, s:] = moving[:, :-s]
    return replace(batch, mask=(batch.mask & ~moving) | (moved & batch.inside), turn_id=None)


@fault(
    "estimate",
    "what is taken off the old log-prob",
    "nats",
    8.0,
    low=-1000.0,
    turn=True,
    caught="guard_first_ratio",
)
def corrupt_log_prob(bug: Fault, batch: Batch, step: int) -> Batch:
    """The old log-prob of one token of a step is stale or corrupt, and its ratio is out of proportion.

    Nothing changes where no trajectory has the turn concerned.
    """
    places = (batch.turn == bug.settings.turn if bug.settings.turn else batch.mask).nonzero()
    if not len(places):
        return batch
    row, at = places[bug.below(len(places), bug.stream(step))]
    old = batch.log_prob_old.clone()
    old[row, at] -= bug.strength
    return replace(batch, log_prob_old=old)


@fault("estimate", "rows by which groups are off", "rows", 4.0, low=1.0, whole=True, needs="groups")
def wrong_groups(bug: Fault, batch: Batch, step: int) -> Batch:
    """Advantages are normalised across the wrong groups: the group of a row is taken from another row."""
    return replace(batch, group=batch.group.roll(int(bug.strength)))


def _scaled(learn: LearnSettings, network: str, name: str, factor: float) -> LearnSettings:
    own = getattr(learn, network)
    return learn.model_copy(update={network: own.model_copy(update={name: getattr(own, name) * factor})})


@fault("learn", "factor", "times", 10.0)
def learning_rate(bug: Fault, learn: LearnSettings, step: int) -> LearnSettings:
    """The schedule multiplies the policy's learning rate."""
    return _scaled(learn, "policy", "lr", bug.strength)


@fault(
    "learn",
    "norm to which gradients are still clipped, in multiples of learn.policy.max_grad_norm",
    "times",
    1e9,
    low=1.0,
    needs="clipping",
)
def clipping_off(bug: Fault, learn: LearnSettings, step: int) -> LearnSettings:
    """Gradient clipping is configured and not applied."""
    return _scaled(learn, "policy", "max_grad_norm", bug.strength)


@fault("learn", "factor on learn.critic.lr", "times", 300.0, needs="critic")
def critic_diverges(bug: Fault, learn: LearnSettings, step: int) -> LearnSettings:
    """The critic's learning rate is far too high: its values run away and soon say nothing of a state."""
    return _scaled(learn, "critic", "lr", bug.strength)


@fault("learn", "learn.entropy_coef in effect", "", 0.3)
def entropy_bonus(bug: Fault, learn: LearnSettings, step: int) -> LearnSettings:
    """The entropy bonus is too high."""
    return learn.model_copy(update={"entropy_coef": bug.strength})


@fault(
    "reference",
    "way back from the warm start to the untrained network",
    "fraction",
    0.3,
    high=1.0,
    needs="reference",
)
def reference_wrong(bug: Fault, model: Any, step: int) -> Any:
    """The reference of the KL term is not the warm start but an earlier checkpoint of it.

    theta' = (1 - s) theta_ref + s theta_0, theta_0 the untrained network that the warm start began from.
    """
    from sorl.learn import networks

    if "reference" not in bug.kept:
        copied = deepcopy(model)
        origin = networks.create(bug.run.policy, bug.tokenizer, bug.run.warmstart.seed)
        with torch.no_grad():
            for weight, untrained in zip(copied.parameters(), origin.parameters(), strict=True):
                weight.lerp_(untrained.to(weight.device), bug.strength)
        bug.kept["reference"] = copied
    return bug.kept["reference"]

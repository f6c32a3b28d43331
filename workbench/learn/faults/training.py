"""Faults of the training: tokens, masks, groups, learning rates, critic, reference."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.agent.episode import Episode
from workbench.batch import Batch, turn_ids
from workbench.learn.faults.declare import Fault, fault
from workbench.spec import LearnSettings
from workbench.tensors import Tensor, torch

if TYPE_CHECKING:
    from workbench.learn.rollouts import Rollout

_SHARE = ("share of the trajectories", "fraction")


@fault("episodes", *_SHARE, 0.25, high=1.0, turn=True, caught="guard_token_identity")
def retokenised(bug: Fault, episodes: list[Episode], step: int) -> list[Episode]:
    """A turn is decoded and encoded again on its way to the trainer: one of its tokens comes back as another.

    The turn is any unless one is named; the sampler's log-probs stay those of what it sampled.
    """
    stream = bug.stream(step, episodes[0].question_id)
    chosen = bug.some(len(episodes), step, episodes[0].question_id, 1)
    vocabulary, found = len(bug.tokenizer), list(episodes)
    for i in chosen.nonzero()[:, 0].tolist():
        tokens, sizes = list(found[i].tokens), [len(stretch) for stretch in found[i].stretches]
        turn = bug.settings.turn or 1 + bug.below(found[i].turns, stream)
        if turn <= found[i].turns:
            at = sum(sizes[: 2 * turn - 1]) + bug.below(sizes[2 * turn - 1], stream)
            tokens[at] = (tokens[at] + 1 + bug.below(vocabulary - 1, stream)) % vocabulary
            found[i] = replace(found[i], tokens=tokens)
    return found


@fault(
    "take", "times that a batch is trained on again before the next one", "steps", 1.0, low=1.0, whole=True, lead=1,
    remembers=True, caught="guard_stuck_batch",
)  # fmt: skip
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


def _inside(batch: Batch) -> Tensor:
    return torch.arange(batch.tokens.shape[1]) < batch.length[:, None]


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
    before = _inside(batch) & ~batch.response & ~batch.mask
    before[:, 0] = False  # nothing predicts the first token
    return _leaking(bug, batch, step, before)


@fault("batch", *_SHARE, 1.0, high=1.0, caught="guard_token_identity")
def padding_leak(bug: Fault, batch: Batch, step: int) -> Batch:
    """The loss mask lets padding through."""
    return _leaking(bug, batch, step, ~_inside(batch))


@fault(
    "batch", "tokens by which turns are shifted", "tokens", 1.0, low=1.0, whole=True, turn=True,
    caught="guard_token_identity",
)  # fmt: skip
def turn_shift(bug: Fault, batch: Batch, step: int) -> Batch:
    """The loss mask is off by one: turns lose their first tokens and gain those after their last."""
    turn, s = turn_ids(batch.mask), int(bug.strength)
    moving = batch.mask if bug.settings.turn is None else turn == bug.settings.turn
    moved = torch.zeros_like(moving)
    moved[:, s:] = moving[:, :-s]
    return replace(batch, mask=(batch.mask & ~moving) | (moved & _inside(batch)), turn_id=None)


@fault(
    "estimate", "what is taken off the old log-prob", "nats", 8.0, low=-1000.0, turn=True, caught="guard_first_ratio"
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
    "learn", "norm to which gradients are still clipped, in multiples of learn.policy.max_grad_norm", "times", 1e9,
    low=1.0, needs="clipping",
)  # fmt: skip
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
    "reference", "way back from the warm start to the untrained network", "fraction", 0.3, high=1.0, needs="reference"
)
def reference_wrong(bug: Fault, model: Any, step: int) -> Any:
    """The reference of the KL term is not the warm start but an earlier checkpoint of it.

    theta' = (1 - s) theta_ref + s theta_0, theta_0 the untrained network that the warm start began from.
    """
    from workbench.learn import networks

    if "reference" not in bug.kept:
        copied, origin = deepcopy(model), networks.create(bug.run.policy, bug.tokenizer, bug.run.warmstart.seed)
        with torch.no_grad():
            for weight, untrained in zip(copied.parameters(), origin.parameters(), strict=True):
                weight.lerp_(untrained.to(weight.device), bug.strength)
        bug.kept["reference"] = copied
    return bug.kept["reference"]

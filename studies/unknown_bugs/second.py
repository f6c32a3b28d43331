"""Twelve more bugs, written when the audit was to lead the diagnosis.

None of them is in the fault lab or in kinds.py.

Their author knew the audit. What a right answer says was written down before any of them was trained, and
none was changed after the first count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sorl.agent.draws import ORDER, generator
from sorl.agent.engines import hf
from sorl.agent.episode import Episode
from sorl.batch import Batch
from sorl.learn import loop, networks, update
from sorl.learn.loop import Trainer
from sorl.measures.evidence import Evidence
from sorl.objective import Algorithm
from sorl.objective.advantage import Gae
from studies.unknown_bugs.kinds import BUGS as BUGS
from studies.unknown_bugs.kinds import PPO, Patch, bug, redrawn


@bug("sampling", seen="top_p of a model's generation_config.json, with log-probs from before it")
def top_p_hidden(trainer: Trainer, patch: Patch) -> None:
    """The sampler draws from the likeliest tokens that hold 80 % of the probability, and reports log-probs
    of the whole distribution.
    """

    def sample(
        plain: Any, logits: Tensor, temperature: float, generator: Any, greedy: bool, position: int
    ) -> Any:
        log_prob = torch.log_softmax(logits.float() / temperature, -1)
        ranked, order = log_prob.exp().sort(-1, descending=True)
        is_rest = ranked.cumsum(-1) - ranked >= 0.8
        cut = logits.masked_fill(is_rest.gather(1, order.argsort(-1)), -torch.inf)
        token, _ = plain(cut, temperature, generator, greedy, position)
        return token, log_prob.gather(1, token[:, None])[:, 0]

    patch(hf, "sample", sample)


@bug("sampling", seen="an exponential moving average that is synced in place of the weights")
def sampler_averages_weights(trainer: Trainer, patch: Patch) -> None:
    """The sampler gets the mean of the present weights and those of the step in which this began."""
    policy = trainer.learner.policy
    begin = [weight.detach().clone() for weight in policy.parameters()]

    def draw(plain: Any, *arguments: Any) -> Any:
        present = [weight.detach().clone() for weight in policy.parameters()]
        _set_weights(policy, [(a + b) / 2 for a, b in zip(present, begin, strict=True)])
        try:
            return plain(*arguments)
        finally:
            _set_weights(policy, present)

    patch(trainer.sampler, "_draw", draw)


def _set_weights(policy: Any, values: list[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(policy.parameters(), values, strict=True):
            weight.copy_(value)


@bug("sampling", seen="a cache of search results whose key is too short")
def retriever_cached_by_first_word(trainer: Trainer, patch: Patch) -> None:
    """Search results are cached by the first word of the query: others that begin alike get the same ones."""
    cache: dict[str, Any] = {}

    def search(plain: Any, question: Any, query: str, turn: int) -> Any:
        found = plain(question, query, turn)
        if found is None:
            return None
        first_word = query.partition(" ")[0]
        return cache.setdefault(first_word, found)

    patch(trainer.sampler.world, "search", search)


@bug("scoring", seen="a cost of turns that stays in the reward from another experiment")
def reward_over_turns(trainer: Trainer, patch: Patch) -> None:
    """The reward is divided by the number of turns."""

    def change(episodes: list[Episode]) -> list[Episode]:
        return [replace(e, reward=e.reward / max(e.turns, 1)) for e in episodes]

    redrawn(trainer, patch, change)


@bug("batching", seen="chat templates that mask all assistant messages but the last")
def only_last_turn_trained(trainer: Trainer, patch: Patch) -> None:
    """The loss mask covers the last turn of an episode only."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        made: Batch = plain(algorithm, batch, stream)
        is_last = made.turn == made.turn.amax(1, keepdim=True)
        mask = made.mask & is_last
        return replace(made, mask=mask, advantages=torch.where(mask, made.need("advantages"), 0))

    patch(loop, "prepare", prepare)


@bug("batching", seen="an exclusive end of a slice in a loss mask")
def closing_tags_untrained(trainer: Trainer, patch: Patch) -> None:
    """The last token of each turn is left out of the loss mask, so nobody learns to end a turn."""

    def batch_of(plain: Any, *arguments: Any) -> Batch:
        batch: Batch = plain(*arguments)
        goes_on = pad(batch.mask, (0, 1))[:, 1:]
        return replace(batch, mask=batch.mask & goes_on)

    patch(loop, "batch_of", batch_of)


@bug("advantages", PPO, seen="the default gamma of a library that was made for games")
def discount_of_a_default(trainer: Trainer, patch: Patch) -> None:
    """Advantages are made with a discount of 0.9, where the settings say 1."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        assert isinstance(algorithm.advantage, Gae)
        discounted = replace(algorithm, advantage=replace(algorithm.advantage, gamma=0.9))
        made: Batch = plain(discounted, batch, stream)
        return made

    patch(loop, "prepare", prepare)


@bug("loss", seen="a clamp that belongs to another loss")
def positive_advantages_only(trainer: Trainer, patch: Patch) -> None:
    """Negative advantages are cut to 0 in the loss: nothing is ever made less likely."""

    def loss(plain: Any, algorithm: Algorithm, batch: Batch, *rest: Any, **named: Any) -> Any:
        positive = replace(batch, advantages=batch.need("advantages").clamp(min=0))
        return plain(algorithm, positive, *rest, **named)

    patch(update, "policy_loss", loss)


@bug("loss", seen="old log-probs that are computed inside the loop over epochs")
def old_log_probs_of_each_epoch(trainer: Trainer, patch: Patch) -> None:
    """Old log-probs are taken again before every epoch: the clip forgets how far the policy has gone."""

    def trained(plain: Any, batch: Batch, epoch: int, *rest: Any) -> Any:
        if epoch > 0:
            with torch.no_grad():
                log_prob, _ = networks.log_probs(
                    trainer.learner.policy, batch.tokens, trainer.learner.temperature, False, batch.mask
                )
            batch = replace(batch, log_prob_old=torch.where(batch.mask, log_prob, 0))
        return plain(batch, epoch, *rest)

    patch(trainer.learner, "update", trained)


@bug("loss", settings={"learn": {"entropy_coef": 0.02}}, seen="a sign of the entropy term")
def entropy_pushed_down(trainer: Trainer, patch: Patch) -> None:
    """The entropy bonus has the wrong sign: the policy is paid for certainty."""

    def updated(plain: Any, *arguments: Any) -> Any:
        settings = trainer.learner.settings
        wrong = settings.model_copy(update={"entropy_coef": -settings.entropy_coef})
        trainer.learner.follow(wrong)
        try:
            return plain(*arguments)
        finally:
            trainer.learner.follow(settings)

    patch(trainer.learner, "update", updated)


@bug("optimizer", seen="optimizer.step() in a callback besides that of the loop")
def two_steps_an_update(trainer: Trainer, patch: Patch) -> None:
    """The optimizer steps twice along each gradient."""

    def step(plain: Any, *arguments: Any) -> Any:
        plain(*arguments)
        return plain(*arguments)

    patch(trainer.learner.policy_optimizer, "step", step)


@bug("data order", seen="drop_last of a data loader, where the batch is no multiple")
def last_minibatch_dropped(trainer: Trainer, patch: Patch) -> None:
    """The last minibatch of each epoch is dropped: a share of the sequences is never trained on."""

    def optimise(_: Any, batch: Batch, rollout_step: int) -> list[Evidence]:
        learner = trainer.learner
        stream = generator(trainer.settings.seed, ORDER, trainer.step)
        done: list[Evidence] = []
        for epoch in range(learner.settings.epochs):
            order = torch.randperm(len(batch.tokens), generator=stream)
            left = order.chunk(learner.settings.minibatches)[:-1]
            done += [learner.update(batch.rows(rows).trimmed(), epoch, rollout_step) for rows in left]
        return done

    patch(trainer, "_optimise", optimise)

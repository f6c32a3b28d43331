"""A rollout: the episodes of one iteration, and the batch that they become."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from sorl.agent.episode import Episode, collate
from sorl.batch import Batch


@dataclass
class Rollout:
    """The episodes of one iteration and what was known of them when they were sampled."""

    number: int  # counts rollouts from 0: it decides which questions were asked
    policy_step: int  # iteration whose policy sampled it
    episodes: list[Episode]
    log_prob_old: Tensor | None = None  # (B, T) by the trainer's forward, when it is taken at sampling time
    values: Tensor | None = None  # (B, T) by the critic at sampling time, when asked for
    routes_old: Tensor | None = None  # (B, T, L k) experts of the trainer's forward that made `log_prob_old`
    # the first draw, on questions not selected by their reward
    first: list[Episode] = field(default_factory=list)
    sampled: int = 0  # episodes of all draws


def batch_of(rollout: Rollout, pad_id: int) -> Batch:
    """Return the rollout as a batch, with the log-probs and values that were stored with it."""
    batch = collate(rollout.episodes, pad_id)
    old = batch.log_prob_old if rollout.log_prob_old is None else rollout.log_prob_old
    return replace(batch, log_prob_old=old, values=rollout.values, routes_old=rollout.routes_old)

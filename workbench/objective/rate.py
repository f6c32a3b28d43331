"""The learning rate of an update: as scheduled, or less where few samples carry it."""

from typing import ClassVar

from sorl.batch import Batch
from sorl.objective.ratio import LOG_LIMIT
from sorl.objective.slot import Fraction, Slot
from sorl.tensors import Tensor, torch


class Rate(Slot, kind="scheduled"):  # and base of the rules
    """As `learn.policy` schedules it."""

    needs_sampler: ClassVar[bool] = False

    def factor(self, batch: Batch, log_prob: Tensor) -> float:
        """Return what the policy's learning rate is multiplied by in an update on `batch`, a minibatch."""
        return 1.0


class EffectiveSamples(Rate, kind="effective_samples"):
    """Times (ESS / B)^power, ESS = (sum_i w_i)^2 / sum_i w_i^2 of the minibatch: VCPO, 2602.17616.

    w_i = exp(clamp(sum_t log pi_theta - log mu, +-20)) is the product ratio of sequence i to the sampler, not
    capped; B counts the sequences with a policy token. A step that rests on few stale sequences is as noisy
    as that of a small batch, whose learning rate AdamW scales by the square root. It is measured over the
    whole minibatch, however that is split.
    """

    needs_sampler: ClassVar[bool] = True
    power: Fraction = 0.5

    def factor(self, batch: Batch, log_prob: Tensor) -> float:
        mask = batch.mask
        moved = torch.where(mask, log_prob.detach() - batch.need("log_prob_behaviour"), 0).double().sum(1)
        weights = torch.where(mask.any(1), moved.clamp(-LOG_LIMIT, LOG_LIMIT).exp(), 0)
        squares = float(weights.square().sum())
        if squares == 0:
            return 1.0
        samples = float(weights.sum()) ** 2 / squares
        return float((samples / float(mask.any(1).sum())) ** self.power)

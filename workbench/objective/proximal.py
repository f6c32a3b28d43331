"""The proximal policy: the denominator of the ratio, around which the clip is drawn.

It may be apart from the sampler mu and from the policy that the trainer stored. Then a correction without a
cap carries the weight from it to the sampler: pi_prox / mu max(-A u, -A clip(u)), u = pi_theta / pi_prox, the
decoupled objective of 2110.00641 and 2505.24298.
"""

from typing import ClassVar

from sorl.batch import Batch
from sorl.objective.slot import Fraction, Slot
from sorl.tensors import Tensor, torch


class Proximal(Slot, kind="stored"):  # and base of the proximal policies
    """log_prob_old as the trainer has it: `learn.old_log_prob` says which policy that is."""

    needs_sampler: ClassVar[bool] = False
    follows_policy: ClassVar[bool] = False  # it depends on the log-probs of the pass itself

    def log_prob(self, batch: Batch, now: Tensor) -> Tensor:
        """Return its log-probs, (B, T), without gradient; `now` are those of the present policy, detached."""
        return batch.log_prob_old


class Averaged(Proximal, kind="averaged"):
    """The mean of the policy's weights over past updates, newer ones weighing more: PPO-EWMA, 2110.00641.

    Before update n the weights are those of sum_j decay^(n - j) theta_j / sum_j decay^(n - j), j = 0..n,
    theta_0 at the start of the run. The learner keeps the averaged weights and takes their log-probs before
    each update. `decay` 0.889 puts the centre of the weights 8 updates back; 0 is the present policy, whose
    ratio is always 1.
    """

    decay: Fraction = 0.889


class Interpolated(Proximal, kind="interpolated"):
    """log pi_prox = log mu + a (log pi_theta - log mu), a = (d - 1) / d: A-3PO, 2512.06547.

    d is the number of policy versions between the sampler and the present policy, and pi_prox stands for the
    version before the present one, so that no pass has to be taken for it. d <= 1: pi_prox = mu, as AReaL's
    `loglinear`. pi_theta is that of the pass itself, without gradient.
    """

    inputs: ClassVar[tuple[str, ...]] = ("staleness",)
    needs_sampler: ClassVar[bool] = True
    follows_policy: ClassVar[bool] = True

    def log_prob(self, batch: Batch, now: Tensor) -> Tensor:
        sampler = batch.need("log_prob_behaviour")
        versions = batch.need("staleness").clamp(min=1).to(now.dtype)[:, None]
        between = sampler + (versions - 1) / versions * (now - sampler)
        return torch.where(batch.mask, between, 0)

"""Baselines that make the gradient's variance least: what is taken off a return, token by token."""

from dataclasses import replace
from typing import ClassVar

from sorl.batch import Batch
from sorl.objective.advantage import GROUP_SIZE, Advantage, Reward, gae
from sorl.objective.slot import Positive
from sorl.tensors import Tensor, torch


class Otb(Advantage, kind="otb"):
    """G_n - B_n with the optimal token baseline B_n = sum_i G_in W_in / (sum_i W_in + eps), 2602.07078.

    n counts the policy tokens of a sequence, G_n is the reward from token n on, W_n = sum_{j <= n} (1 - 2 p_j
    + sum_v p_v^2) stands for the squared norm of the score of the tokens so far, p under pi_old; sums are
    over the prompt group's sequences that have a token n. It is verl's `tir_optimal_token_baseline`, whose
    tokens of tools count as no step. A sequence alone in its group has B = 0; `zero_tail`: so has the longest
    one beyond the second longest, where it would be compared with itself and get 0.
    """

    inputs: ClassVar[tuple[str, ...]] = ("squared_probs",)
    group_size: ClassVar[int] = GROUP_SIZE
    zero_tail: bool = True
    eps: Positive = 1e-8

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        mask = batch.mask
        zeros = torch.zeros_like(reward.token, dtype=torch.float64)
        returns = gae(reward.token.double(), zeros, mask, 1.0, 1.0)
        score = 1 - 2 * batch.log_prob_old.double().exp() + batch.need("squared_probs").double()
        energy = torch.where(mask, score, 0).cumsum(1)
        length = mask.sum(1)
        inside = torch.arange(int(length.max()), device=mask.device) < length[:, None]  # (B, N)
        of_rank = torch.zeros_like(inside, dtype=torch.float64)
        value = of_rank.masked_scatter(inside, returns[mask])
        weight = of_rank.masked_scatter(inside, energy[mask])
        baseline = self._baseline(value, weight, length, batch.group)
        advantages = zeros.masked_scatter(mask, (value - baseline)[inside])
        return replace(batch, advantages=advantages.to(batch.log_prob_old.dtype), returns=None)

    def _baseline(self, value: Tensor, weight: Tensor, length: Tensor, group: Tensor) -> Tensor:
        """Baseline of each policy token, (B, N)."""
        baseline = torch.zeros_like(value)
        for g in group.unique():
            rows = ((group == g) & (length > 0)).nonzero().squeeze(1)
            if len(rows) < 2:
                continue
            best = (value[rows] * weight[rows]).sum(0) / (weight[rows].sum(0) + self.eps)
            baseline[rows] = best
            if self.zero_tail:
                longest = length[rows].argsort(descending=True)
                second = int(length[rows][longest[1]])
                baseline[rows[longest[0]], second:] = 0
        return baseline

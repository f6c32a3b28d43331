"""One token for each row of logits, with its log-prob."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.agent.engines import NonFinite


def sample(
    logits: Tensor, temperature: float, generator: torch.Generator, greedy: bool, position: int
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) drawn from softmax(logits / temperature), (B, V), and their log-probs (B,) in float32 nats.

    The draw inverts the distribution function with one uniform number a row: the first i with F(i) > u. Greedy takes
    the most likely token and reports the same log-prob. Raises NonFinite when a row has no distribution.
    """
    log_prob = torch.log_softmax(logits.float() / temperature, dim=-1)
    if greedy:
        token = log_prob.argmax(dim=-1)
    else:
        below = log_prob.exp().cumsum(dim=-1, dtype=torch.float64)
        u = torch.rand(len(below), 1, generator=generator, dtype=torch.float64).to(below.device)
        token = torch.searchsorted(below, u * below[:, -1:], right=True)[:, 0].clamp_(max=below.shape[1] - 1)
    chosen = log_prob.gather(1, token[:, None])[:, 0]
    if not bool(torch.isfinite(chosen.sum())):
        raise non_finite(logits, position)
    return token, chosen


def non_finite(logits: Tensor, position: int) -> NonFinite:
    """Return the error for `logits` (B, V), of which some rows are not finite."""
    broken = ~torch.isfinite(logits).all(dim=-1)
    return NonFinite(
        f"logits are not finite in {int(broken.sum())} of {len(broken)} rows at token {position}: the policy has "
        f"diverged (its weights hold NaN or Inf, or its activations overflow)"
    )

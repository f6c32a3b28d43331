"""The batch of two sequences and eleven policy tokens on which every golden number was worked out, in float64."""

from dataclasses import replace

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.objective import Algorithm, PolicyLoss, Pool, policy_loss
from workbench.objective.advantage import Gae
from workbench.objective.aggregate import TokenMean
from workbench.objective.clip import Ppo

F64 = torch.float64
MASK = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0], [1, 1, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)
OLD = torch.tensor([[-1, -0.5, -2, -3, -3, -0.8, -1.2, 0], [-0.7, -1.5, -3, -0.3, -2.2, -0.9, -0.4, 0]], dtype=F64)
# values off the mask are deliberate garbage
DELTA = torch.tensor([[0.1, -0.05, 0.7, 2, -2, -0.3, 0.02, 0], [0.25, -0.1, 2, 0.05, -1.3, 0.15, 0, 0]], dtype=F64)
A = torch.tensor([[1, 0.8, 0.6, 9, 9, 0.5, 0.4, 0], [-0.5, -0.7, 9, -1, -1.2, 0.3, -0.6, 0]], dtype=F64)
R = torch.tensor([[1.0] * 8, [-0.5] * 8], dtype=F64)  # one advantage a sequence, as the GRPO family has

PPO = Algorithm("ppo", "", "", "", None, advantage=Gae(), ratio=Pool(), clip=Ppo(), aggregate=TokenMean())


def batch(advantages: Tensor = A, **changes: Tensor) -> Batch:
    b, t = MASK.shape
    made = Batch(
        tokens=torch.zeros(b, t, dtype=torch.int64),
        response=torch.tensor([[1] * 7 + [0]] * 2, dtype=torch.bool),
        mask=MASK,
        length=torch.tensor([7, 7]),
        group=torch.tensor([0, 0]),
        trajectory=torch.arange(2),
        score=torch.tensor([1.0, 0.0], dtype=F64),
        log_prob_behaviour=OLD,
        log_prob_old=OLD,
        advantages=advantages,
    )
    return replace(made, **changes)


def plain(old: Tensor, mask: Tensor | None = None, **changes: Tensor) -> Batch:
    """A batch of these old log-probs (B, T), every token a policy token with advantage 1 unless changed."""
    mask = torch.ones_like(old, dtype=torch.bool) if mask is None else mask
    zeros = torch.zeros(len(old))
    ones = torch.ones_like(old)
    made = Batch(mask.long(), mask, mask, zeros, zeros.long(), zeros, zeros, old, old, advantages=ones)
    return replace(made, **changes)


def outlier() -> Tensor:
    """Case B: one token's ratio is e^3."""
    delta = DELTA.clone()
    delta[0, 2] = 3.0
    return delta


def run(algorithm: Algorithm, advantages: Tensor = A, delta: Tensor = DELTA, **changes: Tensor) -> PolicyLoss:
    return policy_loss(algorithm, batch(advantages, **changes), OLD + delta)


def loss(algorithm: Algorithm, advantages: Tensor = A, delta: Tensor = DELTA, **changes: Tensor) -> float:
    return float(run(algorithm, advantages, delta, **changes).loss)


def gradient(algorithm: Algorithm, advantages: Tensor = A, delta: Tensor = DELTA) -> list[float]:
    """d loss / d log-prob of the eleven policy tokens, in row-major order; the others must have none."""
    log_prob = (OLD + delta).requires_grad_()
    policy_loss(algorithm, batch(advantages), log_prob).loss.backward()
    assert log_prob.grad is not None
    assert torch.all(log_prob.grad[~MASK] == 0)
    return log_prob.grad[MASK].tolist()


def turn_means(x: Tensor) -> Tensor:
    """Mean of each of the four turns, on its tokens, written out by hand."""
    out = x.clone()
    for row, columns in ((0, [0, 1, 2]), (0, [5, 6]), (1, [0, 1]), (1, [3, 4, 5, 6])):
        out[row, columns] = x[row, columns].mean()
    return out

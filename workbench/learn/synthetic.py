"""A small batch in which every place is known: prompts, turns, observations between them, padding of three lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from workbench.agent.episode import Episode, collate
from workbench.batch import Batch
from workbench.objective.algorithm import Algorithm
from workbench.objective.pipeline import policy_loss, prepare

# Lengths of prompt, turn, observation, turn, ...: some end in a turn, some in an observation that nobody answered.
SHAPES = ((3, 2, 4, 3), (2, 3, 2, 1, 3, 2), (4, 1, 2), (2, 4))


@dataclass(frozen=True)
class Synthetic:
    """The batch before advantages, and where its tokens come from by construction, (B, T) bool each."""

    batch: Batch
    written: Tensor
    padding: Tensor
    observed: Tensor  # after the first turn, by the world


def synthetic(group_size: int = 1, vocabulary: int = 32, pad_id: int = 0) -> Synthetic:
    """Two prompt groups (four sequences at least), rewards 1 and 0 in each; the same numbers at every call."""
    stream = torch.Generator().manual_seed(0)
    rows = max(2 * group_size, len(SHAPES))
    episodes = [_episode(i, group_size, vocabulary, stream) for i in range(rows)]
    batch = collate(episodes, pad_id)
    shape = batch.tokens.shape

    def normal() -> Tensor:
        return torch.randn(shape, generator=stream, dtype=torch.float64)

    old = torch.where(batch.mask, -normal().abs(), 0)
    sizes = [SHAPES[i % len(SHAPES)] for i in range(len(episodes))]
    kinds = torch.nn.utils.rnn.pad_sequence([_kinds(s) for s in sizes], batch_first=True, padding_value=-1)
    batch = replace(
        batch,
        log_prob_behaviour=torch.where(batch.mask, old + 0.1 * normal(), 0),
        log_prob_old=old,
        log_prob_ref=torch.where(batch.mask, old + 0.3 * normal(), 0),
        values=normal(),
        sentence=batch.turn,
    )
    return Synthetic(batch, written=kinds == 1, padding=kinds == -1, observed=kinds == 2)


def _episode(i: int, group_size: int, vocabulary: int, stream: torch.Generator) -> Episode:
    sizes = SHAPES[i % len(SHAPES)]
    stretches = [torch.randint(0, vocabulary, (n,), generator=stream).tolist() for n in sizes]
    kinds = _kinds(sizes).tolist()
    reward = float(i % 2)
    return Episode(
        question_id=i // group_size, group=i // group_size, tokens=list(chain.from_iterable(stretches)),
        written=[k == 1 for k in kinds],
        log_prob=[0.0] * len(kinds), prompt_length=sizes[0], question="", gold="", answer=None, reward=reward,
        success=reward == 1, ended="max_turns", turns=len(sizes) // 2, searches=0, valid_turns=0, stretches=stretches,
    )  # fmt: skip


def _kinds(sizes: tuple[int, ...]) -> Tensor:
    """Of each token: 0 prompt, 1 written by the policy, 2 observation."""
    return torch.tensor([0 if i == 0 else 2 - i % 2 for i, n in enumerate(sizes) for _ in range(n)])


def gradient_at_one(algorithm: Algorithm, group_size: int) -> Tensor:
    """d loss / d log-prob on the synthetic batch where policy and old policy are the same, (B, T)."""
    batch = prepare(algorithm, synthetic(group_size).batch)
    log_prob = batch.log_prob_old.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(policy_loss(algorithm, batch, log_prob).loss, log_prob)
    if algorithm.stabilise.needs_bias:  # the ratio is 1 everywhere, so nothing is clipped and the bias is 0
        (gradient,), _ = algorithm.stabilise.on_gradient([gradient], [torch.zeros_like(gradient)])
    return gradient.detach()

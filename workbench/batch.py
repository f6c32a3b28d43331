"""The batch: every tensor of a training batch with its axes, turn ids, and `pool`, the one segment mean.

Axes: B sequences, T token positions (prompt, observations and padding included), K turns, S segments.
All per-token tensors are aligned with `tokens`: entry t speaks of token t given the tokens before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from sorl.tensors import Tensor, torch

# What the tensors are that only some algorithms need, in words.
INPUTS: Mapping[str, str] = MappingProxyType(
    {
        "squared_probs": "the sum of squared probabilities over the vocabulary",
        "staleness": "how stale each row is",
        "turn_reward": "a process reward of each turn",
        "void": "which turns are void",
    }
)


@dataclass(frozen=True)
class Batch:
    """Trajectories ready for training, right-padded to a common length.

    `mask` is the loss mask m (1 = token written by the policy), `response` the attention mask a of the
    response (1 = any token after the prompt, observations included). Log-probs are nats, float32 or wider, 0
    where not defined.
    """

    tokens: Tensor  # (B, T) int64
    response: Tensor  # (B, T) bool, a
    mask: Tensor  # (B, T) bool, m
    length: Tensor  # (B,) int64, tokens that are not padding
    group: Tensor  # (B,) int64, prompt group
    trajectory: Tensor  # (B,) int64, index in the batch of the step
    score: Tensor  # (B,) outcome reward R of its rollout
    log_prob_behaviour: Tensor | None  # (B, T) under the sampler, mu; None where the trainer keeps none
    log_prob_old: Tensor  # (B, T) under the proximal policy
    log_prob_ref: Tensor | None = None  # (B, T) under the frozen reference
    values: Tensor | None = None  # (B, T) critic before the update, V_old
    advantages: Tensor | None = None  # (B, T)
    returns: Tensor | None = None  # (B, T) target of the critic
    rollout: Tensor | None = None  # (B,) int64, rollout that a row is of; None: each row is one
    # (B, T) int64, sentence of each token from 1, 0 = none; for sentence ratios
    sentence: Tensor | None = None
    staleness: Tensor | None = None  # (B,) int64, policy versions since the row was sampled
    # (B, T) bool, token of a void turn, one with neither a tool call nor an answer; None where nobody says
    void: Tensor | None = None
    squared_probs: Tensor | None = None  # (B, T) sum over the vocabulary of pi_old^2 where a token is written
    # (B, T) process reward of the token's turn, 0 off the mask; None where nobody gives one
    turn_reward: Tensor | None = None
    # (B, T) the turn's process reward against those of its index, in stds; an advantage fills it for its clip
    turn_score: Tensor | None = None
    placebo: Tensor | None = None  # (B, T) int64, placebo turn of each token from 1; for placebo ratios
    turn_id: Tensor | None = None  # (B, T) int64, `turn` computed once; drop it when `mask` changes
    # (B, T, L k) the top-k experts of each layer in the pass that predicts the token, as the sampler and as
    # the trainer chose them under the old weights; None of a dense model. The number of experts = not
    # recorded.
    routes_behaviour: Tensor | None = None
    routes_old: Tensor | None = None

    @property
    def turn(self) -> Tensor:
        """Turn id of each token, (B, T): 1..K on policy tokens, 0 elsewhere."""
        return turn_ids(self.mask) if self.turn_id is None else self.turn_id

    @property
    def inside(self) -> Tensor:
        """True at tokens that are not padding, (B, T)."""
        return torch.arange(self.tokens.shape[1], device=self.length.device) < self.length[:, None]

    def need(self, name: str) -> Tensor:
        """Return a tensor that a batch may lack; ValueError where this one does."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise ValueError(
                f"Batch.{name} is missing; prepare() fills advantages and returns, the trainer the others"
            )
        return found

    def rows(self, index: Tensor) -> Batch:
        """Return the sequences `index` (any order), with every tensor indexed alike."""
        return replace(self, **{name: x[index] for name, x in vars(self).items() if x is not None})

    def trimmed(self) -> Batch:
        """Return the same sequences without the positions at which every one of them is padding."""
        width = int(self.length.max())
        shape = self.tokens.shape
        if width == shape[1]:
            return self
        tensors = {k: x for k, x in vars(self).items() if x is not None}
        return replace(self, **{k: x[:, :width] for k, x in tensors.items() if x.shape[:2] == shape})


def turn_ids(mask: Tensor) -> Tensor:
    """Number the turns of each sequence: cumsum(start) * m, start where m rises; (B, T) bool -> (B, T) int64.

    Two policy messages with no observation between them are one turn, as in the fork of arXiv 2511.20718 and
    ROLL.
    """
    m = mask.long()
    before = torch.nn.functional.pad(m, (1, 0))[:, :-1]
    return ((m == 1) & (before == 0)).long().cumsum(1) * m


@dataclass(frozen=True)
class Pooled:
    """Sums over segments: column s of each row belongs to segment s; column 0 (no segment) is
    always empty.
    """

    total: Tensor  # (B, S)
    count: Tensor  # (B, S)

    @property
    def mean(self) -> Tensor:
        """Segment means, (B, S); 0 where a segment is empty."""
        return self.total / self.count.clamp(min=1)

    @property
    def exists(self) -> Tensor:
        """True where a segment has a token, (B, S)."""
        return self.count > 0


def pool(x: Tensor, segments: Tensor) -> Pooled:
    """Sum `x` (B, T) over the tokens of each segment id (B, T); id 0 is no segment, and may
    hold NaN or Inf.
    """
    size = int(segments.max()) + 1
    inside = segments > 0
    total = x.new_zeros(x.shape[0], size).scatter_add(1, segments, torch.where(inside, x, 0))
    count = x.new_zeros(x.shape[0], size).scatter_add(1, segments, inside.to(x.dtype))
    return Pooled(total, count)


def spread(per_segment: Tensor, segments: Tensor) -> Tensor:
    """Give every token its segment's value, (B, S) and (B, T) -> (B, T); 0 at id 0."""
    return torch.where(segments > 0, per_segment.gather(1, segments), 0)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` where `mask`, a scalar; 0 when nothing is selected. Masked values may be NaN or Inf."""
    return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)

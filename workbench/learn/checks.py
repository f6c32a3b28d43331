"""Checks of the trained tokens: the mask self-test at the start, token identity of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sorl.agent.episode import Episode, collate
from sorl.batch import Batch
from sorl.learn.networks import log_probs
from sorl.measures.evidence import fingerprint as fingerprint_of
from sorl.objective import Algorithm, policy_loss, prepare
from sorl.objective.advantage import positions, value_loss
from sorl.recording.witness import row_checksums, total_checksum

PADDING, PROMPT, WRITTEN, OBSERVED = range(-1, 3)  # where a token comes from
KINDS = {PADDING: "padding", OBSERVED: "observations", PROMPT: "prompts", WRITTEN: "written tokens"}
# Lengths of prompt, turn, observation, turn, ...: some end in a turn, some in an observation that nobody
# answered.
SHAPES = ((3, 2, 4, 3), (2, 3, 2, 1, 3, 2), (4, 1, 2), (2, 4))


def episode_of(stretches: list[list[int]], group: int = 0, reward: float = 0.0) -> Episode:
    """Return an episode of these stretches of tokens: prompt, turn, observation, turn, ..."""
    written = list[bool]()
    for place, stretch in enumerate(stretches):
        written += [place % 2 == 1] * len(stretch)
    return Episode(
        question_id=group,
        group=group,
        tokens=list(chain.from_iterable(stretches)),
        written=written,
        log_prob=[0.0] * len(written),
        prompt_length=len(stretches[0]),
        question="",
        gold="",
        answer=None,
        reward=reward,
        success=reward > 0,
        ended="max_turns",
        turns=len(stretches) // 2,
        searches=0,
        valid_turns=0,
        stretches=stretches,
    )


def synthetic(group_size: int = 1, vocabulary: int = 32, pad_id: int = 0) -> tuple[Batch, Tensor]:
    """A batch before advantages, always the same, and the kind of each token, (B, T); two groups with both
    rewards.
    """
    stream = torch.Generator().manual_seed(0)
    episodes = []
    kinds = []
    for i in range(max(2 * group_size, len(SHAPES))):
        sizes = SHAPES[i % len(SHAPES)]
        stretches = [torch.randint(0, vocabulary, (n,), generator=stream).tolist() for n in sizes]
        kinds.append(torch.tensor(_kinds_of(sizes)))
        episodes.append(episode_of(stretches, i // group_size, float(i % 2)))
    batch = _with_log_probs(collate(episodes, pad_id), stream)
    kind_of = torch.nn.utils.rnn.pad_sequence(kinds, batch_first=True, padding_value=PADDING)
    row = torch.arange(len(batch.tokens))[:, None]
    inputs = {
        "staleness": row[:, 0] % 4,
        "void": torch.zeros_like(batch.mask),
        "turn_reward": torch.where(batch.mask, (row + batch.turn) % 3, 0).to(batch.log_prob_old.dtype),
        "squared_probs": torch.where(batch.mask, batch.log_prob_old.exp().square(), 0),
    }
    return replace(batch, sentence=batch.turn, **inputs), kind_of


def _kinds_of(sizes: Sequence[int]) -> list[int]:
    """The kind of each token of an episode with stretches of these sizes."""
    kinds = [PROMPT] * sizes[0]
    for place, size in enumerate(sizes[1:], 1):
        kinds += [OBSERVED - place % 2] * size
    return kinds


def _with_log_probs(batch: Batch, stream: torch.Generator) -> Batch:
    """Draw the log-probs of old policy, sampler and reference, and the values, in this order."""

    def normal() -> Tensor:
        return torch.randn(batch.tokens.shape, generator=stream, dtype=torch.float64)

    old = torch.where(batch.mask, -normal().abs(), 0)
    behaviour = torch.where(batch.mask, old + 0.1 * normal(), 0)
    reference = torch.where(batch.mask, old + 0.3 * normal(), 0)
    return replace(
        batch, log_prob_behaviour=behaviour, log_prob_old=old, log_prob_ref=reference, values=normal()
    )


def gradient_at_one(algorithm: Algorithm, group_size: int) -> Tensor:
    """d loss / d log-prob on the synthetic batch where policy and old policy are the same, (B, T)."""
    batch = prepare(algorithm, synthetic(group_size)[0])
    log_prob = batch.log_prob_old.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(policy_loss(algorithm, batch, log_prob).loss, log_prob)
    if algorithm.stabilise.needs_bias:  # the ratio is 1 everywhere, so nothing is clipped and the bias is 0
        (gradient,), _ = algorithm.stabilise.on_gradient([gradient], [torch.zeros_like(gradient)])
    return gradient.detach()


def problem(
    algorithm: Algorithm, group_size: int, model: PreTrainedModel, pad_id: int, temperature: float = 1.0
) -> str:
    """Return what is wrong with the masks of this algorithm and this network, in a sentence; empty when
    nothing is.
    """
    table: Any = model.get_input_embeddings()
    test = _MaskTest(algorithm, *synthetic(group_size, table.num_embeddings, pad_id))
    return (
        test.mask_problem()
        or test.gradient_problem()
        or test.dependence_problem()
        or test.critic_problem()
        or test.padding_problem(model, temperature)
    )


@dataclass(frozen=True)
class _MaskTest:
    """The checks of the masks; each says what is wrong in a sentence, or nothing."""

    algorithm: Algorithm
    batch: Batch
    kind: Tensor  # of each token, (B, T)

    @property
    def written(self) -> Tensor:
        """Where the policy wrote the token."""
        return self.kind == WRITTEN

    @property
    def log_prob(self) -> Tensor:
        """Log-probs whose ratios lie on both sides of any clip range."""
        spread = torch.linspace(-0.6, 0.6, self.written.numel(), dtype=torch.float64)
        return self.batch.log_prob_old + spread.view(self.written.shape)

    def kinds(self, tokens: Tensor) -> str:
        """The kinds of these tokens, in words."""
        return " and ".join(
            name for value, name in KINDS.items() if bool((tokens & (self.kind == value)).any())
        )

    def loss_of(self, batch: Batch, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient by the log-probs."""
        leaf = log_prob.clone().requires_grad_()
        loss = policy_loss(self.algorithm, prepare(self.algorithm, batch), leaf).loss
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    def mask_problem(self) -> str:
        """The loss mask is where the policy wrote."""
        if torch.equal(self.batch.mask, self.written):
            return ""
        extra = self.kinds(self.batch.mask & ~self.written) or "too few tokens"
        return f"the loss mask is not what the policy wrote: it has {extra} in it"

    def gradient_problem(self) -> str:
        """The loss has no gradient elsewhere."""
        _, gradient = self.loss_of(self.batch, self.log_prob)
        leak = self.kinds((gradient != 0) & ~self.written)
        return f"the loss of '{self.algorithm.name}' has a gradient at {leak}" if leak else ""

    def dependence_problem(self) -> str:
        """The loss stays with other tokens and log-probs elsewhere, and with other values in the padding."""
        batch = self.batch
        written = self.written
        names = ("log_prob_behaviour", "log_prob_old", "log_prob_ref")
        moved = {x: torch.where(written, batch.need(x), batch.need(x) + 1.5) for x in names}
        if not self.algorithm.advantage.reads_observations:
            moved["tokens"] = torch.where(written, batch.tokens, batch.tokens.flip(1))
        padding = self.kind == PADDING
        moved["values"] = torch.where(padding, batch.need("values") + 7.0, batch.need("values"))
        loss, _ = self.loss_of(batch, self.log_prob)
        elsewhere = torch.where(written, self.log_prob, self.log_prob - 2)
        loss_with_other_rest, _ = self.loss_of(replace(batch, **moved), elsewhere)
        if torch.equal(loss, loss_with_other_rest):
            return ""
        change = "tokens that the policy did not write although the log-probs of the written ones stay"
        return f"the loss of '{self.algorithm.name}' changes with {change}"

    def critic_problem(self) -> str:
        """The critic's loss has a gradient only where it is meant to learn."""
        if not self.algorithm.critic:
            return ""
        where = self.algorithm.advantage.critic_mask
        prepared = prepare(self.algorithm, self.batch)
        values = prepared.need("values").clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value_loss(values, prepared, mask=where), values)
        others = self.kind == OBSERVED if where == "a" else positions(prepared, where) & self.written
        leak = self.kinds((gradient != 0) & ~(self.written | others))
        return f"the critic's loss has a gradient at {leak}" if leak else ""

    def padding_problem(self, model: PreTrainedModel, temperature: float) -> str:
        """The network does not read the padding."""
        tokens = self.batch.tokens
        other = torch.where(self.kind == PADDING, (tokens + 1) % int(tokens.max() + 1), tokens)
        answers = []
        # dropout draws the same twice, from its own stream
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for tokens_read in (tokens, other):
                torch.manual_seed(0)
                answers.append(log_probs(model, tokens_read, temperature)[0])
        change_in_nats = float(torch.where(self.written, answers[0] - answers[1], 0).abs().max())
        # kernels may order a sum differently for another batch; padding that is read moves more
        if change_in_nats <= 1e-4:
            return ""
        return (
            f"the log-probs of written tokens move by {change_in_nats:.3g} nats when only the padding after"
            " them changes"
        )


def fingerprint(batch: Batch) -> int:
    """Return a hash of the tokens of the batch and its loss mask, padding left out."""
    return fingerprint_of(*(x[batch.inside].numpy().tobytes() for x in (batch.tokens, batch.mask)))


class Checksums(NamedTuple):
    """Of the trajectories that a step trains on: checksums as they were sampled and as they are trained."""

    trajectories: int
    sampled: int | None  # None: an episode came without its stretches
    trained: int


def checksums(batch: Batch, episodes: Sequence[Episode]) -> Checksums:
    """Checksums of tokens and loss masks; rows that the selection dropped are in none of the two."""
    mask = batch.mask.numpy()
    rows = np.flatnonzero(mask.any(axis=1))
    trained = total_checksum(row_checksums(batch.tokens.numpy()[rows], mask[rows]))
    used = [episodes[row] for row in rows.tolist()]
    if not all(episode.stretches for episode in used):
        return Checksums(len(rows), None, trained)
    return Checksums(len(rows), total_checksum(sampled_checksums(used)), trained)


def sampled_checksums(episodes: Sequence[Episode]) -> list[int]:
    """Checksums of episodes by their stretches of tokens: what the sampler wrote, and what it was given."""
    if not episodes:  # the selection dropped them all
        return []
    stretches = list(chain.from_iterable(episode.stretches for episode in episodes))
    sizes = np.fromiter(map(len, stretches), np.int64, len(stretches))
    counts = [len(episode.stretches) for episode in episodes]
    first = np.cumsum([0, *counts[:-1]])
    lengths = np.add.reduceat(sizes, first)
    numbers = np.arange(len(sizes)) - np.repeat(first, counts)  # of each stretch in its episode
    inside = np.arange(lengths.max(initial=1)) < lengths[:, None]
    tokens = np.zeros(inside.shape, dtype=np.int64)
    tokens[inside] = np.fromiter(chain.from_iterable(stretches), np.int64, int(lengths.sum()))
    mask = np.zeros(inside.shape, dtype=bool)
    mask[inside] = np.repeat(numbers % 2 == 1, sizes)
    return row_checksums(tokens, mask)


def mismatches(batch: Batch, episodes: Sequence[Episode]) -> list[tuple[int, int]] | None:
    """(trajectory, turn) where row i of the batch first departs from episode i in a token or a turn id.

    Turn 0 is the prompt, and an observation belongs to the turn before it. A sequence that the selection
    dropped has no turn ids to compare. None when an episode came without its stretches.
    """
    if not all(episode.stretches for episode in episodes):
        return None
    sampled = collate([episode_of(episode.stretches) for episode in episodes], 0)
    width = max(batch.tokens.shape[1], sampled.tokens.shape[1])

    def laid(one: Batch) -> Tensor:
        """Tokens, from 1, and turn ids: 0 beyond the end of a row, (2, B, width)."""
        both = torch.stack([torch.where(one.inside, one.tokens + 1, 0), one.turn])
        return torch.nn.functional.pad(both, (0, width - one.tokens.shape[1]))

    expected = laid(sampled)
    turn = expected[1].cummax(1).values
    expected[1] *= batch.mask.any(1, keepdim=True)
    differ = (laid(batch) != expected).any(0)
    return [(i, int(turn[i, differ[i].long().argmax()])) for i in differ.any(1).nonzero()[:, 0].tolist()]

"""What of a step is trained on: which sequences (select), by which score (shaping), in which order, until
when.

Selection, dynamic sampling and what is recorded look at the outcome reward itself, before the shaping.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from sorl.batch import Batch
from sorl.objective.advantage import compare
from sorl.objective.slot import NonNegative, Positive, Share, Slot, Tries
from sorl.tensors import Tensor, torch

# log-probs (B, T) of a batch under the policy as it is now, without gradient
LogProbs = Callable[[Batch], Tensor]


class Select(Slot, kind="none"):  # and base of the selections
    """Every sequence."""

    group_size: ClassVar[int] = 1  # rollouts a prompt that the rule needs, 1 = any number

    @property
    def rounds(self) -> int:
        """How often a rollout is drawn at most until it has enough groups that `keep` accepts."""
        return 1

    def keep(self, score: Tensor, group: Tensor) -> Tensor | None:
        """Sequences to train on, (B,) bool, before the advantages are made; None = all."""
        return None

    def after(self, batch: Batch) -> Tensor | None:
        """Sequences to train on, (B,) bool, once the advantages are there; None = all."""
        return None


class ZeroVariance(Select, kind="zero_var"):
    """Drop prompt groups whose rewards are all equal: they carry no group-relative signal (RAGEN,
    2504.20073).

    Their tokens leave the loss mask, so they enter no mean either. A group of one has no variance to judge
    and stays.
    """

    def keep(self, score: Tensor, group: Tensor) -> Tensor:
        return compare(score, group)[1] > 0  # the std of a group of one is taken as 1


class DynamicSampling(ZeroVariance, kind="dynamic_sampling"):
    """Draw again for every prompt group whose rewards are all equal, then drop those that still are: DAPO,
    2503.14476.

    The paper keeps the groups with 0 < #{R = 1} < G: with rewards of 0 and 1 these are the groups whose
    rewards differ. For other rewards (F1) the rule is that they differ, as in verl, which drops a group where
    the std of its `filter_groups.metric` is 0; the metric here is the outcome, before a shaping. A rollout is
    filled up with further questions in at most `tries` rounds (verl stops after 10); what is missing then is
    made up of groups without a signal, whose tokens leave the loss mask.
    """

    tries: Tries = 4

    @property
    def rounds(self) -> int:
        return self.tries


class Uncertain(Select, kind="uncertain"):
    """Keep the prompt groups whose rewards spread most: StarPO-S's uncertainty filter, RAGEN 2504.20073.

    `top_k`: the share of the groups with the largest in-group std (at least one); `top_p`: in falling order
    of the std until their sum reaches share times the sum over all groups, less 0.01 (0.9 in RAGEN's code).
    Groups of one have no spread, and without any spread everything is dropped.
    """

    group_size: ClassVar[int] = 8
    mode: Literal["top_k", "top_p"] = "top_k"
    share: Share = 0.25

    def keep(self, score: Tensor, group: Tensor) -> Tensor:
        _, index, size = torch.unique(group, return_inverse=True, return_counts=True)
        score = score.double()
        zeros = torch.zeros_like(size, dtype=torch.float64)
        centred = score - (zeros.scatter_add(0, index, score) / size)[index]
        spread = (zeros.scatter_add(0, index, centred.square()) / (size - 1).clamp(min=1)).sqrt()
        spread = torch.where(spread > 1e-9, spread, 0)
        order = spread.argsort(descending=True, stable=True)
        if self.mode == "top_k":
            chosen = order[: max(1, int(self.share * len(order)))]
        else:
            reached = spread[order].cumsum(0) >= self.share * spread.sum() - 0.01
            chosen = order[: int((~reached).sum()) + 1]
        kept = torch.zeros_like(spread, dtype=torch.bool)
        kept[chosen] = True
        return (kept & (spread > 0)).index_select(0, index)


class LargeAdvantage(Select, kind="large_advantage"):
    """Drop sequences of which no token has |A| >= `threshold`: LOOP, 2502.01600."""

    threshold: NonNegative = 0.01

    def after(self, batch: Batch) -> Tensor:
        return torch.where(batch.mask, batch.need("advantages"), 0).abs().amax(1) >= self.threshold


class VoidTurns(Select, kind="void_turns"):
    """Drop sequences with a void turn, one with neither a tool call nor an answer: SimpleTIR, 2509.02479.

    The advantages are made before, so that a dropped sequence still counts in the mean of its group, as in
    the authors' code.
    """

    inputs: ClassVar[tuple[str, ...]] = ("void",)

    def after(self, batch: Batch) -> Tensor:
        return ~(batch.need("void") & batch.mask).any(1)


class Shaping(Slot, kind="outcome"):  # and base of the shapings
    """The outcome reward as it is."""

    def score(self, batch: Batch) -> Tensor:
        """Score of each sequence, (B,)."""
        return batch.score


class Overlong(Shaping, kind="overlong"):
    """The outcome less a penalty for length: DAPO, 2503.14476.

    0 while the policy wrote at most `limit` - `margin` tokens, then linear down to -1 at `limit` and beyond.
    The paper's numbers are for long reasoning: in a world of short episodes give others, or nothing is ever
    penalised.
    """

    limit: Positive = 20480
    margin: float = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 < self.margin <= self.limit, "margin", "a number of tokens in (0, limit]")

    def score(self, batch: Batch) -> Tensor:
        length = batch.mask.sum(1).to(batch.score.dtype)
        return batch.score + ((self.limit - self.margin - length) / self.margin).clamp(-1, 0)


class Schedule(Slot, kind="together"):  # and base of the schedules
    """The whole batch at once."""

    def updates(self, turns: int) -> tuple[int, int]:
        """Return the least and the most parts that a batch of episodes of at most `turns` turns becomes."""
        return 1, 1

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        """Yield what is trained on, all epochs and minibatches of one part before the caller asks for the
        next.
        """
        yield batch


class ReverseTurns(Schedule, kind="reverse_turns"):
    """One turn after the other, the last turn first: SeeUPO, 2602.06554, as dy-liang/seeupo_v2 trains.

    M_i = 1. For h = K .. 1: pi_old becomes the policy as it is now; epochs and minibatches on turn h alone,
    with advantages sg[M_i] A_i; then, d the log-ratio of the policy after them to that pi_old, M_i <-
    clip(M_i clip(exp(clamp(mean over the turn of d, +-10)), 1 +- epsilon), 1 +- epsilon). So the ratio of
    each turn's first update is 1, whatever `learn.old_log_prob` says, and M is the move that training on that
    turn made.
    """

    epsilon: NonNegative = 0.2

    def updates(self, turns: int) -> tuple[int, int]:
        return 1, turns

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        turn = batch.turn
        old = now(batch)
        whole = batch.need("advantages")
        # weight: M, (B,)
        weight = torch.ones_like(whole[:, 0])
        bounds = (1 - self.epsilon, 1 + self.epsilon)
        for h in range(int(turn.max()), 0, -1):
            inside = turn == h
            advantages = torch.where(inside, weight[:, None] * whole, 0)
            ids = torch.where(inside, h, 0)
            part = replace(batch, mask=inside, turn_id=ids, log_prob_old=old, advantages=advantages)
            yield part.rows(inside.any(1).nonzero().squeeze(1))
            after = now(batch)
            moved = torch.where(inside, after - old, 0).sum(1) / inside.sum(1).clamp(min=1)
            ratio = moved.clamp(-10, 10).exp().clamp(*bounds)  # 1 without that turn
            weight = (weight * ratio.to(weight.dtype)).clamp(*bounds)
            old = after


class EarlyStop(Slot, kind="none"):  # and base of the early stops
    """Every epoch is trained."""

    def skips(self, d: Tensor, mask: Tensor) -> bool:
        """Whether a minibatch's step and what follows are left out, by d = log pi_theta - log
        pi_old, (B, T).
        """
        return False

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether to stop after an epoch, from d and mask (B, T) of its updates, each measured before its
        step.
        """
        return False


class MeanKL(EarlyStop, kind="mean_kl"):
    """After an epoch whose mean -d over policy tokens is above 1.5 `target`: the test of Spinning Up's PPO.

    Spinning Up asks it of the whole batch before each step, which is then not taken; here -d is averaged over
    the minibatches of an epoch, and the epoch that passed the limit was trained. Stable-Baselines3 has the
    same factor with k3 of one minibatch, before its step.
    """

    target: Positive = 0.01

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]]) -> bool:
        total = sum(float(torch.where(mask, -d, 0).sum()) for d, mask in epoch)
        return total / max(1, sum(int(mask.sum()) for _, mask in epoch)) > 1.5 * self.target


class TrajectoryKL(EarlyStop, kind="trajectory_kl"):
    """|mean over trajectories of sum_t -d| above `limit`: the step is not taken; LOOP, 2502.01600 (limit 20).

    As apple/ml-loop: the trajectories of the minibatch are averaged with their signs before the absolute
    value.
    """

    limit: Positive = 20.0

    def skips(self, d: Tensor, mask: Tensor) -> bool:
        return abs(float(torch.where(mask, d, 0).sum())) / max(1, int(mask.any(1).sum())) > self.limit

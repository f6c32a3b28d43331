"""The order of a step's updates: which parts of its batch are trained on in turn, and when the rest is given up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from workbench.batch import Batch
from workbench.objective.slot import NonNegative, Positive, Slot
from workbench.tensors import Tensor, torch

LogProbs = Callable[[Batch], Tensor]  # log-probs (B, T) of a batch under the policy as it is now, without gradient


class Schedule(Slot, kind="together"):  # and base of the schedules
    """The whole batch at once."""

    def updates(self, turns: int) -> tuple[int, int]:
        """Return the least and the most parts that a batch of episodes of at most `turns` turns becomes."""
        return 1, 1

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        """Yield what is trained on, all epochs and minibatches of one part before the caller asks for the next."""
        yield batch


class ReverseTurns(Schedule, kind="reverse_turns"):
    """One turn after the other, the last turn first: SeeUPO, 2602.06554, as dy-liang/seeupo_v2 trains.

    M_i = 1. For h = K .. 1: pi_old becomes the policy as it is now; epochs and minibatches on turn h alone, with
    advantages sg[M_i] A_i; then, d the log-ratio of the policy after them to that pi_old,
    M_i <- clip(M_i clip(exp(mean over the turn of clamp(d, +-10)), 1 +- epsilon), 1 +- epsilon).
    So the ratio of each turn's first update is 1, whatever `learn.old_log_prob` says, and M is the move that training
    on that turn made.
    """

    epsilon: NonNegative = 0.2

    def updates(self, turns: int) -> tuple[int, int]:
        return 1, turns

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        turn, old, whole = batch.turn, now(batch), batch.need("advantages")
        weight, bounds = torch.ones_like(whole[:, 0]), (1 - self.epsilon, 1 + self.epsilon)  # weight: M, (B,)
        for h in range(int(turn.max()), 0, -1):
            inside = turn == h
            advantages = torch.where(inside, weight[:, None] * whole, 0)
            ids = torch.where(inside, h, 0)
            part = replace(batch, mask=inside, turn_id=ids, log_prob_old=old, advantages=advantages)
            yield part.rows(inside.any(1).nonzero().squeeze(1))
            after = now(batch)
            moved = torch.where(inside, after - old, 0).clamp(-10, 10)
            ratio = (moved.sum(1) / inside.sum(1).clamp(min=1)).exp().clamp(*bounds)  # 1 without that turn
            weight, old = (weight * ratio.to(weight.dtype)).clamp(*bounds), after


class EarlyStop(Slot, kind="none"):  # and base of the early stops
    """Every epoch is trained."""

    def skips(self, d: Tensor, mask: Tensor) -> bool:
        """Return whether the policy's step on a minibatch is left out, and with it the rest of the iteration's updates.

        Asked before the step; d = log pi_theta - log pi_old and the loss mask, (B, T) each.
        """
        return False

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether to stop after an epoch, from d and mask (B, T) of its updates, each measured before its step."""
        return False


class MeanKL(EarlyStop, kind="mean_kl"):
    """After an epoch whose mean -d over policy tokens is above 1.5 `target`: the test of Spinning Up's PPO.

    Spinning Up asks it of the whole batch before each step, which is then not taken; here -d is averaged over the
    minibatches of an epoch, and the epoch that passed the limit was trained. Stable-Baselines3 has the same factor with
    k3 of one minibatch, before its step.
    """

    target: Positive = 0.01

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]]) -> bool:
        total = sum(float(torch.where(mask, -d, 0).sum()) for d, mask in epoch)
        return total / max(1, sum(int(mask.sum()) for _, mask in epoch)) > 1.5 * self.target


class TrajectoryKL(EarlyStop, kind="trajectory_kl"):
    """|mean over trajectories of sum_t -d| above `limit`: the step is not taken; LOOP, 2502.01600 (limit 20).

    As apple/ml-loop: the trajectories of the minibatch are averaged with their signs before the absolute value.
    """

    limit: Positive = 20.0

    def skips(self, d: Tensor, mask: Tensor) -> bool:
        return abs(float(torch.where(mask, d, 0).sum())) / max(1, int(mask.any(1).sum())) > self.limit

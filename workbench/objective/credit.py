"""Advantages of turns: what each turn is credited with, compared with other turns of the prompt's rollouts.

Axes: B sequences, T tokens, K turns; column 0 of (B, 1 + K) is no turn. `Batch.turn_reward` is the process
reward of each token's turn. Every advantage is given to all tokens of its turn.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from sorl.batch import Batch, pool, spread
from sorl.objective.advantage import GROUP_SIZE, Advantage, Reward, compare, first_tokens, gae
from sorl.objective.slot import Fraction, NonNegative, Positive
from sorl.tensors import Tensor, torch


def turn_rewards(batch: Batch) -> Tensor:
    """Return the process reward of each turn, (B, 1 + K) float64; 0 where there is no turn."""
    turn = batch.turn
    return pool(torch.where(first_tokens(turn), batch.need("turn_reward").double(), 0), turn).total


def against_peers(values: Tensor, exists: Tensor, peers: Tensor, eps: float | None) -> Tensor:
    """Return values of turns less the mean of their peers, over their unbiased std + eps; (B, 1 + K) each.

    Turns of one id in `peers` (int64) are compared; a turn without a peer gets 0. `eps` None: no division.
    """
    centred, deviation, size = compare(values[exists], peers[exists])
    scaled = centred if eps is None else centred / (deviation + eps)
    made = torch.where(size == 1, 0, scaled)
    return torch.zeros_like(values).masked_scatter(exists, made.to(values.dtype))


def by_index(batch: Batch, exists: Tensor) -> Tensor:
    """Return an id for each prompt group and turn index, (B, 1 + K)."""
    place = torch.arange(exists.shape[1], device=exists.device)
    return batch.group[:, None] * exists.shape[1] + place


def by_state(batch: Batch, exists: Tensor) -> Tensor:
    """Return an id for each prompt group and anchor state, (B, 1 + K).

    The state before a turn is what the policy has read since its turn before: the tokens between them, or the
    prompt. Turns of a prompt group with equal ones are in the same state.
    """
    ids = torch.zeros_like(exists, dtype=torch.long)
    known: dict[tuple[int, ...], int] = {}
    for row, (tokens, turn) in enumerate(zip(batch.tokens.tolist(), batch.turn.tolist(), strict=True)):
        group = int(batch.group[row])
        read = [group]
        before = 0
        for token, k in zip(tokens, turn, strict=True):
            if k == 0:
                read.append(token)
            elif k != before:
                ids[row, k] = known.setdefault(tuple(read), len(known) + 1)
                read = [group]
            before = k
    return ids


def returns_to_go(rewards: Tensor, exists: Tensor, gamma: float) -> Tensor:
    """Return sum_{l >= k} gamma^(l - k) r_l of each turn, (B, 1 + K)."""
    return gae(rewards, torch.zeros_like(rewards), exists, gamma, 1.0)


def outcome_z(reward: Reward, batch: Batch, eps: float | None) -> Tensor:
    """Return the outcome less its group's mean, over std + eps, (B, 1); alone in its group it stays."""
    centred, deviation, size = compare(reward.total, batch.group, batch.rollout)
    if eps is None:
        return centred[:, None]
    return (centred / torch.where(size == 1, 1.0, deviation + eps))[:, None]


def _of_turns(advantages: Tensor, batch: Batch) -> Batch:
    """Fill the advantages of turns, (B, 1 + K), in the batch's precision."""
    token = spread(advantages.to(batch.log_prob_old.dtype), batch.turn)
    return replace(batch, advantages=token, returns=None)


class GiGpo(Advantage, kind="gigpo"):
    """A_i + weight (Q_ik - mean of Q over the turns in the same state); GiGPO, 2505.10978, eq. 3 and 5 to 8.

    A_i is the outcome less its group's mean, Q_ik = sum_{l >= k} gamma^(l - k) r_il the return from turn k
    on, r the rewards of the turn (the outcome at the last). `states`: observation, turns of the prompt group
    that have just read the same tokens; the first turns of a group all have. `norm`: mean, only the means are
    taken off; std, both parts are also divided by the std + eps. A turn without a peer has Q - mean = 0.
    verl-agent's code counts a rollout in the mean of its group once for each of its turns; the paper, and
    this, once.
    """

    reads_observations: ClassVar[bool] = True
    group_size: ClassVar[int] = GROUP_SIZE
    gamma: Fraction = 0.95
    weight: NonNegative = 1.0
    norm: Literal["mean", "std"] = "mean"
    eps: Positive = 1e-6

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        eps = self.eps if self.norm == "std" else None
        turns = pool(reward.token.double(), batch.turn)
        returns = returns_to_go(turns.total, turns.exists, self.gamma)
        step = against_peers(returns, turns.exists, by_state(batch, turns.exists), eps)
        return _of_turns(outcome_z(reward, batch, eps) + self.weight * step, batch)


class MtGrpo(Advantage, kind="mt_grpo"):
    """z(R_i) + weight times what the process rewards from turn k on say, z against the group; 2505.11821.

    p_il is the process reward of turn l. `baseline`: reward, sum_{l >= k} (p_il - mean_l) / (std_l + eps),
    each reward against those of the same turn index, as the method is generalised to many turns; return,
    (P_ik - mean_k P) / (std_k P + eps) with P_ik = sum_{l >= k} p_il. The first takes off as many means as
    the rollout has turns left, so that to go on costs the mean process reward: a bias where the policy
    decides when to stop (verl issue 7244). The second takes off one number for each turn that is reached. For
    the two turns of the paper, with a reward for the first alone, they are the same.
    """

    inputs: ClassVar[tuple[str, ...]] = ("turn_reward",)
    group_size: ClassVar[int] = GROUP_SIZE
    weight: NonNegative = 1.0
    baseline: Literal["reward", "return"] = "reward"
    eps: Positive = 1e-4

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        exists = pool(reward.token, batch.turn).exists
        peers = by_index(batch, exists)
        process = turn_rewards(batch)
        if self.baseline == "return":
            credit = against_peers(returns_to_go(process, exists, 1.0), exists, peers, self.eps)
        else:
            credit = returns_to_go(against_peers(process, exists, peers, self.eps), exists, 1.0)
        return _of_turns(outcome_z(reward, batch, self.eps) + self.weight * credit, batch)


class IgPo(Advantage, kind="igpo"):
    """sum_{l >= k} gamma^(l - k) z(r_il), z over all turns of the prompt group; IGPO, 2510.14967.

    r_ik is the process reward of a turn, which IGPO makes the gain in the probability of the right answer,
    and the outcome at the last turn, whose process reward is not read.
    """

    inputs: ClassVar[tuple[str, ...]] = ("turn_reward",)
    group_size: ClassVar[int] = GROUP_SIZE
    gamma: Fraction = 1.0
    eps: Positive = 1e-6

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        exists = pool(reward.token, batch.turn).exists
        rewards = process_and_outcome(reward, batch, exists)
        peers = batch.group[:, None].expand_as(exists)
        scaled = against_peers(rewards, exists, peers, self.eps)
        return _of_turns(returns_to_go(scaled, exists, self.gamma), batch)


def process_and_outcome(reward: Reward, batch: Batch, exists: Tensor) -> Tensor:
    """Return the process reward of each turn but the last, whose reward is the outcome, (B, 1 + K)."""
    place = torch.arange(exists.shape[1], device=exists.device)
    is_last = exists & (place == exists.sum(1, keepdim=True))
    return torch.where(is_last, reward.total.double()[:, None], turn_rewards(batch))


class A2TgPo(Advantage, kind="a2tgpo"):
    """z(R_i) + weight sum_{l >= k} gamma^(l - k) z_il / sqrt(n_k): A2TGPO, 2605.06200.

    z_il is the process reward of turn l against those of the same turn index in the prompt group, over std +
    eps. The last turn has the outcome in its place; n_k counts the turns from k on that have one. The root
    keeps the sums of many turns as large as that of one. z is kept for the clip `gain_band`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("turn_reward",)
    group_size: ClassVar[int] = GROUP_SIZE
    gamma: Fraction = 1.0
    weight: NonNegative = 1.0
    eps: Positive = 1e-6

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        exists = pool(reward.token, batch.turn).exists
        place = torch.arange(exists.shape[1], device=exists.device)
        judged = exists & (place < exists.sum(1, keepdim=True))
        gain = against_peers(turn_rewards(batch), judged, by_index(batch, exists), self.eps)
        left = returns_to_go(judged.double(), exists, 1.0)
        credit = returns_to_go(gain, exists, self.gamma) * left.clamp(min=1).rsqrt()
        made = _of_turns(outcome_z(reward, batch, self.eps) + self.weight * credit, batch)
        return replace(made, turn_score=spread(gain.to(batch.log_prob_old.dtype), batch.turn))

"""Advantages: from rewards and values of a whole step to what each token is credited with; the critic's loss.

`values` entry t is V of the state before token t, so V(s_k) of a turn is the value at its first token. Every
estimator returns 0 off the loss mask. Axes: B sequences, T tokens, K turns.
"""

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

from sorl.batch import Batch, pool, spread
from sorl.objective.slot import Fraction, Positive, Slot
from sorl.tensors import Tensor, torch

GROUP_SIZE = 8  # rollouts per prompt of the group-relative estimators unless a run says otherwise
Positions = Literal["m", "a", "turn"]
Whiten = Literal["none", "m", "a"]


class Reward(NamedTuple):
    """Rewards of a step: of each token (B, T), outcome at the last policy token; and their sum per sequence
    (B,).
    """

    token: Tensor
    total: Tensor


class Advantage(Slot):
    """Base of the estimators; `critic_mask` names the positions that have a target for the critic."""

    needs_values: ClassVar[bool] = False
    reads_observations: ClassVar[bool] = False  # tokens that the policy did not write decide it
    group_size: ClassVar[int] = 1

    @property
    def critic_mask(self) -> Positions:
        """Positions of the value loss: m policy tokens, a the whole response, turn the first token of each
        turn.
        """
        return "m"

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        """Fill advantages (B, T), and the critic's targets (B, T) before whitening: None without a critic."""
        raise NotImplementedError


def gae(
    rewards: Tensor, values: Tensor, steps: Tensor, gamma: float, lam: float, last: Tensor | None = None
) -> Tensor:
    """Generalised advantage estimation over the positions where `steps`, (B, T) each; 0 elsewhere.

    d_t = u_t + gamma V_next - V_t,  A_t = d_t + gamma lam A_next, where next is the next position with
    `steps` and both are 0 after the final one, and after each position where `last` (the end of an
    independent stretch). 1506.02438.
    """
    longest = int(steps.sum(1).max()) if steps.numel() else 0
    inside = torch.arange(longest, device=steps.device) < steps.sum(1, keepdim=True)
    value = _pack(values, steps, inside)
    reward = _pack(rewards, steps, inside)
    goes_on = torch.ones_like(value, dtype=torch.bool)
    if last is not None:  # no end lies between a step and the next
        ends = _pack(last.cumsum(1) - last.long(), steps, inside)
        goes_on[:-1] = ends[1:] == ends[:-1]
    following = torch.cat([value, value.new_zeros(1, len(rewards))])[1:]
    # not times 0: what lies beyond may be NaN
    delta = reward + gamma * torch.where(goes_on, following, 0) - value
    _accumulate(delta, gamma * lam, None if last is None else goes_on)
    return torch.zeros_like(rewards).masked_scatter(steps, delta.T[inside])


def _pack(x: Tensor, steps: Tensor, inside: Tensor) -> Tensor:
    """(K, B): the steps of each row first, time in front, so that the loop over time is short."""
    return torch.zeros_like(inside, dtype=x.dtype).masked_scatter(inside, x[steps]).T.contiguous()


def _accumulate(delta: Tensor, decay: float, goes_on: Tensor | None) -> None:
    """Turn each d_t (K, B) into A_t = d_t + decay A_next, in place; A_next is 0 where it does not go on."""
    following = delta.new_zeros(delta.shape[1])
    if goes_on is None:
        for present in reversed(delta.unbind()):
            following = present.add_(decay * following)
        return
    for present, on in zip(reversed(delta.unbind()), reversed(goes_on.unbind()), strict=True):
        following = present.add_(decay * torch.where(on, following, 0))


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), mean and unbiased variance over the mask; 0 off it, and of a single
    entry.
    """
    n = mask.sum()
    centred = torch.where(mask, x - torch.where(mask, x, 0).sum() / n.clamp(min=1), 0)
    variance = centred.square().sum() / (n - 1).clamp(min=1)
    return centred * (variance + 1e-8).rsqrt()


def _whitened(x: Tensor, batch: Batch, mode: Whiten) -> Tensor:
    if mode == "none":
        return x
    return whiten(x, batch.mask if mode == "m" else batch.response)


def first_tokens(turn: Tensor) -> Tensor:
    """Return True at the first token of each turn, (B, T)."""
    return (turn > 0) & (turn != torch.nn.functional.pad(turn, (1, 0))[:, :-1])


class Gae(Advantage, kind="gae"):
    """Token GAE, whitened.

    `skip_obs`: recurse over policy tokens only (verl), carrying V and A across observations; false recurses
    over the whole response (Search-R1 and the fork of 2511.20718), so observations get values and targets.
    `whiten`: over m (verl, RAGEN), over the response a (Search-R1), or none. gamma = lam = 1 as Search-R1 and
    2511.20718. The outcome is the reward of the last policy token.
    """

    needs_values: ClassVar[bool] = True
    gamma: Fraction = 1.0
    lam: Fraction = 1.0
    skip_obs: bool = True
    whiten: Whiten = "m"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.whiten != "a" or not self.skip_obs
        self._require(fits, "whiten", "m or none while skip_obs skips the observations")

    @property
    def critic_mask(self) -> Positions:
        return "m" if self.skip_obs else "a"

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        values = batch.need("values")
        steps = batch.mask if self.skip_obs else batch.response | batch.mask
        raw = gae(reward.token, values, steps, self.gamma, self.lam)
        returns = torch.where(steps, raw + values, 0)
        advantages = torch.where(batch.mask, _whitened(raw, batch, self.whiten), 0)
        return replace(batch, advantages=advantages, returns=returns)


class TurnMeanGae(Gae, kind="turn_mean"):
    """Token GAE, then each turn's mean for all its tokens, A_k = (1 / n_k) sum_t A_t (2511.20718, lemma 4.1).

    Whitening comes before the mean.
    """

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        token = super().estimate(reward, batch)
        turn = batch.turn
        return replace(token, advantages=spread(pool(token.need("advantages"), turn).mean, turn))


class TurnGae(Advantage, kind="turn_gae"):
    """GAE whose steps are turns (2512.17008), given to all tokens of the turn.

    d_k = R_k + gamma V(s_{k+1}) - V(s_k), A_k = d_k + gamma lam A_{k+1}; R_k sums the rewards of the turn,
    V(s_k) is the value at its first token, where alone the critic has a target.
    """

    needs_values: ClassVar[bool] = True
    critic_mask: ClassVar[Positions] = "turn"
    gamma: Fraction = 0.99
    lam: Fraction = 0.9
    whiten: Literal["none", "m"] = "none"

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        turn = batch.turn
        turns = pool(reward.token, turn)  # (B, 1 + K)
        values = pool(torch.where(first_tokens(turn), batch.need("values"), 0), turn).total
        raw = gae(turns.total, values, turns.exists, self.gamma, self.lam)
        token = spread(raw, turn)
        return replace(
            batch, advantages=_whitened(token, batch, self.whiten), returns=spread(raw + values, turn)
        )


class Bilevel(Advantage, kind="bilevel"):
    """Bi-level GAE of RAGEN (2504.20073): between turns, then inside each turn.

    (1) At the last token e_k of each turn: d = R_k + gamma_turn V(e_{k+1}) - V(e_k), recursion with
    gamma_turn lam, R_k the reward of that token. (2) Its reward becomes that advantage plus V(e_k). (3) Token
    GAE inside each turn, restarting at e_k with next value 0; then whitening. Turns are found from the mask,
    not from non-zero rewards as in RAGEN's code, where a turn without reward merges with the next.
    """

    needs_values: ClassVar[bool] = True
    gamma: Fraction = 1.0
    lam: Fraction = 1.0
    gamma_turn: Fraction = 0.95
    whiten: Literal["none", "m"] = "m"

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        turn = batch.turn
        values = batch.need("values")
        last = (turn > 0) & (turn != torch.nn.functional.pad(turn, (0, 1))[:, 1:])  # each turn's last token
        at_end = pool(torch.where(last, reward.token, 0), turn)
        end_values = pool(torch.where(last, values, 0), turn).total
        between = gae(at_end.total, end_values, at_end.exists, self.gamma_turn, self.lam)
        rewards = torch.where(last, spread(between + end_values, turn), reward.token)
        raw = gae(rewards, values, batch.mask, self.gamma, self.lam, last)
        returns = torch.where(batch.mask, raw + values, 0)
        return replace(batch, advantages=_whitened(raw, batch, self.whiten), returns=returns)


def first_rows(rollout: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each rollout, and the place of each row's rollout among them, (B,)."""
    _, index = torch.unique(rollout, return_inverse=True)
    place = torch.arange(len(index), device=index.device)
    none_yet = place.new_full((int(index.max()) + 1,), len(index))
    return none_yet.scatter_reduce(0, index, place, "amin"), index


class Comparison(NamedTuple):
    """Rewards in their group, (B,) each; a reward that is alone has mean 0 and std 1."""

    centred: Tensor  # less the group's mean
    deviation: Tensor  # unbiased std of the group
    size: Tensor  # of the group


def compare(total: Tensor, group: Tensor, rollout: Tensor | None = None) -> Comparison:
    """Compare rewards (B,) with those of their group.

    `rollout` (B,): the rollout of each row, where several rows may be of one. Each counts once, with the
    reward of its first row.
    """
    if rollout is not None:
        first, index = first_rows(rollout)
        centred, deviation, size = compare(total[first], group[first])
        return Comparison(centred[index], deviation[index], size[index])
    _, index, counts = torch.unique(group, return_inverse=True, return_counts=True)
    reward = total.double()
    zeros = total.new_zeros(len(counts), dtype=torch.float64)
    # less the minimum, so that equal rewards give exactly 0
    shifted = reward - zeros.scatter_reduce(0, index, reward, "amin", include_self=False)[index]
    centred = shifted - (zeros.scatter_add(0, index, shifted) / counts)[index]
    variance = zeros.scatter_add(0, index, centred.square()) / (counts - 1).clamp(min=1)
    size = counts[index]
    alone = size == 1
    deviation = torch.where(alone, 1.0, variance.sqrt()[index])
    return Comparison(torch.where(alone, reward, centred), deviation, size)


def _z_score(total: Tensor, group: Tensor, eps: float, rollout: Tensor | None) -> Tensor:
    centred, deviation, size = compare(total, group, rollout)
    return centred / torch.where(size == 1, 1.0, deviation + eps)


def _constant(per_sequence: Tensor, batch: Batch) -> Batch:
    """Fill advantages constant in a sequence, (B,) -> (B, T), 0 off the mask, in the batch's precision."""
    advantages = torch.where(batch.mask, per_sequence.to(batch.log_prob_old.dtype)[:, None], 0)
    return replace(batch, advantages=advantages, returns=None)


class Grpo(Advantage, kind="grpo"):
    """(R_i - mean_g) / (std_g + eps), std unbiased; GRPO (2402.03300). eps 1e-6 as verl and Search-R1, 1e-4
    in TRL.

    A group of one keeps A = R (verl: mean 0, std 1).
    """

    group_size: ClassVar[int] = GROUP_SIZE
    eps: Positive = 1e-6

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        return _constant(_z_score(reward.total, batch.group, self.eps, batch.rollout), batch)


class MeanOnly(Advantage, kind="mean_only"):
    """R_i - mean_g; Dr. GRPO (2503.20783). A group of one keeps A = R."""

    group_size: ClassVar[int] = GROUP_SIZE

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        return _constant(compare(reward.total, batch.group, batch.rollout)[0], batch)


class Rloo(Advantage, kind="rloo"):
    """R_i - mean of the others in the group = n / (n - 1) (R_i - mean_g); 2402.14740. A group of one keeps A
    = R.
    """

    group_size: ClassVar[int] = GROUP_SIZE

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        centred, _, size = compare(reward.total, batch.group, batch.rollout)
        return _constant(centred * size / (size - 1).clamp(min=1), batch)


class BatchMean(Advantage, kind="batch_mean"):
    """R_i - mean of R over all sequences of the step that have a policy token: REINFORCE with a batch
    baseline.
    """

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        return _constant(compare(reward.total, batch.mask.any(1), batch.rollout)[0], batch)


class BatchZ(Advantage, kind="batch_z"):
    """(R_i - mean) / (std + eps) over all sequences of the step that have a policy token, std unbiased."""

    eps: Positive = 1e-6

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        return _constant(_z_score(reward.total, batch.mask.any(1), self.eps, batch.rollout), batch)


class GroupBatchZ(Advantage, kind="group_batch_z"):
    """R_i - mean_g, then whitened over the step and clamped to +-`limit`, turn by turn; SeeUPO, 2602.06554.

    Turn k has advantages of its own: both means and the std (unbiased) are over the sequences that have a
    turn k, as in dy-liang/seeupo_v2. A sequence alone in its group keeps R; a std of at most `eps` does not
    divide. No division by the group's own std: SeeUPO's argument is that it costs the monotone improvement of
    the policy.
    """

    group_size: ClassVar[int] = GROUP_SIZE
    eps: Positive = 1e-6
    limit: Positive = 3.0

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        advantages = torch.zeros_like(reward.token)
        turn = batch.turn
        for k in range(1, int(turn.max()) + 1):
            inside = turn == k
            rows = inside.any(1)
            rollout = None if batch.rollout is None else batch.rollout[rows]
            centred, *_ = compare(reward.total[rows], batch.group[rows], rollout)
            made = self._whitened(centred, rollout).to(advantages.dtype)
            per_row = advantages.new_zeros(len(turn)).masked_scatter(rows, made)
            advantages = torch.where(inside, per_row[:, None], advantages)
        return replace(batch, advantages=advantages, returns=None)

    def _whitened(self, centred: Tensor, rollout: Tensor | None) -> Tensor:
        """Advantages of the sequences that have a turn, whitened over them and clamped."""
        whole, deviation, size = compare(centred, torch.zeros_like(centred, dtype=torch.long), rollout)
        # At the mean but for rounding: its sign would be counted, and clipped.
        rest = torch.where(whole.abs() <= 1e-12 * centred.abs().amax(), 0, whole)
        made = torch.where(deviation > self.eps, rest / deviation, rest)
        # alone, it is its own mean
        return torch.where(size == 1, 0, made).clamp(-self.limit, self.limit)


class ReinforcePp(Advantage, kind="reinforce_pp"):
    """Token returns sum_{t' >= t} gamma^(t' - t) u_t', whitened over the policy tokens of the step;
    2501.03262.

    Time counts policy tokens; observations neither discount nor reset the sum (verl resets it there before
    0.9).
    """

    gamma: Fraction = 1.0

    def estimate(self, reward: Reward, batch: Batch) -> Batch:
        returns = gae(reward.token, torch.zeros_like(reward.token), batch.mask, self.gamma, 1.0)
        return replace(batch, advantages=whiten(returns, batch.mask), returns=None)


def positions(batch: Batch, mask: Positions) -> Tensor:
    """Where the critic is trained, (B, T) bool: m policy tokens, a the response, turn the first token of each
    turn.
    """
    if mask == "turn":
        return first_tokens(batch.turn)
    return batch.mask if mask == "m" else batch.response | batch.mask


def value_loss(
    values: Tensor, batch: Batch, clip: float | None = 0.5, mask: Positions = "m", count: Tensor | None = None
) -> Tensor:
    """1/2 <max((V - G)^2, (V_c - G)^2)>, V_c = V_old + clamp(V - V_old, +-clip), a scalar; clip None = <(V -
    G)^2> / 2.

    `values` (B, T) with gradient, V_old and G from the batch. The mean is over `mask` (m in verl, a in
    Search-R1), or the sum is divided by `count`, the positions of the whole minibatch, so that micro-batches
    add up. 1707.06347, verl `compute_value_loss`.
    """
    # masked before the squares: the gradient of a masked Inf or NaN would be NaN
    where = positions(batch, mask)
    value = torch.where(where, values, 0)
    target = torch.where(where, batch.need("returns"), 0)
    error = (value - target).square()
    if clip is not None:
        old = torch.where(where, batch.need("values"), 0)
        error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target).square())
    return 0.5 * error.sum() / (where.sum() if count is None else count).clamp(min=1)

"""Clips that decide by how far a token, a sequence or a batch is from the policy that sampled it.

Where a token is dropped its loss is 0, and it still counts in the means. `against` says which policy the
distance is to: the proximal policy (`old`), or the sampler mu (`behaviour`), which adds the mismatch between
trainer and sampler. Against the sampler, a rollout correction would count that part twice.
"""

from dataclasses import replace
from typing import Literal

from sorl.objective.clip import Clip, Ratios, Surrogate, Window, gated, weighted
from sorl.objective.ratio import LOG_LIMIT
from sorl.objective.slot import AtLeastOne, Fraction, NonNegative, Positive
from sorl.tensors import Tensor, torch

Anchor = Literal["old", "behaviour"]


def measured_from(ratios: Ratios, against: Anchor) -> Ratios:
    """Return the ratios against the policy named, with gradient; the log-ratio is clamped to +-20."""
    if against == "old":
        return ratios
    mask = ratios.batch.mask
    moved = torch.where(mask, ratios.log_prob - ratios.batch.need("log_prob_behaviour"), 0)
    log_ratio = moved.clamp(-LOG_LIMIT, LOG_LIMIT)
    entering = moved if ratios.pool.level == "none" else ratios.pool.entering(log_ratio, ratios.batch)
    ratio = ratios.pool.ratio(entering, ratios.units)
    return replace(ratios, log_ratio=log_ratio, entering=entering, ratio=ratio)


def dropped(ratios: Ratios, closed: Tensor) -> Surrogate:
    """Return -A w, and 0 where `closed` (B, T); a dropped token counts as clipped on the side of its sign."""
    plain = -ratios.advantages * ratios.ratio
    low = closed & (ratios.advantages < 0)
    high = closed & (ratios.advantages > 0)
    return Surrogate(torch.where(closed, 0, plain), plain, ratios.ratio, low, high)


class SequenceMask(Window, kind="sequence_mask"):
    """PPO's clip without the tokens of A < 0 in sequences that have become less likely: OPSM of slime.

    Dropped are tokens with A < 0 where the mean over the sequence's policy tokens of log pi_old - log
    pi_theta is above `delta`. DeepSeek-V3.2 (2512.02556) has the rule against the sampler; slime
    (`--use-opsm`, delta 1e-4) against the old log-probs that it was told to use.
    """

    low: Fraction = 0.2
    high: NonNegative = 0.2
    delta: NonNegative = 1e-4
    against: Anchor = "old"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        plain = gated(ratios, *self.bounds)
        mask = ratios.batch.mask
        log_ratio = measured_from(ratios, self.against).log_ratio.detach()
        length = mask.sum(1, keepdim=True).clamp(min=1)
        fallen = -torch.where(mask, log_ratio, 0).sum(1, keepdim=True) / length
        closed = (fallen > self.delta) & (ratios.advantages < 0)
        loss = torch.where(closed, 0, plain.loss)
        return plain._replace(loss=loss, low=plain.low | closed)


class SequenceTrust(Clip, kind="sequence_trust"):
    """-M_i A w without a clip, M_i = 0 for a sequence with a token too far from the sampler: TRM, 2512.23075.

    M_i = 1 where the largest divergence of a policy token is at most `bound`. The paper bounds the KL
    divergence KL(mu || pi_theta) over the vocabulary; a batch has the sampled token alone, so it is estimated
    from x = log pi_theta - log mu of that token, as the authors do in verl (`seq_max_k2`, `seq_max_k3`): k2 =
    x^2 / 2, which sees both directions, or k3 = exp(x) - 1 - x. The bound 2.5 is that of verl's example.
    """

    bound: Positive = 2.5
    estimator: Literal["k2", "k3"] = "k2"
    against: Anchor = "behaviour"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        ratios = measured_from(ratios, self.against)
        x = torch.where(ratios.batch.mask, ratios.log_ratio.detach(), 0)
        divergence = 0.5 * x.square() if self.estimator == "k2" else x.expm1() - x
        closed = divergence.amax(1, keepdim=True) > self.bound
        return dropped(ratios, closed.expand_as(x))


class SecondMoment(Clip, kind="second_moment"):
    """-M A w without a clip, M = 0 for the tokens farthest from the sampler: M2PO, 2510.01161, algorithm 1.

    Of a set S of policy tokens the one with the largest (log w)^2 is dropped until the mean of (log w)^2 over
    those left in S is at most `budget`; equal ones are dropped together, so that no order of rows matters.
    `tokens`: trust_region, S are the tokens that PPO's clip could act on, A > 0 with w > 1 and A < 0 with w <
    1 (the paper); all, S is every policy token (AReaL). The authors' code bounds the mean of min((log w)^2,
    tau^2) in place of those left, which drops more, and spares ratios within 0.7 and 1.5. The mean is that of
    each micro-batch, as in both codes; a sort has no sums that add up over micro-batches.
    """

    budget: Positive = 0.04
    tokens: Literal["trust_region", "all"] = "trust_region"
    against: Anchor = "old"

    @property
    def micro_statistic(self) -> str:
        return "the second moment of the log-ratios"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        ratios = measured_from(ratios, self.against)
        ratio = ratios.ratio.detach()
        judged = ratios.batch.mask
        if self.tokens == "trust_region":
            judged = judged & (ratios.advantages * (ratio - 1) > 0)
        squares = torch.where(judged, ratio.log().double().square(), 0)
        return dropped(ratios, judged & (squares > self._largest_square(squares[judged])))

    def _largest_square(self, squares: Tensor) -> float:
        """Return the largest square that stays; below 0 where none does."""
        rising = squares.sort().values
        mean = rising.cumsum(0) / torch.arange(1, len(rising) + 1, device=rising.device)
        staying = int((mean <= self.budget).sum())  # the mean of the smallest n rises with n
        if staying == len(rising):
            return float("inf")
        staying_squares = rising[:staying]
        below = staying_squares[staying_squares < rising[staying]]  # without those equal to a dropped one
        return float(below[-1]) if len(below) else -1.0


class TvGate(Clip, kind="tv_gate"):
    """-M A w with the gradient through w, M as in `tv_mask`: the default loss of prime-rl.

    M = 0 for A > 0 and p_theta - p > high, and for A < 0 and p_theta - p < -low, p the probability under the
    policy that w is against; no cap. The gradient is that of `tv_mask` without a cap, the value is not: there
    it is a log-prob times a weight.
    """

    low: Fraction = 0.2
    high: Fraction = 0.2
    against: Anchor = "behaviour"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        batch = ratios.batch
        ratios = measured_from(ratios, self.against)
        before = batch.log_prob_old if self.against == "old" else batch.need("log_prob_behaviour")
        moved = ratios.log_prob.detach().exp() - torch.where(batch.mask, before, 0).exp()
        rising = (ratios.advantages > 0) & (moved > self.high)
        falling = (ratios.advantages < 0) & (moved < -self.low)
        return dropped(ratios, rising | falling)


class Taper(Clip, kind="taper"):
    """-sg[g] A l with g = 1 for A >= 0 and g = min(w, cap) for A < 0: TOPR, 2503.14286.

    With the product ratio of a sequence, w = pi_theta(y) / mu(y): good responses are learned at full weight
    however unlikely they have become, bad ones are let go once they are unlikely. The cap counts as dual
    clip.
    """

    cap: Positive = 1.0
    against: Anchor = "behaviour"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        ratio = measured_from(ratios, self.against).ratio.detach()
        bad = ratios.advantages < 0
        plain = torch.where(bad, ratio, 1)
        capped = bad & (ratio > self.cap)
        made = weighted(ratios, torch.where(capped, self.cap, plain), plain)
        return made._replace(ratio=ratio, dual=capped)


class GainBand(Window, kind="gain_band"):
    """PPO's clip with both widths times 1 + beta (2 sigmoid(z) - 1), z of the turn: A2TGPO, 2605.06200.

    z is what the advantage `a2tgpo` says of the process reward of the turn. A turn that gains much may move
    further; beta bounds the factor to 1 +- beta. Out of range is judged by the width of z = 0.
    """

    low: Fraction = 0.2
    high: NonNegative = 0.2
    beta: Fraction = 0.3
    gate: Literal["token", "unit"] = "token"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        gain = torch.where(ratios.batch.mask, ratios.batch.need("turn_score"), 0)
        factor = 1 + self.beta * (2 * gain.sigmoid() - 1)
        return gated(ratios, 1 - self.low * factor, 1 + self.high * factor)


class Flipped(Window, kind="flipped"):
    """PPO's clip with the ratio of good tokens turned over, and a cap that keeps gradients: ASPO, 2510.06062.

    A > 0: L = -A w / sg[w]^2, whose gradient has the weight 1 / w, and none above 1 + high; A < 0: L = -A w,
    none below 1 - low. Where that weight is above `cap`, L = -cap A l, l = log pi_theta: the soft dual clip.
    PPO pushes likely good tokens hardest; turned over, it is the unlikely ones.
    """

    low: Fraction = 0.2
    high: NonNegative = 0.2
    cap: AtLeastOne = 3.0

    def surrogate(self, ratios: Ratios) -> Surrogate:
        ratio = ratios.ratio
        at = ratio.detach()
        good = ratios.advantages > 0
        bad = ratios.advantages < 0
        low = bad & (at < self.bounds[0])
        high = good & (at > self.bounds[1])
        plain = torch.where(good, ratio / at.square(), ratio)
        kept = torch.where(low, self.bounds[0], torch.where(high, 1 / self.bounds[1], plain))
        dual = (good & (1 / at > self.cap)) | (bad & (at > self.cap))
        capped = -self.cap * ratios.advantages * ratios.log_prob
        loss = torch.where(dual, capped, -ratios.advantages * kept)
        return Surrogate(loss, -ratios.advantages * plain, ratio, low, high, dual)

"""The one pipeline: log-ratio -> ratio -> clip -> stabilise -> aggregate; select and advantages before, KL
besides.

An algorithm is a choice for each slot. Every loss is to be minimised and every reduction is masked before it
is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from sorl.batch import Batch, masked_mean, turn_ids
from sorl.objective.advantage import Advantage, Reward
from sorl.objective.aggregate import Aggregate, Normaliser, TokenMean, weighted_sum
from sorl.objective.clip import Clip, Ratios, Surrogate
from sorl.objective.kl import KL
from sorl.objective.proximal import Proximal
from sorl.objective.rate import Rate
from sorl.objective.ratio import LOG_LIMIT, Correction, Pool, Routing
from sorl.objective.select import EarlyStop, Schedule, Select, Shaping
from sorl.objective.slot import Slot
from sorl.objective.stabilise import Damping, Stabiliser, imbalance
from sorl.spec import InputError
from sorl.tensors import Tensor, torch

# The families that `sorl algorithms` lists and the app colours, with their titles.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "critic": "With a critic",
        "normalised": "Normalised by the clipping bias",
        "group": "Against the other rollouts of a prompt",
        "reinforce": "REINFORCE",
        "unit": "Ratios of sentences, turns and sequences",
        "weight": "Another weight than the clipped ratio",
        "trust": "Without what is too far from the sampler",
        "guard": "Guards against drift",
        "proximal": "A proximal policy apart from the sampler",
        "correction": "Correction of the rollout",
        "turn": "Credit and masks of turns",
    }
)


@dataclass(frozen=True)
class Algorithm:
    """A named choice for every slot of the pipeline; holds no maths.

    `summary`: what it does, in a sentence. `experimental`: why the declaration may not be what its source
    does; empty = read in the source. `claim`: what the source reports.
    """

    name: str
    title: str
    paper: str
    formula: str
    differs_from: str | None
    advantage: Advantage
    ratio: Pool
    clip: Clip
    stabilise: Stabiliser = field(default_factory=Stabiliser)
    aggregate: Aggregate = field(default_factory=TokenMean)
    kl: KL = field(default_factory=KL)
    select: Select = field(default_factory=Select)
    correction: Correction = field(default_factory=Correction)
    shaping: Shaping = field(default_factory=Shaping)
    schedule: Schedule = field(default_factory=Schedule)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    routing: Routing = field(default_factory=Routing)
    proximal: Proximal = field(default_factory=Proximal)
    rate: Rate = field(default_factory=Rate)
    summary: str = ""
    experimental: str = ""
    claim: str = ""

    def but(self, name: str, **changes: Any) -> Algorithm:
        """Another algorithm that differs from this one in `changes`; what was said of this one is not said of
        it.
        """
        said = {"summary": "", "experimental": "", "claim": "", "differs_from": self.name}
        return replace(self, name=name, **(said | changes))

    def within(self, budget: float) -> Algorithm:
        """This algorithm in a run whose policy may write `budget` tokens an episode (a constant of some
        losses).
        """
        return replace(self, aggregate=self.aggregate.within(budget))

    @property
    def critic(self) -> bool:
        """Whether the advantage needs a critic's values."""
        return self.advantage.needs_values

    @property
    def group_size(self) -> int:
        """Rollouts per prompt unless a run says otherwise: 1, or 8 where a rule compares inside a prompt
        group.
        """
        return max(self.advantage.group_size, self.select.group_size)

    @property
    def needs_sampler(self) -> bool:
        """Whether the loss needs the sampler's log-probs in addition to those of the proximal policy."""
        return bool(self.parts_with_sampler)

    @property
    def parts_with_sampler(self) -> list[str]:
        """The slots whose rule needs the sampler's log-probs."""
        needs = {
            "correction": self.correction.kind != "none",
            "clip": getattr(self.clip, "against", "old") != "old",
            "kl": self.kl.needs_sampler,
            "proximal": self.proximal.needs_sampler,
            "rate": self.rate.needs_sampler,
        }
        return [slot for slot, is_needed in needs.items() if is_needed]

    @property
    def inputs(self) -> list[str]:
        """Tensors of a batch that its rules need and most others do not, such as `void`."""
        slots = (getattr(self, f.name) for f in fields(self))
        needed = (slot.inputs for slot in slots if isinstance(slot, Slot))
        return sorted(set().union(*needed))

    @property
    def needs_reference(self) -> bool:
        """Whether the KL term needs log-probs of a frozen reference."""
        return self.kl.needs_reference

    @property
    def needs_statistics(self) -> bool:
        """Whether clip or stabiliser compare all of a minibatch: `statistics` are summed over it first."""
        return bool(self.clip.sums_size) or self.stabilise.needs_statistics

    @property
    def conflict(self) -> str:
        """Why two of its slots cannot work together, with what to set; empty where they can."""
        if self.clip.sums_size and self.stabilise.needs_statistics and self.stabilise.needs_clip:
            counts = f"stabilise {self.stabilise.kind} counts clipped tokens of the minibatch"
            return f"{counts} before the bounds of clip {self.clip.kind} are known; set its scope = 'micro'"
        if self.clip.kind == "gain_band" and self.advantage.kind != "a2tgpo":
            return "clip gain_band reads what advantage a2tgpo says of each turn; set advantage = 'a2tgpo'"
        if self.proximal.follows_policy and self.correction.normalise:
            weights = f"correction {self.correction.kind} divides by the mean weight of the minibatch"
            return f"{weights}, which depends on the pass where proximal = '{self.proximal.kind}'"
        return ""

    def anchored(self, batch: Batch, log_prob: Tensor) -> Batch:
        """Return the batch with the log-probs of the proximal policy as the old ones; `log_prob` (B, T)."""
        return replace(batch, log_prob_old=self.proximal.log_prob(batch, log_prob.detach()))


@dataclass(frozen=True)
class LossTerms:
    """What the loss was made of, detached; (B, T) unless said, meaningful where the mask is."""

    log_ratio: Tensor  # log pi_theta - log pi_old, not clamped; 0 off the mask
    ratio: Tensor  # ratio that entered the surrogate
    active_low: Tensor  # bool, the lower bound stopped the gradient
    active_high: Tensor  # bool, the upper bound did
    out_of_range: Tensor  # bool, the token's own ratio lies outside the bounds, whatever the sign of A
    dual: Tensor  # bool, the dual clip acted
    factor: Tensor  # factor of the stabiliser on the token's loss
    # what the stabiliser compared with tau: rho of the token's micro-batch, turn or sequence
    rho: Tensor | None
    correction: Tensor | None  # weight of the rollout correction; None = 1
    corrected: Tensor | None  # bool, the correction capped the weight or set it to 0; None without one
    token_loss: Tensor  # before aggregation, with factor and correction
    policy_loss: Tensor  # scalar, aggregated
    kl_loss: Tensor  # scalar, what the KL term adds to the loss, beta included; 0 without one
    penalty: Tensor  # scalar, what the stabiliser adds to the loss; 0 without one
    energy: Tensor  # (4,) |C|, sum_C (r A)^2, |N|, sum_N (r A)^2; C out of range, N the other policy tokens
    mask: Tensor  # bool, the loss mask

    @property
    def clipped_rms(self) -> float:
        """c, RMS of r A over the tokens out of range; 0 without any. The same formula for every algorithm."""
        return float(imbalance(self.energy).clipped_rms)

    @property
    def unclipped_rms(self) -> float:
        """n, RMS of r A over the other policy tokens; 0 without any."""
        return float(imbalance(self.energy).unclipped_rms)

    @property
    def stabiliser_ratio(self) -> float | None:
        """The largest rho of the stabiliser's units; 0 without a policy token, None without such a
        stabiliser.
        """
        return None if self.rho is None else float(torch.where(self.mask, self.rho, 0).max())

    @property
    def stabiliser_factor(self) -> float | None:
        """Mean of `factor` over policy tokens; 1 without any, None without a stabiliser that multiplies the
        loss.
        """
        if self.rho is None:
            return None
        return float(masked_mean(self.factor, self.mask)) if bool(self.mask.any()) else 1.0

    @classmethod
    def join(cls, parts: Sequence[LossTerms]) -> LossTerms:
        """Return the terms of a minibatch from those of its micro-batches: rows in order,
        scalars added up.
        """
        if len(parts) == 1:
            return parts[0]

        def joined(values: list[Tensor]) -> Tensor | None:
            if values[0] is None:
                return None
            return torch.cat(values) if values[0].dim() == 2 else torch.stack(values).sum(0)

        values = {}
        for term in fields(cls):
            values[term.name] = joined([getattr(part, term.name) for part in parts])
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PolicyLoss:
    """The scalar to call `.backward()` on (the entropy bonus is the caller's), and its terms.

    `taken`: the unclipped surrogate less the clipped one, aggregated alike. Its gradient is -C, C the
    clipping bias (2511.20718, lemma 4.2); for clips that close the gradient, C = sum over clipped tokens of
    weight r A grad log pi.
    """

    loss: Tensor
    terms: LossTerms
    # scalar with its graph, before a stabiliser's factor; `loss` itself where that is all of it
    surrogate: Tensor
    taken: Tensor  # scalar with its graph, what the clip took from `surrogate`


def _observe(algorithm: Algorithm, batch: Batch, log_prob: Tensor) -> Ratios:
    advantages = batch.need("advantages")
    mask = batch.mask
    ratio = algorithm.ratio
    raw = torch.where(mask, log_prob - batch.log_prob_old, 0)
    log_ratio = raw.clamp(-LOG_LIMIT, LOG_LIMIT)
    units = ratio.units(batch)
    entering = raw if ratio.level == "none" else ratio.entering(log_ratio, batch)
    return Ratios(
        batch,
        ratio,
        algorithm.clip,
        units,
        log_ratio,
        entering,
        ratio=ratio.ratio(entering, units),
        log_prob=torch.where(mask, log_prob, 0),
        advantages=torch.where(mask, advantages, 0),
    )


def policy_loss(
    algorithm: Algorithm,
    batch: Batch,
    log_prob: Tensor,
    *,
    normaliser: Normaliser | None = None,
    statistics: Tensor | None = None,
) -> PolicyLoss:
    """Return the policy's loss on a (micro-)batch: aggregate(factor * correction * clip(ratio, A)) + KL term
    + penalty.

    `log_prob` (B, T) with gradient, nats. `normaliser`: counts of the whole minibatch, of which `batch` is a
    micro-batch (default: `batch` is all of it). `statistics`: those of clip and stabiliser over the
    minibatch; a slot that compares nothing ignores them.
    """
    batch = algorithm.anchored(batch, log_prob)
    whole = Normaliser.of(batch) if normaliser is None else normaliser
    pieces = _pieces(algorithm, batch, log_prob, whole, statistics)
    gap = pieces.surrogate.unclipped - pieces.surrogate.loss
    token_loss = pieces.corrected(pieces.surrogate.loss)
    gap = pieces.corrected(gap)
    counts = whole.within(batch, algorithm.aggregate.scope)
    weights = algorithm.aggregate.weights(batch, counts)
    sums = _add_up(token_loss, weights, pieces.factor)
    kl = algorithm.kl.in_loss(batch, log_prob, counts)
    loss = _with_terms(sums.policy, (kl, pieces.damping.penalty))
    with torch.no_grad():
        terms = _loss_terms(algorithm, batch, log_prob, pieces, sums, kl)
    return PolicyLoss(loss, terms, sums.surrogate, weighted_sum(weights, gap))


class _Pieces(NamedTuple):
    """What the slots of an algorithm make of a batch, before it is added up."""

    ratios: Ratios
    surrogate: Surrogate
    damping: Damping
    correction: Tensor | None

    @property
    def factor(self) -> Tensor:
        """The stabiliser's factor on the loss of each token; 1 without one."""
        ratio = self.ratios.ratio
        return ratio.new_ones(()) if self.damping.factor is None else self.damping.factor.to(ratio.dtype)

    def corrected(self, token_values: Tensor) -> Tensor:
        """Values of the tokens times the weights of the rollout correction."""
        return token_values if self.correction is None else self.correction * token_values


class _LossSums(NamedTuple):
    """The loss of the surrogate, by token and added up."""

    token_loss: Tensor
    policy: Tensor
    surrogate: Tensor  # `policy` before a stabiliser's factor


def _with_terms(loss: Tensor, terms: Iterable[Tensor | None]) -> Tensor:
    """The loss and those of the terms that there are, added up in order."""
    for term in terms:
        loss = loss if term is None else loss + term
    return loss


def _add_up(token_loss: Tensor, weights: Tensor, factor: Tensor) -> _LossSums:
    surrogate = weighted_sum(weights, token_loss)
    if not bool((factor != 1).any()):
        return _LossSums(token_loss, surrogate, surrogate)
    token_loss = factor * token_loss
    return _LossSums(token_loss, weighted_sum(weights, token_loss), surrogate)


def _pieces(
    algorithm: Algorithm, batch: Batch, log_prob: Tensor, whole: Normaliser, statistics: Tensor | None
) -> _Pieces:
    stabilise = algorithm.stabilise
    ratios = _observe(algorithm, batch, log_prob)
    of_clip, sums = _shares(algorithm, statistics)
    # Before a stabiliser changes the advantages, as `statistics` has them.
    ratios = replace(ratios, clip_sums=algorithm.clip.measure(ratios) if of_clip is None else of_clip)
    surrogate = algorithm.clip.surrogate(replace(ratios, advantages=stabilise.advantages(ratios, sums)))
    damping = stabilise.damp(ratios, sums, whole)
    return _Pieces(ratios, surrogate, damping, algorithm.correction.weights(batch, whole.weight))


def _loss_terms(
    algorithm: Algorithm,
    batch: Batch,
    log_prob: Tensor,
    pieces: _Pieces,
    sums: _LossSums,
    kl: Tensor | None,
) -> LossTerms:
    """The terms without their graph."""
    mask = batch.mask
    surrogate = pieces.surrogate
    damping = pieces.damping
    zero = pieces.ratios.ratio.new_zeros(())
    return LossTerms(
        log_ratio=torch.where(mask, log_prob - batch.log_prob_old, 0),
        ratio=surrogate.ratio.detach(),
        active_low=surrogate.low & mask,
        active_high=surrogate.high & mask,
        dual=surrogate.dual & mask,
        out_of_range=pieces.ratios.out_of_range,
        factor=pieces.factor.expand_as(log_prob),
        rho=None if damping.rho is None else damping.rho.expand_as(log_prob),
        correction=pieces.correction,
        corrected=algorithm.correction.acts(batch),
        token_loss=sums.token_loss.detach(),
        policy_loss=sums.policy.detach(),
        kl_loss=zero if kl is None else kl.detach(),
        penalty=zero if damping.penalty is None else damping.penalty.detach(),
        energy=pieces.ratios.energy(),
        mask=mask,
    )


def statistics(algorithm: Algorithm, batch: Batch, log_prob: Tensor) -> Tensor | None:
    """Return the sums of clip and stabiliser over `batch`, (k,) float64, additive over micro-batches.

    None where neither compares anything over a minibatch. Raises InputError where the one's sums would need
    the other's first.
    """
    if not algorithm.needs_statistics:
        return None
    if algorithm.conflict:
        raise InputError(f"algorithm '{algorithm.name}': {algorithm.conflict}")
    with torch.no_grad():
        ratios = _observe(algorithm, algorithm.anchored(batch, log_prob), log_prob)
        of_clip = algorithm.clip.measure(ratios) if algorithm.clip.sums_size else None
        of_stabiliser = algorithm.stabilise.measure(ratios) if algorithm.stabilise.needs_statistics else None
    return torch.cat([sums for sums in (of_clip, of_stabiliser) if sums is not None])


def _shares(algorithm: Algorithm, statistics: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return what of the statistics is the clip's and what the stabiliser's; None where it asks for none."""
    if statistics is None:
        return None, None
    size = algorithm.clip.sums_size
    of_clip = statistics[:size] if size else None
    return of_clip, statistics[size:] if algorithm.stabilise.needs_statistics else None


def _masked(batch: Batch, keep: Tensor | None) -> Batch:
    mask = batch.mask if keep is None else batch.mask & keep[:, None]
    return replace(batch, mask=mask, turn_id=turn_ids(mask))


def prepare(algorithm: Algorithm, batch: Batch, stream: torch.Generator | None = None) -> Batch:
    """Fill advantages and returns of the whole batch of a step, after selection and with the KL of the
    reward.

    The shaped outcome is the reward of the last policy token; sequences that are not selected lose their loss
    mask. `stream` draws placebo turns; without one they are the same at every call.
    """
    with torch.no_grad():
        chosen = _masked(batch, algorithm.select.keep(batch.score, batch.group))
        batch = algorithm.ratio.mark(chosen, stream)
        rank = batch.mask.cumsum(1)
        last = batch.mask & (rank == rank[:, -1:])
        total = algorithm.shaping.score(batch)
        token = torch.where(last, total[:, None], 0).to(batch.log_prob_old.dtype)
        penalty = algorithm.kl.in_reward(batch)
        if penalty is not None:
            token = token - penalty
            total = total - penalty.sum(1)
        batch = algorithm.advantage.estimate(Reward(token, total), batch)
        return _masked(batch, algorithm.select.after(batch))

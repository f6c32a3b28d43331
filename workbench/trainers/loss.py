"""Our algorithms as the policy loss of another trainer: exact over its micro-batches and ranks, but for what
`split_note` names.

Advantages, rewards, selection and the optimizer stay the trainer's. The ratio, its clip, the stabiliser, the
aggregation, the KL term and the correction of the rollout are the algorithm's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import Batch, turn_ids
from sorl.objective import KINDS, Algorithm, LossTerms, Normaliser, PolicyLoss, policy_loss, statistics
from sorl.objective.aggregate import good, turns_of
from sorl.objective.kl import RewardKL
from sorl.objective.proximal import Proximal
from sorl.objective.rate import Rate
from sorl.objective.select import EarlyStop, Schedule, Select, Shaping
from sorl.spec import InputError
from sorl.tensors import Tensor, torch

Metrics = dict[str, float]  # what a trainer logs of a loss, by name

log = logging.getLogger("sorl.losses")

# Slots that a loss cannot carry, with what the trainer would have to do in its place.
_ELSEWHERE = {
    "select": (Select(), "which sequences are trained on is the trainer's choice"),
    "shaping": (Shaping(), "the reward is made by the trainer"),
    "schedule": (Schedule(), "the order of the updates is the trainer's"),
    "early_stop": (EarlyStop(), "the trainer decides when an iteration ends"),
    "rate": (Rate(), "the learning rate is the trainer's"),
}


def refusal(algorithm: Algorithm) -> str:
    """Return why the algorithm is more than a loss of another trainer's batch; empty where it is not."""
    for slot, (plain, why) in _ELSEWHERE.items():
        if (own := getattr(algorithm, slot)) != plain:
            return f"its {slot} is {own.kind}, and {why}; leave it out with {slot} = '{plain.kind}'"
    if algorithm.stabilise.needs_bias:
        return (
            f"its stabiliser {algorithm.stabilise.kind} changes gradients, which needs a second backward pass"
        )
    if algorithm.ratio.level in ("sentence", "placebo"):
        return f"its ratio is one of {algorithm.ratio.level} units, which no other trainer's batch has"
    if algorithm.clip.kind == "gain_band":
        return (
            "its clip needs a process reward of each turn, which the trainer does not give; set another clip"
        )
    if algorithm.proximal != Proximal():
        needed = {"averaged": "an average of the policy's weights", "interpolated": "how stale each row is"}
        return (
            f"its proximal policy needs {needed[algorithm.proximal.kind]}, which the trainer does not give;"
            " set proximal = 'stored'"
        )
    if isinstance(algorithm.kl, RewardKL):
        return "its KL term belongs to the reward, which is made by the trainer; set kl = 'loss'"
    return ""


def feedable() -> list[str]:
    """Return the names of the algorithms that are a loss of another trainer's batch."""
    return [name for name, algorithm in ALGORITHMS.items() if not refusal(algorithm)]


def micro_statistics(algorithm: Algorithm) -> dict[str, str]:
    """Return what the loss takes from one micro-batch of one rank alone, by slot; empty where the split of an
    update into micro-batches does not matter.
    """
    statistics = {slot: getattr(algorithm, slot).micro_statistic for slot in KINDS}
    return {slot: words for slot, words in statistics.items() if words}


def split_note(algorithm: Algorithm) -> str:
    """Return what of the loss depends on the split into micro-batches, and what to set; empty: nothing."""
    notes = []
    for slot, words in micro_statistics(algorithm).items():
        scoped = hasattr(getattr(algorithm, slot), "scope")
        instead = "with scope = 'global' that of the whole update" if scoped else "there is no other form"
        notes.append(f"{words} (slot {slot}, {instead})")
    if not notes:
        return ""
    head = f"'{algorithm.name}' trains differently where an update is split differently"
    return f"{head}: of each micro-batch of each rank alone it takes {' and '.join(notes)}"


def note_split(algorithm: Algorithm) -> None:
    """Log `split_note` where there is something to say, on the first rank alone."""
    note = split_note(algorithm)
    if note and os.environ.get("RANK", "0") == "0":
        log.warning("%s", note)


def sampler_need(algorithm: Algorithm) -> str:
    """Return which part of the algorithm needs the sampler's log-probs, in words; empty where none does."""
    if not algorithm.needs_sampler:
        return ""
    part = algorithm.parts_with_sampler[0]
    return f"the {part} of '{algorithm.name}' needs the sampler's log-probs"


def advice_without_sampler(algorithm: Algorithm) -> str:
    """Return what to set for the loss without the sampler's log-probs."""
    changes = []
    if algorithm.correction.kind != "none":
        changes.append("correction = 'none'")
    if getattr(algorithm.clip, "against", "old") != "old":
        changes.append("clip = {'against': 'old'}")
    if algorithm.kl.needs_sampler:
        changes.append("kl = 'none'")
    return f"to train without them, another algorithm, set {' and '.join(changes)}"


# at the head of an update's sums: tokens, sequences, turns, tokens of good sequences, correction weights
COUNTS = 5


class Loss:
    """An algorithm as a loss. Raises InputError for an algorithm that a loss cannot carry, with what to leave
    out.

    `horizon`: tokens that the policy may write in an episode, where the aggregation divides by them (Dr.
    GRPO).
    """

    def __init__(
        self, algorithm: str | Mapping[str, Any], horizon: float | None = None, **slots: Any
    ) -> None:
        self.algorithm = resolve(algorithm, slots)
        if why := refusal(self.algorithm):
            raise InputError(f"algorithm '{self.algorithm.name}' is more than a loss: {why}")
        if horizon is not None:
            self.algorithm = self.algorithm.within(horizon)
        elif getattr(self.algorithm.aggregate, "horizon", 1.0) is None:
            why = f"'{self.algorithm.name}' divides by the tokens of an episode"
            raise InputError(f"algorithm {why}: give horizon=... (verl: actor.loss_scale_factor)")
        # Whether clip or stabiliser compare all of an update: a pass without gradients comes before it.
        self.needs_log_probs_first = self.algorithm.needs_statistics

    def batch(
        self,
        *,
        mask: Tensor,
        advantages: Tensor,
        log_prob_old: Tensor,
        log_prob_behaviour: Tensor | None = None,
        log_prob_ref: Tensor | None = None,
        turn: Tensor | None = None,
    ) -> Batch:
        """Return a micro-batch of the trainer as the objective reads it.

        Shapes (B, T), T tokens of the responses; advantages (B,) or (B, T). `mask`: tokens that the policy
        wrote and that are trained on. `turn`: ids from 1, 0 off the mask (default: the runs of the mask).
        Log-probs in nats; those of the sampler default to the old ones, also where they are NaN (not scored).
        Raises InputError where the algorithm needs the sampler's or the reference's log-probs and they are
        not given; NaN for all tokens of the mask is not given.
        """
        own = self.algorithm
        mask = mask.bool()
        if own.needs_reference and log_prob_ref is None:
            raise InputError(
                f"the KL term of '{own.name}' needs the reference's log-probs, and the trainer gives none"
            )
        if own.needs_sampler and not _scored(log_prob_behaviour, mask):
            options = "TRL: use_vllm = True; verl: rollout.calculate_log_probs=true; SkyRL: "
            options += "generator.sampling_params.logprobs=1"
            why = f"{sampler_need(own)}, and the trainer gives none"
            raise InputError(f"{why} ({options}); {advice_without_sampler(own)}")
        old = torch.where(mask, log_prob_old, 0)
        sampler = old if log_prob_behaviour is None else log_prob_behaviour
        sampler = torch.where(sampler.isnan(), old, sampler)
        index = torch.arange(len(mask), device=mask.device)
        wide = advantages[:, None].expand_as(old) if advantages.dim() == 1 else advantages
        return Batch(
            tokens=torch.zeros_like(mask, dtype=torch.long),
            response=mask,
            mask=mask,
            length=torch.full_like(index, mask.shape[1]),
            group=index,
            trajectory=index,
            score=torch.zeros_like(old[:, 0]),
            log_prob_behaviour=torch.where(mask, sampler, 0),
            log_prob_old=old,
            log_prob_ref=None if log_prob_ref is None else torch.where(mask, log_prob_ref, 0),
            advantages=torch.where(mask, wide.to(old.dtype), 0),
            turn_id=turn_ids(mask) if turn is None else turn,
        )

    def sums(self, batch: Batch, log_prob: Tensor | None = None) -> Tensor:
        """Return what this micro-batch adds to what the means of its update divide by: a float64 vector.

        Vectors add up over micro-batches and ranks. COUNTS counts, then the statistics of clip and stabiliser
        of a loss that `needs_log_probs_first`, for which `log_prob` is given.
        """
        weight = self.algorithm.correction.mean_weight(batch)
        tokens = batch.mask.sum().double()
        counts = torch.stack(
            [
                tokens,
                batch.mask.any(1).sum().double(),
                turns_of(batch).sum().double(),
                (batch.mask & good(batch)).sum().double(),
                tokens * (0.0 if weight is None else weight.double()),
            ]
        )
        found = None if log_prob is None else statistics(self.algorithm, batch, log_prob.detach())
        return counts if found is None else torch.cat([counts, found.double()])

    def __call__(
        self, batch: Batch, log_prob: Tensor, sums: Tensor | None = None, micro_batches: int = 1
    ) -> PolicyLoss:
        """Return the loss of a micro-batch and its terms. The losses of an update's micro-batches add up to
        its loss.

        `sums`: added over all micro-batches and ranks of the update (default: `batch` is all of it), of which
        there are `micro_batches` on all ranks together. A trainer that averages gradients over its ranks
        multiplies the loss by their number. Raises ValueError for `sums` without the statistics of a loss
        that `needs_log_probs_first`.
        """
        if sums is None:
            sums = self.sums(batch, log_prob)
        if self.needs_log_probs_first and len(sums) == COUNTS:
            raise ValueError(f"'{self.algorithm.name}' compares a whole update: its sums need log_prob")
        counts = sums[:COUNTS].to(batch.log_prob_old)
        tokens, sequences, turns, good_tokens = counts[:-1].clamp(min=1).unbind()
        weight = counts[-1] / tokens if self.algorithm.correction.normalise else None
        whole = Normaliser(
            tokens=tokens,
            sequences=sequences,
            turns=turns,
            good=good_tokens,
            weight=weight,
            micro_batches=micro_batches,
        )
        compared = sums[COUNTS:] if len(sums) > COUNTS else None
        return policy_loss(self.algorithm, batch, log_prob, normaliser=whole, statistics=compared)


def _scored(log_prob: Tensor | None, mask: Tensor) -> bool:
    """Return whether log-probs are given for any token of the mask, (B, T) each; NaN is not given."""
    if log_prob is None:
        return False
    return not bool(mask.any()) or bool((mask & ~log_prob.isnan()).any())


def metrics(terms: LossTerms) -> Metrics:
    """Return what a trainer logs of a micro-batch: shares of its trained tokens, KL in nats, ratios."""
    mask = terms.mask
    n = terms.mask.sum().clamp(min=1)
    flags = {
        "clip_frac": terms.active_low | terms.active_high,
        "clip_low_frac": terms.active_low,
        "clip_high_frac": terms.active_high,
        "out_of_range_frac": terms.out_of_range,
    }
    more = {
        "approx_kl": -terms.log_ratio.sum() / n,
        "policy_loss": terms.policy_loss,
        "ratio_max": torch.where(mask, terms.log_ratio.clamp(-20, 20).exp(), 1).max(),
        "unit_ratio_max": torch.where(mask, terms.ratio, 1).max(),
        "stabiliser_ratio": terms.stabiliser_ratio,
        "stabiliser_factor": terms.stabiliser_factor,
    }
    found: dict[str, Any] = {name: (flag & mask).sum() / n for name, flag in flags.items()} | more
    return {name: float(value) for name, value in found.items() if value is not None}


def recorded(terms: LossTerms) -> dict[str, Any]:
    """Return what `Ledger.update` is told of our loss: its ratio, and what clip and stabiliser did to each
    token.
    """
    names = (
        "ratio",
        "active_low",
        "active_high",
        "out_of_range",
        "dual",
        "factor",
        "correction",
        "corrected",
    )
    values = {name: getattr(terms, name) for name in names}
    told: dict[str, Any] = {"terms": {name: x for name, x in values.items() if x is not None}}
    return told if terms.stabiliser_ratio is None else told | {"stabiliser_ratio": terms.stabiliser_ratio}

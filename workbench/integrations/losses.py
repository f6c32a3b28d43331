"""Our algorithms as the policy loss of another trainer: exact over its micro-batches and ranks, but for what
`split_note` names.

Advantages, rewards, selection and the optimizer stay the trainer's. The ratio, its clip, the stabiliser, the
aggregation, the KL term and the correction of the rollout are the algorithm's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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


def _without_sampler(algorithm: Algorithm) -> str:
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
            raise InputError(f"{why} ({options}); {_without_sampler(own)}")
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
    told: dict[str, Any] = {"terms": {name: x for name in names if (x := getattr(terms, name)) is not None}}
    return told if terms.stabiliser_ratio is None else told | {"stabiliser_ratio": terms.stabiliser_ratio}


# What a GRPOTrainer may be told to do with its own loss, which ours takes the place of: option, value that is
# off.
_TRL_OWN = (
    ("top_entropy_quantile", 1.0),
    ("off_policy_mask_threshold", None),
    ("_entropy_bonus_enabled", False),
    ("aux_loss_enabled", False),
    ("use_liger_kernel", False),
)
_TRL_NAMES = {
    "clip_frac": "clip_ratio/region_mean",
    "clip_low_frac": "clip_ratio/low_mean",
    "clip_high_frac": "clip_ratio/high_mean",
}


def mask_of(inputs: Mapping[str, Any]) -> Tensor:
    """Return where TRL's policy wrote, (B, T): neither padding nor what a tool or an environment answered."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


class TrlLoss:
    """A mixin that trains TRL's GRPOTrainer with a loss of ours: `class Mine(TrlLoss, GRPOTrainer): loss =
    "st-ppo"`.

    Advantages are TRL's; `loss_type`, `epsilon` and `beta` of its configuration are not read, except that
    `beta` > 0 makes it compute the reference's log-probs. Raises InputError when it is made for what a loss
    cannot carry, for what the trainer does not provide, and for an update that is not made of whole
    generations.
    """

    loss: str | Mapping[str, Any] = "st-ppo"
    recorded: Mapping[str, Any] | None = None  # of the last micro-batch, for a ledger
    # micro-step of its start, its sums, its micro-batches on all ranks
    _update: tuple[int, Tensor, int] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        self._ours = Loss(self.loss, horizon=trainer.max_completion_length)
        own = self._ours.algorithm
        # What a ledger says of the loss in place of TRL's configuration.
        self.recorded_as = {"algorithm": own.name, "replay_as": self.loss, "clip": None}
        accumulated = trainer.args.gradient_accumulation_steps
        slices = trainer.args.steps_per_generation
        if slices % accumulated:
            numbers = (
                f"gradient_accumulation_steps = {accumulated} must divide steps_per_generation = {slices}"
            )
            raise InputError(
                f"{numbers}: an update is then made of one generation, and its counts known at its start"
            )
        if own.needs_reference and not trainer.beta:
            raise InputError(
                f"the KL term of '{own.name}' needs the reference's log-probs: set beta to its weight"
            )
        if own.needs_sampler and not getattr(trainer, "use_vllm", False):
            raise InputError(f"{sampler_need(own)}: set use_vllm = True; {_without_sampler(own)}")
        if getattr(trainer, "use_vllm", False) and getattr(
            trainer, "vllm_importance_sampling_correction", False
        ):
            why = "TRL's vllm_importance_sampling_correction is not applied to our losses"
            raise InputError(f"{why}: set it to False, and choose a correction = 'tis' of ours")
        for name, off in _TRL_OWN:
            if getattr(trainer, name, off) != off:
                told = f"{name.strip('_')} belongs to TRL's own loss and not to '{own.name}'"
                raise InputError(f"{told}: set it to {off}")
        note_split(own)

    def _of_inputs(self, inputs: Mapping[str, Any], log_prob: Tensor) -> Batch:
        old = inputs.get("old_per_token_logps")
        old = log_prob.detach() if old is None else old
        return self._ours.batch(
            mask=mask_of(inputs),
            advantages=inputs["advantages"],
            log_prob_old=old,
            log_prob_ref=inputs.get("ref_per_token_logps"),
            log_prob_behaviour=inputs.get("sampling_per_token_logps"),
        )

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        trainer: Any = self
        training = trainer.model.training
        ranks = trainer.accelerator.num_processes
        sums, parts = self._whole(model) if training else (None, 1)
        log_prob, entropy = self._log_probs(model, inputs)
        batch = self._of_inputs(inputs, log_prob)
        out = self._ours(batch, log_prob, sums, parts)
        self.recorded = recorded(out.terms)
        logged = trainer._metrics["train" if training else "eval"]
        logged["entropy"].append(
            float(torch.where(batch.mask, entropy, 0).sum() / batch.mask.sum().clamp(min=1))
        )
        for name, value in metrics(out.terms).items():
            logged[_TRL_NAMES.get(name, f"sorl/{name}")].append(value)
        return out.loss * ranks if training else out.loss

    def _log_probs(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        trainer: Any = self
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        answer = trainer._get_per_token_logps_and_entropies(
            model, ids, attention, width, compute_entropy=True
        )
        return answer[0], answer[1]

    def _whole(self, model: Any) -> tuple[Tensor, int]:
        """Sums over every micro-batch of the update on every rank, made once at its start."""
        trainer: Any = self
        accumulated = trainer.args.gradient_accumulation_steps
        slices = trainer.args.steps_per_generation
        start = trainer._step - trainer._step % accumulated
        if self._update is None or self._update[0] != start:
            # The last update of an epoch may have fewer micro-batches than the others.
            count = min(accumulated, trainer.current_gradient_accumulation_steps)
            found = []
            for micro in range(start, start + count):
                inputs = trainer._buffered_inputs[micro % slices]
                first = self._ours.needs_log_probs_first or "old_per_token_logps" not in inputs
                with torch.no_grad():
                    log_prob = self._log_probs(model, inputs)[0] if first else inputs["old_per_token_logps"]
                    found.append(self._ours.sums(self._of_inputs(inputs, log_prob), log_prob))
            total = trainer.accelerator.reduce(torch.stack(found).sum(0), reduction="sum")
            self._update = start, total, count * trainer.accelerator.num_processes
        return self._update[1], self._update[2]


def tinker_loss(
    algorithm: str | Mapping[str, Any], horizon: float | None = None, **slots: Any
) -> Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, Metrics]]:
    """Return a loss for tinker's `training_client.forward_backward_custom(data, loss)`; a call is a whole
    update.

    Every datum carries `mask`, `advantages` and `logprobs` in its loss_fn_inputs, as the cookbook makes them,
    all of one length; the sampler's log-probs are those of the old policy. Raises InputError as Loss does,
    and for a KL term: no reference is there. Read against tinker 0.38 and tinker-cookbook 0.6.1, not run.
    """
    loss = Loss(algorithm, horizon, **slots)
    padded = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    if loss.algorithm.needs_reference:
        name = loss.algorithm.name
        raise InputError(f"the KL term of '{name}' needs the reference's log-probs: leave it out: kl='none'")

    def computed(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        given = [
            padded([d.loss_fn_inputs[n].to_torch() for d in data]) for n in ("mask", "advantages", "logprobs")
        ]
        batch = loss.batch(
            mask=given[0] > 0, advantages=given[1], log_prob_old=given[2], log_prob_behaviour=given[2]
        )
        out = loss(batch, padded(list(logprobs)))
        return out.loss, metrics(out.terms)

    return computed


def skyrl_loss(algorithm: str | Mapping[str, Any], **slots: Any) -> Callable[..., tuple[Tensor, Metrics]]:
    """Return a policy loss for SkyRL: `PolicyLossRegistry.register("st-ppo", skyrl_loss("st-ppo"))` before it
    starts.

    SkyRL scales the advantages so that a sum over tokens is its `loss_reduction`, which takes the place of
    the algorithm's aggregation; ratio, clip, correction and a stabiliser of the micro-batch are the
    algorithm's. With `token_mean` the scale is one number and leaves the stabiliser as it is. Raises
    InputError for what a micro-batch with scaled advantages cannot tell. Read against SkyRL 0.4.0, not run.
    """
    loss = Loss(algorithm, None, **({"aggregate": "token_sum"} | slots))
    own = loss.algorithm
    why = ""
    if own.kl.kind != "none":
        why = "has a term besides the surrogate, which SkyRL's reduction does not scale: kl='none'"
    elif own.clip.sums_size:
        why = "has a clip whose bounds need the whole update, more than a micro-batch: take another clip"
    elif own.stabilise.kind not in ("none", "rms_batch", "rms_turn", "rms_seq") or loss.needs_log_probs_first:
        why = "has a stabiliser that needs more than a micro-batch: stabilise={'scope': 'micro'}"
    elif getattr(own.correction, "normalise", False):
        why = "has a correction that needs the mean of an update: correction={'normalise': False}"
    if why:
        raise InputError(f"'{own.name}' {why}")
    note_split(own)

    def computed(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any = None,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
        told: dict[str, Any] = {"log_prob_old": old_log_probs, "log_prob_behaviour": rollout_logprobs}
        out = loss(loss.batch(mask=mask > 0, advantages=advantages, **told), log_probs)
        return out.loss, metrics(out.terms)

    return computed

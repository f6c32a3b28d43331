"""TRL: our algorithms as the loss of its GRPOTrainer, exact over the micro-batches and ranks of an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sorl.batch import Batch
from sorl.spec import InputError
from sorl.tensors import Tensor, torch
from sorl.trainers.loss import Loss, advice_without_sampler, metrics, note_split, recorded, sampler_need

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
            raise InputError(f"{sampler_need(own)}: set use_vllm = True; {advice_without_sampler(own)}")
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

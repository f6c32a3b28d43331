"""verl: the turn ledger of its actor, a recorder a rank."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sorl.objective import LossTerms
from sorl.recording import Ledger
from sorl.trainers.loss import recorded
from sorl.trainers.trl import text_of
from sorl.trainers.verl_batch import ROW, dense, dense_responses, fields, list_of, token_lists
from sorl.trainers.verl_mode import OWN, Mode, in_our_words, loss_of

# Options of verl's actor that change what is computed.
SETTINGS = (
    "ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu",
    "use_dynamic_bsz",
    "ppo_epochs",
    "rollout_n",
    "shuffle",
    "entropy_coeff",
    "use_kl_loss",
    "kl_loss_coef",
    "kl_loss_type",
    "loss_scale_factor",
)


@dataclass
class Step:
    """The rows of this rank that verl trains on before it samples again."""

    data: Any
    per_epoch: int  # updates
    # (B,) of each row; -1 for the rows that verl adds to fill up a mini-batch
    trajectory: Tensor | None = None
    updates: int = 0
    recorder: Recorder | None = None


class Recorder:
    """Tells the ledger what the actor of this rank was trained on."""

    def __init__(self, engine: Any, config: Any, mode: str) -> None:
        asked = Mode.of(mode)
        learn = engine.optimizer_config
        loss = loss_of(mode, config.loss_scale_factor)
        knobs = dict(asked.knobs)
        folder = Path(str(knobs.pop("record")))
        tokenizer = getattr(engine.model_config, "tokenizer", None)
        settings = {
            key: config.get(key) for key in (*SETTINGS, *(OWN if loss is None else ())) if config.get(key)
        }
        settings |= {"loss_mode": mode.partition("?")[0], "slots": dict(asked.slots)}
        policy = {"lr": learn.lr, "max_grad_norm": learn.clip_grad or None}
        settings["learn"] = {"epochs": config.ppo_epochs, "policy": policy}
        self.most = float(learn.clip_grad or math.inf)
        self.number = -1
        self.step = Step(None, 1)
        self.actor: Any = None  # its module
        self.ranks = engine.get_data_parallel_size()
        planned = getattr(learn, "total_training_steps", -1)
        self.iterations = planned if planned and planned > 0 else None
        words = in_our_words(config, asked, loss, knobs.pop("advantage", None))
        self.ledger = Ledger(
            folder.parent,
            experiment=folder.name,
            algorithm=asked.name,
            settings=settings,
            trainer="verl",
            seed=config.data_loader_seed,
            iterations=self.iterations,
            clip=words.clip,
            replay_as=words.replay_as,
            undeclared=words.undeclared,
            decode=None if tokenizer is None else tokenizer.convert_ids_to_tokens,
            process_group=engine.get_data_parallel_group(),
            **knobs,
        )

    def rollouts(self, step: Step) -> None:
        """Record what was sampled, without the rows that verl adds to fill up a mini-batch: they have no loss
        mask.
        """
        self.number = self.number + 1
        self.step = step
        data = step.data
        masks = [x.bool() for x in (dense(data, "response_mask"), dense(data, "loss_mask")) if x is not None]
        real = torch.stack([mask.any(1) for mask in masks]).any(0)
        step.trajectory = torch.where(real, real.long().cumsum(0) - 1, -1)
        keep = real.nonzero().flatten().tolist()
        scores = [x for x in (dense(data, "rm_scores"), dense(data, "token_level_scores")) if x is not None]
        if not scores:
            raise ValueError("the batch has neither rm_scores nor token_level_scores")
        uid, told, model = (list_of(data, name) for name in ("uid", "raw_prompt", "reward_model"))
        words: dict[str, Any] = {}
        if uid is not None:
            # The same prompt may be on several ranks: its number comes from its name alone.
            words["group"] = torch.tensor([zlib.crc32(str(uid[i]).encode()) & 0x7FFFFFFF for i in keep])
        if told is not None:
            words["question"] = [text_of(told[i]) for i in keep]
        if model is not None and all(isinstance(m, Mapping) and "ground_truth" in m for m in model):
            words["gold"] = [str(model[i]["ground_truth"]) for i in keep]
        prompts, responses = token_lists(data)
        self.ledger.rollouts(
            self.number,
            scores[0].sum(1)[keep],
            mask=masks[0][keep],
            prompts=[prompts[i] for i in keep],
            responses=[responses[i] for i in keep],
            **words,
        )

    def part(self, model_output: Any, data: Any, terms: LossTerms | None, out: Any) -> None:
        """Record a micro-batch once the backward pass has said how much each token weighs in the loss."""
        assert self.step.trajectory is not None
        values = model_output["log_probs"]
        log_prob = dense_responses(values, data).detach()
        width = log_prob.shape[1]
        entropy = model_output.get("entropy")
        weight = dense(data, "rollout_is_weights", width)
        number = self.step.updates
        step = self.number
        if terms is not None:
            of_loss = recorded(terms)
        else:
            of_loss = {"terms": {} if weight is None else {"correction": weight}}
        told = (
            fields(data, log_prob)
            | of_loss
            | {
                "update": number,
                "epoch": number // self.step.per_epoch,
                "log_prob": log_prob,
                "trajectory": self.step.trajectory[data[ROW].cpu()],
                "tokens": dense(data, "responses", width),
                "values_old": dense(data, "values", width),
                "returns": dense(data, "returns", width),
                "policy_loss": last_logged(out, "actor/pg_loss"),
                "clip_frac": last_logged(out, "actor/pg_clipfrac"),
                "entropy": None if entropy is None else dense_responses(entropy, data).detach(),
            }
        )

        def weighed(gradient: Tensor) -> None:
            with self.ledger.guarded("a gradient of this verl"):
                # of the mean over ranks
                told["terms"]["gradient_weight"] = dense_responses(gradient, data) / self.ranks
                self.ledger.update(step, **told)

        values.register_hook(weighed)

    def before(self, engine: Any) -> None:
        """Witness the actor before the first update of a step, where this rank has its whole tensors."""
        self.actor = getattr(engine, "module", None)
        if self.step.updates == 0 and hasattr(self.actor, "named_parameters"):
            named = self.actor.named_parameters()
            optimizer = getattr(engine, "optimizer", None)
            self.ledger.weights(self.number, "policy", named, optimizer=optimizer)

    def after(self, engine: Any, out: Mapping[str, Any]) -> None:
        """Record what is known after the update."""
        norm = out["metrics"].get("grad_norm")
        schedule = getattr(engine, "lr_scheduler", None)
        scalars = (
            {} if norm is None else {"grad_norm": float(norm), "grad_norm_after": min(float(norm), self.most)}
        )
        if schedule is not None and hasattr(schedule, "get_last_lr"):
            scalars["lr"] = float(schedule.get_last_lr()[0])
        self.ledger.update(self.number, update=self.step.updates, **scalars)
        self.step.updates += 1

    def end(self) -> None:
        """End the step, and the run after its last one."""
        if hasattr(self.actor, "named_parameters"):
            self.ledger.weights(self.number, "policy", self.actor.named_parameters(), when="end")
        self.ledger.end(self.number)
        if self.iterations is not None and self.number + 1 >= self.iterations:
            self.ledger.close()


def last_logged(out: Any, name: str) -> float | None:
    """What the loss function logs of its micro-batch under a name: a number, or verl's list of them."""
    logged = out[1].get(name)
    values = getattr(logged, "values", logged)
    if isinstance(values, list):
        values = values[-1] if values else None
    if isinstance(values, Tensor):
        values = values.item()
    return float(values) if isinstance(values, int | float) else None

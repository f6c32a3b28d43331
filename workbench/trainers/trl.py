"""TRL: `record(trainer, "runs", experiment=...)` before `trainer.train()` records the turn ledger of a
GRPOTrainer.

It wraps methods of this one trainer object and changes nothing that they compute or draw. A step is one batch
of rollouts with its optimizer updates, so `steps_per_generation`, `num_iterations` and gradient accumulation
may be anything; TRL's `global_step` counts updates. Read for TRL 1.x; docs/recording.md says which versions
were run.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sorl.recording import Clip, Ledger
from sorl.spec import InputError
from sorl.trainers.trl_loss import mask_of

ROW = "sorl_trajectory"  # key of a trainer's batch: the trajectory of each of its rows
# columns of a data set that hold the expected answer
GOLD = ("answer", "gold", "solution", "target", "ground_truth")
# Options that say where a run writes and how it reports, not what it computes.
COSMETIC = (
    "output_dir",
    "run_name",
    "logging",
    "report_to",
    "save_",
    "hub_",
    "push_to_hub",
    "disable_tqdm",
    "seed",
    "project",
    "trackio",
    "log_",
    "num_completions_to_print",
)
# TRL's loss types whose token loss is PPO's clipped surrogate, and how they aggregate it, in our words.
AGGREGATES: Mapping[str, Any] = {
    "grpo": "seq_mean_token_mean",
    "bnpo": {"kind": "token_mean", "scope": "micro"},
    "dapo": "token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    "luspo": "seq_mean_token_sum",
}
CLIP_FRACTION = "clip_ratio/region_mean"  # what TRL logs of a micro-batch
WRAPPED = (
    "_generate_and_score_completions",
    "_calculate_rewards",
    "_get_per_token_logps_and_entropies",
    "_compute_loss",
    "_maybe_log_save_evaluate",
)


def record(
    trainer: Any, runs: str | Path, *, experiment: str, success: str | None = None, **knobs: Any
) -> Ledger:
    """Record what `trainer`, a GRPOTrainer that does not train yet, will do; returns the ledger, which closes
    itself.

    `success`: the reward function whose 1 is a success (None: where all rewards are 0 or 1, the reward).
    `knobs`: those of Ledger. Raises InputError for what is no GRPOTrainer of TRL 1.x, and as Ledger does.
    """
    if missing := [name for name in WRAPPED if not hasattr(trainer, name)]:
        raise InputError(
            f"{type(trainer).__name__} has no {missing[0]}(): record() takes a GRPOTrainer of TRL 1.x"
        )
    names = list(trainer.reward_func_names)
    if success is not None and success not in names:
        raise InputError(f"no reward function '{success}'; there is: {', '.join(names)}")
    return Recording(trainer, success, runs, experiment=experiment, **knobs).ledger


class Recording:
    """The wraps around one trainer and what they remember of the step."""

    def __init__(self, trainer: Any, success: str | None, runs: str | Path, **knobs: Any) -> None:
        from transformers import TrainerCallback

        args = trainer.args
        self.trainer = trainer
        self.success = success
        # A step is the shortest stretch of micro-batches of whole generations and whole updates.
        self.generation = args.steps_per_generation * trainer.num_iterations
        self.window = math.lcm(self.generation, args.gradient_accumulation_steps)
        # steps of earlier sessions: a resumed trainer counts its micro-batches from 0
        self.before: int | None = None
        self.step = -1
        self.first_update = 0
        self.count = 0  # trajectories of this rank in the step
        self.scored: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}  # of the forward pass under way
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        default = {
            "algorithm": trainer.loss_type,
            "settings": settings_of(args),
            "seed": args.seed,
            "clip": clip_of(trainer),
            "replay_as": replay_as(trainer),
            "undeclared": undeclared(trainer),
            "temperature": trainer.temperature,
            "trainer": "trl",
            "decode": tokenizer.convert_ids_to_tokens,
            "iterations": max(0, args.max_steps) * args.gradient_accumulation_steps // self.window or None,
        }
        if recorded_as := getattr(trainer, "recorded_as", {}):  # a loss of ours, in place of TRL's
            default |= recorded_as | {"undeclared": ["advantage"]}
        self.ledger = Ledger(runs, **(default | knobs))
        for name in WRAPPED:
            setattr(trainer, name, self._around(name, getattr(trainer, name)))
        trainer.sorl_recording = self
        ending = {"on_train_end": lambda *args, **kwargs: self.ledger.close()}
        trainer.add_callback(type("Ending", (TrainerCallback,), ending)())

    def _around(self, name: str, method: Any) -> Any:
        """Call the trainer's own method, then look at what went in and came out; a mistake here costs the
        rows only.
        """
        look = getattr(self, f"after{name}")

        @wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            out = method(*args, **kwargs)
            if self.trainer.model.training and not self.ledger.dead:
                with self.ledger.guarded(f"{name}() of this TRL"):
                    look(out, time.perf_counter() - began, *args, **kwargs)
            return out

        return wrapped

    def after_calculate_rewards(
        self,
        out: Tensor,
        _: float,
        inputs: Sequence[Mapping[str, Any]],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids_list: Sequence[Sequence[int]],
    ) -> None:
        """Keep the rewards of every function, the data and the conversations of this rank."""
        n = len(prompts)
        rank = self.trainer.accelerator.process_index
        local = out[rank * n : (rank + 1) * n].detach()
        total = (local * self.trainer.reward_weights.to(local.device)).nansum(dim=1)
        unscored = torch.isnan(local).all(dim=1)
        self.scored = {
            "rewards": torch.where(unscored, torch.nan, total),
            "success": (
                None if self.success is None else local[:, self.trainer.reward_func_names.index(self.success)]
            ),
            "question": [text_of(prompt) for prompt in prompts],
            "messages": completions,
            "responses": completion_ids_list,
        }
        if name := next((name for name in GOLD if inputs and name in inputs[0]), None):
            self.scored["gold"] = [str(row[name]) for row in inputs]

    def after_generate_and_score_completions(self, out: dict[str, Any], seconds: float, inputs: Any) -> None:
        """Record the rollouts, and give every row of the batch its trajectory before the trainer shuffles
        them.
        """
        trainer = self.trainer
        scored = self.scored
        self.scored = {}
        self._follow_step()
        n = len(out["prompt_ids"])
        out[ROW] = torch.arange(self.count, self.count + n, device=out["prompt_ids"].device)
        is_prompt = out["prompt_mask"].cpu().bool()
        prompts = [ids[mask] for ids, mask in zip(out["prompt_ids"].cpu(), is_prompt, strict=True)]
        messages = scored.pop("messages")
        responses = scored.pop("responses")
        told = conversations(messages)
        mask = mask_of(out)
        self.ledger.rollouts(
            self.step,
            **scored,
            group=self._groups_of(n),
            prompts=prompts,
            responses=list(responses),
            mask=mask,
            status=_status_of_turns(told["status"], mask),
            answer=told["answer"],
            ended=self._endings(told["ended"], responses),
            searches=told["searches"] if getattr(trainer, "tools", None) else None,
            seconds=seconds,
        )
        self.count += n

    def _follow_step(self) -> None:
        """Find out which step the trainer is in, and begin it where it is a new one."""
        trainer = self.trainer
        if self.before is None:
            done = trainer.state.global_step * trainer.args.gradient_accumulation_steps - trainer._step
            self.before = -(-done // self.window)
        step = self.before + trainer._step // self.window
        if step != self.step:
            self.step = step
            self.first_update = trainer.state.global_step
            self.count = 0
            self.witness("start")

    def _groups_of(self, n: int) -> Tensor:
        """The prompt, numbered over all ranks, of the next n rows of this rank."""
        accelerator = self.trainer.accelerator
        batch = self.count // n if n else 0  # generation batches of the step so far
        first = (batch * accelerator.num_processes + accelerator.process_index) * n
        return torch.arange(first, first + n) // self.trainer.num_generations

    def _endings(self, told: Sequence[str], responses: Sequence[Sequence[int]]) -> list[str]:
        """How each trajectory ended: as told where its completion ended of itself, else at the limit."""
        stops = {*self.trainer.eos_token_ids, self.trainer._tokenizer.pad_token_id}
        endings = []
        for ending, ids in zip(told, responses, strict=True):
            is_complete = bool(ids) and ids[-1] in stops
            endings.append(ending if is_complete else "max_tokens")
        return endings

    def after_get_per_token_logps_and_entropies(self, out: Any, _: float, *args: Any, **kwargs: Any) -> None:
        """Keep log-probs and entropies of the pass that the loss is made of."""
        if out[0].requires_grad:
            self.seen = {"log_prob": out[0], "entropy": out[1]}

    def after_compute_loss(self, out: Tensor, _: float, model: Any, inputs: dict[str, Any]) -> None:
        """Record the part of the update once the backward pass has said how much each token weighs in the
        loss.
        """
        trainer = self.trainer
        seen = self.seen
        self.seen = {}
        if not seen or ROW not in inputs:
            return
        told = self._part_of_update(seen, inputs)
        if trainer.beta == 0 and not getattr(trainer, "_entropy_bonus_enabled", False):
            told["policy_loss"] = out.detach()  # it is the surrogate alone
        step = self.step

        def record_weights(gradient: Tensor) -> None:
            # of the mean over ranks
            told["terms"]["gradient_weight"] = gradient / trainer.accelerator.num_processes
            self.ledger.update(step, **told)

        seen["log_prob"].register_hook(record_weights)

    def _part_of_update(self, seen: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """A micro-batch as the ledger takes it; `seen`: of its forward pass."""
        trainer = self.trainer
        log_prob = seen["log_prob"].detach()
        old = inputs.get("old_per_token_logps")
        old = log_prob if old is None else old
        behaviour = inputs.get("sampling_per_token_logps")
        if behaviour is not None:  # what vLLM could not score counts as equal, as in TRL's own correction
            behaviour = torch.where(torch.isnan(behaviour), old, behaviour)
        own: dict[str, Any] = {"terms": {}} | (getattr(trainer, "recorded", None) or {})  # of a loss of ours
        own["terms"].update(self._correction(inputs, log_prob))
        part: dict[str, Any] = {
            "update": trainer.state.global_step - self.first_update,
            "epoch": trainer._step % self.generation // trainer.args.steps_per_generation,
            "trajectory": inputs[ROW],
            "log_prob": log_prob,
            "log_prob_old": old,
            "mask": mask_of(inputs),
            "advantages": inputs["advantages"],
            "entropy": seen["entropy"],
            "log_prob_behaviour": behaviour,
            "log_prob_ref": inputs.get("ref_per_token_logps"),
            "tokens": inputs.get("completion_ids"),
            **own,
        }
        logged = getattr(trainer, "_metrics", {}).get("train", {}).get(CLIP_FRACTION)
        if logged:
            part["clip_frac"] = logged[-1]
        return part

    def _correction(self, inputs: Mapping[str, Any], log_prob: Tensor) -> dict[str, Tensor]:
        """TRL's weights of the rollout correction, and where they were capped; nothing without them."""
        weight = inputs.get("importance_sampling_ratio")
        if weight is None:
            return {}
        caps = [0.0]
        for end in ("min", "max"):
            cap = getattr(self.trainer, f"vllm_importance_sampling_clip_{end}", None)
            if cap is not None:
                caps.append(cap)
        is_capped = torch.isin(weight, weight.new_tensor(caps))
        return {"correction": weight.expand_as(log_prob), "corrected": is_capped.expand_as(log_prob)}

    def after_maybe_log_save_evaluate(
        self, out: None, _: float, tr_loss: Any, grad_norm: Any, *args: Any, **more: Any
    ) -> None:
        """Record what is known after the update, and end the step after its last one."""
        trainer = self.trainer
        number = trainer.state.global_step - self.first_update - 1
        if self.before is None or number < 0:
            return
        rate = more.get("learning_rate", args[5] if len(args) > 5 else None)
        most = float(trainer.args.max_grad_norm or math.inf)
        after = None if grad_norm is None else min(float(grad_norm), most)
        scalars = {"grad_norm": grad_norm, "grad_norm_after": after, "lr": rate}
        self.ledger.update(
            self.step, update=number, **{k: float(v) for k, v in scalars.items() if v is not None}
        )
        if self.before + trainer._step // self.window > self.step:
            self.witness("end")
            self.ledger.end(self.step)

    def say_rollback(self, words: str) -> None:
        """Record that earlier weights came back after the last step that was recorded."""
        if self.step >= 0:
            self.ledger.event(self.step, "rollback", words)

    def witness(self, when: Literal["start", "end"]) -> None:
        """Witness the policy, and at the start of a step the reference; vLLM's copy has other names."""
        trainer = self.trainer
        unwrap = getattr(trainer.accelerator, "unwrap_model", lambda model: model)
        policy = unwrap(trainer.model)
        if not hasattr(policy, "named_parameters"):
            return
        optimizer = getattr(trainer, "optimizer", None)
        named = policy.named_parameters()
        self.ledger.weights(self.step, "policy", named, when=when, optimizer=optimizer)
        reference = getattr(trainer, "ref_model", None)
        if when == "start" and reference is not None:
            named = unwrap(reference).named_parameters()
            is_moving = bool(getattr(trainer.args, "sync_ref_model", False))
            self.ledger.weights(self.step, "reference", named, trainable=is_moving)


def _status_of_turns(told: Sequence[list[str]], mask: Tensor) -> list[list[str]]:
    """Status of each turn; none where another number of turns was told than the mask (N, T) has.

    A rollout_func tells one message for all turns: then nobody says what each turn did.
    """
    before_first = torch.zeros(len(mask), 1, dtype=mask.dtype)
    turns = torch.diff(mask.cpu(), dim=1, prepend=before_first).clamp(min=0).sum(1)
    status = []
    for of_turns, count in zip(told, turns.tolist(), strict=True):
        status.append(of_turns if len(of_turns) == count else [])
    return status


def text_of(prompt: Any) -> str:
    """The last message of a conversation, or the prompt as it is."""
    content = prompt[-1].get("content") if isinstance(prompt, list) and prompt else prompt
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def conversations(completions: Sequence[Any]) -> dict[str, list[Any]]:
    """Status of each turn, calls carried out, answer and end of each completion: a tool call is a search."""
    found: dict[str, list[Any]] = defaultdict(list)
    for completion in completions:
        told = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
        turns = [message for message in told if message.get("role") == "assistant"]
        calls = [bool(turn.get("tool_calls")) for turn in turns]
        open_call = bool(calls) and calls[-1]
        found["searches"].append(sum(message.get("role") == "tool" for message in told))
        found["status"].append(["search" if call else "answer" for call in calls])
        found["answer"].append(None if open_call else text_of(turns[-1:]))
        found["ended"].append("max_turns" if open_call else "answer")
    return found


def settings_of(args: Any) -> dict[str, Any]:
    """Return the options off their defaults that change what is computed, the schedule also in our words."""
    usual = {f.name: f.default for f in fields(args)}  # another instance would reset the state of accelerate
    told = {k: v for k, v in args.to_dict().items() if k in usual and not k.startswith(COSMETIC)}
    changed = {k: v for k, v in told.items() if v != usual[k] and isinstance(v, bool | int | float | str)}
    minibatches = max(1, args.steps_per_generation // args.gradient_accumulation_steps)
    policy = {"lr": args.learning_rate, "max_grad_norm": args.max_grad_norm or None}
    return changed | {"learn": {"epochs": args.num_iterations, "minibatches": minibatches, "policy": policy}}


def clip_of(trainer: Any) -> Clip | None:
    """Return what TRL's loss type does with a ratio; None for one that is not known here."""
    low = trainer.epsilon_low
    high = trainer.epsilon_high
    level = trainer.importance_sampling_level
    if trainer.loss_type in AGGREGATES:
        return Clip(1 - low, 1 + high, trainer.args.delta, level)
    weight = {"cispo": high, "sapo": math.inf, "vespo": math.inf}.get(trainer.loss_type)
    return None if weight is None else Clip(0.0, weight, None, level, stops=False)


def replay_as(trainer: Any) -> dict[str, Any] | str:
    """Return TRL's configuration in our words, for `sorl replay`; the name alone where it has none.

    A KL term that is weighted by the ratio (`use_bias_correction_kl`) has no words of ours and is left out.
    """
    if trainer.loss_type not in AGGREGATES:
        return str(trainer.loss_type)
    clip = {"low": trainer.epsilon_low, "high": trainer.epsilon_high}
    clip |= {"dual": trainer.args.delta} if trainer.args.delta else {}
    group = {"kind": "grpo", "eps": 1e-4} if trainer.scale_rewards == "group" else "mean_only"
    aggregate = AGGREGATES[trainer.loss_type]
    if trainer.loss_type == "dr_grpo" and (horizon := getattr(trainer.args, "max_completion_length", None)):
        aggregate = {"kind": aggregate, "horizon": float(horizon)}
    found = {"base": "grpo", "clip": clip, "aggregate": aggregate, "advantage": group}
    found |= {"ratio": {"level": "sequence"}} if trainer.importance_sampling_level == "sequence" else {}
    plain = trainer.beta and not getattr(trainer.args, "use_bias_correction_kl", False)
    return found | ({"kl": {"kind": "loss", "estimator": "k3", "beta": trainer.beta}} if plain else {})


def undeclared(trainer: Any) -> list[str]:
    """Return the slots in which `replay_as` is not all of TRL's configuration, so that no audit asks them."""
    args = trainer.args
    slots: set[str] = set()
    if trainer.loss_type not in AGGREGATES:
        slots |= {"clip", "aggregate", "advantage"}
    # These divide by the tokens of a whole generation, or weigh a sequence by its length.
    one_update = args.steps_per_generation == args.gradient_accumulation_steps
    if trainer.loss_type == "luspo" or (trainer.loss_type == "dapo" and not one_update):
        slots.add("aggregate")
    if trainer.loss_type == "dr_grpo" and not getattr(args, "max_completion_length", None):
        slots.add("aggregate")
    is_summed = getattr(args, "multi_objective_aggregation", "sum_then_normalize") == "sum_then_normalize"
    if trainer.scale_rewards not in ("group", "none", False) or not is_summed:
        slots.add("advantage")
    # TRL averages its KL term as it does the surrogate, our slot over tokens.
    is_token_mean = AGGREGATES.get(trainer.loss_type) == "token_mean"
    if trainer.beta and (getattr(args, "use_bias_correction_kl", False) or not is_token_mean):
        slots.add("kl")
    # Both leave tokens out of the loss.
    is_thinned = getattr(args, "top_entropy_quantile", 1.0) < 1.0
    if is_thinned or getattr(args, "off_policy_mask_threshold", None) is not None:
        slots.add("clip")
    return sorted(slots)

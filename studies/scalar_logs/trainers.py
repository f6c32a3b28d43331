"""The keys under which other trainers log a metric, and rows as they would write them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from studies.scalar_logs.latent import World

# One trainer a line: a metric of the simulation -> its key. A metric without one is not logged there.
NAMES: dict[str, dict[str, str]] = {
    "trl": {
        "step": "step",
        "reward": "reward",
        "reward_std": "reward_std",
        "zero_std": "frac_reward_zero_std",
        "entropy": "entropy",
        "kl": "kl",
        "clip": "clip_ratio/region_mean",
        "grad_norm": "grad_norm",
        "lr": "learning_rate",
        "loss": "loss",
        "length": "completions/mean_length",
        "truncated": "completions/clipped_ratio",
        "mismatch": "sampling/sampling_logp_difference/mean",
        "correct": "rewards/accuracy_reward/mean",
        "form": "rewards/format_reward/mean",
        "eval": "eval_reward",
        "staleness": "sample/staleness_mean",
        "staleness_max": "sample/staleness_max",
    },
    "verl": {
        "step": "training/global_step",
        "reward": "critic/score/mean",
        "entropy": "actor/entropy",
        "kl": "actor/kl_loss",
        "clip": "actor/pg_clipfrac",
        "approx_kl": "actor/ppo_kl",
        "grad_norm": "actor/grad_norm",
        "lr": "actor/lr",
        "loss": "actor/pg_loss",
        "length": "response_length/mean",
        "truncated": "response_length/clip_ratio",
        "mismatch_kl": "rollout_corr/kl",
        "ess": "rollout_corr/rollout_is_eff_sample_size",
        "mismatch": "training/rollout_probs_diff_mean",
        "staleness": "training/off_policy/trajectory_staleness/mean",
        "turns": "num_turns/mean",
        "explained_variance": "critic/vf_explained_var",
        "value_loss": "critic/vf_loss",
        "critic_grad_norm": "critic/grad_norm",
        "eval": "val-core/math/acc/mean@1",
    },
    "openrlhf": {
        "step": "train/global_step",
        "reward": "train/reward",
        "reward_std": "train/group_reward_std",
        "entropy": "train/entropy_loss",
        "kl": "train/kl",
        "clip": "train/ppo_clip_ratio",
        "approx_kl": "train/ppo_kl",
        "mismatch_kl": "train/vllm_kl",
        "grad_norm": "train/actor_grad_norm",
        "lr": "train/actor_lr",
        "loss": "train/policy_loss",
        "length": "train/response_length",
        "truncated": "train/truncated",
        "value_loss": "train/critic_loss",
        "eval": "eval/eval_math_pass1",
    },
    "skyrl": {
        "step": "trainer/global_step",
        "reward": "reward/avg_raw_reward",
        "entropy": "policy/policy_entropy",
        "kl": "policy/policy_kl",
        "clip": "policy/loss_metrics/clip_ratio",
        "grad_norm": "policy/grad_norm",
        "lr": "policy/policy_lr",
        "loss": "policy/policy_loss",
        "length": "generate/avg_num_tokens",
        "mismatch": "policy/rollout_train_logprobs_abs_diff_mean",
        "staleness": "async/staleness_mean",
        "staleness_max": "async/staleness_max",
        "value_loss": "critic/critic_loss",
        "eval": "eval/math/avg_score",
    },
    "prime-rl": {
        "step": "step",
        "reward": "train/math/all/solver/reward/mean",
        "solved_all": "train/math/all/solver/solved_all",
        "solved_none": "train/math/all/solver/solved_none",
        "entropy": "entropy/all/mean",
        "clip": "is_masked/mean",
        "mismatch_kl": "mismatch_kl/all/mean",
        "grad_norm": "optim/grad_norm",
        "lr": "optim/lr",
        "loss": "loss/mean",
        "length": "train/math/all/solver/num_output_tokens/mean",
        "staleness": "off_policy/mean",
        "truncated": "train/math/all/solver/is_truncated/mean",
        "staleness_max": "off_policy/max",
        "correct": "train/math/all/solver/rewards/correct/mean",
        "form": "train/math/all/solver/rewards/format/mean",
        "turns": "train/math/all/solver/num_turns/mean",
        "eval": "eval/math/solver/avg@1",
    },
    "slime": {
        "step": "train/step",
        "reward": "rollout/raw_reward",
        "entropy": "train/entropy_loss",
        "kl": "train/kl_loss",
        "clip": "train/pg_clipfrac",
        "approx_kl": "train/ppo_kl",
        "mismatch": "train/train_rollout_logprob_abs_diff",
        "grad_norm": "train/grad_norm",
        "lr": "train/lr-pg_0",
        "loss": "train/loss",
        "length": "rollout/response_len/mean",
        "truncated": "rollout/truncated",
        "eval": "eval/math",
    },
    "nemo-rl": {
        "step": "step",
        "reward": "train/reward",
        "solved_all": "train/baseline_reward/pct_1",
        "solved_none": "train/baseline_reward/pct_0",
        "entropy": "train/approx_entropy",
        "kl": "train/kl_penalty",
        "mismatch_kl": "train/gen_kl_error",
        "grad_norm": "train/grad_norm",
        "lr": "train/lr",
        "loss": "train/loss",
        "length": "train/mean_gen_tokens_per_sample",
        "truncated": "train/truncation_rate",
        "staleness": "train/avg_trajectory_age",
        "eval": "validation/accuracy",
    },
    "areal": {
        "step": "global_step",
        "reward": "ppo_actor/task_reward/avg",
        "entropy": "ppo_actor/update/entropy/avg",
        "clip": "ppo_actor/update/clip_ratio/avg",
        "approx_kl": "ppo_actor/update/approx_kl/avg",
        "mismatch_kl": "ppo_actor/update/behave_approx_kl/avg",
        "grad_norm": "ppo_actor/update/grad_norm",
        "lr": "ppo_actor/update/lr",
        "length": "ppo_actor/seq_len/avg",
        "truncated": "ppo_actor/no_eos_ratios/avg",
        "staleness": "ppo_actor/update/version_stats/sample_staleness_theta_avg",
        "eval": "eval-rollout/task_reward/avg",
    },
    "tinker": {
        "step": "step",
        "reward": "env/all/reward/total",
        "solved_all": "env/all/by_group/frac_all_good",
        "solved_none": "env/all/by_group/frac_all_bad",
        "entropy": "optim/entropy",
        "lr": "optim/lr",
        "mismatch_kl": "optim/kl_sample_train_v1",
        "kl": "kl_policy_base",
        "length": "env/all/ac_tokens_per_turn",
        "staleness": "async/staleness_mean",
        "turns": "env/all/turns_per_episode",
        "eval": "test/env/all/reward/total",
    },
}


# One trainer a line: a setting -> its key in the configuration that lies next to the log.
SETTINGS: dict[str, dict[str, str]] = {
    "trl": {
        "group": "num_generations",
        "limit": "max_completion_length",
        "lr": "learning_rate",
        "kl": "beta",
        "entropy": "entropy_coef",
        "norm": "max_grad_norm",
        "clip": "epsilon",
        "schedule": "lr_scheduler_type",
    },
    "verl": {
        "group": "actor_rollout_ref.rollout.n",
        "limit": "data.max_response_length",
        "lr": "actor_rollout_ref.actor.optim.lr",
        "kl": "actor_rollout_ref.actor.kl_loss_coef",
        "entropy": "actor_rollout_ref.actor.entropy_coeff",
        "norm": "actor_rollout_ref.actor.grad_clip",
        "clip": "actor_rollout_ref.actor.clip_ratio",
        "prompts": "data.train_batch_size",
        "schedule": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    },
    "openrlhf": {
        "group": "n_samples_per_prompt",
        "limit": "generate_max_len",
        "lr": "actor_learning_rate",
        "kl": "init_kl_coef",
        "entropy": "entropy_loss_coef",
        "norm": "max_norm",
        "clip": "eps_clip",
    },
    "skyrl": {
        "group": "generator.n_samples_per_prompt",
        "limit": "generator.sampling_params.max_generate_length",
        "lr": "trainer.policy.optimizer_config.lr",
        "kl": "trainer.algorithm.kl_loss_coef",
        "norm": "trainer.policy.optimizer_config.max_grad_norm",
        "clip": "trainer.algorithm.eps_clip_low",
    },
    "prime-rl": {
        "group": "orchestrator.rollouts_per_example",
        "limit": "orchestrator.sampling.max_tokens",
        "lr": "trainer.optim.lr",
        "norm": "trainer.optim.max_norm",
    },
    "slime": {
        "group": "n_samples_per_prompt",
        "limit": "rollout_max_response_len",
        "lr": "lr",
        "kl": "kl_loss_coef",
        "entropy": "entropy_coef",
        "norm": "clip_grad",
        "clip": "eps_clip",
        "schedule": "lr_decay_style",
    },
    "nemo-rl": {
        "group": "grpo.num_generations_per_prompt",
        "limit": "policy.max_total_sequence_length",
        "lr": "policy.optimizer.kwargs.lr",
        "kl": "loss_fn.reference_policy_kl_penalty",
        "norm": "policy.max_grad_norm",
        "clip": "loss_fn.ratio_clip_min",
    },
    "areal": {
        "group": "gconfig.n_samples",
        "limit": "gconfig.max_new_tokens",
        "lr": "actor.optimizer.lr",
        "kl": "actor.kl_ctl",
        "norm": "actor.optimizer.gradient_clipping",
        "clip": "actor.eps_clip",
    },
    "tinker": {"group": "group_size", "limit": "max_tokens", "lr": "learning_rate", "kl": "kl_penalty_coef"},
}
APART = ("trl", "prime-rl")  # an evaluation is a row of its own


def that_log(wanted: Collection[str]) -> list[str]:
    """The trainers that log every one of these metrics."""
    return [name for name, keys in NAMES.items() if set(wanted) <= keys.keys()]


def written(
    rows: Sequence[Mapping[str, float]],
    trainer: str,
    keep: Collection[str],
    rng: np.random.Generator,
    every: int = 1,
) -> list[dict[str, float]]:
    """The rows under the keys of a trainer: of the metrics in `keep`, means of `every` steps, a value in
    fifty lost.
    """
    keys = {metric: key for metric, key in NAMES[trainer].items() if metric in keep or metric == "step"}
    found = []
    for start in range(0, len(rows), every):
        part = rows[start : start + every]
        line = {}
        for metric, key in keys.items():
            values = [row[metric] for row in part if metric in row]
            if values and (
                metric in ("step", "eval") or rng.random() > 0.02 or not math.isfinite(sum(values))
            ):
                line[key] = values[-1] if metric in ("step", "eval") else sum(values) / len(values)
        if trainer in APART and keys.get("eval") in line:
            found.append({keys["step"]: line[keys["step"]], keys["eval"]: line.pop(keys["eval"])})
        found.append(line)
    return found


def settings(world: World, trainer: str, rng: np.random.Generator) -> dict[str, Any] | None:
    """The configuration of a run as the trainer nests it; None in a third of the logs, as nobody kept it."""
    bonus = "soften" in world.terms and rng.random() < 0.7
    values = {
        "group": world.group,
        "prompts": world.prompts,
        "limit": round(world.limit),
        "lr": world.peak_lr,
        "kl": 0.001 * round(world.kl_pull, 1),
        "entropy": 0.02 if bonus else 0.0,
        "clip": 0.2,
        "norm": float(rng.choice([0.5, 1.0, 1.0])),
        "schedule": world.schedule,
    }
    if rng.random() < 1 / 3:
        return None
    nested: dict[str, Any] = {}
    for name, key in SETTINGS[trainer].items():
        *path, leaf = key.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[leaf] = values[name]
    return nested


def lines(rows: Sequence[Mapping[str, float]], trainer: str = "") -> str:
    """JSON lines; a value that is no number as Python writes it (NaN, Infinity). verl nests the metrics of a
    step.
    """
    key = NAMES["verl"]["step"]
    nested = (
        [{"step": row[key], "data": dict(row)} for row in rows]
        if trainer == "verl"
        else [dict(r) for r in rows]
    )
    return "".join(json.dumps(row) + "\n" for row in nested)

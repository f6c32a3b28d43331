"""The keys under which other trainers log a metric, and rows as they would write them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

# One trainer a line: a metric of the simulation -> its key. A metric without one is not logged there.
NAMES: dict[str, dict[str, str]] = {
    "trl": {
        "step": "step", "reward": "reward", "reward_std": "reward_std", "zero_std": "frac_reward_zero_std",
        "entropy": "entropy", "kl": "kl", "clip": "clip_ratio/region_mean", "grad_norm": "grad_norm",
        "lr": "learning_rate", "loss": "loss", "length": "completions/mean_length",
        "truncated": "completions/clipped_ratio", "mismatch": "sampling/sampling_logp_difference/mean",
        "correct": "rewards/accuracy_reward/mean", "form": "rewards/format_reward/mean", "eval": "eval_reward",
    },
    "verl": {
        "step": "training/global_step", "reward": "critic/score/mean", "entropy": "actor/entropy",
        "kl": "actor/kl_loss", "clip": "actor/pg_clipfrac", "approx_kl": "actor/ppo_kl",
        "grad_norm": "actor/grad_norm", "lr": "actor/lr", "loss": "actor/pg_loss", "length": "response_length/mean",
        "truncated": "response_length/clip_ratio", "mismatch_kl": "rollout_corr/kl",
        "ess": "rollout_corr/rollout_is_eff_sample_size", "mismatch": "training/rollout_probs_diff_mean",
        "staleness": "training/off_policy/trajectory_staleness/mean", "turns": "num_turns/mean",
        "explained_variance": "critic/vf_explained_var", "value_loss": "critic/vf_loss",
        "critic_grad_norm": "critic/grad_norm", "eval": "val-core/math/acc/mean@1",
    },
    "openrlhf": {
        "step": "train/global_step", "reward": "train/reward", "reward_std": "train/group_reward_std",
        "entropy": "train/entropy_loss", "kl": "train/kl", "clip": "train/ppo_clip_ratio",
        "approx_kl": "train/ppo_kl", "mismatch_kl": "train/vllm_kl", "grad_norm": "train/actor_grad_norm",
        "lr": "train/actor_lr", "loss": "train/policy_loss", "length": "train/response_length",
        "truncated": "train/truncated", "value_loss": "train/critic_loss", "eval": "eval/eval_math_pass1",
    },
    "skyrl": {
        "step": "trainer/global_step", "reward": "reward/avg_raw_reward", "entropy": "policy/policy_entropy",
        "kl": "policy/policy_kl", "clip": "policy/loss_metrics/clip_ratio", "grad_norm": "policy/grad_norm",
        "lr": "policy/policy_lr", "loss": "policy/policy_loss", "length": "generate/avg_num_tokens",
        "mismatch": "policy/rollout_train_logprobs_abs_diff_mean", "staleness": "async/staleness_mean",
        "staleness_max": "async/staleness_max", "value_loss": "critic/critic_loss", "eval": "eval/math/avg_score",
    },
    "prime-rl": {
        "step": "step", "reward": "train/math/all/solver/reward/mean", "solved_all": "train/math/all/solver/solved_all",
        "solved_none": "train/math/all/solver/solved_none", "entropy": "entropy/all/mean", "clip": "is_masked/mean",
        "mismatch_kl": "mismatch_kl/all/mean", "grad_norm": "optim/grad_norm", "lr": "optim/lr", "loss": "loss/mean",
        "length": "train/math/all/solver/num_output_tokens/mean", "staleness": "off_policy/mean",
        "truncated": "train/math/all/solver/is_truncated/mean", "staleness_max": "off_policy/max",
        "correct": "train/math/all/solver/rewards/correct/mean", "form": "train/math/all/solver/rewards/format/mean",
        "turns": "train/math/all/solver/num_turns/mean", "eval": "eval/math/solver/avg@1",
    },
    "slime": {
        "step": "train/step", "reward": "rollout/raw_reward", "entropy": "train/entropy_loss", "kl": "train/kl_loss",
        "clip": "train/pg_clipfrac", "approx_kl": "train/ppo_kl", "mismatch": "train/train_rollout_logprob_abs_diff",
        "grad_norm": "train/grad_norm", "lr": "train/lr-pg_0", "loss": "train/loss",
        "length": "rollout/response_len/mean", "truncated": "rollout/truncated", "eval": "eval/math",
    },
    "nemo-rl": {
        "step": "step", "reward": "train/reward", "solved_all": "train/baseline_reward/pct_1",
        "solved_none": "train/baseline_reward/pct_0", "entropy": "train/approx_entropy", "kl": "train/kl_penalty",
        "mismatch_kl": "train/gen_kl_error", "grad_norm": "train/grad_norm", "lr": "train/lr", "loss": "train/loss",
        "length": "train/mean_gen_tokens_per_sample", "truncated": "train/truncation_rate",
        "staleness": "train/avg_trajectory_age", "eval": "validation/accuracy",
    },
    "areal": {
        "step": "global_step", "reward": "ppo_actor/task_reward/avg", "entropy": "ppo_actor/update/entropy/avg",
        "clip": "ppo_actor/update/clip_ratio/avg", "approx_kl": "ppo_actor/update/approx_kl/avg",
        "mismatch_kl": "ppo_actor/update/behave_approx_kl/avg", "grad_norm": "ppo_actor/update/grad_norm",
        "lr": "ppo_actor/update/lr", "length": "ppo_actor/seq_len/avg", "truncated": "ppo_actor/no_eos_ratios/avg",
        "staleness": "ppo_actor/update/version_stats/sample_staleness_theta_avg",
        "eval": "eval-rollout/task_reward/avg",
    },
    "tinker": {
        "step": "step", "reward": "env/all/reward/total", "solved_all": "env/all/by_group/frac_all_good",
        "solved_none": "env/all/by_group/frac_all_bad", "entropy": "optim/entropy", "lr": "optim/lr",
        "mismatch_kl": "optim/kl_sample_train_v1", "kl": "kl_policy_base", "length": "env/all/ac_tokens_per_turn",
        "staleness": "async/staleness_mean", "turns": "env/all/turns_per_episode", "eval": "test/env/all/reward/total",
    },
}  # fmt: skip


def that_log(wanted: Collection[str]) -> list[str]:
    """The trainers that log every one of these metrics."""
    return [name for name, keys in NAMES.items() if set(wanted) <= keys.keys()]


def written(
    rows: Sequence[Mapping[str, float]], trainer: str, keep: Collection[str], rng: np.random.Generator
) -> list[dict[str, float]]:
    """The rows under the keys of a trainer: of the metrics in `keep`, with a value in fifty lost."""
    keys = {metric: key for metric, key in NAMES[trainer].items() if metric in keep or metric == "step"}
    found = []
    for row in rows:
        line = {key: row[metric] for metric, key in keys.items() if metric in row}
        lost = [key for key in line if key not in (keys["step"], keys.get("eval")) and rng.random() < 0.02]
        found.append({key: value for key, value in line.items() if key not in lost or not math.isfinite(value)})
    return found


def lines(rows: Sequence[Mapping[str, float]]) -> str:
    """JSON lines; a value that is no number as Python writes it (NaN, Infinity)."""
    return "".join(json.dumps(dict(row)) + "\n" for row in rows)

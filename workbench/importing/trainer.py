"""Which trainer wrote a log, told by the names of its metrics, options and files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Signs:
    """Names that one trainer uses and the others do not; `*` stands for any text."""

    trainer: str
    metrics: str = ""
    options: str = ""  # of a configuration, by dotted key
    files: str = ""  # words in the names of the file and its folder
    builds_on: str = ""  # a trainer whose names it uses as well

    def count(self, metrics: Iterable[str], options: Iterable[str], path: Path) -> int:
        """How many of the signs are there; an option or a file counts as two metrics."""
        in_metrics = _matches(self.metrics, metrics)
        in_options = _matches(self.options, options)
        place = "/".join(path.parts[-_PARTS:]).lower()
        in_path = sum(_names_a_file(word, place) for word in self.files.split())
        return in_metrics + 2 * in_options + 2 * in_path


_WILD = re.compile(r"[*?]")
_PARTS = 2  # of a path, from its end
_ENOUGH = 2  # signs: a single metric may have the same name by chance

SIGNS = (
    Signs(
        "ms-swift",
        metrics="memory(GiB) train_speed(*) global_step/max_steps elapsed_time remaining_time percentage",
        options="rlhf_type swift_version external_plugins reward_funcs_plugin train_type",
        files="swift ms-swift",
        builds_on="TRL",
    ),
    Signs(
        "TRL",
        metrics=(
            "*completions/mean_length *completions/clipped_ratio *frac_reward_zero_std "
            "*clip_ratio/region_mean *clip_ratio/low_mean *clip_ratio/high_mean completion_length "
            "train/completion_length rewards?/?*?/?mean train/rewards/*/mean rewards/*_func "
            "*rewards/*_reward *objective/rlhf_reward *objective/non_score_reward *policy/approxkl_avg "
            "*sampling/importance_sampling_ratio/* *sampling/sampling_logp_difference/*"
        ),
        options=(
            "*num_generations *max_completion_length *scale_rewards *per_device_train_batch_size "
            "*mask_truncated_completions *use_bias_correction_kl *importance_sampling_level log_history "
            "trial_name"
        ),
        files="trainer_state.json trl unsloth",
    ),
    Signs(
        "ROLL",
        metrics=(
            "actor/approxkl* actor/ppo_ratio_*clipfrac* tokens/response_length/* actor_train/grad_norm "
            "scheduler/off_policy_ratio system/global_step critic/entropy/mean time/step_generate"
        ),
        options="actor_train.* actor_infer.* num_return_sequences_in_group",
    ),
    Signs(
        "verl",
        metrics=(
            "actor/pg_clipfrac* actor/pg_loss actor/ppo_kl actor/entropy actor/entropy_loss "
            "actor/kl_loss critic/score/* critic/rewards/mean critic/advantages/* "
            "response_length/clip_ratio response_length/mean prompt_length/* timing_s/* "
            "timing_per_token_ms/* perf/mfu/* val-core/* val-aux/* val/test_score/* global_seqlen/* "
            "training/rollout_probs_diff_* rollout_corr/* actor/grad_norm actor/lr"
        ),
        options="*actor_rollout_ref.* *algorithm.adv_estimator *critic.ppo_* data.train_batch_size",
        files="verl",
    ),
    Signs(
        "SkyRL",
        metrics=(
            "*loss_metrics/* reward/avg_raw_reward reward/avg_pass_at_* generate/* "
            "policy/policy_entropy policy/policy_kl policy/policy_lr policy/final_loss "
            "policy/policy_loss trainer/global_step timing/policy_train eval/*/avg_score "
            "reward/num_zero_variance_filtered"
        ),
        options="*trainer.policy.* *trainer.algorithm.* generator.*",
        files="skyrl",
    ),
    Signs(
        "slime",
        metrics=(
            "rollout/raw_reward rollout/response_len/* rollout/truncated rollout/zero_std/* "
            "train/lr-pg_* train/train_rollout_logprob_abs_diff rollout/rollout_log_probs train/ois "
            "train/tis* rollout/log_probs"
        ),
        options="*hf_checkpoint *num_rollout *rollout_max_response_len",
        files="slime",
    ),
    Signs(
        "prime-rl",
        metrics=(
            "train/*/all/* train/agg/* mismatch_kl/all/* is_masked/* is_masked_* entropy/all/* "
            "solve_none solve_all optim/zero_grad_ratio eval/*/all/* off_policy/mean off_policy/max "
            "effective_batch_size Async?Level Max.?Off-Policy?Level Seq.?Length Mismatch?KL"
        ),
        options=(
            "*rollouts_per_example *max_off_policy_steps *orchestrator.* *max_async_level *ckpt.interval"
        ),
        files="prime-rl prime_rl",
    ),
    Signs(
        "NeMo-RL",
        metrics=(
            "*probs_ratio* *gen_kl_error *token_mult_prob_error *mean_gen_tokens_per_sample "
            "*approx_entropy *baseline_reward/* *sampling_importance_ratio *avg_trajectory_age "
            "*mean_prompt_length *num_unmasked_tokens *fraction_of_samples_properly_ended "
            "Generation?KL?Error Avg?Reward Mean?Generation?Length"
        ),
        options=(
            "*loss_fn.* *grpo.num_prompts_per_step *grpo.num_generations_per_prompt *policy.megatron_cfg.*"
        ),
        files="nemo nemo-rl nemo_rl",
    ),
    Signs(
        "AReaL",
        metrics=(
            "*update/importance_weight* *update/behave_approx_kl* *update/behave_imp_weight* "
            "*task_reward* *version_stats/* *ppo_actor/* *no_eos_ratios* *update/dual_clip_ratio* "
            "grpo_actor/*"
        ),
        options="*max_head_offpolicyness *gconfig.* *max_concurrent_rollouts",
        files="areal",
    ),
    Signs(
        "tinker",
        metrics=(
            "env/all/* optim/kl_sample_train_v* optim/entropy kl_policy_base progress/done_frac "
            "progress/batch optim/lr test/env/* time/sampling"
        ),
        options=(
            "*loss_fn_config *num_substeps *kl_penalty_coef *stream_minibatch_config "
            "*remove_constant_reward_groups"
        ),
        files="tinker",
    ),
    Signs(
        "OpenRLHF",
        metrics=(
            "*ppo_clip_ratio *actor_lr *actor_grad_norm *critic_lr *vllm_kl *group_reward_std *act_loss "
            "*dynamic_filtering_pass_rate *total_length *timing/make_experience eval/eval_*_pass1"
        ),
        options=(
            "*actor_learning_rate *init_kl_coef *remote_rm_url *advantage_estimator *micro_rollout_batch_size"
        ),
        files="openrlhf",
    ),
)
TRAINERS = tuple(signs.trainer for signs in SIGNS)


def trainer_of(metrics: Iterable[str], options: Iterable[str], path: Path) -> str:
    """Return the trainer of which most signs are there, or one that builds on that; empty where too few
    are.
    """
    names = list(metrics)
    keys = list(options)
    counts = {signs.trainer: signs.count(names, keys, path) for signs in SIGNS}
    best = max(counts, key=lambda trainer: counts[trainer])
    for signs in SIGNS:
        if signs.builds_on == best and counts[signs.trainer] >= _ENOUGH:
            return signs.trainer
    return best if counts[best] >= _ENOUGH else ""


def _matches(signs: str, names: Iterable[str]) -> int:
    """How many of the signs fit some name."""
    listed = list(names)
    text = "\n".join(listed)
    count = 0
    for sign in signs.split():
        # Most signs are in no name: to find their plain text takes less than to compile their pattern.
        plain = max(_WILD.split(sign), key=len)
        count += plain in text and any(map(_pattern(sign).fullmatch, listed))
    return count


@cache
def _pattern(sign: str) -> re.Pattern[str]:
    return re.compile(re.escape(sign).replace(r"\*", ".*").replace(r"\?", " ?"))


def _names_a_file(word: str, place: str) -> bool:
    """Whether a path holds a word that is no part of a longer one."""
    return word in place and re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", place) is not None

"""What other trainers call the diagnostics: their metric -> our table.column, where the definitions agree.

A metric whose definition differs (a clip fraction per sequence, a KL of another sign) is left out: a wrong name is
worse than a missing one.
"""

from __future__ import annotations

STEP = ("step", "global_step", "training/global_step", "train/global_step", "trainer/global_step", "_step", "iteration")

# Of a trainer that logs no exact match, the mean reward stands in for success: collapse is judged by it.
SCORES = (
    "success", "val-core/acc/mean@1", "critic/score/mean", "critic/rewards/mean", "reward/mean", "reward",
    "rewards/mean", "rollout/raw_reward", "train/reward",
)  # fmt: skip

NAMES: dict[str, str] = {
    # verl and Search-R1
    "actor/grad_norm": "minibatch.grad_norm",
    "actor/pg_loss": "minibatch.policy_loss",
    "actor/pg_clipfrac": "step.clip_frac",
    "actor/ppo_kl": "step.approx_kl",
    "actor/entropy": "step.entropy",
    "actor/entropy_loss": "step.entropy",
    "actor/lr": "minibatch.lr",
    "actor/kl_loss": "step.kl_ref",
    "critic/vf_loss": "minibatch.value_loss",
    "critic/vf_explained_var": "step.explained_variance",
    "critic/vf_clipfrac": "minibatch.vf_clip_frac",
    "critic/grad_norm": "minibatch.critic_grad_norm",
    "response_length/mean": "step.response_tokens",
    "response_length/clip_ratio": "step.truncated_frac",
    "num_turns/mean": "step.turns",
    "rollout_corr/kl": "step.mismatch_kl",
    "rollout_corr/rollout_is_eff_sample_size": "step.ess_frac",
    "training/off_policy/trajectory_staleness/mean": "step.staleness",
    "timing_s/gen": "step.seconds_rollout",
    "timing_s/update_actor": "step.seconds_update",
    "env/ratio_of_valid_action": "step.valid_action_frac",
    "env/number_of_valid_search": "step.searches",
    # TRL
    "grad_norm": "minibatch.grad_norm",
    "learning_rate": "minibatch.lr",
    "entropy": "step.entropy",
    "kl": "step.kl_ref",
    "policy_loss": "minibatch.policy_loss",
    "reward_std": "step.reward_std",
    "frac_reward_zero_std": "step.zero_advantage_frac",
    "clip_ratio/region_mean": "step.clip_frac",
    "completions/mean_length": "step.response_tokens",
    "completions/clipped_ratio": "step.truncated_frac",
    "sampling/sampling_logp_difference/mean": "minibatch.mismatch",
    "sampling/sampling_logp_difference/max": "minibatch.mismatch_max",
    # SkyRL
    "policy_entropy": "step.entropy",
    "loss_metrics/clip_ratio": "step.clip_frac",
    "loss_metrics/is_ratio_max": "minibatch.ratio_max",
    "policy/rollout_train_logprobs_abs_diff_mean": "minibatch.mismatch",
    "policy/rollout_train_logprobs_abs_diff_max": "minibatch.mismatch_max",
    "async/staleness_mean": "step.staleness",
    # prime-rl
    "mismatch_kl/all/mean": "step.mismatch_kl",
    "entropy/all/mean": "step.entropy",
    "optim/grad_norm": "minibatch.grad_norm",
    "optim/lr": "minibatch.lr",
    "off_policy/mean": "step.staleness",
    # slime
    "train/entropy_loss": "step.entropy",
    "train/pg_clipfrac": "step.clip_frac",
    "train/ppo_kl": "step.approx_kl",
    "train/grad_norm": "minibatch.grad_norm",
    "train/train_rollout_logprob_abs_diff": "minibatch.mismatch",
    # ROLL, OpenRLHF, AReaL
    "actor/ratio_max@max": "minibatch.ratio_max",
    "actor/approxkl@sum": "step.approx_kl",
    "actor_grad_norm": "minibatch.grad_norm",
    "ppo_clip_ratio": "step.clip_frac",
    "ppo_kl": "step.approx_kl",
    "entropy_loss": "step.entropy",
    "rollout/truncated_rate": "step.truncated_frac",
    "update/clip_ratio": "step.clip_frac",
    "update/entropy": "step.entropy",
    "update/grad_norm": "minibatch.grad_norm",
}

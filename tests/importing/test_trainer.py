"""Which trainer wrote a log."""

from pathlib import Path

import pytest

from sorl.importing.trainer import TRAINERS, trainer_of

METRICS = {
    "TRL": "loss grad_norm reward kl completions/mean_length frac_reward_zero_std rewards/accuracy/mean",
    "ms-swift": "loss reward completions/mean_length memory(GiB) train_speed(iter/s) global_step/max_steps",
    "verl": "actor/pg_loss actor/entropy critic/score/mean response_length/mean timing_s/gen",
    "ROLL": "critic/score/mean actor/approxkl@sum actor_train/grad_norm tokens/response_length/mean",
    "OpenRLHF": "train/reward train/ppo_clip_ratio train/actor_lr train/vllm_kl train/response_length",
    "slime": "rollout/raw_reward rollout/response_len/mean train/lr-pg_0 train/pg_clipfrac",
    "prime-rl": "train/agg/all/a/reward/mean mismatch_kl/all/mean optim/lr entropy/all/mean",
    "NeMo-RL": "train/probs_ratio train/gen_kl_error train/reward train/approx_entropy",
    "tinker": "env/all/reward/total optim/entropy optim/kl_sample_train_v1 progress/done_frac",
    "SkyRL": "policy/policy_entropy reward/avg_raw_reward loss_metrics/is_ratio_mean generate/avg_num_tokens",
    "AReaL": "ppo_actor/update/importance_weight/avg ppo_actor/task_reward/avg ppo_actor/no_eos_ratios/avg",
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_metrics_tell_each_trainer(trainer: str) -> None:
    assert trainer_of(METRICS[trainer].split(), (), Path("log.jsonl")) == trainer


@pytest.mark.parametrize("metrics", ["loss reward entropy", "actor/lr reward", "", "completion_length loss"])
def test_few_or_common_names_tell_none(metrics: str) -> None:
    assert trainer_of(metrics.split(), (), Path("log.jsonl")) == ""


def test_one_option_tells_a_trainer() -> None:
    assert trainer_of(["reward"], ["actor_rollout_ref.actor.clip_ratio"], Path("log.jsonl")) == "verl"


def test_a_file_named_after_a_trainer_tells_it_where_it_is_a_word() -> None:
    assert trainer_of(["reward"], (), Path("runs/openrlhf_7b/log.jsonl")) == "OpenRLHF"
    assert trainer_of(["reward"], (), Path("runs/controller/log.jsonl")) == ""


def test_a_trainer_that_builds_on_another_is_told_by_what_is_its_own() -> None:
    of_trl = [
        "completions/mean_length",
        "completions/clipped_ratio",
        "frac_reward_zero_std",
        "rewards/a/mean",
    ]
    assert trainer_of(of_trl, [], Path()) == "TRL"
    assert trainer_of([*of_trl, "memory(GiB)", "train_speed(iter/s)"], [], Path()) == "ms-swift"

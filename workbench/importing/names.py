"""What other trainers call our columns and settings, from the sources of the trainers.

A metric whose definition differs from ours (a clip fraction per sequence, a percentage) is not in here: it is
kept under its own name. A wrong name is worse than a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

# Columns of ours with their names in verl, Search-R1, RAGEN, rLLM, TRL, OpenRLHF, SkyRL, prime-rl, slime,
# AReaL, ROLL, NeMo-RL and tinker-cookbook. Of several in one log the first counts; `*` stands for any text. A
# leading `train/`, `policy/` or `ppo_actor/` and a trailing `/avg` or `@sum` are looked past.
NAMES = {
    column: tuple(metrics.split())
    for column, metrics in {
        "minibatch.grad_norm": (
            "actor/grad_norm grad_norm optim/grad_norm actor_grad_norm update/grad_norm actor_train/grad_norm"
        ),
        "minibatch.policy_loss": "actor/pg_loss policy_loss actor/loss/policy",
        "minibatch.lr": "actor/lr learning_rate optim/lr actor_lr policy_lr lr-pg_0 update/lr lr",
        "minibatch.value_loss": "critic/vf_loss critic/critic_loss critic_loss critic/loss",
        "minibatch.vf_clip_frac": "critic/vf_clipfrac critic/values_clipfrac critic/clipfrac",
        "minibatch.critic_grad_norm": "critic/grad_norm",
        "minibatch.mismatch": (
            "sampling/sampling_logp_difference/mean rollout_train_logprobs_abs_diff_mean "
            "train_rollout_logprob_abs_diff offpolicy/logprob_abs_diff/mean"
        ),
        "minibatch.mismatch_max": (
            "sampling/sampling_logp_difference/max rollout_train_logprobs_abs_diff_max "
            "offpolicy/logprob_abs_diff/max"
        ),
        "minibatch.mismatch_k3": "rollout_corr/k3_kl offpolicy/k3_kl",
        "minibatch.mismatch_pearson": "training/rollout_actor_probs_pearson_corr offpolicy/prob_pearson_corr",
        "minibatch.mismatch_ppl_ratio": "rollout_corr/ppl_ratio offpolicy/ppl_ratio",
        "minibatch.ratio_max": (
            "loss_metrics/is_ratio_max actor/ratio_max update/importance_weight/max probs_ratio_max"
        ),
        "minibatch.ratio_min": (
            "loss_metrics/is_ratio_min actor/ratio_min update/importance_weight/min probs_ratio_min"
        ),
        "minibatch.ratio_std": "loss_metrics/is_ratio_std",
        "minibatch.clip_low_frac": "clip_ratio/low_mean",
        "minibatch.clip_high_frac": "clip_ratio/high_mean",
        "step.ratio_mean": (
            "loss_metrics/is_ratio_mean actor/ratio_mean update/importance_weight probs_ratio ratio"
        ),
        "step.clip_frac": (
            "actor/pg_clipfrac clip_ratio/region_mean loss_metrics/clip_ratio pg_clipfrac ppo_clip_ratio "
            "update/clip_ratio actor/clipfrac"
        ),
        "step.dual_clip_frac": "actor/pg_clipfrac_lower update/dual_clip_ratio",
        "step.out_of_range_frac": "actor/ppo_ratio_clipfrac",
        "step.corrected_frac": "is_masked/mean tis_clipfrac actor/is_weight_clipfrac",
        "step.approx_kl": "actor/ppo_kl ppo_kl update/approx_kl actor/approxkl",
        "step.kl_ref": "actor/kl_loss kl policy_kl kl_loss kl_penalty actor/loss/kl kl_policy_base",
        "step.entropy": (
            "actor/entropy entropy policy_entropy entropy/all/mean optim/entropy update/entropy "
            "actor/entropy_loss entropy_loss approx_entropy critic/entropy/mean"
        ),
        "step.mismatch_kl": (
            "rollout_corr/kl offpolicy/kl mismatch_kl/all/mean vllm_kl update/behave_approx_kl "
            "gen_kl_error optim/kl_sample_train_v1"
        ),
        "step.ess_frac": "rollout_corr/rollout_is_eff_sample_size",
        "step.chi2": "rollout_corr/chi2_token offpolicy/chi2_token",
        "step.explained_variance": "critic/vf_explained_var explained_variance train/explained_variance",
        "step.response_tokens": (
            "response_length/mean completions/mean_length response_length generate/avg_num_tokens"
            " train/agg/all/*/num_output_tokens/mean train/*/all/*/num_output_tokens/mean"
            " rollout/response_len/mean mean_gen_tokens_per_sample tokens/response_length/mean"
            " episode/response_tokens rollout/response_length_mean"
        ),
        "step.truncated_frac": (
            "response_length/clip_ratio completions/clipped_ratio rollout/truncated_rate truncated"
            " train/agg/all/*/is_truncated/mean train/*/all/*/is_truncated/mean rollout/truncated"
            " truncation_rate no_eos_ratios"
        ),
        "step.turns": (
            "num_turns/mean train/agg/all/*/num_turns/mean train/*/all/*/num_turns/mean episode/num_turns "
            "env/all/turns_per_episode env/number_of_actions/mean multi_turn_metric/round_number_mean"
        ),
        "step.staleness": (
            "training/off_policy/trajectory_staleness/mean async/staleness_mean off_policy/mean "
            "sample/staleness_mean update/version_stats/sample_staleness_theta_avg avg_trajectory_age"
        ),
        "step.valid_action_frac": "env/ratio_of_valid_action",
        "step.answered_frac": "env/finish_ratio",
        "step.searches": "env/number_of_valid_search",
        "step.seconds_rollout": "timing_s/gen timing/generation",
        "step.seconds_update": "timing_s/update_actor timing/ppo_train",
        "step.seconds_total": "timing_s/step perf/time_per_step timing/step_total",
        "step.reward_std": "reward_std reward/std rollout/reward_std",
        "step.group_reward_std": "group_reward_std rollout/in_group_reward_std",
        "step.zero_advantage_frac": "frac_reward_zero_std",
        "step.solved_group_frac": (
            "train/agg/all/*/solved_all train/*/all/*/solved_all env/all/by_group/frac_all_good "
            "batch/*/fractions/too_easy"
        ),
        "step.failed_group_frac": (
            "train/agg/all/*/solved_none train/*/all/*/solved_none env/all/by_group/frac_all_bad "
            "batch/*/fractions/too_hard"
        ),
        "step.success": "success episode/correct",
        "step.reward": (
            "critic/score/mean critic/rewards/mean reward/mean reward rewards/mean reward/avg_raw_reward "
            "train/agg/all/*/reward/mean train/*/all/*/reward/mean rollout/raw_reward rollout/reward_mean "
            "task_reward env/all/reward/total reward/*/mean"
        ),
        "step.heldout_success": (
            "val-core/*/acc/mean@* val-core/acc/mean@1 val-core/*/reward/mean@* val-env/*/success"
            " val/test_score/* eval_reward eval/reward eval/all/avg_score eval/*/avg_score"
            " eval/agg/all/*/avg@* eval/*/all/*/avg@* eval/*/*/avg@* eval/eval_*_pass1 validation/accuracy"
            " eval-rollout/task_reward test/env/all/reward/total val/avg_reward val/score/mean"
        ),
    }.items()
}

# Where a log names the training step. The last two count calls of the tracker: they stand in where there is
# no other.
STEP = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "system/global_step",
    "eval/global_step",
    "rollout/step",
    "train/step",
    "eval/step",
    "iteration",
    "Step",
    "_step",
)
COMPONENT = "reward_part_"  # before the name of a component of the reward, in its column
# rewards/<part>/mean, rewards/<part> of older versions and of notebooks, and <part>_reward.
_PART = re.compile(
    r"(?:train/.*/|train/|critic/)?rewards ?/ ?(?P<part>(?!(?:mean|max|min|std|avg)$)[^/]+?)(?:/mean)?"
    r"|(?:train/)?(?P<own>[a-z0-9]\w*?)_reward(?:_func)?(?:/mean)?"
)
_NO_PART = {
    *("mean", "avg", "average", "total", "max", "min", "std", "raw", "group", "in_group", "in"),
    *("task", "episode", "eval", "val", "test", "rlhf"),
    *("chosen", "rejected", "margins", "accuracies"),  # of DPO
}
# slime names an evaluation after its data alone, as others name much else: only where its own names are in
# the log.
_SLIME = "rollout/raw_reward"
_SLIME_EVALUATION = re.compile(r"eval/[^/-]+")
_PAST = re.compile(r"^(?:train/|policy/|ppo_actor/)|(?:/avg|@sum|@mean|@max|@min)$")

# Settings of ours (workbench/spec/settings.py) with their names in the configurations of other trainers. A
# name fits the end of a dotted key; the first that fits counts. The last block are settings that only other
# trainers have.
SETTINGS = {
    key: tuple(names.split())
    for key, names in {
        "seed": "trainer.seed train.seed training_args.seed data.seed seed",
        "model": (
            "actor_rollout_ref.model.path model_name_or_path trainer.policy.model.path"
            " actor.model_name_or_path policy.model_name model.name actor.path pretrain model_name"
            " hf_checkpoint _name_or_path"
        ),
        "iterations": "trainer.total_training_steps max_num_steps max_steps num_rollout total_train_steps",
        "engine.temperature": (
            "rollout.temperature sampling_params.temperature rollout_temperature gconfig.temperature "
            "generation.temperature sampling.temperature temperature"
        ),
        "learn.policy.lr": (
            "actor_rollout_ref.actor.optim.lr actor.optim.lr policy.optimizer_config.lr actor.adam.lr"
            " actor.optimizer.lr policy.optimizer.kwargs.lr actor_train.training_args.learning_rate"
            " actor_learning_rate learning_rate trainer.optim.lr optim.lr lr"
        ),
        "learn.policy.max_grad_norm": (
            "actor_rollout_ref.actor.grad_clip actor_rollout_ref.actor.optim.clip_grad actor.grad_clip"
            " policy.optimizer_config.max_grad_norm actor.max_norm actor.optimizer.gradient_clipping"
            " policy.max_grad_norm max_grad_norm optim.max_norm max_norm clip_grad"
        ),
        "learn.critic.lr": (
            "critic.optim.lr critic.optimizer_config.lr critic.adam.lr critic.optimizer.lr "
            "critic_learning_rate"
        ),
        "learn.group_size": (
            "actor_rollout_ref.rollout.n rollout.n num_generations n_samples_per_prompt gconfig.n_samples "
            "num_generations_per_prompt num_return_sequences_in_group rollouts_per_example group_size"
        ),
        "learn.epochs": (
            "actor_rollout_ref.actor.ppo_epochs actor.ppo_epochs num_iterations update_epochs_per_batch "
            "train.max_epochs max_epochs ppo_epochs"
        ),
        "learn.staleness": (
            "max_staleness_steps max_head_offpolicyness max_off_policy_steps max_steps_off_policy "
            "max_trajectory_age_steps"
        ),
        "learn.entropy_coef": "actor.entropy_coeff actor.entropy_coef entropy_loss_coef entropy_coef",
        "slots.clip.low": (
            "actor.clip_ratio_low eps_clip_low ratio_clip_min actor.clip_ratio eps_clip pg_clip epsilon"
        ),
        "slots.clip.high": (
            "actor.clip_ratio_high eps_clip_higher eps_clip_high ratio_clip_max pg_clip_high epsilon_high "
            "actor.clip_ratio eps_clip pg_clip epsilon"
        ),
        "slots.kl.beta": (
            "actor.kl_loss_coef algorithm.kl_loss_coef kl_loss_coef reference_policy_kl_penalty kl_ctl "
            "kl_penalty_coef algorithm.kl_ctrl.kl_coef kl.init_coef init_kl_coef kl_coef beta"
        ),
        "learn.policy.schedule": (
            "actor.optim.lr_scheduler_type actor.optim.warmup_style optimizer_config.scheduler "
            "lr_scheduler_type lr_decay_style lr_scheduler scheduler.type lr_schedule"
        ),
        "learn.policy.warmup_steps": (
            "actor.optim.lr_warmup_steps optimizer_config.num_warmup_steps warmup_steps lr_warmup_iters"
        ),
        "learn.policy.warmup_share": (
            "actor.optim.lr_warmup_steps_ratio warmup_steps_proportion lr_warmup_ratio "
            "warmup_ratio lr_warmup_fraction"
        ),
        "world.max_response_tokens": (
            "data.max_response_length max_completion_length sampling_params.max_generate_length"
            " rollout.max_new_tokens rollout_max_response_len gconfig.max_new_tokens sampling.max_tokens"
            " generate_max_len response_length max_tokens"
        ),
    }.items()
}
# Where the words of a name decide: what is left of it without its rooms (`train/`, `env/`) and without what
# says that it is a mean. Listed names (NAMES) come first, and of several words of a column the earlier.
WORDS = {
    column: tuple(words.split())
    for column, words in {
        "step.reward": (
            "reward rewards total_reward reward_total episode_reward task_reward raw_reward score scores "
            "reward_score return returns episode_return rlhf_reward"
        ),
        "step.success": "success success_rate solve_rate pass_rate exact_match accuracy acc success_once "
        "win_rate winrate",
        "step.reward_std": "reward_std rewards_std reward_stddev std_reward reward_standard_deviation",
        "step.response_tokens": (
            "completion_length response_length answer_length output_length generation_length gen_length "
            "completions_length completion_len response_len answer_len gen_len completion_tokens "
            "response_tokens output_tokens generated_tokens gen_tokens"
        ),
        "step.truncated_frac": (
            "truncated_frac truncated_fraction truncation_fraction "
            "truncated_rate truncated_ratio truncation_rate truncation_ratio truncation_frac "
            "truncate_ratio overlong_ratio overlong_rate"
        ),
        "step.clip_frac": (
            "clip_frac clipfrac clip_fraction pg_clip_frac pg_clipfrac ppo_clip_frac policy_clipfrac"
        ),
        "step.approx_kl": "approx_kl approxkl ppo_kl policy_approxkl",
        "step.mismatch_kl": "gen_kl_error generation_kl_error",
        "step.kl_ref": "kl kl_divergence kl_div kl_ref ref_kl kl_to_ref kl_loss kl_penalty",
        "step.entropy": "entropy policy_entropy actor_entropy token_entropy",
        "minibatch.grad_norm": "grad_norm gradient_norm gradnorm",
        "minibatch.lr": "learning_rate lr",
        "minibatch.policy_loss": "policy_loss pg_loss actor_loss policy_gradient_loss",
        "minibatch.value_loss": "value_loss vf_loss critic_loss value_function_loss",
    }.items()
}
_ROOMS = re.compile(
    r"^(?:train|training|trainer|actor|policy|ppo_actor|ppo|grpo|rollout|rollouts|env|environment|objective"
    r"|metrics|data|agent|critic|losses|loss|val_aux)[/.:]+"
)
_FLAT_ROOMS = re.compile(r"^(?:critic|env|rollout|train)_")
_SCORES_AND_LENGTHS = ("step.reward", "step.success", "step.response_tokens")
_MEAN = re.compile(r"^(?:mean|avg|average)_|(?:[/_.](?:mean|avg|average|train)|\(mean\))$")
_HELD_OUT = re.compile(r"^(?:eval|evaluation|val|valid|validation|test|heldout|held_out)[/_.:]+")
_RANK_OF_WORDS = 1000  # behind every listed name
_RANK_OF_RULES = 2000  # behind every word
# Where a name in words of its own decides: all its words but those that say nothing (NEUTRAL) have to be one
# of these choices (`a+b`: both). Behind every listed name and word.
RULES = {
    column: tuple(words.split())
    for column, words in {
        "step.reward": "reward rewards rew score scores return returns reward+score reward+function",
        "step.success": (
            "success successes win wins win+rate winrate solve+rate solved solved+rate pass pass+rate "
            "accuracy acc success+rate success+fraction success+ratio success+frac exact+match correct "
            "correct+rate correctness"
        ),
        "step.response_tokens": (
            "completion+length completion+len completion+tokens completion+lengths completions+length "
            "response+length response+len response+tokens response+lengths responses+length answer+length "
            "answer+len answer+tokens output+length output+len output+tokens generated+tokens "
            "generated+length gen+len gen+length gen+tokens generation+length generation+len "
            "generation+tokens"
        ),
        "step.clip_frac": (
            "clip+frac clip+fraction clipfrac clipped+frac clipped+fraction frac+clipped fraction+clipped "
            "clip+frac+pg clipfrac+pg clip+fraction+pg clip+frac+surrogate"
        ),
        "step.truncated_frac": (
            "truncated truncated+frac truncated+fraction truncated+ratio truncated+rate truncation+rate "
            "truncation+ratio frac+truncated fraction+truncated completions+truncated"
        ),
        "step.entropy": "entropy entropy+token",
        "step.approx_kl": "approx+kl approxkl",
        "minibatch.grad_norm": "grad+norm gradient+norm gradnorm grad+norm+total grads+norm",
        "minibatch.policy_loss": "policy+loss pg+loss policy+gradient+loss loss+actor",
        "minibatch.value_loss": "value+loss vf+loss critic+loss value+function+loss v+loss",
        "step.explained_variance": "explained+variance",
    }.items()
}


def _sets_of_words(choices_of_words: Iterable[str]) -> frozenset[frozenset[str]]:
    """Return `a+b c` as {a, b} and {c}."""
    return frozenset(frozenset(choice.split("+")) for choice in choices_of_words)


def _set_of(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


_RULES = {column: _sets_of_words(choices_of_words) for column, choices_of_words in RULES.items()}
_NEUTRAL = _set_of(
    "mean avg average train training trainer rollout rollouts env environment episode "
    "episodes episodic ep total overall all raw batch per sample task performance perf charts "
    "chart stats metrics metric summary results losses agent ppo grpo rl monitor percent "
    "percentage pct val_aux final game games objective current step algorithm runners "
    "extrinsic cumulative undiscounted discounted the of in"
)
_HELD_OUT_WORDS = _set_of("eval evaluation evaluate val valid validation test testing heldout dev")
_NAME = re.compile(r"[A-Za-z][\w ./@()%-]{0,79}")
_AT_K = re.compile(r"@(?!1(?!\d))\d|(?<![a-z])at_(?!1(?!\d))\d|_k(?![a-z])")  # pass@8 is no mean success

# Where a column is not read: words of which one (`a+b`: all) says that a metric may be it.
CLUES = {
    column: tuple(words.split())
    for column, words in {
        "step.reward": (
            "reward rewards rew rewardfn score scores return returns ret accuracy acc success successes win "
            "wins winrate solved solve pass correct correctness fitness points utility"
        ),
        "step.entropy": "entropy entropies ent",
        "step.kl_ref": "kl kld kldiv divergence",
        "step.response_tokens": (
            "completion+length completion+len completion+tokens response+length response+len response+tokens "
            "answer+length answer+len answer+tokens output+length output+len output+tokens generated+tokens "
            "gen+len gen+length generation+length generation+tokens seq+len seqlen length lengths"
        ),
        "minibatch.grad_norm": "grad+norm gradient+norm gradnorm gnorm grads+norm gradients+norm",
        "step.clip_frac": "clip clipfrac clipped clipping cliprate",
        "step.truncated_frac": "truncated truncation truncate trunc overlong eos+no cutoff",
    }.items()
}
_CLUES = {column: _sets_of_words(words) for column, words in CLUES.items()}
# words of what is no mean of the policy's own samples
_NO_MEAN = _set_of(
    "std stddev var variance max min median count num time seconds sec prompt prompts input loss lr"
)
CANDIDATES = 12  # metrics that are named for a column

# the last part of every option in SETTINGS
_OPTIONS = frozenset(name.rpartition(".")[2] for name in " ".join(map(" ".join, SETTINGS.values())).split())
_BOUND = "learn.policy.max_grad_norm"
# A coefficient of the KL counts only where its term is on: where the switch says no, it is 0.
_SWITCHES = {"kl_loss_coef": "use_kl_loss", "kl_coef": "use_kl_in_reward"}


def _places_of_names() -> dict[str, tuple[str, int]]:
    """Return the column and rank of each name of NAMES."""
    places = {}
    for column, names in NAMES.items():
        for rank, name in enumerate(names):
            places[name] = (column, rank)
    return places


_EXACT = _places_of_names()
_GLOBS = [
    (re.compile(".+".join(map(re.escape, name.split("*")))), at) for name, at in _EXACT.items() if "*" in name
]


def _places_of_words() -> dict[str, tuple[str, int]]:
    """Return the column and rank of each word of WORDS."""
    places = {}
    for column, words in WORDS.items():
        for rank, word in enumerate(words):
            places[word] = (column, _RANK_OF_WORDS + rank)
    return places


_WORDS = _places_of_words()


_NOTHING_GIVEN: Mapping[str, str] = MappingProxyType({})
# table.column of the metrics that the user has named, and the metric that is the step
_given_columns: ContextVar[Mapping[str, str]] = ContextVar("given_columns", default=_NOTHING_GIVEN)
_given_step: ContextVar[str] = ContextVar("given_step", default="")


@contextmanager
def given(columns: Mapping[str, str], step: str = "") -> Iterator[None]:
    """Have the names of a user (table.column -> metric) come before all others within the block."""
    places = _given_columns.set({metric: column for column, metric in columns.items()})
    steps = _given_step.set(step)
    try:
        yield
    finally:
        _given_columns.reset(places)
        _given_step.reset(steps)


def step_names() -> tuple[str, ...]:
    """Return the names of the step, the surest first; the one that the user has given alone, if any."""
    own = _given_step.get()
    return (own,) if own else STEP


def is_step(name: str) -> bool:
    """Whether a name is one of the step."""
    return name in STEP or (name != "" and name == _given_step.get())


def is_known(name: str) -> bool:
    """Whether a name is one of the step, or of a metric that has a column of ours."""
    return is_step(name) or place(name) is not None


def place(metric: str) -> tuple[str, int] | None:
    """Return our table.column of a metric and its rank among the names of that column; None for an unknown
    metric.
    """
    own = _given_columns.get()
    return (own[metric], -1) if metric in own else _listed_place(metric)


@lru_cache(8192)
def _listed_place(metric: str) -> tuple[str, int] | None:
    if metric.startswith(("step.", "minibatch.")):
        return metric, 0
    short = _PAST.sub("", metric)
    for name in (metric, short, _PAST.sub("", short)):
        if name in _EXACT:
            return _EXACT[name]
    for pattern, place_of_glob in _GLOBS:
        if pattern.fullmatch(metric):
            return place_of_glob
    return _by_words(metric) or _by_rules(metric)


def _by_words(metric: str) -> tuple[str, int] | None:
    """Return the column that the words of a name decide, as `place` does."""
    bare = re.sub(r"[\s-]+", "_", metric.strip().lower().replace(". ", "_"))
    held_out = _HELD_OUT.match(bare)
    core = _without_rooms(bare[held_out.end() :] if held_out else bare)
    place_of_words = _WORDS.get(core)
    if place_of_words is None:
        # A tracker may have written `critic/score/mean` as critic_score_mean.
        place_of_words = _WORDS.get(_without_rooms(_FLAT_ROOMS.sub("", core)))
        if place_of_words is None or place_of_words[0] not in _SCORES_AND_LENGTHS:
            return None
    column, rank = place_of_words
    if held_out is None:
        return column, rank
    return ("step.heldout_success", rank) if column in ("step.reward", "step.success") else None


def _by_rules(metric: str) -> tuple[str, int] | None:
    """Return the column whose words a name has (RULES) besides words that say nothing, as `place` does."""
    words = _words_of(metric)
    held_out = bool(_HELD_OUT_WORDS & set(words))
    core = frozenset(words) - _NEUTRAL - _HELD_OUT_WORDS
    if part_of(metric) or _AT_K.search(metric) or not _NAME.fullmatch(metric):
        return None
    for column, choices_of_words in _RULES.items():
        if core not in choices_of_words and core - {"policy"} not in choices_of_words:
            continue
        rank = _RANK_OF_RULES + len(words)  # of two such names the plainer one
        if not held_out:
            return column, rank
        return ("step.heldout_success", rank) if column in ("step.reward", "step.success") else None
    return None


def _words_of(metric: str) -> list[str]:
    """Return the words of a name, in lower case; `meanReward2` has the words mean and reward."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric)
    return re.findall(r"[a-z]+", apart.lower())


def _without_rooms(name: str) -> str:
    """Return a name without the rooms before it and without what says that it is a mean."""
    before = ""
    while before != name:
        before = name
        name = _MEAN.sub("", _ROOMS.sub("", name))
    return name


def candidates(column: str, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that may be a column, by a word of theirs (CLUES), of those that have no column."""
    named = []
    for metric in metrics:
        words = set(_words_of(metric))
        hints = any(clue <= words for clue in _CLUES[column])
        if hints and not words & _NO_MEAN and place(metric) is None and not part_of(metric):
            named.append(metric)
    return tuple(named[:CANDIDATES])


def chosen(metrics: Collection[str]) -> dict[str, str]:
    """Return table.column -> metric: of several names of a column that first in the table, then first in the
    log.
    """
    best: dict[str, tuple[int, str]] = {}
    for metric in metrics:
        place_of_metric = place(metric)
        if place_of_metric is None:
            continue
        column, rank = place_of_metric
        if column not in best or rank < best[column][0]:
            best[column] = (rank, metric)
    read = {column: metric for column, (_, metric) in best.items()}
    if read.get("step.reward") == _SLIME and (held_out := [*filter(_SLIME_EVALUATION.fullmatch, metrics)]):
        read.setdefault("step.heldout_success", held_out[0])
    return read


def part_of(metric: str) -> str:
    """Return the part of the reward that a metric is the mean of; empty for another metric."""
    match = _PART.fullmatch(metric)
    if match is None:
        return ""
    if match["part"]:
        return "" if match["part"] in _NO_PART else match["part"].strip()
    words = set(_words_of(match["own"]))
    says_nothing = words <= _NO_PART | _NEUTRAL | _HELD_OUT_WORDS
    return "" if says_nothing or match["own"].endswith(("_mean", "_std")) else match["own"]


def own_column(metric: str, taken: Iterable[str]) -> str:
    """Return the column that an unknown metric is kept in: its own name in letters, digits and `_`, no name
    `taken`.
    """
    part = part_of(metric)
    plain = re.sub(r"[^0-9a-z]+", "_", (part or metric).lower()).strip("_")[:80] or "metric"
    if part:
        name = f"{COMPONENT}{plain}"
    elif plain[0].isdigit():
        name = f"_{plain}"
    else:
        name = plain
    used = set(taken)
    numbered = (f"{name}_{n}" for n in range(2, len(used) + 3))
    return next(free for free in chain([name], numbered) if free not in used)


class Choice(NamedTuple):
    """A setting of ours as the configuration of another trainer says it."""

    value: Any  # in ours
    option: str  # the name of theirs, as the configuration spells it
    given: Any  # its value there


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ours that a flat configuration (dotted keys) says: numbers, words and switches
    only.
    """
    return {setting: choice.value for setting, choice in choices(config).items()}


def choices(config: Mapping[str, Any]) -> dict[str, Choice]:
    """Return the settings of ours that a flat configuration says, each with the option that said it."""
    if _OPTIONS.isdisjoint(key.rpartition(".")[2] for key in config):
        return {}
    keys: dict[str, str] = {key: key for key in config}  # the end of a key -> the key
    for key in config:
        parts = key.split(".")
        for start in range(len(parts)):
            keys.setdefault(".".join(parts[start:]), key)
    chosen_options: dict[str, Choice] = {}
    for setting, names in SETTINGS.items():
        for name in names:
            choice = _choice(name, keys, config)
            if choice is not None and not _says_something(chosen_options.get(setting)):
                chosen_options[setting] = choice
    bounds = [keys[name] for name in SETTINGS[_BOUND] if name in keys]
    if bounds and not _says_something(chosen_options.get(_BOUND)):
        # The configuration speaks of the bound, and sets none.
        chosen_options[_BOUND] = Choice(None, bounds[0], _value(config[bounds[0]]))
    return chosen_options


def _choice(name: str, keys: Mapping[str, str], config: Mapping[str, Any]) -> Choice | None:
    """Return what the option of this name says; None where there is none, or it says nothing."""
    if name not in keys:
        return None
    switch = keys.get(_SWITCHES.get(name.rpartition(".")[2], ""), "")
    if switch and _value(config[switch]) is False:
        return Choice(0.0, switch, False)
    value = _value(config[keys[name]])
    if not isinstance(value, bool | int | float | str) or value in ("", -1):
        return None
    return Choice(value, keys[name], value)


def _says_something(choice: Choice | None) -> bool:
    return choice is not None and bool(choice.value)


def _value(value: Any) -> Any:
    """Return a number or switch that was written as text (MLflow keeps all as text) as one; anything else as
    it is.
    """
    if not isinstance(value, str):
        return value
    if value.lower() in ("none", "null", "true", "false"):
        return {"true": True, "false": False}.get(value.lower())
    try:
        return float(value) if re.search(r"[.e]|nan|inf", value.lower()) else int(value)
    except ValueError:
        return value[:200]

"""Why a diagnostic has no alarm: one reason a column of table `step`, and one for everything finer."""

from __future__ import annotations

from workbench.spec import Diagnostic, Level

FINER = (
    "alarms watch table step alone: in one update, turn or trajectory any value turns up by chance, and what lasts "
    "shows in a column of the step"
)
_NO_MARK = "no source gives a mark that carries from one model or task to another"
_REASONS: dict[str, tuple[str, ...]] = {
    "the collapse rule judges the score, and says when": (
        "success", "heldout_success", "reward", "solved_group_frac", "failed_group_frac",
    ),
    "a hard event has it, and ends or marks the run": (
        "valid_action_frac", "zero_advantage_frac", "non_finite", "sync_error",
    ),
    "the fair-comparison guard flags it by its own event": (
        "questions_hash", "batch_hash", "first_log_ratio_abs_max", "token_mismatches",
    ),
    "it describes the data or the settings, and no value of it is wrong": (
        "heldout_episodes", "turns", "searches", "response_tokens", "observation_frac", "episodes_sampled", "updates",
        "staleness", "tokens_trained", "reward_std",
    ),
    "it says where the time or the memory goes, not how training fares": (
        "seconds_rollout", "seconds_retrieval", "seconds_update", "seconds_evaluation", "seconds_record",
        "seconds_total", "tokens_per_second", "memory_peak",
    ),
    f"{_NO_MARK}; the event `echo_trap` takes a doubling into account": ("repetition_frac",),
    f"{_NO_MARK}; read it as a curve, beside `valid_action_frac`": (
        "answered_frac", "truncated_frac", "retrieval_empty_frac", "duplicate_turn_frac",
    ),
    f"{_NO_MARK}; a fall while entropy stays is the sign, which takes two curves": (
        "distinct_rollout_frac", "prompt_retrieval_frac",
    ),
    "another column of the same quantity has it: `grad_norm_max`, `ess_frac_min`, `chi2`, `kl_k3`": (
        "grad_norm_mean", "ess_frac", "ratio_max", "approx_kl",
    ),
    "a clip that acts is meant to; how often it does is a setting's doing": ("grad_clipped_frac", "dual_clip_frac"),
    "the stabiliser is meant to act, and `stabiliser_factor` is there to match a control to it": ("stabiliser_factor",),
    "`clip_frac` has it: out of range counts tokens that nothing stops as well": ("out_of_range_frac",),
    "its claimed growth before a collapse is what this project tests, so a mark would beg the question": (
        "clip_bias_norm_max",
    ),
    f"rlwatch counts sigmas of a rolling window, which a steady growth never leaves; {_NO_MARK}": ("kl_ref",),
}  # fmt: skip
STEP_REASONS = {name: reason for reason, names in _REASONS.items() for name in names}


def why_no_alarm(diagnostic: Diagnostic) -> str:
    """The reason why `diagnostic` has no alarm; KeyError for a column of table `step` that has one or gives none."""
    return STEP_REASONS[diagnostic.name] if diagnostic.level is Level.STEP else FINER

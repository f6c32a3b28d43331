"""The curves that a detector may watch, and on which side of them trouble is looked for."""

from __future__ import annotations

from typing import Literal

Side = Literal["above", "below"]
_BOTH: tuple[Side, ...] = ("above", "below")

SIGNALS: dict[str, tuple[Side, ...]] = {
    "success": ("below",), "reward": ("below",), "entropy": _BOTH, "grad_norm_max": ("above",),
    "grad_norm_mean": ("above",), "clip_frac": ("above",), "out_of_range_frac": ("above",), "ess_frac": ("below",),
    "ess_frac_min": ("below",), "chi2": ("above",), "ratio_max": ("above",), "approx_kl": ("above",),
    "kl_k3": ("above",), "kl_ref": ("above",), "mismatch_kl": _BOTH, "clip_bias_norm": ("above",),
    "value_mae": ("above",), "explained_variance": ("below",), "advantage_std": _BOTH, "group_reward_std": ("below",),
    "zero_advantage_frac": ("above",), "valid_action_frac": ("below",), "answered_frac": ("below",),
    "truncated_frac": ("above",), "turns": _BOTH, "response_tokens": _BOTH, "repetition_frac": ("above",),
    "duplicate_turn_frac": ("above",),
}  # fmt: skip

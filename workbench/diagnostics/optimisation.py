"""The optimizer update itself: gradient norms, losses, learning rate, tokens, and whatever is no longer finite."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens
from workbench.spec import Level, Unit

UPDATE = Level.UPDATE


@diagnostic(UPDATE, Unit.NORM, "||g||_2 before gradient clipping", "every trainer")
def grad_norm(t: Tokens, by: Segments) -> np.ndarray | None:
    """Norm of the policy's gradient, stabiliser applied, gradient clipping not yet."""
    return t.scalar("grad_norm")


@diagnostic(UPDATE, Unit.NORM, "min(||g||_2, max_grad_norm)", "every trainer")
def grad_norm_after(t: Tokens, by: Segments) -> np.ndarray | None:
    """Norm of the policy's gradient that the optimizer stepped along; 0 where an early stop left the step out."""
    return t.scalar("grad_norm_after")


@diagnostic(UPDATE, Unit.NORM, "||g_critic||_2 before gradient clipping", "every trainer")
def critic_grad_norm(t: Tokens, by: Segments) -> np.ndarray | None:
    """Norm of the critic's gradient; NULL without a critic."""
    return t.scalar("critic_grad_norm")


@diagnostic(UPDATE, Unit.NONE, "the algorithm's policy term", "every trainer")
def policy_loss(t: Tokens, by: Segments) -> np.ndarray | None:
    """Policy term of the loss, without KL and entropy terms."""
    return t.scalar("policy_loss")


@diagnostic(UPDATE, Unit.NONE, "beta KL", "every trainer")
def kl_loss(t: Tokens, by: Segments) -> np.ndarray | None:
    """KL term of the loss."""
    return t.scalar("kl_loss")


@diagnostic(UPDATE, Unit.NONE, "0.5 <max((V - G)^2, (V^c - G)^2)>_m", "verl core_algos.py (compute_value_loss)")
def value_loss(t: Tokens, by: Segments) -> np.ndarray | None:
    """Loss of the critic; NULL without one."""
    return t.scalar("value_loss")


@diagnostic(UPDATE, Unit.NONE, "learning rate", "every trainer")
def lr(t: Tokens, by: Segments) -> np.ndarray | None:
    """Learning rate of the policy."""
    return t.scalar("lr")


@diagnostic(UPDATE, Unit.TOKENS, "sum m", "every trainer", sql_type="BIGINT")
def tokens(t: Tokens, by: Segments) -> np.ndarray:
    """Tokens that the update trained on."""
    return by.count


@diagnostic(
    UPDATE,
    Unit.COUNT,
    "#{NaN or Inf} in delta, A, H under the mask, and in losses and gradient norms",
    "arXiv 2502.01600 (LOOP skips and counts them)",
    sql_type="BIGINT",
)
def non_finite(t: Tokens, by: Segments) -> np.ndarray:
    """Numbers of the update that are not finite; one is enough to end a run."""
    bad = ~np.isfinite(t.log_ratio) | ~np.isfinite(t.advantage) | ~np.isfinite(t.entropy)
    count = np.bincount(t.update, weights=bad, minlength=t.updates)
    reported = t.scalar("non_finite")
    if reported is not None:
        return count + np.ma.filled(reported, 0.0)
    for name in ("grad_norm", "critic_grad_norm", "policy_loss", "kl_loss", "value_loss"):
        values = t.scalar(name)
        if values is not None:
            count = count + ~np.isfinite(np.ma.filled(values, 0.0))
    return count


@diagnostic(Level.TURN, Unit.TOKENS, "n_k = sum m of the turn", "this project", sql_type="BIGINT", roll="turns")
def n_tokens(t: Tokens, by: Segments) -> np.ndarray:
    """Tokens that the policy wrote in the turn."""
    return by.count

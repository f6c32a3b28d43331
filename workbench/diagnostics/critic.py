"""The critic: does it explain the returns, and how wrong is it where the advantages were made."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens
from workbench.spec import Alarm, Level, Unit

STEP, TRAJECTORY, TURN, UPDATE = Level.STEP, Level.TRAJECTORY, Level.TURN, Level.UPDATE


@diagnostic(
    (UPDATE, STEP),
    Unit.NONE,
    "1 - Var(G - V_old) / (Var(G) + 1e-5), unbiased variances over tokens",
    "Search-R1 and verl (critic/vf_explained_var)",
    alarms={
        STEP: Alarm(
            "below", 0.0, "at 0 the critic is no better than a constant; five points because it is erratic", points=5
        )
    },
)
def explained_variance(t: Tokens, by: Segments) -> np.ndarray | None:
    """Share of the variance of the returns that the values behind the advantages explain; NULL without a critic."""
    if t.value_old is None or t.returns is None:
        return None
    return 1.0 - by.variance(t.returns - t.value_old) / (by.variance(t.returns) + 1e-5)


@diagnostic((UPDATE,), Unit.REWARD, "<|V_old - G|>_m", "this project")
def value_mae(t: Tokens, by: Segments) -> np.ndarray | None:
    """Mean absolute error of the values behind the advantages; NULL without a critic."""
    return None if t.value_old is None or t.returns is None else by.mean(np.abs(t.value_old - t.returns))


@diagnostic((UPDATE,), Unit.REWARD, "<|V_old - G|> over the tokens out of range", "this project")
def value_mae_out_of_range(t: Tokens, by: Segments) -> np.ndarray | None:
    """The same over tokens whose ratio left the clip's range: whether advantages are wrong where the data is stale.

    NULL without a critic, and where no token left the range.
    """
    if t.value_old is None or t.returns is None:
        return None
    return by.mean(np.abs(t.value_old - t.returns), t.out_of_range)


@diagnostic((UPDATE,), Unit.REWARD, "<V_old - G>_m", "this project")
def value_bias(t: Tokens, by: Segments) -> np.ndarray | None:
    """Mean error of the values behind the advantages; above 0 = the critic hopes for too much. NULL without one."""
    return None if t.value_old is None or t.returns is None else by.mean(t.value_old - t.returns)


@diagnostic(
    (UPDATE,),
    Unit.FRACTION,
    "<1[(V^c - G)^2 > (V - G)^2]>_m, V^c = clamp(V, V_old +- eps_V)",
    "verl core_algos.py (vf_clipfrac)",
)
def vf_clip_frac(t: Tokens, by: Segments) -> np.ndarray | None:
    """Share of tokens where the value clip stopped the critic's gradient; NULL without a critic or a value clip."""
    width = t.evidence.value_clip
    if width is None or t.value is None or t.value_old is None or t.returns is None:
        return None
    # Not V_old + clip(V - V_old): its rounding would make every second value inside the range a clipped one.
    clipped = np.clip(t.value, t.value_old - width, t.value_old + width)
    return by.mean((clipped - t.returns) ** 2 > (t.value - t.returns) ** 2)


@diagnostic(
    (TURN,), Unit.REWARD, "V_old(s_k), at the first token of the turn", "arXiv 2512.17008 (turn states)", roll="turns"
)
def value(t: Tokens, by: Segments) -> np.ndarray | None:
    """What the critic expected when the turn began; NULL without a critic."""
    return None if t.value_old is None else by.first(t.value_old)


@diagnostic((TURN,), Unit.REWARD, "V_old(s_k) - G, at the first token of the turn", "this project", roll="turns")
def value_error(t: Tokens, by: Segments) -> np.ndarray | None:
    """How wrong that was; its mean over turns of one index is the critic's bias there. NULL without a critic."""
    return None if t.value_old is None or t.returns is None else by.first(t.value_old - t.returns)

"""The critic: does it explain the returns, and how wrong is it where the advantages were made."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens
from workbench.spec import Alarm, Level, Unit

STEP, TRAJECTORY, TURN, UPDATE = Level.STEP, Level.TRAJECTORY, Level.TURN, Level.UPDATE


def _judged(t: Tokens, by: Segments, *columns: np.ndarray | None) -> tuple[Segments, list[np.ndarray]] | None:
    """The partition and `columns` at the policy tokens where the critic has a target; None where a column is."""
    known = [x for x in columns if x is not None]
    if len(known) < len(columns):
        return None
    if t.target is None:
        return by, known
    return Segments(by.ids[t.target], by.size), [x[t.target] for x in known]


@diagnostic(
    (UPDATE, STEP),
    Unit.NONE,
    "1 - Var(G - V_old) / (Var(G) + 1e-5), unbiased variances over the tokens with a target",
    "Search-R1 and verl (critic/vf_explained_var)",
    alarms={
        STEP: Alarm(
            "below", 0.0, "at 0 the critic is no better than a constant; five points because it is erratic", points=5
        )
    },
)
def explained_variance(t: Tokens, by: Segments) -> np.ndarray | None:
    """Share of the variance of the returns that the values behind the advantages explain; NULL without a critic.

    Tokens with a target: all that the policy wrote, or the first of each turn where the critic values turns.
    """
    if (judged := _judged(t, by, t.value_old, t.returns)) is None:
        return None
    at, (old, returns) = judged
    return 1.0 - at.variance(returns - old) / (at.variance(returns) + 1e-5)


@diagnostic((UPDATE,), Unit.REWARD, "<|V_old - G|> over the tokens with a target", "this project")
def value_mae(t: Tokens, by: Segments) -> np.ndarray | None:
    """Mean absolute error of the values behind the advantages; NULL without a critic."""
    if (judged := _judged(t, by, t.value_old, t.returns)) is None:
        return None
    at, (old, returns) = judged
    return at.mean(np.abs(old - returns))


@diagnostic((UPDATE,), Unit.REWARD, "<|V_old - G|> over the tokens out of range with a target", "this project")
def value_mae_out_of_range(t: Tokens, by: Segments) -> np.ndarray | None:
    """The same over tokens whose ratio left the clip's range: whether advantages are wrong where the data is stale.

    NULL without a critic, and where no token left the range.
    """
    if (judged := _judged(t, by, t.value_old, t.returns, t.out_of_range)) is None:
        return None
    at, (old, returns, out_of_range) = judged
    return at.mean(np.abs(old - returns), out_of_range)


@diagnostic((UPDATE,), Unit.REWARD, "<V_old - G> over the tokens with a target", "this project")
def value_bias(t: Tokens, by: Segments) -> np.ndarray | None:
    """Mean error of the values behind the advantages; above 0 = the critic hopes for too much. NULL without one."""
    if (judged := _judged(t, by, t.value_old, t.returns)) is None:
        return None
    at, (old, returns) = judged
    return at.mean(old - returns)


@diagnostic(
    (UPDATE,),
    Unit.FRACTION,
    "<1[(V^c - G)^2 > (V - G)^2]> over the tokens with a target, V^c = clamp(V, V_old +- eps_V)",
    "verl core_algos.py (vf_clipfrac)",
)
def vf_clip_frac(t: Tokens, by: Segments) -> np.ndarray | None:
    """Share of tokens where the value clip stopped the critic's gradient; NULL without a critic or a value clip."""
    width = t.evidence.value_clip
    if width is None or (judged := _judged(t, by, t.value, t.value_old, t.returns)) is None:
        return None
    at, (value, old, returns) = judged
    # Not V_old + clip(V - V_old): its rounding would make every second value inside the range a clipped one.
    clipped = np.clip(value, old - width, old + width)
    return at.mean((clipped - returns) ** 2 > (value - returns) ** 2)


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

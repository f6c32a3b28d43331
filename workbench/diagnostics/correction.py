"""Rollout correction: how large its weights are, and how often it caps a token or drops it. NULL without one."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens
from workbench.spec import Alarm, Level, Unit

STEP, UPDATE = Level.STEP, Level.UPDATE
VERL = "verl rollout_corr_helper.py"


@diagnostic((UPDATE,), Unit.RATIO, "<omega>_m after the cap or the mask", f"{VERL} (rollout_is_mean)")
def correction_mean(t: Tokens, by: Segments) -> np.ndarray | None:
    """Mean weight that the rollout correction gave a token loss; NULL without one."""
    return None if t.correction is None else by.mean(t.correction)


@diagnostic(
    (UPDATE, STEP),
    Unit.FRACTION,
    "<1[omega capped, or set to 0]>_m",
    f"{VERL} (rollout_is_ratio_fraction_high, masked_fraction)",
    alarms={
        STEP: Alarm(
            "above", 0.1, "beyond a tenth of the tokens the correction does the training; the mark is ours", points=3
        )
    },
)
def corrected_frac(t: Tokens, by: Segments) -> np.ndarray | None:
    """Share of tokens whose weight the rollout correction capped or set to 0; NULL without one."""
    return None if t.corrected is None else by.mean(t.corrected)


@diagnostic((UPDATE,), Unit.FRACTION, "<1[A > 0] 1[omega capped, or set to 0]>_m", "this project")
def corrected_positive_frac(t: Tokens, by: Segments) -> np.ndarray | None:
    """The part of corrected_frac with a positive advantage; NULL without a rollout correction."""
    return None if t.corrected is None else by.mean(t.corrected & (t.advantage > 0))


@diagnostic((UPDATE,), Unit.FRACTION, "<1[A < 0] 1[omega capped, or set to 0]>_m", "this project")
def corrected_negative_frac(t: Tokens, by: Segments) -> np.ndarray | None:
    """The part of corrected_frac with a negative advantage; NULL without a rollout correction."""
    return None if t.corrected is None else by.mean(t.corrected & (t.advantage < 0))

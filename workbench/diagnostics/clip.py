"""Clipping: which gradient was stopped, and how large what was stopped is."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments, Tokens
from workbench.spec import Alarm, Level, Unit

STEP, TRAJECTORY, TURN, UPDATE = Level.STEP, Level.TRAJECTORY, Level.TURN, Level.UPDATE


@diagnostic(
    (UPDATE, TURN, TRAJECTORY, STEP),
    Unit.FRACTION,
    "<1[the clip stopped the gradient of the token]>_m; of PPO's clip: clipped loss > unclipped loss",
    "verl core_algos.py (pg_clipfrac)",
    roll="tokens",
    alarms={
        STEP: Alarm(
            "above",
            0.3,
            "microsoft/post-training-toolkit warns at a clip fraction of 0.3; healthy PPO stays below 0.2",
            points=3,
        )
    },
)
def clip_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens whose gradient the clip stopped (sign of the advantage respected).

    0 for clips that bound a weight and stop nothing (cispo, hard): out_of_range_frac says how often they act.
    """
    return by.mean(t.active)


@diagnostic((UPDATE,), Unit.FRACTION, "<1[A < 0, w < 1 - eps_low]>_m", "TRL grpo_trainer.py (clip_ratio/low)")
def clip_low_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens stopped by the lower bound; clip_low_frac + clip_high_frac = clip_frac."""
    return by.mean(t.low)


@diagnostic((UPDATE,), Unit.FRACTION, "<1[A > 0, w > 1 + eps_high]>_m", "TRL grpo_trainer.py (clip_ratio/high)")
def clip_high_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens stopped by the upper bound."""
    return by.mean(t.high)


@diagnostic(
    (UPDATE, TURN, STEP),
    Unit.FRACTION,
    "<1[r < 1 - eps_low or r > 1 + eps_high]>_m",
    "arXiv 2511.20718 (the set of clipped tokens)",
    roll="tokens",
)
def out_of_range_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens with a token ratio outside the bounds, whatever the sign of the advantage.

    At least clip_frac when tokens are clipped by their own ratio; the difference is what plain PPO leaves unbounded.
    For CISPO it is the share of weights that were clamped.
    """
    return by.mean(t.out_of_range)


@diagnostic((UPDATE, STEP), Unit.FRACTION, "<1[A < 0, loss > -c A]>_m", "verl core_algos.py (pg_clipfrac_lower)")
def dual_clip_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens whose loss the dual clip bounded, or whose weight DPPO's cap did; 0 when it is off."""
    return by.mean(t.dual)


@diagnostic((UPDATE,), Unit.FRACTION, "share of turns with a clipped token", "this project")
def turn_clip_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of turns in which the clip stopped at least one token."""
    return t.turns_by_update.mean(t.by_turn.maximum(t.active))


@diagnostic((UPDATE,), Unit.FRACTION, "share of tokens in turns with a clipped token", "this project")
def turn_clip_token_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens whose turn has a clipped token: what is lost where the clip acts on whole turns."""
    return by.mean(t.by_turn.spread(t.by_turn.maximum(t.active)))


@diagnostic((UPDATE,), Unit.FRACTION, "share of sequences with a clipped token", "this project")
def sequence_clip_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of trajectories in which the clip stopped at least one token."""
    return t.sequences_by_update.mean(t.by_sequence.maximum(t.active))


@diagnostic((UPDATE,), Unit.FRACTION, "share of tokens in sequences with a clipped token", "this project")
def sequence_clip_token_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Share of tokens whose trajectory has a clipped token: what is lost where the clip acts on whole trajectories."""
    return by.mean(t.by_sequence.spread(t.by_sequence.maximum(t.active)))


@diagnostic(
    (UPDATE,),
    Unit.NORM,
    "||C||, C = grad J without the clip - grad J; of PPO's clip: 1/N sum over clipped tokens of r A grad log pi",
    "arXiv 2511.20718 Lemma 4.2",
)
def clip_bias_norm(t: Tokens, by: Segments) -> np.ndarray | None:
    """Norm of the true clipping bias, by a second backward pass; NULL on updates where it was not taken.

    J is the surrogate alone, before a stabiliser's factor: no KL term, no entropy bonus.
    """
    return t.scalar("clip_bias_norm")


@diagnostic((UPDATE,), Unit.RATIO, "||C|| / ||g||, g = grad J without the clip", "this project, C of arXiv 2511.20718")
def clip_bias_ratio(t: Tokens, by: Segments) -> np.ndarray | None:
    """Clipping bias against the unclipped gradient of the surrogate; NULL where it was not taken, or where g is 0."""
    return t.scalar("clip_bias_ratio")


@diagnostic((UPDATE,), Unit.NONE, "cos(C, g), g = grad J without the clip", "this project, C of arXiv 2511.20718")
def clip_bias_cosine(t: Tokens, by: Segments) -> np.ndarray | None:
    """Direction of what the clip removed against the unclipped gradient; 1 = the clip only shortens the step.

    NULL on updates where the bias was not taken, or where it or g is 0: always, without a clip or with one that takes
    nothing from the loss (soft_sigmoid, gamma).
    """
    return t.scalar("clip_bias_cosine")


@diagnostic((UPDATE,), Unit.NONE, "<(w A)^2 1[clipped]>_m", "development code of arXiv 2511.20718 (clip_grad_norm)")
def clip_bias_proxy(t: Tokens, by: Segments) -> np.ndarray:
    """Cheap stand-in for the clipping bias that drops grad log pi, over the tokens whose gradient the clip stopped.

    w is the ratio that the algorithm pools, as in the bias itself.
    """
    return by.mean(np.where(t.active, (t.unit_ratio * t.advantage) ** 2, 0.0))


@diagnostic(
    (UPDATE,), Unit.NONE, "<(r A)^2 1[out of range]>_m", "development code of arXiv 2511.20718 (clip_grad_norm)"
)
def clip_bias_proxy_range(t: Tokens, by: Segments) -> np.ndarray:
    """By token ratios over all tokens out of range, as S-PPO and ST-PPO look at them; not comparable with the other."""
    return by.mean(np.where(t.out_of_range, (t.ratio * t.advantage) ** 2, 0.0))


@diagnostic(
    (UPDATE,),
    Unit.RATIO,
    "max over units of rho = RMS of r A out of range / RMS of r A in range",
    "development code of arXiv 2511.20718",
)
def stabiliser_ratio(t: Tokens, by: Segments) -> np.ndarray | None:
    """Largest rho that was compared with tau: the stabiliser fires in the units where it is above.

    Units are what the stabiliser judges one by one: micro-batches (S-PPO, ST-PPO; with scope global the minibatch),
    turns or sequences (SO-GRPO). NULL without a stabiliser of this kind.
    """
    return t.scalar("stabiliser_ratio")


@diagnostic((UPDATE,), Unit.RATIO, "<f>_m, f the factor on the loss of a token or on the gradient", "arXiv 2511.20718")
def stabiliser_factor(t: Tokens, by: Segments) -> np.ndarray | None:
    """What the stabiliser multiplied by; 1 when it did not fire, NULL without one or where it multiplies nothing."""
    return t.scalar("stabiliser_factor")


@diagnostic((UPDATE,), Unit.RATIO, "<f>_m over token factors", "arXiv 2511.20718")
def stabiliser_factor_mean(t: Tokens, by: Segments) -> np.ndarray:
    """Mean over tokens of the factor on the loss of each; 1 without a stabiliser, or with one that acts elsewhere."""
    return by.mean(t.factor)


@diagnostic((UPDATE,), Unit.NONE, "c = RMS of r A over tokens out of range", "arXiv 2511.20718")
def clipped_rms(t: Tokens, by: Segments) -> np.ndarray | None:
    """Of the whole minibatch and whatever the stabiliser; with one unit the numerator of stabiliser_ratio."""
    return t.scalar("clipped_rms")


@diagnostic((UPDATE,), Unit.NONE, "n = RMS of r A over tokens in range", "arXiv 2511.20718")
def unclipped_rms(t: Tokens, by: Segments) -> np.ndarray | None:
    """Of the whole minibatch and whatever the stabiliser; with one unit the denominator of stabiliser_ratio."""
    return t.scalar("unclipped_rms")

"""Trajectories: what the agent did, what it earned, and what the updates did with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.diagnostics.declare import OURS, TRAINERS, diagnostic
from workbench.diagnostics.evidence import Rollouts
from workbench.diagnostics.tokens import Segments, Tokens, quotient
from workbench.spec import Level, Unit

TRAJECTORY = Level.TRAJECTORY


@dataclass(frozen=True)
class Trajectories:
    """The N trajectories that a step trained on, and their trained tokens (None when nothing was trained)."""

    rollouts: Rollouts
    trained: Tokens | None

    @cached_property
    def by(self) -> Segments | None:
        """A segment per trajectory, (N,), over all updates."""
        return None if self.trained is None else self.trained.by_trajectory(len(self.rollouts))

    @cached_property
    def last(self) -> np.ndarray:
        """The tokens (M,) of each trajectory in the last epoch that trained on it, in one update or several."""
        assert self.trained is not None
        assert self.by is not None
        epoch = self.trained.evidence.epoch.cpu().numpy()[self.trained.update]
        return np.asarray(epoch == self.by.spread(self.by.maximum(epoch)))


@diagnostic(TRAJECTORY, Unit.REWARD, "R", TRAINERS)
def reward(v: Trajectories) -> np.ndarray:
    """Outcome reward."""
    return v.rollouts.reward


@diagnostic(TRAJECTORY, Unit.NONE, "answer is exactly right", "Search-R1 (exact match)", sql_type="BOOLEAN")
def success(v: Trajectories) -> np.ndarray:
    """True when the answer matches exactly."""
    return v.rollouts.success


@diagnostic(TRAJECTORY, Unit.COUNT, "K", OURS, sql_type="BIGINT")
def n_turns(v: Trajectories) -> np.ndarray:
    """Turns of the trajectory."""
    return v.rollouts.turns


@diagnostic(TRAJECTORY, Unit.TOKENS, "sum m", OURS, sql_type="BIGINT")
def n_tokens(v: Trajectories) -> np.ndarray:
    """Tokens that the policy wrote."""
    return v.rollouts.response_tokens


@diagnostic(TRAJECTORY, Unit.TOKENS, "sum (a - m)", "Search-R1", sql_type="BIGINT")
def n_observation_tokens(v: Trajectories) -> np.ndarray:
    """Tokens that the world wrote after the prompt."""
    return v.rollouts.observation_tokens


@diagnostic(TRAJECTORY, Unit.COUNT, "number of searches", "Search-R1", sql_type="BIGINT")
def n_searches(v: Trajectories) -> np.ndarray:
    """Searches that were carried out."""
    return v.rollouts.searches


@diagnostic(TRAJECTORY, Unit.FRACTION, "valid turns / turns", "Search-R1, RAGEN")
def valid_turn_frac(v: Trajectories) -> np.ndarray:
    """Share of turns in the protocol's format."""
    return quotient(v.rollouts.valid_turns.astype(np.float64), v.rollouts.turns)


@diagnostic(
    TRAJECTORY, Unit.FRACTION, "1 - #{distinct 4-grams} / #{4-grams} of written tokens", "RAGEN arXiv 2504.20073"
)
def repetition_frac(v: Trajectories) -> np.ndarray:
    """Share of the written 4-grams that repeat an earlier one; NULL below four tokens."""
    return v.rollouts.repetition


@diagnostic(TRAJECTORY, Unit.FRACTION, "turns equal to an earlier turn / turns", OURS)
def duplicate_turn_frac(v: Trajectories) -> np.ndarray:
    """Share of turns that say exactly what an earlier turn of the trajectory said (the same query again)."""
    return quotient(v.rollouts.duplicates, np.array([len(turns) for turns in v.rollouts.written]))


@diagnostic(TRAJECTORY, Unit.NATS, "sum of clamp(delta, +-20) in the last epoch", "arXiv 2602.10693 (log W)")
def log_ratio_sum(v: Trajectories) -> np.ndarray | None:
    """Log of the product ratio of the trajectory when the step last trained on it."""
    if v.trained is None or v.by is None:
        return None
    return v.by.total(np.where(v.last, v.trained.clamped, 0.0))


@diagnostic(TRAJECTORY, Unit.NATS, "mean delta in the last epoch", "arXiv 2512.04220 (LLDS)")
def likelihood_displacement(v: Trajectories) -> np.ndarray | None:
    """How much likelier the trajectory had become per token; negative on a good one = lazy likelihood displacement."""
    return None if v.trained is None or v.by is None else v.by.mean(v.trained.log_ratio, v.last)


@diagnostic(TRAJECTORY, Unit.FRACTION, "sum |d loss / d log_prob| of the trajectory / that of the step", OURS)
def gradient_share(v: Trajectories) -> np.ndarray | None:
    """Share of the step's gradient signal that comes from the trajectory: finds the culprit."""
    if v.trained is None or v.by is None:
        return None
    return quotient(v.by.total(v.trained.weight), np.full(len(v.rollouts), v.trained.weight.sum()))

"""Trajectories: what the agent did, what it earned, and what the updates did with it."""

from __future__ import annotations

import numpy as np

from workbench.diagnostics.declare import OURS, TRAINERS, Measure
from workbench.diagnostics.evidence import Rollouts
from workbench.diagnostics.tokens import Segments, Tokens, quotient
from workbench.spec import Level, Unit

TRAJECTORY = (Level.TRAJECTORY,)


class Trajectories:
    """The N trajectories that a step trained on; `by`: a segment of trained tokens for each, over all its updates."""

    def __init__(self, rollouts: Rollouts, trained: Tokens | None) -> None:
        self.rollouts, self.trained = rollouts, trained
        if trained is not None:
            self.by = Segments(trained.trajectory, len(rollouts))
            epoch = trained.evidence.epoch.cpu().numpy()[trained.update]
            # The tokens (M,) of each trajectory in the last epoch that trained on it, in one update or several.
            self.last = np.asarray(epoch == self.by.spread(self.by.maximum(epoch)))

    def gradient_share(self) -> np.ndarray | None:
        """Return |d loss / d log_prob| of each trajectory as a share of the step's."""
        if self.trained is None:
            return None
        return quotient(self.by.total(self.trained.weight), np.full(len(self.rollouts), self.trained.weight.sum()))


MEASURES = (
    Measure("reward", TRAJECTORY, Unit.REWARD, "R", TRAINERS, "Outcome reward.", lambda v: v.rollouts.reward),
    Measure("success", TRAJECTORY, Unit.NONE, "answer is exactly right", "Search-R1 (exact match)",
            "True when the answer matches exactly.", lambda v: v.rollouts.success, sql_type="BOOLEAN"),
    Measure("n_turns", TRAJECTORY, Unit.COUNT, "K", OURS, "Turns of the trajectory.", lambda v: v.rollouts.turns,
            sql_type="BIGINT"),
    Measure("n_tokens", TRAJECTORY, Unit.TOKENS, "sum m", OURS, "Tokens that the policy wrote.",
            lambda v: v.rollouts.response_tokens, sql_type="BIGINT"),
    Measure("n_observation_tokens", TRAJECTORY, Unit.TOKENS, "sum (a - m)", "Search-R1", "Tokens that the world wrote "
            "after the prompt.", lambda v: v.rollouts.observation_tokens, sql_type="BIGINT"),
    Measure("n_searches", TRAJECTORY, Unit.COUNT, "number of searches", "Search-R1", "Searches that were carried out.",
            lambda v: v.rollouts.searches, sql_type="BIGINT"),
    Measure("valid_turn_frac", TRAJECTORY, Unit.FRACTION, "valid turns / turns", "Search-R1, RAGEN",
            "Share of turns in the protocol's format.",
            lambda v: quotient(v.rollouts.valid_turns.astype(np.float64), v.rollouts.turns)),
    Measure("repetition_frac", TRAJECTORY, Unit.FRACTION, "1 - #{distinct 4-grams} / #{4-grams} of written tokens",
            "RAGEN arXiv 2504.20073", "Share of written 4-grams that repeat an earlier one; NULL below four tokens.",
            lambda v: v.rollouts.repetition),
    Measure("duplicate_turn_frac", TRAJECTORY, Unit.FRACTION, "turns equal to an earlier turn / turns", OURS,
            "Share of turns that say exactly what an earlier turn of the trajectory said (the same query again).",
            lambda v: quotient(v.rollouts.duplicates, np.array([len(turns) for turns in v.rollouts.written]))),
    Measure("gradient_share", TRAJECTORY, Unit.FRACTION,
            "sum |d loss / d log_prob| of the trajectory / that of the step", OURS,
            "Share of the step's gradient signal that comes from the trajectory: finds the culprit.",
            Trajectories.gradient_share),
    Measure("log_ratio_sum", TRAJECTORY, Unit.NATS, "sum of clamp(delta, +-20) in the last epoch",
            "arXiv 2602.10693 (log W)", "Log of the product ratio of the trajectory when the step last trained on it.",
            lambda v: None if v.trained is None else v.by.total(np.where(v.last, v.trained.clamped, 0.0))),
    Measure("likelihood_displacement", TRAJECTORY, Unit.NATS, "mean delta in the last epoch",
            "arXiv 2512.04220 (LLDS)",
            "How much likelier the trajectory had become per token; negative on a good one = lazy displacement.",
            lambda v: None if v.trained is None else v.by.mean(v.trained.log_ratio, v.last)),
)  # fmt: skip

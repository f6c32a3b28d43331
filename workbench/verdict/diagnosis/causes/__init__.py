"""Everything that is looked for, one family a file. The order is that of the docs, not of rank."""

from __future__ import annotations

from workbench.verdict.diagnosis.causes import (
    advantages,
    collapse,
    learning,
    recorded,
    rewards,
    sampler,
    world,
)
from workbench.verdict.diagnosis.finding import Cause

CAUSES: tuple[Cause, ...] = (
    sampler.STALE_WEIGHTS,
    sampler.TEMPERATURE,
    sampler.PRECISION,
    recorded.STALENESS,
    recorded.BATCH_REUSED,
    advantages.OUTLIER_TOKEN,
    advantages.ADVANTAGE_GROUPS,
    rewards.FORMAT_REWARD,
    rewards.WRONG_REWARD,
    rewards.NOISY_REWARD,
    world.RETRIEVER_EMPTY,
    world.RETRIEVER_FAILING,
    world.RETRIEVER_SLOW,
    world.TRUNCATED,
    recorded.LEARNING_RATE,
    recorded.CLIPPING_OFF,
    learning.CRITIC,
    learning.REFERENCE,
    learning.ENTROPY_BONUS,
    recorded.NOT_FINITE,
    collapse.OFF_POLICY,
    collapse.STEP_SIZE,
)

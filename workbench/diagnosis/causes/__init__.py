"""Everything that is looked for, one family a file. The order is that of the docs, not of rank."""

from __future__ import annotations

from workbench.diagnosis.causes import (
    advantages,
    collapse,
    episodes,
    hidden,
    learning,
    masks,
    recorded,
    retriever,
    rewards,
    sampler,
)
from workbench.diagnosis.finding import Cause

CAUSES: tuple[Cause, ...] = (
    sampler.STALE_WEIGHTS,
    sampler.TEMPERATURE,
    hidden.TEMPERATURE_HIDDEN,
    sampler.PRECISION,
    recorded.STALENESS,
    recorded.BATCH_REUSED,
    masks.OBSERVATION_LEAK,
    masks.PROMPT_LEAK,
    masks.PADDING_LEAK,
    masks.TURN_SHIFT,
    masks.RETOKENISED,
    masks.NOT_SAMPLED,
    advantages.CORRUPT_LOG_PROB,
    advantages.WRONG_GROUPS,
    rewards.REWARD_FORMAT,
    rewards.REWARD_INVERTED,
    rewards.REWARD_SHIFTED,
    rewards.REWARD_NOISE,
    retriever.RETRIEVER_EMPTY,
    retriever.RETRIEVER_FAILING,
    retriever.RETRIEVER_SLOW,
    retriever.RETRIEVER_JUNK,
    episodes.TRUNCATED,
    episodes.TURN_CUT,
    recorded.LEARNING_RATE,
    recorded.CLIPPING_OFF,
    learning.CRITIC,
    learning.REFERENCE,
    learning.ENTROPY_BONUS,
    recorded.NOT_FINITE,
    collapse.OFF_POLICY,
    collapse.STEP_SIZE,
)

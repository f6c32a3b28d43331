"""Everything that defines one run."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from workbench.spec.settings import (
    BatchesSettings,
    CollapseSettings,
    ComputeSettings,
    Count,
    EngineSettings,
    EvaluationSettings,
    FaultSettings,
    Few,
    LearnSettings,
    PolicySettings,
    RecordSettings,
    Seed,
    Settings,
    StopSettings,
    WarmStartSettings,
    WorldSettings,
    without_defaults,
)

# Settings that change how a run is carried out and never what it computes: a run is the same run without them.
COSMETIC = (
    "threads", "record.flush_seconds", "record.checkpoint_every",
    *(f"record.batches.{name}" for name in BatchesSettings.model_fields),
)  # fmt: skip


class RunSettings(Settings):
    """Everything that defines one run: what is hashed, stored and shown by `sorl plan`."""

    algorithm: str | dict[str, Any] = "ppo"
    seed: Seed = 0
    iterations: Count = 80
    slots: dict[str, Any] = Field(default_factory=dict)  # changes to slots of whatever algorithm runs
    model: str | None = None  # a folder or a name on the Hugging Face hub; None = `policy`, warm-started
    prompt: Literal["auto", "plain", "search-r1"] = "auto"  # auto: Search-R1's for a `model`, else the plain question
    world: WorldSettings = WorldSettings()
    policy: PolicySettings = PolicySettings()
    warmstart: WarmStartSettings = WarmStartSettings()
    engine: EngineSettings = EngineSettings()
    learn: LearnSettings = LearnSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    record: RecordSettings = RecordSettings()
    collapse: CollapseSettings = CollapseSettings()
    stop: StopSettings = StopSettings()
    compute: ComputeSettings = ComputeSettings()
    match: Annotated[
        str | None,
        Field(
            min_length=1,
            description="arm, or EXPERIMENT/ARM, whose run of the same seed gives the mean stabiliser factor that the "
            "policy's learning rate is multiplied by",
        ),
    ] = None
    fault: FaultSettings | None = None  # inject a bug from some iteration on
    threads: Few = 1

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is off: a run without stop rules is the same run as before there were any."""
        return without_defaults(self, handler(self), "collapse", "stop", "match", "compute", "model", "prompt", "fault")

    @property
    def wording(self) -> Literal["plain", "search-r1"]:
        """How questions and observations are put: an own policy has learned the plain way, others read instructions."""
        if self.prompt == "auto":
            return "plain" if self.model is None else "search-r1"
        return self.prompt

    @property
    def planned_iterations(self) -> int:
        """Iterations of the whole run: as many as were asked for, or as its budget of updates allows."""
        if self.stop.updates is None:
            return self.iterations
        return min(self.iterations, math.ceil(self.stop.updates / (self.learn.epochs * self.learn.minibatches)))

    def starts_at_one(self, lag: int) -> bool:
        """Return whether the ratio of the first update on rollouts of `lag` iterations ago is 1 by construction.

        Not in bfloat16, where the same pass over another split of the batch rounds to other log-probs.
        """
        if self.compute.dtype != "float32":
            return False
        if self.learn.old_log_prob == "behaviour":
            return lag == 0 and self.engine.dtype == "float32"
        return lag == 0 or self.learn.old_log_prob == "update"

    @property
    def ratio_is_one(self) -> bool:
        """Whether every update sees ratio 1 by construction: one update a rollout, by its own old log-probs."""
        once = self.learn.epochs == 1 and self.learn.minibatches == 1
        return once and self.starts_at_one(self.learn.staleness)

    @model_validator(mode="after")
    def _batch_divides(self) -> RunSettings:
        learn = self.learn
        if learn.minibatches > learn.episodes:
            raise ValueError(
                f"learn.minibatches = {learn.minibatches} is larger than learn.episodes = {learn.episodes}; "
                f"use at most {learn.episodes}"
            )
        if learn.episodes % learn.minibatches:
            raise ValueError(
                f"learn.minibatches = {learn.minibatches} does not divide learn.episodes = {learn.episodes}"
            )
        if learn.group_size is not None and learn.episodes % learn.group_size:
            raise ValueError(f"learn.group_size = {learn.group_size} does not divide learn.episodes = {learn.episodes}")
        if learn.micro_batch is not None and self.compute.micro_batch_tokens is not None:
            raise ValueError("learn.micro_batch and compute.micro_batch_tokens split the same minibatch; keep one")
        minibatch = learn.episodes // learn.minibatches
        if learn.micro_batch is not None and minibatch % learn.micro_batch:
            raise ValueError(
                f"learn.micro_batch = {learn.micro_batch} does not divide the minibatch of {minibatch} sequences "
                f"(learn.episodes / learn.minibatches)"
            )
        return self

"""Joins what slime and miles trained on (train_data) to what was sampled (rollout_data)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.dumps import files
from sorl.importing.dumps.megatron_rows import (
    RowPlace,
    TrainingRow,
    optional_number,
    required,
)
from sorl.importing.dumps.rows import Coverage, Sampler


@dataclass
class Rollouts:
    """The samples of a rollout_data file, or why there are none."""

    file: Path
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    missing: str | None = None  # why there are none
    by_index: dict[int, list[int]] = field(default_factory=dict)  # places of samples by `Sample.index`

    def __post_init__(self) -> None:
        for place, sample in enumerate(self.samples):
            index = optional_number(sample.get("index"), "index", RowPlace(self.file, place))
            if index is not None:
                self.by_index.setdefault(index, []).append(place)

    def places_of(self, position: int | None, index: int | None) -> list[int]:
        """Places of the samples that a row of train_data may be of."""
        if position is None:
            return [] if index is None else self.by_index.get(index, [])
        return [position] if 0 <= position < len(self.samples) else []

    def tokens_of(self, place: int) -> np.ndarray:
        """(P+R,) int32."""
        values = required(self.samples[place], "tokens", RowPlace(self.file, place))
        return files.token_ids(values, "tokens", self.file)

    def group_of(self, place: int) -> str | None:
        """The prompt's group, or None."""
        group = optional_number(self.samples[place].get("group_index"), "group_index", self.at(place))
        return None if group is None else str(group)

    def trajectory_of(self, place: int) -> str | None:
        """A name of the rollout that is unique in the run, or None; samples of one rollout share it."""
        sample = self.samples[place]
        rollout_id = optional_number(sample.get("rollout_id"), "rollout_id", self.at(place))
        if rollout_id is not None:
            return f"rollout-{rollout_id}"
        index = optional_number(sample.get("index"), "index", self.at(place))
        return None if index is None else f"sample-{index}"

    def at(self, place: int) -> RowPlace:
        """Where a sample stands."""
        return RowPlace(self.file, place)


@dataclass
class JoinedRow:
    """A row of train_data with the sample that it is of."""

    row: TrainingRow
    sample: int | None  # place in rollout_data
    trajectory: str
    group: str | None


class StepJoin:
    """Joins the rows of a step's train_data to its rollout_data, and says which rows keep their tokens."""

    def __init__(self, step: int, rollouts: Rollouts, sampler: Sampler, size: int) -> None:
        self.step = step
        self.rollouts = rollouts
        self.sampler = sampler
        self.share = sampler.share(size)
        self._known: dict[int, JoinedRow] = {}

    def of(self, row: TrainingRow) -> JoinedRow:
        """The sample that a row is of: the one of its position or index with its tokens."""
        key = id(row)
        if key not in self._known:
            self._known[key] = self._find(row)
        return self._known[key]

    def keeps(self, row: TrainingRow) -> bool:
        """Whether sampling leaves the row its tokens."""
        joined = self.of(row)
        return self.sampler.keeps(joined.group or joined.trajectory, self.step, self.share)

    def coverage(self, rows: Sequence[TrainingRow]) -> Coverage:
        """How many trained tokens found their rollout."""
        coverage = Coverage()
        for row in rows:
            tokens = int(row.trained.sum())
            if self.of(row).sample is not None:
                coverage.join(tokens)
            elif self.rollouts.missing is not None:
                coverage.miss(self.rollouts.missing, tokens)
            elif self.rollouts.places_of(row.position, row.index):
                coverage.miss("rollout_data has other tokens for the same sample", tokens)
            else:
                coverage.miss("rollout_data has no sample of that index", tokens)
        return coverage

    def _find(self, row: TrainingRow) -> JoinedRow:
        for place in self.rollouts.places_of(row.position, row.index):
            if np.array_equal(self.rollouts.tokens_of(place), row.tokens):
                trajectory = self.rollouts.trajectory_of(place) or self._name(row)
                return JoinedRow(row, place, trajectory, self.rollouts.group_of(place))
        return JoinedRow(row, None, self._name(row), None)

    def _name(self, row: TrainingRow) -> str:
        # slime makes up rollout ids that begin at 0 in every step.
        if row.rollout_id is not None:
            return f"step-{self.step}-rollout-{row.rollout_id}"
        return f"step-{self.step}-row-{row.place.row}"

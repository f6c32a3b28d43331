"""What the dumps of slime and of miles, which was forked from it, have in common.

`rollout_data/{step}.pt` has what was sampled, with prompts, groups, rewards and weight versions.
`train_data/{step}*.pt` has what the trainer trained on, with log-probs and advantages. Rows are those of
train_data; `slime` and `miles` read their own form of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.dumps import files
from sorl.importing.dumps.megatron_join import JoinedRow, Rollouts, StepJoin
from sorl.importing.dumps.megatron_rows import (
    Training,
    TrainingRow,
    finite,
    list_or_empty,
    objects,
    optional_number,
    read_columns,
    read_row,
    required,
    whole_number,
)
from sorl.importing.dumps.rows import Dump, DumpStep, Row, Sampler, Update
from sorl.spec import InputError

# "completed" is the end of a turn's text as well where turns run out: the dump does not tell those apart.
ENDED_OF_STATUS = {"completed": "answer", "truncated": "max_tokens"}
# Steps that the newest rollouts of an asynchronous run are stale; more hints at another count of versions.
USUAL_STALENESS = 2

ONLY_SAMPLED = (
    "The dump has no train_data: rows are what was sampled, without log-probs of the trainer, and the masks"
    " are those of the sampler."
)
NEVER_TRAINED = "Some steps were sampled and have no train_data; they are left out."
NO_ROLLOUT_FILE = "Some steps lack their rollout_data file: they have no groups, weight versions or texts."
REFUSED = (
    "rollout_data holds {}, which is not opened: its steps come from train_data alone, without groups and"
    " texts."
)
AHEAD = "Weight versions run ahead of the steps, so they are left out: what they count is not known."
STALE = (
    "Even the newest rollouts of some steps count as more than two steps stale. That is too many if weights"
    " were sent less often than every step (--update-weights-interval) or the trainer was restarted unseen."
)
VERSIONS = (
    "Weight versions are turned into steps: the trainer sends version 1 before its first step and one more"
    " after every step, so version v sampled with the weights of step v - 1."
)
RESTARTED = "The trainer was restarted at step {}: its weight versions begin again at 1 there."
NOT_FINITE = "Some rows have a {} that is not finite; it is kept as the trainer wrote it."
UNTRAINED_ROLLOUTS = "{} samples of rollout_data are not in train_data; they are left out."


class WeightVersions:
    """Turns the sampler's weight versions into steps.

    A trainer process counts from 0 and adds 1 whenever it sends weights, which it does first before any
    rollout. So version 1 sampled the first step of the process on-policy, and version v is of the weights at
    v - 1 steps after it. A resumed process counts from 0 again.
    """

    def __init__(self) -> None:
        self.first_step = 0  # of the trainer process
        self.newest: int | None = None  # version in the step before

    def offset(self, step: int, newest: int) -> int:
        """What to add to a version of the step to get a step; `newest` is the highest version in it."""
        # The second step of an asynchronous process has version 1 too: it was sampled ahead.
        is_first = newest == 1 and (step > 1 if self.newest is None else self.newest > 1)
        if is_first:
            self.first_step = step
        self.newest = newest
        return self.first_step - 1


class MegatronDump(Dump):
    """A folder that slime's or miles' `--dump-details` filled."""

    format = "--dump-details"

    def __init__(self, folder: Path, sampler: Sampler) -> None:
        super().__init__(folder, sampler)
        self._start_over()

    def _start_over(self) -> None:
        self._versions = WeightVersions()
        self._last_step = -1

    @property
    def tokenizer(self) -> Path | None:
        """DIR/tokenizer, which the trainer saves beside the dump."""
        folder = self.folder / "tokenizer"
        return folder if folder.is_dir() else None

    @abstractmethod
    def training_files(self) -> dict[int, list[Path]]:
        """Files of train_data by step."""

    @abstractmethod
    def read_training(
        self, step: int, paths: Sequence[Path], keeps: Callable[[TrainingRow], bool]
    ) -> Training:
        """Read the train_data of a step; columns only of the rows that `keeps` says."""

    def texts(self, step: int) -> Mapping[int, Mapping[str, Any]]:
        """Conversations of a step's samples by `Sample.index`, where the dump has them apart."""
        return {}

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield the steps after `after`; a rollout id is a step, and the first is 0."""
        if after < self._last_step:
            self._start_over()
        trained = self.training_files()
        sampled = files.numbered(self.folder / "rollout_data", "{}.pt")
        if not trained and not is_live:  # a live run may not have trained yet
            trained = {step: [] for step in sampled}
        last = max(trained, default=-1)
        for step, paths in sorted(trained.items()):
            if step <= after:
                continue
            written = [*paths, *([sampled[step]] if step in sampled else [])]
            if is_live and not all(files.is_settled(path, step < last) for path in written):
                return
            yield self._read_step(step, paths, sampled.get(step))
            self._last_step = step
        if any(step not in trained for step in sampled) and not is_live:
            self.note(NEVER_TRAINED)

    def _read_step(self, number: int, paths: Sequence[Path], sampled: Path | None) -> DumpStep:
        rollouts = self._read_rollouts(sampled)
        size = sum(path.stat().st_size for path in [*paths, *([sampled] if sampled else [])])
        join = StepJoin(number, rollouts, self.sampler, size)
        if not paths:
            self.note(ONLY_SAMPLED)
            return self._step_of(Training(_rows_of_rollouts(rollouts)), join)
        training = self.read_training(number, paths, join.keeps)
        step = self._step_of(training, join)
        step.coverage = join.coverage(training.rows)
        trained = {join.of(row).sample for row in training.rows} - {None}
        self.note_count(UNTRAINED_ROLLOUTS, len(rollouts.samples) - len(trained))
        return step

    def _step_of(self, training: Training, join: StepJoin) -> DumpStep:
        offset = self._offset(training.rows, join)
        texts = self.texts(join.step)
        rows = []
        for source in training.rows:
            sample = join.of(source).sample
            if sample is not None and sample < len(training.raw_rewards):
                source.raw_reward = finite(training.raw_rewards[sample])
            row = self._row(join.of(source), join.rollouts, offset, texts)
            rows.append(row if join.keeps(source) else row.without_tokens())
        updates = []
        for members in training.updates:
            measured = [row for row in members if row in training.log_prob and rows[row].is_measured]
            updates.append(Update(members, {row: training.log_prob[row] for row in measured}))
        return DumpStep(join.step, rows, updates)

    def _read_rollouts(self, file: Path | None) -> Rollouts:
        if file is None:
            self.note(NO_ROLLOUT_FILE)
            return Rollouts(self.folder, missing="the step has no rollout_data file")
        try:
            pack = files.load_tensors(file)
        except files.RefusedError as error:
            self.note(REFUSED.format(error.refused))
            return Rollouts(file, missing=f"rollout_data holds {error.refused}, which is not opened")
        if not isinstance(pack, Mapping) or "samples" not in pack:
            raise InputError(f"'{file}' is no rollout_data of slime or miles: it has no samples")
        return Rollouts(file, objects(pack["samples"], "samples", file))

    def _offset(self, rows: Sequence[TrainingRow], join: StepJoin) -> int | None:
        """What turns weight versions of the step into steps; None where they are not to be had."""
        versions: list[int] = []
        for row in rows:
            versions += _versions_of(join.of(row), join.rollouts)
        if not versions:
            return None
        newest = max(versions)
        first_before = self._versions.first_step
        offset = self._versions.offset(join.step, newest)
        self.note(VERSIONS)
        if self._versions.first_step != first_before:
            self.note(RESTARTED.format(join.step))
        staleness = join.step - (newest + offset)
        if staleness < 0:
            self.note(AHEAD)
            return None
        if staleness > USUAL_STALENESS:
            self.note(STALE)
        return offset

    def _row(
        self,
        item: JoinedRow,
        rollouts: Rollouts,
        offset: int | None,
        texts: Mapping[int, Mapping[str, Any]],
    ) -> Row:
        source = item.row
        for name, values in source.columns.items():
            if not np.isfinite(values).all():
                self.note(NOT_FINITE.format(name))
        row = Row(
            item.trajectory,
            source.tokens,
            source.prompt_length,
            _written(item, rollouts),
            trained=source.trained,
            reward=source.raw_reward,
            group=item.group,
            columns=source.columns,
            sample=source.index,
            ended="max_tokens" if source.is_truncated else None,
        )
        versions = _versions_of(item, rollouts)
        if versions and offset is not None:
            oldest = min(versions) + offset
            newest = max(versions) + offset
            row = replace(row, version=oldest, newest_version=None if newest == oldest else newest)
        if item.sample is None:
            return row
        sample = rollouts.samples[item.sample]
        talk = texts.get(source.index, {}) if source.index is not None else {}
        reward = finite(sample.get("reward"))
        return replace(
            row,
            reward=source.raw_reward if reward is None else reward,
            sample=optional_number(sample.get("index", source.index), "index", rollouts.at(item.sample)),
            question=message_text(talk.get("prompt", sample.get("prompt")), "user"),
            answer=message_text(talk.get("messages", sample.get("response")), "assistant"),
            ended=ENDED_OF_STATUS.get(str(sample.get("status"))),
        )


def _rows_of_rollouts(rollouts: Rollouts) -> list[TrainingRow]:
    """What was sampled in the form of train_data: what the trainer would have trained on."""
    rows = []
    for position, sample in enumerate(rollouts.samples):
        place = rollouts.at(position)
        length = whole_number(required(sample, "response_length", place), "response_length", place)
        is_removed = bool(sample.get("remove_sample"))
        values = {
            "tokens": sample.get("tokens"),
            "response_lengths": length,
            "loss_masks": np.zeros(max(0, length), bool) if is_removed else _mask_of(sample, max(0, length)),
            "rollout_log_probs": sample.get("rollout_log_probs"),
        }
        row = read_row(values, place)
        row.position = position
        row.index = optional_number(sample.get("index"), "index", place)
        row.columns = read_columns(values, row)
        rows.append(row)
    return rows


def _mask_of(sample: Mapping[str, Any], length: int) -> Any:
    """slime fills in a missing mask, all ones, only after it has written rollout_data."""
    mask = sample.get("loss_mask")
    if mask is not None:
        return mask
    return np.ones(length, bool)


def _written(item: JoinedRow, rollouts: Rollouts) -> np.ndarray:
    """(R,) where the policy wrote the token: the rollout's mask, from before samples leave the loss."""
    if item.sample is None:
        return item.row.trained
    sample = rollouts.samples[item.sample]
    mask = files.flags(_mask_of(sample, item.row.response_length), "loss_mask", rollouts.file)
    if len(mask) != item.row.response_length:
        problem = f"loss_mask has {len(mask)} entries for {item.row.response_length} tokens of the response"
        raise rollouts.at(item.sample).error(problem)
    return mask | item.row.trained


def _versions_of(item: JoinedRow, rollouts: Rollouts) -> list[int]:
    """Weight versions of a row, one a call of the sampler; a name such as "default" is none."""
    versions = item.row.weight_versions
    if item.sample is not None:
        versions = list_or_empty(rollouts.samples[item.sample].get("weight_versions")) or versions
    texts = [str(version) for version in versions]
    return [int(text) for text in texts if text.isdecimal() and len(text) < 10]


def message_text(prompt: Any, role: str) -> str | None:
    """A text, or of a list of messages the last one of a role."""
    if isinstance(prompt, str):
        return prompt or None
    for message in reversed(list_or_empty(prompt)):
        if isinstance(message, Mapping) and message.get("role") == role:
            return _content_text(message.get("content"))
    return None


def _content_text(content: Any) -> str | None:
    """The text of a message, whose content may be a list of parts."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in list_or_empty(content) if isinstance(part, Mapping)]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) or None

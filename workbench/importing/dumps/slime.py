"""slime's `--dump-details`.

Since 681b3ad (2026-08-12) train_data has a file a step, gathered from all ranks: format 2. Before, up to
v0.3.1, every rank wrote its own: format 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sorl.importing.dumps import files
from sorl.importing.dumps.megatron_dump import MegatronDump
from sorl.importing.dumps.megatron_layout import is_of_miles, lowest_step_file, rank_files
from sorl.importing.dumps.megatron_ranks import COPIES, RankFiles, local_updates, read_rank
from sorl.importing.dumps.megatron_rows import (
    RowPlace,
    Training,
    TrainingRow,
    list_or_empty,
    objects,
    optional_number,
    read_columns,
    read_row,
    whole_number,
)
from sorl.spec import InputError

OF_ONE_UPDATE = (
    "slime's log_probs are taken for both the policy before the step's update and the policy at it: there is"
    " one update a step. With --keep-old-actor they are of an older policy, which the dump does not tell."
)
OF_SEVERAL_UPDATES = (
    "slime's log_probs are taken for the policy before the updates of the step. With --use-rollout-logprobs"
    " they are those of the policy at each row's own update, which the dump does not tell."
)
OF_FORMAT_1 = "slime's log_probs are of the policy before the updates of the step."
NO_UPDATES = "train_data does not tell which rows each update trains on: a step counts as one update."


class SlimeDump(MegatronDump):
    """A folder that slime's `--dump-details` filled."""

    trainer = "slime"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether rollout_data or train_data holds numbered files of `torch.save`, and not miles' ones."""
        return lowest_step_file(folder) is not None and not is_of_miles(folder)

    def training_files(self) -> dict[int, list[Path]]:
        """`{step}.pt` of format 2, and `{step}_{rank}.pt` of format 1 where that is missing."""
        gathered = files.numbered(self.folder / "train_data", "{}.pt")
        return rank_files(self.folder / "train_data") | {step: [path] for step, path in gathered.items()}

    def read_training(
        self, step: int, paths: Sequence[Path], keeps: Callable[[TrainingRow], bool]
    ) -> Training:
        """Read train_data in either format, and say which policy its log_probs are of."""
        if paths[0].stem.isdecimal():
            training = _read_gathered(paths[0], keeps)
        else:
            ranks = RankFiles(keeps, self.note)
            for path in paths:
                ranks.add(read_rank(path))
            training = ranks.training()
            self.note_count(COPIES, ranks.copies)
        self._tell_policy_of_log_probs(training)
        return training

    def _tell_policy_of_log_probs(self, training: Training) -> None:
        if not training.updates:
            self.note(NO_UPDATES)
        if not any("log_prob_old" in row.columns for row in training.rows):
            return
        if len(training.updates) != 1:
            self.note(OF_SEVERAL_UPDATES if training.updates else OF_FORMAT_1)
            return
        self.note(OF_ONE_UPDATE)
        for row in training.rows:
            if "log_prob_old" in row.columns:
                row.columns["log_prob"] = row.columns["log_prob_old"]


def _read_gathered(file: Path, keeps: Callable[[TrainingRow], bool]) -> Training:
    """Read train_data of format 2."""
    pack = files.load_tensors(file)
    if not isinstance(pack, Mapping) or "samples" not in pack:
        raise InputError(f"'{file}' is no train_data of slime: it has no samples")
    version = pack.get("format_version")
    if version != 2:
        problem = (
            f"format_version is {version!r}, and 2 is read, which slime writes since 681b3ad (2026-08-12)"
        )
        raise InputError(f"'{file}': {problem}")
    rows = []
    for number, values in enumerate(objects(pack["samples"], "samples", file)):
        place = RowPlace(file, number)
        row = read_row(values, place)
        row.position = optional_number(values.get("rollout_position"), "rollout_position", place)
        row.index = optional_number(values.get("sample_index"), "sample_index", place)
        if keeps(row):
            row.columns = read_columns(values, row)
        rows.append(row)
    updates = _updates_of_shards(pack, rows, file)
    return Training(rows, updates, raw_rewards=list_or_empty(pack.get("raw_reward")))


def _updates_of_shards(pack: Mapping[str, Any], rows: Sequence[TrainingRow], file: Path) -> list[list[int]]:
    """Row numbers of each optimizer update, by the micro-batches of all data-parallel ranks.

    A shard's first num_microbatches[0] micro-batches are of the first update, the next of the second, and so
    on; micro_batch_indices count the shard's own rows, and `partition` says which positions these have.
    """
    row_at: dict[int | None, int] = {row.position: number for number, row in enumerate(rows)}
    updates: list[set[int]] = []
    shards = objects(pack.get("dp_shards") or [], "dp_shards", file)
    if any(shard.get("partition") is None for shard in shards):
        return []
    for shard in shards:
        partition = list_or_empty(shard.get("partition"))
        positions = [whole_number(position, "partition", RowPlace(file, 0)) for position in partition]
        local = [row_at.get(position) for position in positions]
        for update, members in enumerate(local_updates(shard, file)):
            if update == len(updates):
                updates.append(set())
            numbers = [local[member] if member < len(local) else None for member in members]
            if None in numbers:
                raise InputError(f"'{file}': dp_shards name a row that is not in samples")
            updates[update] |= {number for number in numbers if number is not None}
    return [sorted(members) for members in updates]

"""miles' `policy_loss_debug`: the new log-probs of every call of the loss.

The files carry no ids. A process counts its calls from 0, again from 0 after a restart, and makes one for
each micro-batch of each update. So the calls of a step are looked for from where the step before ended, and
taken only where each sample's old log-probs equal those that train_data has of the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sorl.importing.dumps import files
from sorl.importing.dumps.megatron_ranks import RankFile
from sorl.importing.dumps.megatron_rows import RowPlace, list_or_empty, objects, required, whole_number
from sorl.spec import InputError

EQUAL = 1e-6  # nats; both files are written from the same tensor
# What the old log-probs of a call are.
OLD = "log_probs"
SAMPLER = "rollout_log_probs"
ITSELF = "train_log_probs"


@dataclass
class RankCalls:
    """New log-probs of a rank's rows in a step: its slices, by its own row number."""

    new_log_prob: dict[int, np.ndarray] = field(default_factory=dict)
    proximal: set[str] = field(default_factory=set)  # of OLD, SAMPLER, ITSELF: what the ratio compares with
    count: int = 0


class PolicyLossCalls:
    """Finds the calls of the loss that belong to a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next: dict[int, int] = {}  # call that follows the step read last, by rank
        self._searched: set[int] = set()  # ranks whose calls were all tried for the step before, in vain

    def has_calls(self, rank: int) -> bool:
        """Whether the rank computed the loss: a stage of a pipeline but the last does not."""
        return self._file(rank, 0).exists() or self._file(rank, self._next.get(rank, 0)).exists()

    def of(self, ranked: RankFile) -> RankCalls | None:
        """The calls on the rows of a rank, or None where none match."""
        batches = _micro_batches(ranked)
        for start in self._starts(ranked.rank):
            calls = self._read(ranked, batches, start)
            if calls is not None:
                self._next[ranked.rank] = start + calls.count
                self._searched.discard(ranked.rank)
                return calls
        # The next step is looked for where it would be if only this one was damaged.
        self._next[ranked.rank] = self._next.get(ranked.rank, 0) + len(batches or [])
        self._searched.add(ranked.rank)
        return None

    def _file(self, rank: int, call: int) -> Path:
        return self.folder / f"rank_{rank}_call_{call}.pt"

    def _starts(self, rank: int) -> Iterator[int]:
        """Calls that a step may begin with, the likely ones first."""
        likely = [self._next.get(rank, 0), 0]
        yield from likely
        if rank in self._searched:
            return
        for call in files.numbered(self.folder, f"rank_{rank}_call_{{}}.pt"):
            if call not in likely:
                yield call

    def _read(self, ranked: RankFile, batches: Sequence[list[int]] | None, start: int) -> RankCalls | None:
        calls = RankCalls()
        remaining = list(range(ranked.row_count))
        while remaining if batches is None else calls.count < len(batches):
            file = self._file(ranked.rank, start + calls.count)
            if not file.exists():
                return None
            samples = _samples_of(file)
            rows = remaining if batches is None else batches[calls.count]
            if batches is not None and len(samples) != len(rows):
                return None
            for number, sample in enumerate(samples):
                candidates = rows if batches is None else [rows[number]]
                if not _take(sample, ranked, candidates, calls, RowPlace(file, number)):
                    return None
            remaining = [row for row in remaining if row not in calls.new_log_prob]
            calls.count += 1
        return calls


def _samples_of(file: Path) -> list[Mapping[str, Any]]:
    pack = files.load_tensors(file)
    if not isinstance(pack, Mapping) or "samples" not in pack:
        raise InputError(f"'{file}' is no policy_loss_debug of miles: it has no samples")
    samples = objects(pack["samples"], "samples", file)
    if not samples:
        raise InputError(f"'{file}': samples is empty")
    return samples


def _micro_batches(ranked: RankFile) -> list[list[int]] | None:
    """Rows of each call in a step; None where train_data has no schedule."""
    batches = ranked.columns.get("micro_batch_indices")
    if batches is None:
        return None
    place = RowPlace(ranked.path, 0)
    return [_row_numbers(batch, place) for batch in list_or_empty(batches)]


def _row_numbers(batch: object, place: RowPlace) -> list[int]:
    return [whole_number(row, "micro_batch_indices", place) for row in list_or_empty(batch)]


def _take(
    sample: Mapping[str, Any], ranked: RankFile, candidates: Sequence[int], calls: RankCalls, place: RowPlace
) -> bool:
    """Give the new log-probs of a sample to the row that it is of; False where it is of none of them."""
    new = files.floats(required(sample, "train_log_probs", place), "train_log_probs", place.file)
    for row in candidates:
        if row in calls.new_log_prob or not 0 <= row < ranked.row_count:
            continue
        proximal = _proximal_policy(sample, new, _TrainedRow(ranked, row), place)
        if proximal is not None:
            calls.new_log_prob[row] = new
            calls.proximal.add(proximal)
            return True
    return False


class _TrainedRow(NamedTuple):
    """A row of a rank's train_data."""

    ranked: RankFile
    number: int

    def has_lengths_of(self, sample: Mapping[str, Any], place: RowPlace) -> bool:
        """Whether a sample of a call is as long."""
        total = whole_number(required(sample, "total_length", place), "total_length", place)
        length = whole_number(required(sample, "response_length", place), "response_length", place)
        own_place = RowPlace(self.ranked.path, self.number)
        own_length = whole_number(
            self.ranked.cell("response_lengths", self.number), "response_lengths", own_place
        )
        return total == len(self.ranked.columns["tokens"][self.number]) and length == own_length

    def array(self, key: str) -> np.ndarray | None:
        """The rank's slice of a column."""
        return self.ranked.array(key, self.number)


def _proximal_policy(
    sample: Mapping[str, Any], new: np.ndarray, row: _TrainedRow, place: RowPlace
) -> str | None:
    """What a sample's old log-probs are; None where the sample is not of the row. `place` is the call's."""
    if not row.has_lengths_of(sample, place):
        return None
    file = place.file
    old = files.floats(sample.get("old_log_probs", []), "old_log_probs", file)
    if len(old) != len(new):
        return None
    trainer = row.array("log_probs")
    sampler = row.array("rollout_log_probs")
    if trainer is not None and _are_equal(old, trainer):
        return OLD
    if sampler is not None and _are_equal(old, sampler):
        return SAMPLER
    # With --skip-actor-forward-only the old log-probs are the new ones, and train_data has none.
    rollout_log_probs = sample.get("rollout_log_probs")
    if trainer is None and sampler is not None and rollout_log_probs is not None and _are_equal(old, new):
        return (
            ITSELF
            if _are_equal(files.floats(rollout_log_probs, "rollout_log_probs", file), sampler)
            else None
        )
    return None


def _are_equal(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and np.allclose(first, second, rtol=0, atol=EQUAL, equal_nan=True)

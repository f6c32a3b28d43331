"""train_data with a file a rank, as miles writes it and slime did up to v0.3.1.

Ranks of tensor parallelism hold copies, stages of a pipeline but the last lack log-probs, and ranks of
context parallelism hold slices of the columns: two pieces of each sequence, in zig-zag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.dumps import files
from sorl.importing.dumps.megatron_rows import (
    COLUMN_OF_KEY,
    RowPlace,
    Training,
    TrainingRow,
    list_or_empty,
    optional_number,
    read_row,
    whole_number,
)
from sorl.spec import InputError

MOST_RANKS = 4096  # of context parallelism
ROW_KEYS = {"sample_indices", "response_lengths", "total_lengths", "loss_masks", *COLUMN_OF_KEY}
# Columns that are no list with an entry a row.
SCHEDULE_KEYS = ("num_microbatches", "micro_batch_indices", "raw_reward", "max_seq_lens")
UNPLACED = "Context-parallel slices of {} do not fit together for some rows; the column is left out there."
COPIES = "{} rows of train_data are copies or slices of rows that another rank has; each is read once."
NEW_LOG_PROB = "train_log_probs"  # of miles' policy_loss_debug


@dataclass(frozen=True)
class RankFile:
    """The rows that one rank trained on."""

    path: Path
    rank: int
    columns: Mapping[str, Any]  # a list with an entry a row each
    cp_rank: int | None  # None: written before it was recorded
    cp_size: int
    is_padded: bool  # format "bshd": pieces are of the padded length

    def cell(self, key: str, row: int) -> Any:
        """An entry of a column, None where the rank has no such column."""
        column = self.columns.get(key)
        return None if column is None else column[row]

    def values(self, row: int) -> dict[str, Any]:
        """What the rank has of a row."""
        return {key: column[row] for key, column in self.columns.items() if key not in SCHEDULE_KEYS}

    def array(self, key: str, row: int) -> np.ndarray | None:
        """A column of a row as numbers: the rank's slice of it."""
        cell = self.cell(key, row)
        return None if cell is None else files.floats(cell, key, self.path)

    @property
    def row_count(self) -> int:
        """Rows that the rank trained on."""
        return len(self.columns["tokens"])


def read_rank(path: Path) -> RankFile:
    """Read a rank's file. Raises InputError where its columns do not have one entry a row."""
    pack = files.load_tensors(path)
    columns = pack.get("rollout_data") if isinstance(pack, Mapping) else None
    if not isinstance(columns, Mapping):
        raise InputError(f"'{path}' is no train_data of a rank: it has no rollout_data")
    if not isinstance(columns.get("tokens"), list):
        raise InputError(f"'{path}': tokens is no list")
    for number, tokens in enumerate(columns["tokens"]):
        if not hasattr(tokens, "__len__") or getattr(tokens, "ndim", 1) != 1:
            raise RowPlace(path, number).error("tokens is no list of numbers")
    whole = _columns_of_rows(columns, path)
    place = RowPlace(path, 0)
    cp_size = optional_number(pack.get("cp_size"), "cp_size", place) or 1
    cp_rank = optional_number(pack.get("cp_rank"), "cp_rank", place)
    if not 1 <= cp_size <= MOST_RANKS or not 0 <= (cp_rank or 0) < cp_size:
        raise InputError(f"'{path}': cp_rank {cp_rank} of cp_size {cp_size}")
    rank = int(path.stem.split("_")[1])
    return RankFile(path, rank, whole, cp_rank, cp_size, pack.get("qkv_format") == "bshd")


def _columns_of_rows(columns: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The columns with an entry a row, and the schedule; not what is of the whole batch."""
    count = len(columns["tokens"])
    of_rows = {}
    for key, value in columns.items():
        is_list = isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0
        length = len(value) if is_list else None
        is_tensor = not isinstance(value, list | tuple)
        if key in ROW_KEYS and value is not None and (is_tensor or length != count):
            raise InputError(f"'{path}': {key} has {length} entries for {count} rows")
        if length == count or key in SCHEDULE_KEYS:
            of_rows[key] = value
    return of_rows


def local_updates(schedule: Mapping[str, Any], file: Path) -> list[list[int]]:
    """A rank's own row numbers of each optimizer update; none where the file has no schedule."""
    counts = schedule.get("num_microbatches")
    batches = schedule.get("micro_batch_indices")
    if counts is None or batches is None:
        return []
    place = RowPlace(file, 0)
    updates = []
    start = 0
    for entry in list_or_empty(counts):
        count = whole_number(entry, "num_microbatches", place)
        members: list[int] = []
        for batch in list_or_empty(batches)[start : start + max(0, count)]:
            members += [whole_number(row, "micro_batch_indices", place) for row in list_or_empty(batch)]
        if any(row < 0 for row in members):
            raise InputError(f"'{file}': micro_batch_indices has a negative row")
        updates.append(members)
        start += max(0, count)
    return updates


@dataclass(frozen=True)
class Piece:
    """A slice of a row's column, as one rank has it."""

    rank: int
    cp_rank: int | None
    values: np.ndarray


@dataclass
class RankedRow:
    """A row with what all ranks have of it."""

    row: TrainingRow
    cp_size: int
    padded_length: int | None  # of the sequence, in format "bshd"
    is_kept: bool
    pieces: dict[str, list[Piece]] = field(default_factory=dict)  # by key of train_data

    def whole(self, key: str) -> np.ndarray | None:
        """(R,) a column from its pieces; None where they do not fit together."""
        length = self.row.response_length
        pieces = self._distinct(self.pieces[key])
        if self.cp_size == 1 and len(pieces) == 1:
            return pieces[0] if len(pieces[0]) == length else None
        if self.cp_size not in (1, len(pieces)):
            return None
        whole = np.zeros(length, np.float32)
        for cp_rank, values in enumerate(pieces):
            spans = cp_spans(self, cp_rank, len(pieces))
            if len(values) != sum(stop - start for start, stop in spans):
                return None
            taken = 0
            for start, stop in spans:
                whole[start:stop] = values[taken : taken + stop - start]
                taken += stop - start
        is_covered = sum(map(len, pieces)) == length
        return whole if is_covered else None

    def _distinct(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """One piece a context-parallel rank, in their order: tensor-parallel ranks hold copies.

        Files from before cp_rank was recorded: pieces that differ are of different ranks.
        """
        by_rank = {piece.cp_rank: piece.values for piece in reversed(pieces)}
        if None not in by_rank:
            return [by_rank[rank] for rank in sorted(by_rank, key=lambda rank: rank or 0)]
        distinct: list[np.ndarray] = []
        for piece in pieces:
            if len(piece.values) == self.row.response_length:
                return [piece.values]
            if not any(np.array_equal(piece.values, other, equal_nan=True) for other in distinct):
                distinct.append(piece.values)
        return distinct


def cp_spans(ranked: RankedRow, cp_rank: int, cp_size: int) -> list[tuple[int, int]]:
    """Start and stop, in the response, of the two pieces that a context-parallel rank holds of a column.

    The sequence is cut into 2 * cp_size chunks; rank k has chunk k and the k-th from the end. The log-prob of
    a token is where the token before it is, so that the pieces are shifted by one.
    """
    total = ranked.row.total_length
    first = ranked.row.prompt_length - 1  # position whose logits give the first token of the response
    chunk = -(-(ranked.padded_length or total) // (2 * cp_size))
    spans = []
    for number in (cp_rank, 2 * cp_size - 1 - cp_rank):
        start = max(number * chunk, first)
        stop = min((number + 1) * chunk, total - 1)
        if start < stop:
            spans.append((start - first, stop - first))
    return spans


class RankFiles:
    """Puts the rows of a step together from the files of its ranks, which are added one by one."""

    def __init__(self, keeps: Callable[[TrainingRow], bool], note: Callable[[str], None]) -> None:
        self._keeps = keeps
        self._note = note
        self._rows: dict[bytes, RankedRow] = {}
        self._updates: list[set[bytes]] = []
        self.copies = 0  # rows that another rank had already
        self._raw_rewards: Sequence[object] = ()  # of the whole batch, in every file

    def add(self, ranked: RankFile, more: Mapping[str, Mapping[int, np.ndarray]] | None = None) -> None:
        """Take over the rows of a rank; `more`: further columns by key and the rank's own row number."""
        self._raw_rewards = list_or_empty(ranked.columns.get("raw_reward"))
        keys = []
        for number in range(ranked.row_count):
            row = _base_row(ranked, number)
            key = _key_of(row)
            keys.append(key)
            if key in self._rows:
                self.copies += 1
            else:
                self._rows[key] = self._new_row(ranked, number, row)
            self._add_pieces(self._rows[key], ranked, number, more or {})
        for update, members in enumerate(local_updates(ranked.columns, ranked.path)):
            if update == len(self._updates):
                self._updates.append(set())
            if any(member >= len(keys) for member in members):
                raise InputError(f"'{ranked.path}': micro_batch_indices name a row that is not there")
            self._updates[update] |= {keys[member] for member in members}

    def training(self) -> Training:
        """The rows in the order of their indices, with whole columns."""
        ordered = sorted(self._rows.items(), key=lambda item: (item[1].row.index or 0, item[0]))
        number_of = {key: number for number, (key, _row) in enumerate(ordered)}
        training = Training([ranked.row for _key, ranked in ordered], raw_rewards=self._raw_rewards)
        for members in self._updates:
            training.updates.append(sorted(map(number_of.__getitem__, members)))
        for key, ranked in ordered:
            new_log_prob = self._assemble(ranked)
            if new_log_prob is not None:
                training.log_prob[number_of[key]] = new_log_prob
        return training

    def _new_row(self, ranked: RankFile, number: int, row: TrainingRow) -> RankedRow:
        padded = ranked.cell("max_seq_lens", number) if ranked.is_padded else None
        length = optional_number(padded, "max_seq_lens", row.place)
        return RankedRow(row, ranked.cp_size, length, self._keeps(row))

    def _add_pieces(
        self,
        row: RankedRow,
        ranked: RankFile,
        number: int,
        more: Mapping[str, Mapping[int, np.ndarray]],
    ) -> None:
        if not row.is_kept:
            return
        for key in (*COLUMN_OF_KEY, *more):
            values = more[key].get(number) if key in more else ranked.array(key, number)
            if values is None:
                continue
            if len(values) > row.row.response_length:
                problem = (
                    f"{key} has {len(values)} entries for {row.row.response_length} tokens of the response"
                )
                raise row.row.place.error(problem)
            row.pieces.setdefault(key, []).append(Piece(ranked.rank, ranked.cp_rank, values.copy()))

    def _assemble(self, ranked: RankedRow) -> np.ndarray | None:
        """Fill the columns of a row; the answer is its log-prob at the update, where that was added."""
        new_log_prob = None
        for key in ranked.pieces:
            whole = ranked.whole(key)
            if whole is None:
                self._note(UNPLACED.format(key))
            elif key == NEW_LOG_PROB:
                new_log_prob = whole
            else:
                ranked.row.columns[COLUMN_OF_KEY[key]] = whole
        ranked.pieces.clear()
        return new_log_prob


def _base_row(ranked: RankFile, number: int) -> TrainingRow:
    place = RowPlace(ranked.path, number)
    row = read_row(ranked.values(number), place)
    row.index = optional_number(ranked.cell("sample_indices", number), "sample_indices", place)
    return row


def _key_of(row: TrainingRow) -> bytes:
    """The same for copies of a row; rows of one rollout may share an index and differ in their tokens."""
    digest = blake2b(row.tokens.tobytes(), digest_size=16).digest()
    return f"{row.index} {row.prompt_length} ".encode() + digest

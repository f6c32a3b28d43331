"""Rollout summaries of tinker-cookbook: rewards, groups and lengths of the turns, without tokens.

On by default (`rollout_json_export`), a file an iteration: `iteration_NNNNNN/train_rollout_summaries.jsonl`,
and before 1ee0a92 (2026-03-25) `train_iteration_NNNNNN_rollout_summaries.jsonl`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sorl.importing.dumps.files import is_settled, json_objects, numbered
from sorl.importing.dumps.rows import Dump, DumpStep, Row
from sorl.spec import InputError

FILE = "train_rollout_summaries.jsonl"
FLAT_FILE = "train_iteration_{}_rollout_summaries.jsonl"
FIRST_BYTES = b'{"schema_version":'

NO_TOKENS = (
    "Rollout summaries hold no tokens and no log-probs: rewards, groups and lengths of turns are read. Tokens"
    " are in captures (tinker_cookbook.capture, since 2026-07-30)."
)


class Scope(NamedTuple):
    """Which rollout of which iteration."""

    iteration: int
    group: int
    trajectory: int

    @property
    def name(self) -> str:
        """The name of the trajectory."""
        return f"{self.iteration}-{self.group}-{self.trajectory}"


def summary_files(folder: Path) -> dict[int, Path]:
    """The files of a training run by iteration."""
    files = numbered(folder, FLAT_FILE)
    for iteration, subfolder in numbered(folder, "iteration_{}").items():
        if (subfolder / FILE).is_file():
            files[iteration] = subfolder / FILE
    return dict(sorted(files.items()))


def summaries(file: Path, iteration: int) -> Iterator[tuple[Scope, Row]]:
    """Yield what is known of each rollout of an iteration, without tokens."""
    for place, record in enumerate(json_objects(file)):
        where = f"'{file}', row {place}"
        if record.get("iteration", iteration) != iteration:
            raise InputError(f"{where}: it is of iteration {record['iteration']}")
        group = _whole_number(record, "group_idx", where)
        scope = Scope(iteration, group, _whole_number(record, "traj_idx", where))
        sampled_by = record.get("sampling_client_step")
        version = None if sampled_by is None else _whole_number(record, "sampling_client_step", where)
        rollout = Row(
            scope.name,
            np.zeros(0, np.int32),
            0,
            np.zeros(0, bool),
            reward=_number(record.get("total_reward"), f"{where}: total_reward"),
            group=f"{iteration}-{group}",
            version=version,
            turn_lengths=_turn_lengths(record, where),
            is_measured=False,
        )
        yield scope, rollout


class TinkerSummaries(Dump):
    """Summaries of a run that was not captured. A step is an iteration, counted from 0."""

    trainer = "tinker-cookbook"
    format = "rollout summaries"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the folder of a run has summaries of its first iterations."""
        for file in summary_files(folder).values():
            with file.open("rb") as handle:
                return handle.read(len(FIRST_BYTES)) == FIRST_BYTES
        return False

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield the iterations after `after`."""
        files = summary_files(self.folder)
        newest = max(files, default=-1)
        for iteration, file in files.items():
            if iteration <= after:
                continue
            if is_live and not is_settled(file, iteration < newest):
                return
            self.note(NO_TOKENS)
            rows = [rollout for _, rollout in summaries(file, iteration)]
            if rows:
                yield DumpStep(iteration, rows)


def _turn_lengths(record: dict[str, Any], where: str) -> tuple[int, ...]:
    turns = record.get("steps")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise InputError(f"{where}: steps is no list of objects")
    return tuple(_whole_number(turn, "ac_len", where) for turn in turns)


def _whole_number(record: dict[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or value < 0:
        raise InputError(f"{where}: {key} is no whole number")
    return value


def _number(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{what} is no number")
    return None if math.isnan(value) else float(value)

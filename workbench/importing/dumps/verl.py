"""verl: the rollouts of a step as texts with scores, `{step}.jsonl` in `trainer.rollout_data_dir`.

There are no tokens in it, and a text without its special tokens cannot be turned back into them. So its rows
carry what a rollout was worth and whose group it is of, and nothing about the loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sorl.importing.dumps import files
from sorl.importing.dumps.rows import Dump, DumpStep, Row
from sorl.spec import InputError

NAMES = "{}.jsonl"
KEYS = {"input", "output", "score", "step"}  # of every row, of all versions
FIRST_LINE = 4 * 2**20  # bytes of it that are read to tell what a file is
PADDING = re.compile(r"pad[0-9a-f]{32}_")  # begins the key of a row that only fills up a batch
WHAT_TEXTS_ALLOW = (
    "This folder (trainer.rollout_data_dir) has texts and scores, no tokens and no log-probs: rewards and "
    "groups can be judged, ratios, clipping, staleness and entropy cannot. To see those, train with sorl's "
    "plugin for verl, or switch on skip.rollout_tq, which writes tokens and the sampler's log-probs."
)


class _Key(NamedTuple):
    """Whose row it is."""

    group: str
    trajectory: str


class VerlDump(Dump):
    """Texts and scores of verl: of its trainer V1, which names rows, and of the older one, which does not."""

    trainer = "verl"
    format = NAMES.format("{step}")

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the first rows of numbered files are training rollouts of verl with that number as step.

        Validation (`trainer.validation_data_dir`) writes the same files, with a `reward` in every row.
        """
        for number, file in files.numbered(folder, NAMES).items():
            if file.stat().st_size:
                return _is_rollout(_first_object(file), number)
        return False

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield a step a file."""
        numbered = files.numbered(self.folder, NAMES)
        newest = max(numbered, default=0)
        for number, file in numbered.items():
            if number <= after:
                continue
            if is_live and not files.is_settled(file, later=number < newest):
                return
            step = self._step(number, file)
            if step.rows:
                yield step
            else:
                self.note(f"{file.name} has no complete row and is left out.")

    def _step(self, number: int, file: Path) -> DumpStep:
        self.note(WHAT_TEXTS_ALLOW)
        rows = []
        pad_count = 0
        for index, entry in enumerate(files.json_objects(file)):
            place = f"'{file}', row {index}"
            _check_entry(entry, number, place)
            name = entry.get("uid")
            if isinstance(name, str) and PADDING.match(name):
                pad_count += 1
                continue
            key = self._key(entry, f"{number}-{index}", place)
            rows.append(_row(key, entry, self._reward(entry["score"], place)))
        self.note_count("{} rows that only fill up a batch were left out.", pad_count)
        if files.ends_within_line(file):
            self.note(f"{file.name} ends within a line: that row, and any after it, is missing.")
        return DumpStep(number, rows)

    def _key(self, entry: Mapping[str, Any], default: str, place: str) -> _Key:
        """Group and trajectory from the name of a row, `{uid}_{session}_{index}`."""
        name = entry.get("uid")
        if name is None:
            self.note("Rollouts with the same prompt are taken for one group: this verl writes no group id.")
            digest = blake2b(entry["input"].encode("utf-8", "surrogatepass"), digest_size=8)
            return _Key(digest.hexdigest(), default)
        if not isinstance(name, str):
            raise InputError(f"{place}: uid is no text")
        group, *numbers = name.rsplit("_", 2)
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            return _Key(name, name)
        return _Key(group, f"{group}_{numbers[0]}")

    def _reward(self, score: Any, place: str) -> float | None:
        if not isinstance(score, int | float) or isinstance(score, bool):
            raise InputError(f"{place}: score is no number")
        if isfinite(score):
            return float(score)
        self.note("Some scores are NaN or infinite and count as unknown.")
        return None


def _row(key: _Key, entry: Mapping[str, Any], reward: float | None) -> Row:
    row = Row(
        trajectory=key.trajectory,
        tokens=np.zeros(0, np.int32),
        prompt_length=0,
        written=np.zeros(0, bool),
        reward=reward,
        group=key.group,
        question=entry["input"],
    )
    return row.without_tokens()


def _check_entry(entry: Mapping[str, Any], step: int, place: str) -> None:
    """Raise InputError where a row is none of this step."""
    if missing := sorted(KEYS - entry.keys()):
        raise InputError(f"{place}: there is no {missing[0]}")
    if not isinstance(entry["input"], str):
        raise InputError(f"{place}: input is no text")
    if entry["step"] != step:
        raise InputError(f"{place}: it is of another step than its file, {step}")


def _first_object(file: Path) -> Any:
    with file.open("rb") as handle:
        line = handle.readline(FIRST_LINE)
    if not line.startswith(b'{"input": '):  # where the writer begins, whatever its version
        return None
    try:
        return files.decoded(line)
    except (ValueError, RecursionError):
        return None


def _is_rollout(entry: Any, step: int) -> bool:
    return (
        isinstance(entry, dict) and entry.keys() >= KEYS and "reward" not in entry and entry["step"] == step
    )

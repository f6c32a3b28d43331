"""Rows of slime's and miles' train_data, read from untrusted values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sorl.importing.dumps import files
from sorl.spec import InputError

# Names in train_data, and what they are here.
COLUMN_OF_KEY = {
    "rollout_log_probs": "log_prob_behaviour",
    "log_probs": "log_prob_old",
    "ref_log_probs": "log_prob_ref",
    "advantages": "advantages",
    "returns": "returns",
    "values": "values_old",
    "entropy": "entropy",
}


class RowPlace(NamedTuple):
    """Where a row stands in the files, for messages."""

    file: Path
    row: int

    def error(self, problem: str) -> InputError:
        """What is wrong with the row, in one line."""
        return InputError(f"'{self.file}', row {self.row}: {problem}")


@dataclass
class TrainingRow:
    """One sequence that the trainer trained on, as train_data has it.

    Axes: P tokens of the prompt, R of the response.
    """

    place: RowPlace
    tokens: np.ndarray  # (P+R,) int32
    prompt_length: int  # P
    trained: np.ndarray  # (R,) bool, the mask of the loss
    position: int | None = None  # in the samples of rollout_data
    index: int | None = None  # `Sample.index`
    rollout_id: int | None = None  # rows of one rollout share it within the step
    raw_reward: float | None = None
    is_truncated: bool = False
    weight_versions: Sequence[object] = ()
    columns: dict[str, np.ndarray] = field(default_factory=dict)  # (R,) float32, by COLUMNS of `rows`

    @property
    def total_length(self) -> int:
        """P + R."""
        return len(self.tokens)

    @property
    def response_length(self) -> int:
        """R."""
        return len(self.trained)


@dataclass
class Training:
    """The train_data of a step."""

    rows: list[TrainingRow]
    updates: list[list[int]] = field(default_factory=list)  # row numbers of each; none: not known
    log_prob: dict[int, np.ndarray] = field(default_factory=dict)  # (R,) at the row's update, by row number
    raw_rewards: Sequence[object] = ()  # of the whole batch, in the order of rollout_data


def plain_value(value: Any) -> Any:
    """The number in a tensor of one, and anything else as it is."""
    if not hasattr(value, "item") or getattr(value, "ndim", 0) != 0:
        return value
    try:
        return value.item()
    except RuntimeError:  # a tensor without data
        return None


def whole_number(value: Any, what: str, place: RowPlace) -> int:
    """A whole number, also from a tensor or an array of one."""
    item = plain_value(value)
    if isinstance(item, bool) or not isinstance(item, int):
        raise place.error(f"{what} is no whole number")
    return item


def optional_number(value: Any, what: str, place: RowPlace) -> int | None:
    """A whole number or None."""
    return None if value is None else whole_number(value, what, place)


def read_row(values: Mapping[str, Any], place: RowPlace) -> TrainingRow:
    """Tokens, mask and ids of one row of train_data. Raises InputError where lengths do not fit."""
    tokens = files.token_ids(required(values, "tokens", place), "tokens", place.file).copy()
    length = whole_number(required(values, "response_lengths", place), "response_lengths", place)
    if not 0 <= length <= len(tokens):
        raise place.error(f"a response of {length} tokens in a sequence of {len(tokens)}")
    trained = files.flags(required(values, "loss_masks", place), "loss_masks", place.file)
    if len(trained) != length:
        raise place.error(f"loss_masks has {len(trained)} entries for {length} tokens of the response")
    total = optional_number(values.get("total_lengths"), "total_lengths", place)
    if total not in (None, len(tokens)):
        raise place.error(f"total_lengths is {total}, and there are {len(tokens)} tokens")
    return TrainingRow(
        place,
        tokens,
        len(tokens) - length,
        trained,
        rollout_id=optional_number(values.get("rollout_ids"), "rollout_ids", place),
        raw_reward=finite(values.get("local_raw_reward")),
        is_truncated=bool(optional_number(values.get("truncated"), "truncated", place)),
        weight_versions=list_or_empty(values.get("weight_versions")),
    )


def read_columns(values: Mapping[str, Any], row: TrainingRow) -> dict[str, np.ndarray]:
    """The columns of a row that are whole in its file, (R,) each. Raises InputError for other lengths."""
    columns = {}
    for key, name in COLUMN_OF_KEY.items():
        if values.get(key) is None:
            continue
        column = files.floats(values[key], key, row.place.file)
        if len(column) != row.response_length:
            problem = f"{key} has {len(column)} entries for {row.response_length} tokens of the response"
            raise row.place.error(problem)
        columns[name] = column.copy()  # it may be a view into the storage of all rows
    return columns


def required(values: Mapping[str, Any], key: str, place: RowPlace) -> Any:
    """The value of a key that every row has. Raises InputError where it is missing."""
    if values.get(key) is None:
        raise place.error(f"{key} is missing")
    return values[key]


def list_or_empty(value: Any) -> Sequence[object]:
    """A list as it is, and nothing for anything else."""
    return value if isinstance(value, list | tuple) else ()


def finite(value: Any) -> float | None:
    """A finite number, or None for anything else: a reward may be a dict, text or NaN."""
    item = plain_value(value)
    if isinstance(item, bool) or not isinstance(item, int | float):
        return None
    try:
        number = float(item)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def objects(value: Any, what: str, file: Path) -> list[Mapping[str, Any]]:
    """A list of dicts. Raises InputError for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise InputError(f"'{file}': {what} is no list of dicts")
    return value

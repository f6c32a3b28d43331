"""Which metric of a log is which column of ours, in our unit, and what may be a column that is missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from shlex import quote
from typing import NamedTuple

import numpy as np

from sorl.importing import names
from sorl.importing.mapping import listed
from sorl.importing.numbers import Column
from sorl.measures import column_types

REWARD = "step.reward"
SUCCESS = "step.success"
SHORTEST = 3  # values of a series, in a log without a known name
_SHARES = (REWARD, SUCCESS, "step.truncated_frac", "step.clip_frac", "step.heldout_success")
_PERCENT = re.compile(r"(?<![a-z])(?:percent|percentage|pct|perc)(?![a-z])|%", re.IGNORECASE)
_NEGATED = re.compile(r"(?i)(?:.*[/_.])?entropy_loss")


class Converted(NamedTuple):
    """A metric in the unit of its column, and sentences on how it came there."""

    values: Column
    notes: list[str]


def columns_of(metrics: Collection[str]) -> dict[str, str]:
    """Return table.column -> metric, of the columns that hold numbers."""
    read: dict[str, str] = {}
    for place, metric in names.chosen(metrics).items():
        table, _, name = place.partition(".")
        if column_types(table).get(name) == "DOUBLE":
            read[place] = metric
    return read


def has_series(metrics: Mapping[str, Column]) -> bool:
    """Whether some metric has enough numbers for a curve."""
    return any(int(np.isfinite(values.compressed()).sum()) >= SHORTEST for values in metrics.values())


def converted(place: str, metric: str, values: Column) -> Converted:
    """Return a metric in the unit of its column.

    A percentage becomes a share of 1. An entropy that is logged as a loss, so below 0, changes its sign.
    """
    numbers = values.compressed()
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return Converted(values, [])
    is_percentage = numbers.min() >= 0 and 1 < numbers.max() <= 100
    if place in _SHARES and is_percentage and _PERCENT.search(metric):
        return Converted(values / 100, [f"{metric}: a percentage, read as a share of 1"])
    if place == "step.entropy" and numbers.max() <= 0 > numbers.min() and _NEGATED.fullmatch(metric):
        return Converted(-values, [f"{metric}: a loss, so the entropy is read with the other sign"])
    return Converted(values, [])


def candidates_of(read: Collection[str], others: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns that a diagnosis asks for and the log lacks, with the metrics that may be it."""
    by_column: dict[str, tuple[str, ...]] = {}
    for column in names.CLUES:
        if column in read or (column == REWARD and SUCCESS in read):
            continue
        metrics = names.candidates(column, others)
        if metrics:
            by_column[column] = metrics
    return by_column


def notes_on_the_reward(read: Mapping[str, str], others: Sequence[str]) -> list[str]:
    """Say, where neither reward nor success was read, what may be it and how to name it."""
    if REWARD in read or SUCCESS in read:
        return []
    candidates = names.candidates(REWARD, others)
    if candidates:
        use = f"To use one: --map {quote(f'reward={candidates[0]}')}"
        return [f"no reward found; candidates: {', '.join(candidates)}. {use}"]
    return [f"no reward found; the metrics are: {listed([*read.values(), *others])}"]

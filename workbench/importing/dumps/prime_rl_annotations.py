"""Annotations of prime-rl's traces: records that the orchestrator and the trainer wrote of a trace later on.

A record names a trace, and holds facts and lists of numbers for branches of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from sorl.importing.dumps.files import floats
from sorl.importing.dumps.json_streams import JsonStream, Record
from sorl.spec import InputError

WINDOW = 3  # steps in flight: so long a trace waits for its step, and an annotation for its trace
MOST_WAITING_TOKENS = 2**26

T = TypeVar("T")


@dataclass(frozen=True)
class Shipment:
    """That a trace is in the batch of a step."""

    time: float | None  # seconds
    advantages: Mapping[int, np.ndarray]  # by branch, as long as its tokens or shorter


@dataclass(frozen=True)
class Annotation:
    """What the trainer told of a branch, as long as its tokens or shorter; NaN outside the loss."""

    log_prob: np.ndarray
    entropy: np.ndarray | None
    size: int  # bytes of its line
    file: Path

    @property
    def tokens(self) -> int:
        """Number of trained tokens."""
        return int(np.isfinite(self.log_prob).sum())


class _Entry(NamedTuple, Generic[T]):
    value: T
    tokens: int
    since: int


class Waiting(Generic[T]):
    """Things by the name of their trace that wait for their step, at most WINDOW steps and so many tokens."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}
        self._tokens = 0

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def put(self, name: str, value: T, tokens: int, now: int) -> None:
        """Keep a value from step count `now` on, in place of an older one of that name."""
        self.take(name)
        self._entries[name] = _Entry(value, tokens, now)
        self._tokens += tokens

    def get(self, name: str) -> T | None:
        """The value of a name, which stays."""
        entry = self._entries.get(name)
        return None if entry is None else entry.value

    def take(self, name: str) -> T | None:
        """The value of a name, which waits no longer."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self._tokens -= entry.tokens
        return entry.value

    def expire(self, now: int) -> Iterator[T]:
        """Drop and yield what has waited too long, and the oldest where there are too many tokens."""
        for name, entry in list(self._entries.items()):
            if now - entry.since <= WINDOW and self._tokens <= MOST_WAITING_TOKENS:
                return
            self.take(name)
            yield entry.value


class Resume(NamedTuple):
    """A run that went on from an earlier step."""

    record: int  # number of the first record after it
    step: int


class Attempts:
    """Finds the steps that were done again, by a first pass over what was sent to the trainer."""

    def __init__(self, stream: JsonStream) -> None:
        self._stream = stream
        self._records = 0
        self._batches = 0
        self._step = -1
        self._time: float | None = None
        self._resumes: list[Resume] = []
        self._repeats: list[Resume] = []  # the step of before, stamped with another time

    def scan(self, *, is_live: bool) -> None:
        """Read what has come since the last scan."""
        while (record := self._stream.read(is_live=is_live)) is not None:
            self._records += 1
            step = shipped_step(record)
            # An evaluation is stamped with the step that began it, maybe long ago, and has no advantages.
            if step is None or not record.value.get("branches"):
                continue
            time = seconds(record.value["info"]["ship"].get("time"))
            if step < self._step:
                self._resumes.append(Resume(self._records, step))
            elif step == self._step and time != self._time:
                self._repeats.append(Resume(self._records, step))
            self._batches += step != self._step
            self._step = step
            self._time = time
        self._stream.close()

    def is_overtaken(self, record: int, step: int) -> bool:
        """Whether a later attempt did the step again."""
        resumes = list(self._resumes)
        if 2 * len(self._repeats) <= self._batches:  # otherwise each batch is stamped in parts
            resumes += self._repeats
        return any(record < resume.record and step >= resume.step for resume in resumes)


def shipped_step(record: Record) -> int | None:
    """The step into whose batch a record of the orchestrator says a trace went, if it says one."""
    info = record.value.get("info")
    ship = info.get("ship") if isinstance(info, dict) else None
    if ship is None:
        return None
    step = ship.get("step") if isinstance(ship, dict) else None
    if type(step) is not int or step < 0:
        raise InputError(
            f"'{record.file}': info.ship.step of trace {record.value.get('trace_id')} is no step"
        )
    return step


def trace_name(record: Record) -> str:
    """The trace that an annotation is about."""
    name = record.value.get("trace_id")
    if not isinstance(name, str):
        raise InputError(f"'{record.file}': an annotation has no trace_id")
    return name


def annotated_branches(record: Record) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number of each branch in an annotation, and what is told of it."""
    branches = record.value.get("branches") or []
    name = record.value.get("trace_id")
    if not isinstance(branches, list):
        raise InputError(f"'{record.file}': branches of trace {name} is no list")
    for branch in branches:
        index = branch.get("index") if isinstance(branch, dict) else None
        if type(index) is not int or index < 0:
            raise InputError(f"'{record.file}': a branch of trace {name} has no index")
        yield index, branch


def read_annotation(branch: Mapping[str, Any], where: str, record: Record) -> Annotation | None:
    """The trainer's streams of a branch, if they are there."""
    if not branch.get("trainer_logprobs"):
        return None
    log_prob = floats(branch["trainer_logprobs"], f"{where}: trainer_logprobs", record.file)
    entropy = None
    if branch.get("entropies"):
        entropy = floats(branch["entropies"], f"{where}: entropies", record.file)
        if len(entropy) != len(log_prob):
            problem = f"entropies has {len(entropy)} entries, and trainer_logprobs {len(log_prob)}"
            raise InputError(f"'{record.file}': {where}: {problem}")
    return Annotation(log_prob, entropy, record.size, record.file)


def seconds(value: Any) -> float | None:
    """A time, if it is one."""
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None

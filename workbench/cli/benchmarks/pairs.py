"""Two sides timed in turn, A B A B: what else the machine does falls on both; ratios are taken pair by pair."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Work = Callable[[], float]  # does the work and returns how much it was, in the comparison's unit
Prepare = Callable[[], Work]  # whatever must happen before each repetition and is not timed


@dataclass(frozen=True)
class Sample:
    """One timed repetition. CPU seconds are those of the whole process, its threads included."""

    work: float
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Work per second of wall time."""
        return self.work / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Work per second of CPU time, which other processes on the machine hardly change."""
        return self.work / self.cpu_seconds


@dataclass(frozen=True)
class Side:
    """One side of a comparison: what ran, and how it did each time."""

    label: str
    samples: list[Sample]

    @property
    def rate(self) -> float:
        """Median of work per second."""
        return median(s.rate for s in self.samples)


@dataclass(frozen=True)
class Target:
    """The bar that a comparison is held to: its median ratio, or the median rate of our side, is at least this."""

    of: Literal["ratio", "rate"]
    at_least: float

    def __str__(self) -> str:
        return f"{'ratio' if self.of == 'ratio' else 'ours'} >= {self.at_least:,.10g}"


@dataclass(frozen=True)
class Comparison:
    """Ours beside a baseline; sample i of one side ran next to sample i of the other."""

    name: str
    unit: str  # of a rate: "episodes/s"
    ours: Side
    baseline: Side
    target: Target
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # sizes that the numbers depend on

    @property
    def ratios(self) -> list[float]:
        """Our rate over the baseline's, pair by pair."""
        return [a.rate / b.rate for a, b in zip(self.ours.samples, self.baseline.samples, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the pairwise ratios."""
        return median(self.ratios)

    @property
    def cpu_ratio(self) -> float:
        """The same by CPU time; far from `ratio` it says that the machine was busy with something else."""
        pairs = zip(self.ours.samples, self.baseline.samples, strict=True)
        return median(a.cpu_rate / b.cpu_rate for a, b in pairs)

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return (self.ratio if self.target.of == "ratio" else self.ours.rate) >= self.target.at_least


def timed(prepare: Prepare) -> Callable[[], Sample]:
    """A repetition in this process: prepare, then time the work."""

    def once() -> Sample:
        work = prepare()
        cpu, began = time.process_time(), time.perf_counter()
        done = work()
        return Sample(done, time.perf_counter() - began, time.process_time() - cpu)

    return once


def alternate(
    ours: Callable[[], Sample], baseline: Callable[[], Sample], rounds: int, warm_up: int = 1
) -> tuple[list[Sample], list[Sample]]:
    """`rounds` samples of each side in turn, after `warm_up` repetitions of each that do not count."""
    for _ in range(warm_up):
        ours()
        baseline()
    pairs = [(ours(), baseline()) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]

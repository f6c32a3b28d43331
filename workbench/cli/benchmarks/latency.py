"""How long answers take: their 95th percentile beside the bar that it is held to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.cli.benchmarks.pairs import Sample


@dataclass
class Latency:
    """Answers of one kind, and the seconds that 95 of 100 of them must not exceed."""

    name: str
    bar: float
    samples: list[Sample] = field(default_factory=list)
    unit: str = "s"
    of: str = "p95"

    def at(self, share: float, *, cpu: bool = False) -> float:
        """The nearest-rank quantile of the seconds (of CPU time, where asked for)."""
        values = sorted(s.cpu_seconds if cpu else s.seconds for s in self.samples)
        return values[max(0, math.ceil(len(values) * share) - 1)]

    @property
    def met(self) -> bool:
        """Whether the bar is kept by the clock."""
        return self.at(1.0 if self.of == "max" else 0.95) <= self.bar

    @property
    def met_by_cpu(self) -> bool:
        """Whether it is kept by CPU time, which other processes on the machine hardly change."""
        return self.at(1.0 if self.of == "max" else 0.95, cpu=True) <= self.bar


def timed(work: Callable[[], Any]) -> Sample:
    """One answer: seconds by the clock, and of CPU time over all threads of this process."""
    cpu, began = time.process_time(), time.perf_counter()
    work()
    return Sample(1, time.perf_counter() - began, time.process_time() - cpu)

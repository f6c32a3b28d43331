"""Two sides timed in turn, A B A B: what else the machine does falls on both; ratios are taken pair by pair.

Also answers against their bar, and results as tables for people and as JSON for programs.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import median
from typing import Any, Literal

import typer

from sorl.cli.tables import print_table
from sorl.spec import RunSettings

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
    """The bar that a comparison is held to: its median ratio, or the median rate of our side, is at least
    this.
    """

    of: Literal["ratio", "rate"]
    at_least: float

    def __str__(self) -> str:
        return f"{'ratio' if self.of == 'ratio' else 'ours'} >= {self.at_least:,.10g}"


@dataclass(frozen=True)
class Comparison:
    """Ours against a baseline; sample i of one side ran next to sample i of the other."""

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
        cpu = time.process_time()
        began = time.perf_counter()
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


def answered(work: Callable[[], Any]) -> Sample:
    """One answer: seconds by the clock, and of CPU time over all threads of this process."""
    cpu = time.process_time()
    began = time.perf_counter()
    work()
    return Sample(1, time.perf_counter() - began, time.process_time() - cpu)


@dataclass(frozen=True)
class Share:
    """Seconds of some iterations of one algorithm, by what they were spent on."""

    algorithm: str
    iterations: int
    total: float
    rollout: float
    update: float
    logging: float


@dataclass(frozen=True)
class Memory:
    """Peak memory above the loaded model, and how far the results of the two sides are apart."""

    tokens: int
    vocabulary: int
    parts_bytes: int
    whole_bytes: int
    parts_seconds: float
    whole_seconds: float
    difference: float  # nats, largest |a - b| of a log-prob
    entropy_difference: float  # nats, of an entropy: a sum over the whole vocabulary
    gradient_difference: float  # largest over all weights, in units of the largest gradient

    @property
    def ratio(self) -> float:
        """Peak memory in parts over peak memory at once."""
        return self.parts_bytes / self.whole_bytes


@dataclass(frozen=True)
class Peer:
    """What one tool needed for `runs` runs, and what we did; seconds of CPU time and by the clock."""

    tool: str
    version: str
    runs: int
    points: int  # that a run was thinned out to
    ready_s: float
    ready_cpu_s: float
    again_s: float
    again_cpu_s: float
    ours_s: float
    ours_cpu_s: float


@dataclass
class Results:
    """Everything that one run of the benchmark measured."""

    settings: RunSettings
    rounds: int
    comparisons: list[Comparison] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)


_SMALL = 0.2  # of the memory of all logits at once
_BUSY = 0.15  # relative gap between the ratios by wall and by CPU time from which the machine was not quiet


def show(results: Results) -> None:
    """Print the tables, and what the reader must know to read them."""

    def table(rows: list[dict[str, Any]]) -> None:
        if rows:
            print_table(list(rows[0]), [list(row.values()) for row in rows])
            typer.echo()

    table([comparison_row(c) for c in results.comparisons])
    if notes := [
        f"{c.name}: {c.ours.label}, against {c.baseline.label}; {c.note}" for c in results.comparisons
    ]:
        typer.echo("\n".join(notes) + "\n")
    table([latency_row(x) for x in results.latencies])
    table([peer_row(x) for x in results.peers])
    if results.latencies:
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        typer.echo(
            "CPU seconds are those of all threads: on a machine with nothing else to do an answer takes no"
            f" longer. Load average at the end: {load} on {os.cpu_count()} cores."
        )
    table([share_row(s) for s in results.shares])
    table([memory_row(m) for m in results.memory])
    if not results.comparisons and not results.shares:
        return
    typer.echo(
        f"Medians of {results.rounds} rounds, both sides in turn after a warm-up; ratio = ours / baseline,"
        f" pair by pair. Torch threads: {results.settings.threads}."
    )
    busy = [c.name for c in results.comparisons if abs(c.ratio / c.cpu_ratio - 1) > _BUSY]
    if busy:
        typer.echo(
            f"By CPU time the ratio is another one for: {', '.join(busy)}. Where no side runs several"
            " threads, the machine was busy with something else: measure again."
        )


def comparison_row(c: Comparison) -> dict[str, Any]:
    """A row of the table: rates, the median ratio with its range, and the bar."""
    return {
        "measured": c.name,
        "unit": c.unit,
        "ours": _rounded(c.ours.rate),
        "baseline": _rounded(c.baseline.rate),
        "ratio": round(c.ratio, 3),
        "min": round(min(c.ratios), 3),
        "max": round(max(c.ratios), 3),
        "by CPU": round(c.cpu_ratio, 3),
        "target": str(c.target),
        "met": "yes" if c.met else "no",
    }


def latency_row(x: Latency) -> dict[str, Any]:
    """A row of the table of answers: the middle one, the slow end, CPU time, and the bar."""
    cpu = any(s.cpu_seconds for s in x.samples)
    return {
        "answered": x.name,
        "n": len(x.samples),
        "unit": x.unit,
        "median": _rounded(x.at(0.5)),
        "p95": _rounded(x.at(0.95)),
        "max": _rounded(x.at(1.0)),
        "CPU median": _rounded(x.at(0.5, cpu=True)) if cpu else "-",
        "CPU p95": _rounded(x.at(0.95, cpu=True)) if cpu else "-",
        "bar": f"{x.of} <= {x.bar:g}",
        "met": "yes" if x.met else "by CPU" if cpu and x.met_by_cpu else "no",
    }


def peer_row(x: Peer) -> dict[str, Any]:
    """A row of the table of other tools: CPU seconds until one metric of so many runs can be drawn."""
    return {
        "tool": x.tool,
        "runs": x.runs,
        "points a run": x.points,
        "CPU s": _rounded(x.ready_cpu_s),
        "again": _rounded(x.again_cpu_s),
        "ours": _rounded(x.ours_cpu_s),
        "theirs / ours": _rounded(x.ready_cpu_s / x.ours_cpu_s),
    }


def share_row(s: Share) -> dict[str, Any]:
    """A row of the table of shares: seconds an iteration, and what part of them each went into."""
    parts = {name: f"{getattr(s, name) / s.total:.1%}" for name in ("rollout", "update", "logging")}
    return {"algorithm": s.algorithm, "s/iteration": round(s.total / s.iterations, 3), **parts}


def memory_row(m: Memory) -> dict[str, Any]:
    """A row of the table of memory: peak above the loaded model in MB, and by how much the two
    sides differ.
    """
    return {
        "log-probs of": f"{m.tokens:,} tokens, vocabulary {m.vocabulary:,}",
        "in parts, MB": round(m.parts_bytes / 1e6),
        "at once, MB": round(m.whole_bytes / 1e6),
        "ratio": round(m.ratio, 3),
        "target": f"<= {_SMALL:g}",
        "met": "yes" if m.ratio <= _SMALL else "no",
        "s": f"{m.parts_seconds:.1f} / {m.whole_seconds:.1f}",
        "difference": (
            f"{m.difference:.1e} nats a log-prob, {m.entropy_difference:.1e} an entropy, gradients "
            f"{m.gradient_difference:.1e} of the largest"
        ),
    }


def as_json(results: Results) -> dict[str, Any]:
    """Every sample, so that a reader can take other statistics; seconds unless the name says otherwise."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load_average": list(os.getloadavg()),
        },
        "versions": {name: version(name) for name in ("sorl", "torch", "transformers", "duckdb", "pyarrow")},
        "settings": results.settings.model_dump(),
        "rounds": results.rounds,
        "comparisons": [_comparison(c) for c in results.comparisons],
        "memory": [asdict(m) for m in results.memory],
        "latencies": [asdict(x) for x in results.latencies],
        "peers": [asdict(x) for x in results.peers],
        "shares": [
            {**asdict(s), **{f"{n}_frac": getattr(s, n) / s.total for n in ("rollout", "update", "logging")}}
            for s in results.shares
        ],
    }


def _comparison(c: Comparison) -> dict[str, Any]:
    return {
        "name": c.name,
        "unit": c.unit,
        "ours": _side(c.ours),
        "baseline": _side(c.baseline),
        "ratio": {
            "median": c.ratio,
            "min": min(c.ratios),
            "max": max(c.ratios),
            "cpu": c.cpu_ratio,
            "pairs": c.ratios,
        },
        "target": {"of": c.target.of, "at_least": c.target.at_least, "met": c.met},
        "note": c.note,
        "facts": c.facts,
    }


def _side(side: Side) -> dict[str, Any]:
    return {"label": side.label, "rate": side.rate, "samples": [asdict(s) for s in side.samples]}


def _rounded(rate: float) -> float:
    return round(rate) if rate >= 100 else round(rate, 3)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()

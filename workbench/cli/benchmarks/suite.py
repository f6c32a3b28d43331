"""One run of the benchmark: the parts that were asked for, in order, on one scene."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.cli.benchmarks import ingest, packing, recording, rollout, shares, trl, update
from workbench.cli.benchmarks.pairs import Comparison
from workbench.cli.benchmarks.retrieval import measure as retrieval
from workbench.cli.benchmarks.scene import Scene, scene
from workbench.cli.benchmarks.shares import Share
from workbench.spec import RunSettings

COMPARISONS: dict[str, Callable[[Scene, int], list[Comparison]]] = {
    "rollout": rollout.measure,
    "update": update.measure,
    "logging": recording.measure,
    "ingest": ingest.measure,
    "packing": packing.measure,
    "retrieval": retrieval,
    "trl": trl.measure,
}


@dataclass
class Results:
    """Everything that one run of the benchmark measured."""

    settings: RunSettings
    rounds: int
    comparisons: list[Comparison] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)


def run(
    settings: RunSettings, cache: Path, parts: Sequence[str], rounds: int, say: Callable[[str], None] = lambda _: None
) -> Results:
    """Measure `parts` (names of benchmarks.PARTS); `say` hears of each before it starts."""
    results = Results(settings, rounds)
    say("the policy: the default warm start (made on first use, under a minute)")
    with scene(settings, cache) as stage:
        for part in parts:
            say(part)
            if part == "shares":
                results.shares = shares.measure(stage, rounds)
            else:
                results.comparisons += COMPARISONS[part](stage, rounds)
    return results

"""One run of the benchmark: the parts that were asked for, in order, on one scene."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.cli.benchmarks import ingest, live, packing, recording, replay, rollout, shares, trl, update, vocabulary
from workbench.cli.benchmarks.browse import Browse
from workbench.cli.benchmarks.latency import Latency
from workbench.cli.benchmarks.pairs import Comparison
from workbench.cli.benchmarks.peers import Peer
from workbench.cli.benchmarks.retrieval import measure as retrieval
from workbench.cli.benchmarks.scene import Scene, scene
from workbench.cli.benchmarks.shares import Share
from workbench.cli.benchmarks.vocabulary import Memory
from workbench.spec import RunSettings

COMPARISONS: dict[str, Callable[[Scene, int], Sequence[Comparison | Latency]]] = {
    "rollout": rollout.measure,
    "update": update.measure,
    "logging": recording.measure,
    "ingest": ingest.measure,
    "packing": packing.measure,
    "retrieval": retrieval,
    "replay": replay.measure,
    "live": live.measure,
    "trl": trl.measure,
}


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


def run(
    settings: RunSettings, cache: Path, parts: Sequence[str], rounds: int, say: Callable[[str], None] = lambda _: None,
    crowd: Browse | None = None,
) -> Results:  # fmt: skip
    """Measure `parts` (names of benchmarks.PARTS); `say` hears of each before it starts. `crowd` is for browse."""
    results = Results(settings, rounds)
    if "browse" in parts:
        say("browse")
        results.latencies, results.peers = (crowd or Browse()).measure(say)
    if on_scene := [part for part in parts if part != "browse"]:
        _on_scene(results, settings, cache, on_scene, say)
    return results


def _on_scene(
    results: Results, settings: RunSettings, cache: Path, parts: Sequence[str], say: Callable[[str], None]
) -> None:
    say("the policy: the default warm start (made on first use, under a minute)")
    with scene(settings, cache) as stage:
        for part in parts:
            say(part)
            if part == "shares":
                results.shares = shares.measure(stage, results.rounds)
            elif part == "vocabulary":
                results.memory = vocabulary.measure(stage)
            else:
                _sort(results, COMPARISONS[part](stage, results.rounds))


def _sort(results: Results, found: Sequence[Comparison | Latency]) -> None:
    results.comparisons += [one for one in found if isinstance(one, Comparison)]
    results.latencies += [one for one in found if isinstance(one, Latency)]

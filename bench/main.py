"""One run of the benchmark: the parts that were asked for, in order, on one scene."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import language_model, live, processes, stored, training, vocabulary
from bench.browse import Browse
from bench.crowd import Size
from bench.measure import Comparison, Latency, Results, as_json, show
from bench.training import Scene, defaults, scene
from sorl.cli.bench import ON_REQUEST, PARTS
from sorl.cli.tables import echo
from sorl.spec import InputError, RunSettings, nearest

COMPARISONS: dict[str, Callable[[Scene, int], Sequence[Comparison | Latency]]] = {
    "rollout": training.rollout,
    "update": training.update,
    "mixture": training.mixture,
    "logging": training.logging,
    "ingest": stored.ingest,
    "packing": processes.packing,
    "retrieval": stored.retrieval,
    "replay": stored.replay,
    "live": live.measure,
    "trl": processes.trl,
    "llm": language_model.measure,
}


def main(
    runs: Path, only: str | None, rounds: int, output: Path | None, threads: int, size: str, data: Path | None
) -> None:
    """Run the benchmark, print the tables, write the JSON."""
    parts = chosen(only)
    if output is not None and not output.parent.is_dir():
        raise InputError(f"no folder '{output.parent}' for --output {output}; make it first")
    crowd = Browse(Size.read(size), data)
    results = run(defaults(threads), runs / ".cache", parts, rounds, lambda line: echo(line, err=True), crowd)
    if output is not None:
        output.write_text(json.dumps(as_json(results), indent=2) + "\n")
    show(results)


def chosen(only: str | None) -> list[str]:
    """The parts to measure: those named, in the suite's order; without names all that this
    machine can run.
    """
    if only is None:
        reason = processes.missing_trl()
        if reason:
            echo(f"without trl: {reason}", err=True)
        return [part for part in PARTS if part not in ON_REQUEST and (part != "trl" or not reason)]
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise InputError(
                f"--only '{name}' is no part{nearest(name, PARTS)}; there is: {', '.join(PARTS)}"
            )
    if not names:
        raise InputError(f"--only names no part; there is: {', '.join(PARTS)}")
    return [part for part in PARTS if part in names]


def run(
    settings: RunSettings,
    cache: Path,
    parts: Sequence[str],
    rounds: int,
    say: Callable[[str], None] = lambda _: None,
    crowd: Browse | None = None,
) -> Results:
    """Measure `parts` (names of PARTS); `say` gets the name of each before it starts. `crowd`
    is for browse.
    """
    results = Results(settings, rounds)
    if "browse" in parts:
        say("browse")
        results.latencies, results.peers = (crowd or Browse()).measure(say)
    if on_scene := [part for part in parts if part != "browse"]:
        say("the policy: the default warm start (made on first use, under a minute)")
        with scene(settings, cache) as stage:
            for part in on_scene:
                say(part)
                _measure(results, part, stage)
    return results


def _measure(results: Results, part: str, stage: Scene) -> None:
    if part == "shares":
        results.shares = training.shares(stage, results.rounds)
    elif part == "vocabulary":
        results.memory = vocabulary.measure(stage)
    else:
        found = COMPARISONS[part](stage, results.rounds)
        results.comparisons += [one for one in found if isinstance(one, Comparison)]
        results.latencies += [one for one in found if isinstance(one, Latency)]

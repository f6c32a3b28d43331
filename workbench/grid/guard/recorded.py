"""What runs recorded about their comparison: who trained on what, how much, and what their trainers flagged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from workbench.grid.guard.amounts import rollouts, sampled, updates
from workbench.grid.guard.finding import Finding, listed
from workbench.spec import GUARD, RunSettings

if TYPE_CHECKING:
    from workbench.store.reader import Reader

ALIKE = 0.01  # token counts that differ by less than this share are the same: sampled episodes differ in length

_QUESTIONS = """
    SELECT run_id, step, questions_hash FROM step
    WHERE questions_hash IS NOT NULL AND list_contains($runs, run_id) ORDER BY run_id, step
"""
_TRAINED = """
    SELECT run_id, count(*) AS steps, sum(updates) AS updates, sum(tokens_trained) AS tokens,
        sum(episodes_sampled) AS sampled FROM step
    WHERE list_contains($runs, run_id) GROUP BY run_id
"""
_EVENTS = """
    SELECT run_id, kind, step, message FROM event
    WHERE list_contains($kinds, kind) AND list_contains($runs, run_id) AND severity <> 'info'
    ORDER BY step NULLS FIRST, run_id
"""


@dataclass(frozen=True)
class Run:
    """A run as the guard wants to know it."""

    run_id: str
    arm: str
    seed: int
    settings: RunSettings
    group_size: int
    algorithm: Any  # resolved: a dataclass of slots
    finished: bool = True


def recorded(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """What is flagged or differs in what `runs` recorded."""
    return [*flagged_runs(reader, runs), *questions(reader, runs), *compute(reader, runs)]


def flagged_runs(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """The checks that trainers saw violated, one finding a check: how many runs, and the first of them."""
    names = {check.kind: check.name for check in GUARD if check.seen in ("start", "step")}
    by_id = {run.run_id: run for run in runs}
    events = defaultdict(list)
    for run_id, kind, step, message in reader.rows(_EVENTS, {"kinds": list(names), "runs": list(by_id)}).rows:
        events[kind].append((by_id[run_id], step, message))
    found = []
    for kind, seen in events.items():
        run, step, message = seen[0]
        arms = tuple(dict.fromkeys(r.arm for r, _, _ in seen))
        count = len({r.run_id for r, _, _ in seen})
        more = f" (and in {count - 1} more runs of {listed(arms)})" if count > 1 else ""
        where = f"{listed([run.arm])}, seed {run.seed}, step {step}"
        found.append(Finding(names[kind], f"{where}: {message}{more}", arms, flagged=True))
    return found


def questions(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Whether the seed reached the arms: equal fingerprints of questions within a seed, others in another.

    Only runs that ask for as many questions of the same world in a step can be compared.
    """
    asked: dict[str, dict[int, int]] = defaultdict(dict)
    for run_id, step, fingerprint in reader.rows(_QUESTIONS, {"runs": [run.run_id for run in runs]}).rows:
        asked[run_id][step] = fingerprint
    found = []
    for pace in _grouped([run for run in runs if run.run_id in asked], _pace).values():
        seeds = _grouped(pace, lambda run: run.seed)
        for seed, alike in seeds.items():
            # Whoever draws again trains on what it drew: other questions than its neighbours', by its own rule.
            found += _differ_within(seed, [run for run in alike if run.algorithm.select.rounds == 1], asked)
        for one, other in combinations(seeds, 2):
            a, b = seeds[one][0], seeds[other][0]
            common = asked[a.run_id].keys() & asked[b.run_id].keys()
            if common and all(asked[a.run_id][step] == asked[b.run_id][step] for step in common):
                message = (
                    f"seeds {one} and {other} trained on the same questions ({listed([a.arm])}): they are no replicates"
                )
                found.append(Finding("questions", message, (a.arm, b.arm), flagged=True))
    return found


def _pace(run: Run) -> tuple[str, int, int]:
    return run.settings.world.model_dump_json(), run.settings.learn.episodes, run.group_size


def _differ_within(seed: int, runs: Sequence[Run], asked: dict[str, dict[int, int]]) -> list[Finding]:
    found = []
    for first, run in ((runs[0], other) for other in runs[1:]):
        common = sorted(asked[first.run_id].keys() & asked[run.run_id].keys())
        step = next((s for s in common if asked[first.run_id][s] != asked[run.run_id][s]), None)
        if step is not None:
            message = (
                f"{listed([first.arm, run.arm])} trained on different questions with seed {seed}, from step {step} on"
            )
            found.append(Finding("questions", message, (first.arm, run.arm), flagged=True))
    return found


def compute(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Tokens that a run of each arm trained on, and amounts that its settings left open or that it did not reach."""
    over = {run.run_id: run for run in runs if run.finished}
    done: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    told = True  # whether the plan has told every difference already
    for run_id, steps, trained, tokens, drawn in reader.rows(_TRAINED, {"runs": list(over)}).rows:
        run = over[run_id]
        rolled = steps * run.settings.learn.episodes
        planned = [count(run.settings, run.algorithm) for count in (rollouts, sampled, updates)]
        # Runs of older versions counted neither draws nor updates.
        seen = (rolled, rolled if drawn is None else drawn, planned[2].low if trained is None else trained)
        told &= all(p.exact and p.low == n for p, n in zip(planned, seen, strict=True))
        done[run.arm].append((*seen, tokens or 0))
    found = []
    for i, unit in enumerate(("rollouts", "sampled episodes", "optimizer updates", "trained tokens")):
        means = {arm: sum(row[i] for row in rows) / len(rows) for arm, rows in done.items()}
        if i < 3 and told:
            continue
        if means and max(means.values()) > (1 + ALIKE) * min(means.values()):
            least, most = min(means, key=lambda arm: means[arm]), max(means, key=lambda arm: means[arm])
            ends = f"{means[least]:,.0f} in {listed([least])} to {means[most]:,.0f} in {listed([most])}"
            message = f"the arms recorded different numbers of {unit} (mean of a finished run: {ends})"
            found.append(Finding("compute", message, tuple(means)))
    return found


def _grouped(runs: Iterable[Run], key: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups

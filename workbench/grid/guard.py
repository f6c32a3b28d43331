"""The fair-comparison guard: whether arms can be compared, by their settings and by what their runs recorded.

The checks themselves, and why they are made, are declared in `spec/guard.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.grid.cell import COSMETIC, Cell, flatten
from workbench.grid.folder import append, folder_of, read_segments
from workbench.spec import GUARD, RunSettings, check

if TYPE_CHECKING:
    from workbench.store.reader import Reader

Resolve = Callable[[str | dict[str, Any], dict[str, Any]], Any]  # to an algorithm: a dataclass of slots

NORMALISER = ("advantage", "aggregate")
OTHER_SLOTS = ("ratio", "clip", "stabilise", "kl", "select", "correction")
ALIKE = 0.01  # numbers of tokens that differ by less than this share are the same: sampled episodes differ in length
EVENTS = {c.kind: c for c in GUARD if c.seen in ("plan", "compare")}  # trainers write what they see themselves

_QUESTIONS = """
    SELECT run_id, step, questions_hash FROM step
    WHERE questions_hash IS NOT NULL AND list_contains($runs, run_id) ORDER BY run_id, step
"""
_TRAINED = """
    SELECT run_id, count(*) AS steps, sum(updates) AS updates, sum(tokens_trained) AS tokens,
        sum(episodes_sampled) AS sampled FROM step
    WHERE list_contains($runs, run_id) GROUP BY run_id
"""
_FLAGGED = """
    SELECT run_id, kind, step, message FROM event
    WHERE list_contains($kinds, kind) AND list_contains($runs, run_id) AND severity <> 'info'
    ORDER BY step NULLS FIRST, run_id
"""


@dataclass(frozen=True)
class Finding:
    """What a check found, as a sentence without its full stop, and the arms that it is about.

    `flagged`: a violation; otherwise a difference that may be intended.
    """

    check: str
    message: str
    arms: tuple[str, ...] = ()
    flagged: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return for JSON; the severity of a difference is info."""
        severity = check(self.check).severity if self.flagged else "info"
        return {"check": self.check, "severity": severity, "arms": list(self.arms), "message": self.message}


@dataclass(frozen=True)
class Run:
    """A recorded run, with its settings and its resolved algorithm (a dataclass of slots)."""

    run_id: str
    arm: str
    seed: int
    settings: RunSettings
    group_size: int
    algorithm: Any
    finished: bool = True


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings as lines to print, violations first."""
    ordered = sorted(findings, key=lambda finding: not finding.flagged)
    return [f"{'Warning' if finding.flagged else 'Note'}: {finding.message}." for finding in ordered]


def _listed(arms: Sequence[str]) -> str:
    """`a, b and c`; a name with a comma in it stands in quotes."""
    names = [f"'{arm}'" if "," in arm else arm for arm in arms]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


# ---------------------------------------------------------------------------------------------------------------------
# Amounts that settings imply


@dataclass(frozen=True)
class Range:
    """The least and the most of an amount; equal where the settings fix it.

    They do not where turns are updated one by one, groups are drawn again, or steps end early.
    """

    low: int
    high: int

    def __format__(self, spec: str) -> str:
        low, high = format(self.low, spec), format(self.high, spec)
        return low if self.low == self.high else f"{low} to {high}"


def _iterations(settings: RunSettings, algorithm: Any) -> Range:
    """Iterations of a run, within its budget of updates."""
    budget, step = settings.stop.updates, _updates_a_step(settings, algorithm)
    if budget is None:
        return Range(settings.iterations, settings.iterations)
    slow, fast = (min(settings.iterations, math.ceil(budget / n)) for n in (step.low, step.high))
    return Range(fast, slow)


def rollouts(settings: RunSettings, algorithm: Any) -> Range:
    """Episodes that a run trains on: iterations x episodes."""
    found, episodes = _iterations(settings, algorithm), settings.learn.episodes
    return Range(found.low * episodes, found.high * episodes)


def sampled(settings: RunSettings, algorithm: Any) -> Range:
    """Episodes that a run samples, with those drawn again, without those that first fill a queue of stale ones."""
    found = rollouts(settings, algorithm)
    return Range(found.low, found.high * algorithm.select.rounds)


def questions_asked(settings: RunSettings, algorithm: Any) -> Range:
    """Questions that a run trains on: rollouts / group size."""
    found, size = rollouts(settings, algorithm), settings.learn.group_size or algorithm.group_size
    return Range(found.low // size, found.high // size)


def _updates_a_step(settings: RunSettings, algorithm: Any) -> Range:
    """Optimizer updates of an iteration: epochs x minibatches x updates of a minibatch; at least 1 with early stop."""
    learn = settings.learn
    least, most = algorithm.schedule.updates(settings.world.max_turns)
    ends_early = learn.target_kl is not None or algorithm.early_stop.acts
    stages = learn.epochs * learn.minibatches
    return Range(1 if ends_early else stages * least, stages * most)


def updates(settings: RunSettings, algorithm: Any) -> Range:
    """Optimizer updates of a run; the step that crosses a budget of updates is completed."""
    budget, step = settings.stop.updates, _updates_a_step(settings, algorithm)
    if step.low == step.high or budget is None:
        found = _iterations(settings, algorithm)
        return Range(found.low * step.low, found.high * step.high)
    least, most = settings.iterations * step.low, settings.iterations * step.high
    return Range(min(least, budget), min(most, budget + step.high - 1))


# ---------------------------------------------------------------------------------------------------------------------
# Before anything runs


def planned(arms: Mapping[str, RunSettings], resolve: Resolve, seeds: Mapping[str, int] | None = None) -> list[Finding]:
    """Findings in the settings of the arms (of any of their seeds); `seeds` is the number of runs of each arm."""
    algorithms = {arm: resolve(settings.algorithm, settings.slots) for arm, settings in arms.items()}
    return [
        *_idle_ratio(arms, algorithms),
        *_normaliser(arms, algorithms, resolve),
        *_amounts(arms, algorithms),
        *_task(arms),
        *(_spread("seeds", "different numbers of seeds", seeds, "seeds") if seeds else ()),
    ]


def _idle_ratio(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any]) -> list[Finding]:
    """Arms whose ratio is always 1: flagged where two of them make the same updates."""
    groups: list[list[str]] = []
    for arm in (arm for arm, settings in arms.items() if settings.ratio_is_one):
        same = next((group for group in groups if _same_updates(arms, algorithms, group[0], arm)), None)
        if same is None:
            groups.append([arm])
        else:
            same.append(arm)
    why = "every rollout is used for one update and by its own old log-probs"
    found = []
    for group in groups:
        if len(group) > 1:
            consequence = "so the ratio is 1 and nothing that they differ in acts"
            message = f"{_listed(group)} are one arm under {len(group)} names: {why}, {consequence}"
            found.append(Finding("idle_ratio", message, tuple(group), flagged=True))
    alone = [group[0] for group in groups if len(group) == 1 and algorithms[group[0]].clip.kind != "none"]
    if alone:
        found.append(Finding("idle_ratio", f"in {_listed(alone)} {why}, so nothing is ever clipped", tuple(alone)))
    return found


def _same_updates(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any], one: str, other: str) -> bool:
    """Return whether two arms with ratio 1 share all but slots that act through the ratio, and have equal gradients."""
    a, b = algorithms[one], algorithms[other]
    size = arms[one].learn.group_size or a.group_size
    if _settings(arms[one]) != _settings(arms[other]) or size != (arms[other].learn.group_size or b.group_size):
        return False
    if any(getattr(a, slot) != getattr(b, slot) for slot in (*NORMALISER, "kl", "select")):
        return False
    from workbench.learn.checks import gradient_at_one

    return bool((gradient_at_one(a, size) - gradient_at_one(b, size)).abs().max() < 1e-9)


def _normaliser(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any], resolve: Resolve) -> list[Finding]:
    """Arms whose advantage or aggregation differs: noted where their algorithms declare it, flagged where it confounds.

    A pair is confounded if it differs in a slot that its algorithms declare alike, and in something else, and no third
    arm has the slots of one with the rest of the other.
    """
    declared = {arm: resolve(algorithm.name, {}) for arm, algorithm in algorithms.items()}
    scales = {arm: repr(_slots(algorithm, NORMALISER)) for arm, algorithm in algorithms.items()}
    rest = {arm: repr((_slots(algorithms[arm], OTHER_SLOTS), _settings(arms[arm]))) for arm in arms}
    present = {(scales[arm], rest[arm]) for arm in arms}
    found: dict[str, Finding] = {}
    for one, other in combinations(arms, 2):
        undeclared = [
            slot
            for slot in NORMALISER
            if getattr(algorithms[one], slot) != getattr(algorithms[other], slot)
            and getattr(declared[one], slot) == getattr(declared[other], slot)
        ]
        # A pair that differs in nothing else separates the two itself: one arm with the rest of the other is that arm.
        separated = {(scales[one], rest[other]), (scales[other], rest[one])} & present
        if undeclared and not separated and other not in found:
            message = (
                f"{_listed([other])} differs from {_listed([one])} in {' and '.join(undeclared)} and in more besides, "
                "and no arm differs in only one of the two, so their effects cannot be separated"
            )
            found[other] = Finding("normaliser", message, (one, other), flagged=True)
    return [*_declared(algorithms, declared), *found.values()]


def _declared(algorithms: Mapping[str, Any], declared: Mapping[str, Any]) -> list[Finding]:
    """Return a note on each slot in which the named algorithms differ by declaration."""
    found = []
    for slot in NORMALISER:
        names: dict[str, tuple[str, dict[str, None]]] = {}
        for algorithm in declared.values():
            choice = getattr(algorithm, slot)
            names.setdefault(repr(choice), (choice.kind, {}))[1][algorithm.name] = None
        if len(names) > 1:
            choices = "; ".join(f"{', '.join(users)}: {kind}" for kind, users in names.values())
            message = f"the algorithms declare different choices of {slot} ({choices})"
            found.append(Finding("normaliser", message, tuple(algorithms)))
    return found


def _amounts(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any]) -> list[Finding]:
    """Notes on episodes, questions and updates of a run, where they differ, and on budgets of time."""
    counts: dict[str, Callable[[RunSettings, Any], Range]] = {
        "rollouts": rollouts, "sampled episodes": sampled, "questions": questions_asked, "optimizer updates": updates,
    }  # fmt: skip
    found = []
    for name, count in counts.items():
        values = {arm: count(settings, algorithms[arm]) for arm, settings in arms.items()}
        found += _spread("compute", f"different numbers of {name}", values, name.split()[-1])
    if timed := [arm for arm, settings in arms.items() if settings.stop.seconds is not None]:
        message = "stop.seconds is set: how far a run gets depends on what else the machine does"
        found.append(Finding("compute", message, tuple(timed)))
    return found


def _task(arms: Mapping[str, RunSettings]) -> list[Finding]:
    """Notes on settings of the world, the network or model, and the warm start that not all arms share."""
    found = []
    for name in ("world", "policy", "warmstart", "model"):
        values = [
            {"model": s.model, "prompt": s.wording}
            if name == "model"
            else flatten({name: getattr(s, name).model_dump(mode="json")})
            for s in arms.values()
        ]
        if keys := [k for k in values[0] if len({repr(v.get(k)) for v in values}) > 1]:
            message = f"the arms do not share {', '.join(keys)}: their success is not on one scale"
            found.append(Finding("task", message, tuple(arms)))
    return found


def _spread(check: str, title: str, values: Mapping[str, Any], unit: str) -> list[Finding]:
    """Return a note on a number that not all arms share: the most frequent value, and the arms with another one."""
    groups: dict[Any, list[str]] = {}
    for arm, value in values.items():
        groups.setdefault(value, []).append(arm)
    if len(groups) < 2:
        return []
    usual = max(groups, key=lambda value: len(groups[value]))
    others = {value: arms for value, arms in groups.items() if value != usual}
    exceptions = "; ".join(f"{_listed(arms)}: {value:,}" for value, arms in others.items())
    message = f"the arms had {title} ({usual:,} {unit}, but {exceptions})"
    return [Finding(check, message, tuple(arm for arms in others.values() for arm in arms))]


def _settings(settings: RunSettings) -> dict[str, Any]:
    """Return every setting that changes a number, but algorithm and seed, by dotted key."""
    flat = flatten(settings.model_dump(mode="json", exclude={"algorithm", "slots", "seed"}))
    return {key: value for key, value in flat.items() if key not in COSMETIC}


def _slots(algorithm: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {slot: getattr(algorithm, slot) for slot in names}


# ---------------------------------------------------------------------------------------------------------------------
# From what runs recorded


def recorded(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Findings in the rows of `runs`: what trainers flagged, questions that differ, amounts that differ."""
    return [*_flagged(reader, runs), *_questions(reader, runs), *_recorded_amounts(reader, runs)]


def _flagged(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Return one finding for each check that trainers flagged: its first run, and the number of the others."""
    names = {c.kind: c.name for c in GUARD if c.seen in ("start", "step")}
    by_id = {run.run_id: run for run in runs}
    events = defaultdict(list)
    for run_id, kind, step, message in reader.rows(_FLAGGED, {"kinds": list(names), "runs": list(by_id)}).rows:
        events[kind].append((by_id[run_id], step, message))
    found = []
    for kind, seen in events.items():
        run, step, message = seen[0]
        arms = tuple(dict.fromkeys(r.arm for r, _, _ in seen))
        count = len({r.run_id for r, _, _ in seen})
        more = f" (and in {count - 1} more runs of {_listed(arms)})" if count > 1 else ""
        text = f"{_listed([run.arm])}, seed {run.seed}, step {step}: {message}{more}"
        found.append(Finding(names[kind], text, arms, flagged=True))
    return found


def _questions(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Return whether seeds reached the arms: a seed gives every arm the same questions, another seed other ones.

    Compared are runs that ask as many questions of the same world in a step. Algorithms that draw groups again train on
    other questions by design.
    """
    asked: dict[str, dict[int, int]] = defaultdict(dict)
    for run_id, step, fingerprint in reader.rows(_QUESTIONS, {"runs": [run.run_id for run in runs]}).rows:
        asked[run_id][step] = fingerprint
    comparable: dict[Any, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.run_id in asked:
            task = (run.settings.world.model_dump_json(), run.settings.learn.episodes, run.group_size)
            comparable[task][run.seed].append(run)
    found = []

    def differences(a: Run, b: Run) -> tuple[list[int], list[int]]:
        """Return the steps of both runs, and those in which their questions differ."""
        steps = sorted(asked[a.run_id].keys() & asked[b.run_id].keys())
        return steps, [step for step in steps if asked[a.run_id][step] != asked[b.run_id][step]]

    for seeds in comparable.values():
        for seed, same_seed in seeds.items():
            alike = [run for run in same_seed if run.algorithm.select.rounds == 1]
            for run in alike[1:]:
                if differing := differences(alike[0], run)[1]:
                    arms = (alike[0].arm, run.arm)
                    message = f"trained on different questions with seed {seed}, from step {differing[0]} on"
                    found.append(Finding("questions", f"{_listed(arms)} {message}", arms, flagged=True))
        for one, other in combinations(seeds, 2):
            a, b = seeds[one][0], seeds[other][0]
            steps, differing = differences(a, b)
            if steps and not differing:
                message = f"trained on the same questions ({_listed([a.arm])}): they are no replicates"
                text = f"seeds {one} and {other} {message}"
                found.append(Finding("questions", text, (a.arm, b.arm), flagged=True))
    return found


def _recorded_amounts(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Notes on the tokens that finished runs trained on, and on amounts that differ from what the settings imply."""
    over = {run.run_id: run for run in runs if run.finished}
    done: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    as_planned = True
    for run_id, steps, trained, tokens, drawn in reader.rows(_TRAINED, {"runs": list(over)}).rows:
        run = over[run_id]
        rolled = steps * run.settings.learn.episodes
        plan = [count(run.settings, run.algorithm) for count in (rollouts, sampled, updates)]
        # Runs of older versions counted neither draws nor updates.
        seen = (rolled, rolled if drawn is None else drawn, plan[2].low if trained is None else trained)
        as_planned &= all(p.low == p.high == n for p, n in zip(plan, seen, strict=True))
        done[run.arm].append((*seen, tokens or 0))
    found = []
    for i, unit in enumerate(("rollouts", "sampled episodes", "optimizer updates", "trained tokens")):
        means = {arm: sum(row[i] for row in rows) / len(rows) for arm, rows in done.items()}
        if (as_planned and unit != "trained tokens") or not means:
            continue  # the settings say it already
        least, most = min(means, key=lambda arm: means[arm]), max(means, key=lambda arm: means[arm])
        if means[most] > (1 + ALIKE) * means[least]:
            ends = f"{means[least]:,.0f} in {_listed([least])} to {means[most]:,.0f} in {_listed([most])}"
            message = f"the arms recorded different numbers of {unit} (mean of a finished run: {ends})"
            found.append(Finding("compute", message, tuple(means)))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Events


def write_events(runs: Path, cells: Sequence[Cell], findings: Iterable[Finding]) -> int:
    """Append the flagged findings to the runs of their arms, as events; return the number of new rows.

    A finding is written once. One that no longer holds is withdrawn, by a row without severity and message.
    """
    flagged, written = [finding for finding in findings if finding.flagged], 0
    for cell in cells:
        folder = folder_of(runs, cell)
        if not folder.is_dir():
            continue
        known = _known(folder)
        for kind, rule in EVENTS.items():
            messages = [f.message for f in flagged if f.check == rule.name and cell.arm in f.arms]
            message = "; ".join(messages) or None
            if message != known.get(kind):
                event = {"run_id": cell.run_id, "kind": kind, "diagnostic": "", "message": message}
                append(folder, "event", {**event, "severity": rule.severity if message else None})
                written += 1
    return written


def _known(folder: Path) -> dict[str, str | None]:
    """Return the newest message of each kind in the run's folder."""
    rows = [row for part in read_segments(folder, "event") for row in part.to_pylist() if row["kind"] in EVENTS]
    return {row["kind"]: row["message"] for row in sorted(rows, key=lambda row: row["written_at"])}

"""Whether arms can be compared fairly: by their settings, and by what their runs recorded."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from sorl.algorithms import ALGORITHMS
from sorl.grid.cell import Cell, decisive, flatten
from sorl.grid.folder import append, folder_of, read_segments
from sorl.objective import Algorithm
from sorl.spec import GUARD, RunSettings, check
from sorl.store.reader import Reader

NORMALISER = ("advantage", "aggregate")
OTHER_SLOTS = ("ratio", "clip", "stabilise", "kl", "select", "correction", "proximal", "rate")
# numbers of tokens that differ by less than this share are the same: sampled episodes differ in length
ALIKE = 0.01
_ASKED = ("algorithm", "slots", "seed")  # what arms are for
# trainers write what they see themselves
EVENTS = {c.kind: c for c in GUARD if c.seen in ("plan", "compare")}

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
    """What a check found about some arms: a violation (`flagged`), or a difference that may be intended."""

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
    """A recorded run with its settings and its resolved algorithm."""

    run_id: str
    arm: str
    seed: int
    settings: RunSettings
    resolved: Algorithm
    finished: bool = True


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings as lines to print, violations first."""
    ordered = sorted(findings, key=lambda finding: not finding.flagged)
    return [f"{'Warning' if finding.flagged else 'Note'}: {finding.message}." for finding in ordered]


def _listed(arms: Sequence[str]) -> str:
    """`a, b and c`; a name with a comma in it stands in quotes."""
    names = [f"'{arm}'" if "," in arm else arm for arm in arms]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


class Range(NamedTuple):
    """The least and the most of an amount; equal where the settings fix it."""

    low: int
    high: int

    def __format__(self, spec: str) -> str:
        low = format(self.low, spec)
        high = format(self.high, spec)
        return low if self.low == self.high else f"{low} to {high}"


def amounts(settings: RunSettings, algorithm: Algorithm) -> dict[str, Range]:
    """Rollouts, sampled episodes, questions and optimizer updates of a run, within its budget of updates.

    Settings fix them unless turns are updated one by one, groups are drawn again, or steps end early.
    Episodes that first fill a queue of stale ones are not counted. The step that crosses a budget of updates
    is completed.
    """
    learn = settings.learn
    steps = settings.iterations
    budget = settings.stop.updates
    stages = learn.epochs * learn.minibatches
    least, most = (stages * n for n in algorithm.schedule.updates(settings.world.max_turns))
    if learn.target_kl is not None or algorithm.early_stop.kind != "none":
        least = 1
    few, many = (steps if budget is None else min(steps, math.ceil(budget / n)) for n in (most, least))
    updates = Range(few * least, many * most)
    if budget is not None and least < most:
        updates = Range(min(steps * least, budget), min(steps * most, budget + most - 1))
    low = few * learn.episodes
    high = many * learn.episodes
    size = learn.group_size or algorithm.group_size
    return {
        "rollouts": Range(low, high),
        "sampled episodes": Range(low, high * algorithm.select.rounds),
        "questions": Range(low // size, high // size),
        "optimizer updates": updates,
    }


def planned(cells: Iterable[Cell | Run]) -> list[Finding]:
    """Findings in the settings of the arms, of any of their seeds."""
    arms = {cell.arm: cell for cell in cells}
    return [*_idle_ratio(arms), *_normaliser(arms), *_planned_amounts(arms), *_tasks(arms)]


def _planned_amounts(arms: Mapping[str, Cell | Run]) -> list[Finding]:
    """Amounts that the settings of the arms fix differently, and limits on time, which fix none."""
    counts = {arm: amounts(run.settings, run.resolved) for arm, run in arms.items()}
    findings = list[Finding]()
    for name in next(iter(counts.values()), ()):
        values = {arm: count[name] for arm, count in counts.items()}
        findings += _spread("compute", f"different numbers of {name}", values, name.split()[-1])
    timed = tuple(arm for arm, run in arms.items() if run.settings.stop.seconds is not None)
    if timed:
        message = "stop.seconds is set: how far a run gets depends on what else the machine does"
        findings.append(Finding("compute", message, timed))
    return findings


def _tasks(arms: Mapping[str, Cell | Run]) -> Iterator[Finding]:
    """Yield the settings of the task that the arms do not share."""
    dumps = [run.settings.model_dump(mode="json") for run in arms.values()]
    models = [{"model": run.settings.model, "prompt": run.settings.wording} for run in arms.values()]
    for name in ("world", "policy", "warmstart", "model"):
        tables = models if name == "model" else [flatten({name: dump[name]}) for dump in dumps]
        differing = [key for key in tables[0] if _differs(tables, key)]
        if differing:
            message = f"the arms do not share {', '.join(differing)}: their success is not on one scale"
            yield Finding("task", message, tuple(arms))


def _differs(tables: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len({repr(table.get(key)) for table in tables}) > 1


def _idle_ratio(arms: Mapping[str, Cell | Run]) -> list[Finding]:
    """Arms whose ratio is always 1: flagged where two of them make the same updates."""
    groups: list[list[str]] = []
    for arm, cell in arms.items():
        if not cell.settings.ratio_is_one or cell.resolved.proximal.kind != "stored":
            continue
        same = next((group for group in groups if _same_updates(arms[group[0]], arms[arm])), None)
        groups.append([arm]) if same is None else same.append(arm)
    why = "every rollout is used for one update and by its own old log-probs"
    findings = []
    for group in (group for group in groups if len(group) > 1):
        message = (
            f"{_listed(group)} are one arm under {len(group)} names: {why}, so the ratio is 1 and nothing"
            " that"
        )
        findings.append(Finding("idle_ratio", f"{message} they differ in acts", tuple(group), flagged=True))
    alone = [group[0] for group in groups if len(group) == 1 and arms[group[0]].resolved.clip.kind != "none"]
    if alone:
        findings.append(
            Finding("idle_ratio", f"in {_listed(alone)} {why}, so nothing is ever clipped", tuple(alone))
        )
    return findings


def _same_updates(first: Cell | Run, second: Cell | Run) -> bool:
    """Return whether two arms with ratio 1 share all but slots that act through the ratio, and have equal
    gradients.
    """
    a = first.resolved
    b = second.resolved
    size = _group_size(first)
    if decisive(first.settings, *_ASKED) != decisive(second.settings, *_ASKED) or size != _group_size(second):
        return False
    if any(getattr(a, slot) != getattr(b, slot) for slot in (*NORMALISER, "kl", "select", "rate")):
        return False
    from sorl.learn.checks import gradient_at_one

    return bool((gradient_at_one(a, size) - gradient_at_one(b, size)).abs().max() < 1e-9)


def _group_size(run: Cell | Run) -> int:
    return run.settings.learn.group_size or run.resolved.group_size


def _normaliser(arms: Mapping[str, Cell | Run]) -> list[Finding]:
    """Arms whose advantage or aggregation differs: noted where algorithms declare it, flagged where it
    confounds.
    """
    return [*_declared_normalisers(arms), *_confounded_normalisers(arms)]


def _declared_normalisers(arms: Mapping[str, Cell | Run]) -> Iterator[Finding]:
    """Yield the slots that the algorithms declare differently."""
    algorithms = [ALGORITHMS[run.resolved.name] for run in arms.values()]
    for slot in NORMALISER:
        names: dict[str, dict[str, str]] = defaultdict(dict)  # choice -> algorithm -> kind
        for algorithm in algorithms:
            names[repr(getattr(algorithm, slot))][algorithm.name] = getattr(algorithm, slot).kind
        if len(names) > 1:
            words = "; ".join(f"{', '.join(kinds)}: {next(iter(kinds.values()))}" for kinds in names.values())
            message = f"the algorithms declare different choices of {slot} ({words})"
            yield Finding("normaliser", message, tuple(arms))


class _Traits(NamedTuple):
    """What an arm is, in two parts that a comparison has to separate."""

    scale: str  # its normaliser
    rest: str  # its other slots and settings


def _traits(run: Cell | Run) -> _Traits:
    slots = vars(run.resolved)
    others = [slots[slot] for slot in OTHER_SLOTS]
    scale = repr([slots[slot] for slot in NORMALISER])
    return _Traits(scale, repr((others, decisive(run.settings, *_ASKED))))


def _confounded_normalisers(arms: Mapping[str, Cell | Run]) -> Iterator[Finding]:
    """Yield pairs that differ in a slot declared alike and in something else, where no arm separates the
    two.
    """
    traits = {arm: _traits(run) for arm, run in arms.items()}
    present = set(traits.values())
    confounded: set[str] = set()
    for first, second in combinations(arms, 2):
        undeclared = _undeclared_differences(arms[first], arms[second])
        # A pair that differs in nothing else separates the two itself: one arm with the rest of the other is
        # that arm.
        crossed = {
            _Traits(traits[first].scale, traits[second].rest),
            _Traits(traits[second].scale, traits[first].rest),
        }
        if undeclared and not crossed & present and second not in confounded:
            confounded.add(second)
            pair = f"{_listed([second])} differs from {_listed([first])} in {' and '.join(undeclared)}"
            why = (
                "and in more besides, and no arm differs in only one of the two, so their effects cannot be"
                " separated"
            )
            yield Finding("normaliser", f"{pair} {why}", (first, second), flagged=True)


def _undeclared_differences(first: Cell | Run, second: Cell | Run) -> list[str]:
    """The slots of the normaliser that two algorithms declare alike and two arms choose differently."""
    mine = ALGORITHMS[first.resolved.name]
    theirs = ALGORITHMS[second.resolved.name]
    alike = [slot for slot in NORMALISER if getattr(mine, slot) == getattr(theirs, slot)]
    return [slot for slot in alike if vars(first.resolved)[slot] != vars(second.resolved)[slot]]


def _spread(check: str, title: str, values: Mapping[str, Any], unit: str) -> list[Finding]:
    """Return a note on a number that not all arms share: the most frequent value, and the arms with another
    one.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    for arm, value in values.items():
        groups[value].append(arm)
    if len(groups) < 2:
        return []
    usual = max(groups, key=lambda value: len(groups[value]))
    del groups[usual]
    exceptions = "; ".join(f"{_listed(arms)}: {value:,}" for value, arms in groups.items())
    message = f"the arms had {title} ({usual:,} {unit}, but {exceptions})"
    return [Finding(check, message, tuple(chain.from_iterable(groups.values())))]


def recorded(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Findings in the rows of `runs`: seeds, what trainers flagged, questions that differ, amounts that
    differ.
    """
    seeds = _spread("seeds", "different numbers of seeds", Counter(run.arm for run in runs), "seeds")
    return [*seeds, *_flagged(reader, runs), *_questions(reader, runs), *_recorded_amounts(reader, runs)]


def _flagged(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """What the trainers flagged, a finding a kind."""
    names = {c.kind: c.name for c in GUARD if c.seen in ("start", "step")}
    by_id = {run.run_id: run for run in runs}
    rows = reader.rows(_FLAGGED, {"kinds": list(names), "runs": list(by_id)}).rows
    events = defaultdict(list)
    for run_id, kind, step, message in rows:
        events[kind].append((by_id[run_id], step, message))
    return [_flagged_finding(names[kind], of_kind) for kind, of_kind in events.items()]


def _flagged_finding(name: str, events: Sequence[tuple[Run, int, str]]) -> Finding:
    """The first of some events (run, step, message), and in how many more runs there is one."""
    run, step, message = events[0]
    arms = tuple(dict.fromkeys(other.arm for other, *_ in events))
    count = len({other.run_id for other, *_ in events})
    more = f" (and in {count - 1} more runs of {_listed(arms)})" if count > 1 else ""
    text = f"{_listed([run.arm])}, seed {run.seed}, step {step}: {message}{more}"
    return Finding(name, text, arms, flagged=True)


Hashes = Mapping[str, Mapping[int, int]]  # run id -> step -> fingerprint of its questions


def _questions(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """Runs of one seed with different questions, and seeds with the same ones."""
    hashes: dict[str, dict[int, int]] = defaultdict(dict)
    for run_id, step, fingerprint in reader.rows(_QUESTIONS, {"runs": [run.run_id for run in runs]}).rows:
        hashes[run_id][step] = fingerprint
    comparable: dict[Any, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.run_id in hashes:
            key = (run.settings.world.model_dump_json(), run.settings.learn.episodes, _group_size(run))
            comparable[key][run.seed].append(run)
    findings = list[Finding]()
    for seeds in comparable.values():
        for seed, same_seed in seeds.items():
            findings += _differing_questions(seed, same_seed, hashes)
        findings += _shared_questions(seeds, hashes)
    return findings


def _differing_questions(seed: int, runs: Sequence[Run], hashes: Hashes) -> Iterator[Finding]:
    """Yield the runs of one seed that trained on other questions than the first."""
    alike = [run for run in runs if run.resolved.select.rounds == 1]
    for run in alike[1:]:
        differing = [step for step, same in _same_questions(alike[0], run, hashes).items() if not same]
        if differing:
            arms = (alike[0].arm, run.arm)
            message = f"trained on different questions with seed {seed}, from step {differing[0]} on"
            yield Finding("questions", f"{_listed(arms)} {message}", arms, flagged=True)


def _shared_questions(seeds: Mapping[int, Sequence[Run]], hashes: Hashes) -> Iterator[Finding]:
    """Yield the pairs of seeds that trained on the same questions."""
    for first, second in combinations(seeds, 2):
        a = seeds[first][0]
        b = seeds[second][0]
        steps = _same_questions(a, b, hashes)
        # share their parent's queue
        siblings = a.settings.fork is not None and a.settings.fork == b.settings.fork
        if steps and all(steps.values()) and not siblings:
            message = f"trained on the same questions ({_listed([a.arm])}): they are no replicates"
            text = f"seeds {first} and {second} {message}"
            yield Finding("questions", text, (a.arm, b.arm), flagged=True)


def _same_questions(a: Run, b: Run, hashes: Hashes) -> dict[int, bool]:
    """Return for each step of both runs whether their questions are the same."""
    ours = hashes[a.run_id]
    theirs = hashes[b.run_id]
    return {step: ours[step] == theirs[step] for step in sorted(ours.keys() & theirs.keys())}


class _Amounts(NamedTuple):
    """What a finished run came to."""

    rollouts: int
    episodes: int  # sampled
    updates: int
    tokens: int  # trained


_UNITS = dict(
    zip(
        _Amounts._fields, ("rollouts", "sampled episodes", "optimizer updates", "trained tokens"), strict=True
    )
)


def _recorded_amounts(reader: Reader, runs: Sequence[Run]) -> list[Finding]:
    """The amounts whose means differ between arms."""
    over = {run.run_id: run for run in runs if run.finished}
    done: dict[str, list[_Amounts]] = defaultdict(list)  # arm -> the amounts of its runs
    as_planned = True
    for run_id, *recorded in reader.rows(_TRAINED, {"runs": list(over)}).rows:
        run = over[run_id]
        plan = amounts(run.settings, run.resolved)
        came_to = _amounts_of(run, plan, *recorded)
        as_planned &= _is_as_planned(plan, came_to)
        done[run.arm].append(came_to)
    findings = list[Finding]()
    for field, unit in _UNITS.items():
        if not as_planned or field == "tokens":  # else the settings have told it
            means = {arm: _mean_amount(each, field) for arm, each in done.items()}
            findings += _differing_means(unit, means)
    return findings


def _amounts_of(
    run: Run, plan: Mapping[str, Any], steps: int, updates: int, tokens: int, sampled: int
) -> _Amounts:
    rolled = steps * run.settings.learn.episodes
    # Runs restored from a file of results hold neither draws nor updates.
    return _Amounts(rolled, sampled or rolled, updates or plan["optimizer updates"].low, tokens or 0)


def _is_as_planned(plan: Mapping[str, Any], came_to: _Amounts) -> bool:
    """Whether rollouts, episodes and updates are those that the settings say."""
    planned = [field for field in _UNITS if field != "tokens"]
    return all(plan[_UNITS[f]] == (getattr(came_to, f), getattr(came_to, f)) for f in planned)


def _mean_amount(each: Sequence[_Amounts], field: str) -> float:
    return fmean(getattr(came_to, field) for came_to in each)


def _differing_means(unit: str, means: Mapping[str, float]) -> Iterator[Finding]:
    least = min(means, key=lambda a: means[a], default="")
    most = max(means, key=lambda a: means[a], default="")
    if means and means[most] > (1 + ALIKE) * means[least]:
        ends = f"{means[least]:,.0f} in {_listed([least])} to {means[most]:,.0f} in {_listed([most])}"
        message = f"the arms recorded different numbers of {unit} (mean of a finished run: {ends})"
        yield Finding("compute", message, tuple(means))


def write_events(runs: Path, cells: Sequence[Cell], findings: Iterable[Finding]) -> int:
    """Append flagged findings as events of their runs, and a row without severity to withdraw one; return the
    count.
    """
    flagged = [finding for finding in findings if finding.flagged]
    written = 0
    for cell in cells:
        folder = folder_of(runs, cell)
        if not folder.is_dir():
            continue
        parts = (part.to_pylist() for part in read_segments(folder, "event"))
        rows = [row for row in chain.from_iterable(parts) if row["kind"] in EVENTS]
        known = {row["kind"]: row["message"] for row in sorted(rows, key=lambda row: row["written_at"])}
        for kind, rule in EVENTS.items():
            messages = [f.message for f in flagged if f.check == rule.name and cell.arm in f.arms]
            message = "; ".join(messages) or None
            if message != known.get(kind):
                event = {"run_id": cell.run_id, "kind": kind, "diagnostic": "", "message": message}
                append(folder, "event", {**event, "severity": rule.severity if message else None})
                written += 1
    return written

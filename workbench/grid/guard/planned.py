"""What the settings of the arms say about their comparison, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from workbench.grid.cell import COSMETIC
from workbench.grid.guard.amounts import Range, rollouts, sampled, updates
from workbench.grid.guard.finding import Finding, listed, spread
from workbench.grid.keys import flatten
from workbench.spec import RunSettings

Resolve = Callable[[str | dict[str, Any], dict[str, Any]], Any]  # to an algorithm: a dataclass of slots

NORMALISER = ("advantage", "aggregate")
OTHER_SLOTS = ("ratio", "clip", "stabilise", "kl", "select", "correction")


def planned(arms: Mapping[str, RunSettings], resolve: Resolve, seeds: Mapping[str, int] | None = None) -> list[Finding]:
    """What is flagged or differs in the settings of the arms (of any of their seeds).

    `resolve` looks algorithms up; `seeds` is how many runs each arm has.
    """
    algorithms = {arm: resolve(settings.algorithm, settings.slots) for arm, settings in arms.items()}
    return [
        *idle_ratio(arms, algorithms),
        *normaliser(arms, algorithms, resolve),
        *compute(arms, algorithms),
        *task(arms),
        *(spread("seeds", "different numbers of seeds", seeds, "seeds") if seeds else ()),
    ]


def idle_ratio(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any]) -> list[Finding]:
    """Arms in which the ratio is 1 by construction: flagged where two of them make the very same updates."""
    idle = [arm for arm, settings in arms.items() if settings.ratio_is_one]
    twins: list[list[str]] = []
    for arm in idle:
        for group in twins:
            if _same_run(arms, algorithms, group[0], arm):
                group.append(arm)
                break
        else:
            twins.append([arm])
    why = "every rollout is used for one update and by its own old log-probs"
    found = [
        Finding(
            "idle_ratio",
            f"{listed(group)} are one arm under {len(group)} names: {why}, so the ratio is 1 and nothing that they "
            "differ in acts",
            tuple(group),
            flagged=True,
        )
        for group in twins
        if len(group) > 1
    ]
    alone = [group[0] for group in twins if len(group) == 1 and algorithms[group[0]].clip.kind != "none"]
    if alone:
        found.append(Finding("idle_ratio", f"in {listed(alone)} {why}, so nothing is ever clipped", tuple(alone)))
    return found


def _same_run(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any], one: str, other: str) -> bool:
    """Whether two idle arms share everything but slots that act through the ratio, and these make equal gradients."""
    if _settings(arms[one]) != _settings(arms[other]):
        return False
    a, b = algorithms[one], algorithms[other]
    size = arms[one].learn.group_size or a.group_size
    if size != (arms[other].learn.group_size or b.group_size):
        return False
    if any(getattr(a, slot) != getattr(b, slot) for slot in (*NORMALISER, "kl", "select")):
        return False
    from workbench.learn.synthetic import gradient_at_one

    return bool((gradient_at_one(a, size) - gradient_at_one(b, size)).abs().max() < 1e-9)


def normaliser(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any], resolve: Resolve) -> list[Finding]:
    """Arms whose advantage or aggregation differs: told where their algorithms declare it, flagged where it confounds.

    A pair is confounded when it differs in a slot that its algorithms declare alike, and in something else, and no
    third arm has the slots of the one with the rest of the other.
    """
    declared = {arm: resolve(algorithm.name, {}) for arm, algorithm in algorithms.items()}
    parts = {arm: _slots(algorithm, NORMALISER) for arm, algorithm in algorithms.items()}
    rest = {arm: (_slots(algorithms[arm], OTHER_SLOTS), _settings(arms[arm])) for arm in arms}
    told = {arm: (repr(parts[arm]), repr(rest[arm])) for arm in arms}
    present = set(told.values())
    found: dict[str, Finding] = {}
    for one, other in combinations(arms, 2):
        undeclared = [
            slot
            for slot in NORMALISER
            if parts[one][slot] != parts[other][slot] and getattr(declared[one], slot) == getattr(declared[other], slot)
        ]
        crossed = {(told[one][0], told[other][1]), (told[other][0], told[one][1])}
        # A pair that differs in nothing else is its own isolation: the one with the rest of the other is the one.
        if undeclared and not crossed & present and other not in found:
            message = (
                f"{listed([other])} differs from {listed([one])} in {' and '.join(undeclared)} and in more besides, "
                "and no arm differs in one of the two alone: what either of them does cannot be told"
            )
            found[other] = Finding("normaliser", message, (one, other), flagged=True)
    return [*_declared(algorithms, declared), *found.values()]


def _declared(algorithms: Mapping[str, Any], declared: Mapping[str, Any]) -> list[Finding]:
    """A note on each slot in which the named algorithms differ by declaration."""
    found = []
    for slot in NORMALISER:
        groups: dict[str, list[str]] = {}
        for algorithm in declared.values():
            choice = getattr(algorithm, slot)
            names = groups.setdefault(repr(choice), [choice.kind])
            if algorithm.name not in names[1:]:
                names.append(algorithm.name)
        if len(groups) > 1:
            told = "; ".join(f"{', '.join(names)}: {kind}" for kind, *names in groups.values())
            found.append(
                Finding("normaliser", f"the algorithms declare different choices of {slot} ({told})", tuple(algorithms))
            )
    return found


def compute(arms: Mapping[str, RunSettings], algorithms: Mapping[str, Any]) -> list[Finding]:
    """Episodes, questions and optimizer updates of a whole run, where they differ; budgets of time."""
    counts: dict[str, Callable[[RunSettings, Any], Range]] = {
        "rollouts": rollouts, "sampled episodes": sampled, "questions": _questions, "optimizer updates": updates,
    }  # fmt: skip
    found = []
    for name, count in counts.items():
        values = {arm: count(settings, algorithms[arm]) for arm, settings in arms.items()}
        found += spread("compute", f"different numbers of {name}", values, name.split()[-1])
    if timed := [arm for arm, settings in arms.items() if settings.stop.seconds is not None]:
        message = "stop.seconds is set: how far a run gets depends on what else the machine does"
        found.append(Finding("compute", message, tuple(timed)))
    return found


def task(arms: Mapping[str, RunSettings]) -> list[Finding]:
    """Settings of world, policy network or model, and warm start that not all arms share."""
    found = []
    for name in ("world", "policy", "warmstart", "model"):
        values = {arm: flatten(_task(s, name)) for arm, s in arms.items()}
        keys = [k for k in next(iter(values.values()), {}) if len({repr(v.get(k)) for v in values.values()}) > 1]
        if keys:
            message = f"the arms do not share {', '.join(keys)}: their success is not on one scale"
            found.append(Finding("task", message, tuple(arms)))
    return found


def _task(settings: RunSettings, name: str) -> dict[str, Any]:
    if name == "model":
        return {"model": settings.model, "prompt": settings.wording}
    return {name: getattr(settings, name).model_dump(mode="json")}


def _questions(settings: RunSettings, algorithm: Any) -> Range:
    """Questions that a whole run trains on."""
    found, size = rollouts(settings, algorithm), settings.learn.group_size or algorithm.group_size
    return Range(found.low // size, found.high // size)


def _settings(settings: RunSettings) -> dict[str, Any]:
    """Everything that a run computes with beside its algorithm and its seed, by dotted key."""
    flat = flatten(settings.model_dump(mode="json", exclude={"algorithm", "slots", "seed"}))
    return {key: value for key, value in flat.items() if key not in COSMETIC}


def _slots(algorithm: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {slot: getattr(algorithm, slot) for slot in names}

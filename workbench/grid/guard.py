"""The fair-comparison guard: what makes the arms of a grid incomparable, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.grid.keys import flatten
from workbench.spec import RunSettings


def notes(arms: Mapping[str, RunSettings], seeds: Mapping[str, int] | None = None) -> list[str]:
    """Sentences on what differs beside the question: rollouts, optimizer updates, task, start, number of seeds.

    `arms` holds the settings of each arm (of any of its seeds), `seeds` how many runs each arm has.
    """
    checks = (
        ("different numbers of rollouts", lambda s: s.iterations * s.learn.episodes, "rollouts"),
        ("different numbers of optimizer updates", updates, "updates"),
    )
    found = [_spread(title, {arm: measure(s) for arm, s in arms.items()}, unit) for title, measure, unit in checks]
    for name in ("world", "policy", "warmstart"):
        values = {arm: flatten({name: getattr(s, name).model_dump(mode="json")}) for arm, s in arms.items()}
        keys = [k for k in next(iter(values.values()), {}) if len({repr(v.get(k)) for v in values.values()}) > 1]
        if keys:
            found.append(f"the arms do not share {', '.join(keys)}: their success is not on one scale")
    if seeds:
        found.append(_spread("different numbers of seeds", seeds, "seeds"))
    return [note for note in found if note]


def updates(settings: RunSettings) -> int:
    """Optimizer updates of a whole run: iterations x epochs x minibatches."""
    return settings.iterations * settings.learn.epochs * settings.learn.minibatches


def _spread(title: str, values: Mapping[str, Any], unit: str) -> str:
    groups: dict[Any, list[str]] = {}
    for arm, value in values.items():
        groups.setdefault(value, []).append(arm)
    if len(groups) < 2:
        return ""
    largest = max(groups, key=lambda value: len(groups[value]))
    others = "; ".join(f"{', '.join(arms)}: {value:,}" for value, arms in groups.items() if value != largest)
    return f"the arms had {title} ({largest:,} {unit}, but {others})"

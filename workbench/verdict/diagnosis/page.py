"""The generated parts of docs/diagnosis.md: what is looked for, and what other trainers call it."""

from __future__ import annotations

from itertools import groupby

from workbench.verdict.diagnosis.causes import CAUSES
from workbench.verdict.diagnosis.names import NAMES, SCORES, STEP


def causes() -> str:
    """Markdown: one row per cause."""
    lines = ["| cause | is | needs | what to do |", "| --- | --- | --- | --- |"]
    for cause in CAUSES:
        needs = ", ".join(f"`{name}`" for name in (*cause.needs, *cause.needs_settings))
        lines.append(f"| `{cause.name}` | {cause.title} ({cause.severity}) | {needs} | {cause.change} |")
    return "\n".join(lines)


def names() -> str:
    """Markdown: one row per column of ours, with the metrics that are read as it."""
    ours = sorted(NAMES, key=lambda name: NAMES[name])
    lines = ["| read as | metric in the log |", "| --- | --- |"]
    lines += [f"| `step` | {_listed(STEP)} |", f"| `step.success` | the first of {_listed(SCORES)} |"]
    lines += [f"| `{column}` | {_listed(tuple(found))} |" for column, found in groupby(ours, key=lambda n: NAMES[n])]
    return "\n".join(lines)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)

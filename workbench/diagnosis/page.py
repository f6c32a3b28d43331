"""The generated parts of docs/diagnosis.md: what is looked for, and what other trainers call it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from workbench.diagnosis.causes import CAUSES
from workbench.diagnosis.names import NAMES, SCORES, STEP
from workbench.diagnosis.score import NOTHING, Case, confusion, false_alarms, right_among_three, right_first


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


def scores(found: Sequence[Case]) -> str:
    """Markdown: how often the cause was right, by algorithm and by fault, and what it was taken for."""
    faulty = [case for case in found if case.fault]
    groups = [("all", faulty), *((name, [c for c in faulty if c.algorithm == name]) for name in _unique(faulty))]
    lines = ["| runs with a fault | right cause first | among the first three |", "| --- | --- | --- |"]
    lines += [f"| {name} | {right_first(part)} | {right_among_three(part)} |" for name, part in groups]
    fallen = sum(not case.fault and not case.healthy for case in found)
    lines += ["", f"False alarms: {false_alarms(found)} of the healthy runs have a finding."]
    if fallen:
        lines += ["", f"Left out: {fallen} runs without a fault that collapsed on their own."]
    lines += [
        "",
        "| injected | runs | right first | among three | otherwise named first |",
        "| --- | --- | --- | --- | --- |",
    ]
    table = confusion(found)
    for fault in table.index:
        part = [case for case in found if (case.fault or ("none" if case.healthy else "")) == fault]
        others = table.loc[fault].drop(labels=[fault if fault != "none" else NOTHING], errors="ignore")
        named = ", ".join(f"{name} {count}" for name, count in others.items() if count)
        right = sum(case.named[:1] == (fault,) if case.fault else not case.named for case in part)
        third = sum(case.fault in case.named[:3] for case in part) if fault != "none" else right
        lines.append(f"| `{fault}` | {len(part)} | {right} | {third} | {named} |")
    return "\n".join(lines)


def _unique(found: Sequence[Case]) -> list[str]:
    return sorted({case.algorithm for case in found})


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)

"""How often the diagnosis is right, as Markdown: docs/diagnosis.md and `sorl bench diagnose` show it."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.diagnosis.score import NOTHING, Case, confusion, false_alarms, right_among_three, right_first


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

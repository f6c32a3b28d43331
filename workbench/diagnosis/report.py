"""The report of a diagnosis as text for a terminal, as Markdown and as plain data.

A report answers first: what the log is, what happened, since when and how sure. Then come at most SHOWN
findings, then what could not be looked at and how to log it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sorl.diagnosis.attribution import Culprit
from sorl.diagnosis.finding import Diagnosis, Finding
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.sentences import (
    FIRST,
    SHOWN,
    early_warning,
    finding_text,
    headline,
    none_found,
    opening,
    others_by_name,
    reading_notes,
    reading_warnings,
    signals_line,
    spot,
)
from sorl.diagnosis.trainers import option_names
from sorl.diagnosis.unanswered import not_checked, not_looked_at, too_short
from sorl.store.text import visible

FORMAT = "sorl.diagnose/1"  # of `as_dict`; docs/schemas/diagnose.json


def text(d: Diagnosis) -> str:
    """The diagnosis as plain text for a terminal."""
    lines = opening(d)
    ranked = in_order(d)
    lines += [] if ranked else [none_found(d)]
    for rank, finding in enumerate(ranked[:SHOWN], start=1):
        told = finding_text(d, finding)
        lines += ["", f"{rank}. {finding.cause.title}  [{finding.cause.name}: {told.sure}]"]
        lines += [f"   {f'{name}:':9}{visible(words)}" for name, words in told.lines.items()]
    lines += [""] if ranked else []
    lines += filter(None, [others_by_name(ranked), early_warning(d), signals_line(d)])
    return "\n".join([*lines, *not_looked_at(d), *not_checked(d), *reading_notes(d)])


def ranking(name: str, step: int, culprits: Sequence[Culprit], top: int) -> str:
    """The turns of a stored batch that its other tokens do not explain, as text for a terminal."""
    if not culprits:
        return f"{visible(name)}, step {step}: no token of the batch is unusual."
    outstanding = [culprit for culprit in culprits if culprit.stands_out]
    title = "no turn stands out; the first of them"
    if outstanding:
        verb = "stands" if len(outstanding) == 1 else "stand"
        title = f"{len(outstanding)} of its turns {verb} out"
    lines = (f"{i}. {spot(culprit)}" for i, culprit in enumerate((outstanding or culprits)[:top], 1))
    return "\n".join([f"{visible(name)}, step {step}: {title}", *lines])


def markdown(d: Diagnosis) -> str:
    """The diagnosis as Markdown, for an issue or a report."""
    lines = [f"**{_escaped(warning)}**\n" for warning in reading_warnings(d)]
    lines += [f"### {_escaped(visible(d.log.name))}", "", _escaped(headline(d)), ""]
    ranked = in_order(d)
    lines += [] if ranked else [none_found(d)]
    for rank, finding in enumerate(ranked[:SHOWN], start=1):
        told = finding_text(d, finding)
        sentences = [f"{_escaped(told.seen)}.", told.change]
        sentences += [f"Options {_escaped(told.options)}."] if told.options else []
        sentences += [f"Carried {_escaped(told.carried)}."] if told.carried else []
        test = f"`{told.test}`" if told.test.startswith("sorl ") else told.test
        sentences += [f"Test: {test}"] if test else []
        title = f"{rank}. **{finding.cause.title}** (`{finding.cause.name}`, {told.sure})."
        lines.append(f"{title} {' '.join(sentences)}")
    for paragraph in filter(None, [others_by_name(ranked), early_warning(d), _escaped(signals_line(d))]):
        lines += ["", paragraph]
    unlogged = not_looked_at(d)
    lines += ["", *(f"- {_escaped(line.strip())}" if line[0] == " " else _escaped(line) for line in unlogged)]
    for paragraph in map(_escaped, [*not_checked(d), *reading_notes(d)]):
        lines += ["", paragraph]
    return "\n".join(lines)


def _escaped(words: str) -> str:
    return visible(words).replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def as_dict(d: Diagnosis) -> dict[str, Any]:
    """Plain data; a number that is NaN or Inf is a string, as JSON has none."""
    return {
        "schema": FORMAT,
        "log": d.log.name,
        "headline": headline(d),
        "reading": d.log.reading and d.log.reading.as_dict(),
        "outcome": d.log.run.get("outcome"),
        "onset": d.log.onset,
        "critical_events": [{"step": step, "kind": kind} for step, kind in d.log.critical],
        "steps": d.log.steps,
        "slump": d.slump and d.slump._asdict(),
        "findings": [_finding(d, finding) for finding in in_order(d)],
        "moved": [_data(m) for m in d.moved],
        "unanswered": d.unanswered,
        "too_short": too_short(d),
        "failed": dict(d.failed),
        "withdrawn": dict(d.withdrawn),
        "not_looked_at": not_looked_at(d),
    }


def _finding(d: Diagnosis, finding: Finding) -> dict[str, Any]:
    cause, clue, _ = finding
    told = finding_text(d, finding)
    return {
        "cause": cause.name,
        "title": cause.title,
        "severity": finding.severity,
        "grade": clue.grade,
        "confidence": clue.confidence,
        "step": clue.step,
        "trajectory": clue.trajectory,
        "turn": clue.turn,
        "says": clue.says,
        "evidence": [_data(e) for e in clue.evidence],
        "change": told.change,
        "options": option_names(cause.options, d.log),
        "test": told.test or None,
        "open": told.open or None,
        "carried_by": [culprit_as_dict(c) for c in d.carriers.get(clue.shown, ())[:FIRST]],
        "alternatives": _others(d, finding),
        "tested": (
            None if finding.tested is None else finding.tested._asdict() | {"saves": finding.tested.saves}
        ),
    }


def _others(d: Diagnosis, finding: Finding) -> list[str]:
    """Names of the findings that would explain the same."""
    return [other.cause.name for other in d.findings if other.cause.name != finding.cause.name]


def culprit_as_dict(culprit: Culprit) -> dict[str, Any]:
    """Plain data of a culprit."""
    return {**_data(culprit), "stands_out": culprit.stands_out}


def _data(one: Any) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(one).items()}

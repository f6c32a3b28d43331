"""The diagnosis of one log: run every cause, rank the findings, write the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from workbench.diagnosis.attribution import Culprit, attribute
from workbench.diagnosis.causes import CAUSES
from workbench.diagnosis.changepoint import first, slumped
from workbench.diagnosis.finding import Cause, Diagnosis, Finding, Moved
from workbench.diagnosis.log import Log
from workbench.store.text import visible

GRADES = ("proof", "sign", "pattern")
# No signals of training: clocks, fingerprints, counters.
_NO_SIGNAL = ("seconds_", "tokens_per_second", "memory_", "questions_hash", "batch_hash", "heldout_episodes", "updates",
              "first_log_ratio_abs_max")  # fmt: skip
_POINTS = 2
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES) -> Diagnosis:
    """Look for every cause in the log; proofs come before signs before patterns, then by confidence, then by step."""
    found: list[Finding] = []
    unanswered: dict[str, list[str]] = {}
    for cause in causes:
        if missing := cause.missing(log):
            unanswered[cause.name] = missing
        elif (clue := cause.look(log)) is not None:
            found.append(Finding(cause, clue))
    found.sort(key=lambda f: (GRADES.index(f.clue.grade), -f.clue.confidence, f.clue.step))
    names = [f.cause.name for f in found]
    ranked = tuple(Finding(f.cause, f.clue, tuple(n for n in names if n != f.cause.name)) for f in found)
    slump = slumped(log.series("step", "success"))
    return Diagnosis(log, ranked, moved(log), unanswered, slump, carriers(log, ranked))


def carriers(log: Log, findings: Sequence[Finding]) -> dict[int, tuple[Culprit, ...]]:
    """Of each step that a finding points at and whose batch is stored: the turns of it that stand out."""
    found: dict[int, tuple[Culprit, ...]] = {}
    for step in sorted({finding.clue.step for finding in findings}):
        batch = log.batch(step)
        if batch is not None and (here := tuple(one for one in attribute(batch) if one.stands_out)):
            found[step] = here
    return found


def moved(log: Log, until: int | None = None) -> tuple[Moved, ...]:
    """The step diagnostics that left their own past, earliest first; those after a collapse say nothing about it."""
    last = log.onset if until is None else until
    found = []
    for column in log.table("step").columns:
        if column in ("run_id", "step", "written_at", "success") or column.startswith(_NO_SIGNAL):
            continue
        series = log.series("step", column)
        departure = first(series, points=_POINTS, least=_LEAST if column.endswith("_frac") else 0.0)
        if departure is not None and (last is None or departure.step <= last):
            found.append(Moved(f"step.{column}", departure.step, departure.value, departure.usual))
    return tuple(sorted(found, key=lambda m: (m.step, m.column)))


FIRST = 5  # signals that are named
_GRADES = {"proof": "the record contradicts itself", "sign": "clear sign", "pattern": "fits the pattern"}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def headline(d: Diagnosis) -> str:
    """Return how the run stands, in a line."""
    run = d.log.run
    outcome = run.get("outcome") or "undecided"
    fell = f", onset at step {d.onset}" if d.onset is not None else ""
    outcome = {"no_learning": "did not rise above its start", "mild": "a mild fall"}.get(outcome, outcome)
    status = f", {run['status']}" if run.get("status") not in (None, "finished") else ""
    return f"{visible(d.log.name)}: {outcome}{fell}; {d.log.steps} steps{status}"


def fallen(d: Diagnosis) -> str:
    """Since when success is down, from what to what, and how sure that is; empty for a run that is up."""
    run = d.log.run
    low, high, seen = (run.get(name) for name in ("onset_low", "onset_high", "detection_step"))
    if d.onset is None or low is None or low != low:
        return ""
    peak, last = _number(run.get("peak_success")), _number(run.get("final_success"))
    began = f"began at step {d.onset}" + (f" (95 %: {low:.0f} to {high:.0f})" if high > low else "")
    if seen is None or seen != seen:
        return (
            f"Success is down in its last steps: the fall {began}, from a best of {peak}. The counts are at least "
            f"{_one_in(d, 'false_ending', 0.05)} times likelier with a fall than without; it has lasted too few steps "
            "for the collapse rule."
        )
    back = "; it came back" if run.get("outcome") == "recovered" else ""
    return (
        f"Success fell from a best of {peak} to {last} (mean of the last ten steps){back}: the fall {began}, and was "
        f"certain at step {seen:.0f} "
        f"(by a rule set to one false collapse in {_one_in(d, 'false_collapse', 0.01)} runs)."
    )


def _one_in(d: Diagnosis, name: str, default: float) -> str:
    """1 over an error rate of the collapse rule, as the run set it."""
    told = d.log.settings.get(f"collapse.{name}")
    return f"{1 / (told if isinstance(told, float) and 0 < told < 1 else default):.0f}"


def none_found(d: Diagnosis) -> str:
    """Return what to say where no cause was found: of a run that is down never that nothing was."""
    events = ", ".join(f"{visible(kind)} at step {step}" for step, kind in d.critical)
    said = f" Critical: {events}." if events else ""
    if d.onset is not None or d.slump is not None or events or d.log.run.get("outcome") in ("mild", "diverged"):
        return f"None of the known causes fits.{said}"
    return "Nothing found."


def early_warning(d: Diagnosis) -> str:
    """Whether success slumps as it hardly ever does in a healthy run, where no collapse has been called (yet)."""
    if d.slump is None or d.onset is not None:
        return ""
    return (
        f"Early warning: by step {d.slump.step} success has lost {100 * d.slump.lost:.0f} % of its best. About one "
        "healthy run in twenty ever does, and one in five of all runs that did not collapse, learned or not."
    )


def first_signals(d: Diagnosis) -> str:
    """Return which diagnostics left their usual range first."""
    if not d.moved:
        return "No diagnostic left its usual range" + ("." if d.onset is None else " before the onset.")
    parts = [_moved(m, d.onset) for m in d.moved[:FIRST]]
    more = f"; {len(d.moved) - FIRST} more later" if len(d.moved) > FIRST else ""
    return "Moved first: " + "; ".join(parts) + more + "."


def _moved(m: Moved, onset: int | None) -> str:
    ahead = f", {onset - m.step} before the onset" if onset is not None and onset > m.step else ""
    return f"{m.column} at step {m.step} ({_number(m.usual)} -> {_number(m.value)}{ahead})"


def place(d: Diagnosis, finding: Finding) -> str:
    """Address of the evidence in the app, relative to its start; empty for a log that is not in the store."""
    experiment, run = d.log.run.get("experiment"), d.log.run.get("run_id")
    if run is None:
        return ""
    clue = finding.clue
    choices = {"experiment": experiment, "run": run, "step": clue.step}
    if clue.trajectory is not None:
        choices["trajectory"] = clue.trajectory
    return "episode?" + urlencode(choices)


def _filled(template: str, d: Diagnosis, finding: Finding) -> str:
    return template.replace("{run}", visible(d.log.name)).replace("{step}", str(finding.clue.step))


def test_of(d: Diagnosis, finding: Finding) -> str:
    """Return the command that would confirm or refute a finding; empty where there is none for this log."""
    told = _filled(finding.cause.test, d, finding)
    experiment = d.log.run.get("experiment")
    if experiment is None:  # a log of another trainer: no command of ours reaches it
        return "train again with " + told.replace("--set ", "") if told.startswith("--set") else ""
    return f"sorl run {visible(str(experiment))}.toml {told}" if told.startswith("--set") else told


def spot(culprit: Culprit) -> str:
    """Turn, tokens and size of one culprit, and how rare the like is by chance."""
    tokens = f"token {culprit.first}" if culprit.first == culprit.last else f"tokens {culprit.first}-{culprit.last}"
    words = f' "{visible(culprit.text)}"' if culprit.text.strip() else ""
    return (
        f"turn {culprit.turn} of trajectory {culprit.trajectory}, {tokens}{words}: {culprit.quantity} up to "
        f"{culprit.value:+.2g} nats; by chance {culprit.expected:.1g} such stretches a batch"
    )


def carried_by(d: Diagnosis, finding: Finding) -> str:
    """The turns of the finding's step that stand out of its batch; empty where none does, or no batch was kept."""
    found = d.carriers.get(finding.clue.step, ())
    if not found:
        return ""
    n = len(found) - 1
    more = f"; {n} more turn{'s stand' if n > 1 else ' stands'} out" if n else ""
    return f"in step {finding.clue.step} by {spot(found[0])}{more}"


def ranking(name: str, step: int, found: Sequence[Culprit], top: int) -> str:
    """Return for a terminal: the turns of a stored batch that its other tokens do not explain."""
    here = [one for one in found if one.stands_out]
    if not found:
        return f"{visible(name)}, step {step}: no token of the batch is unusual."
    title = (
        f"{len(here)} of its turns stand{'s' * (len(here) == 1)} out"
        if here
        else "no turn stands out; the first of them"
    )
    return "\n".join(
        [f"{visible(name)}, step {step}: {title}", *(f"{i}. {spot(c)}" for i, c in enumerate((here or found)[:top], 1))]
    )


def culprit_as_dict(culprit: Culprit) -> dict[str, Any]:
    """Plain data of a culprit."""
    return {**asdict(culprit), "value": _plain(culprit.value), "stands_out": culprit.stands_out}


def text(d: Diagnosis) -> str:
    """Return for a terminal."""
    lines = [headline(d), *filter(None, [fallen(d)])]
    if not d.findings:
        lines.append(none_found(d))
    for rank, finding in enumerate(d.findings, start=1):
        clue, cause = finding.clue, finding.cause
        lines += [
            "",
            f"{rank}. {cause.title}  [{cause.name}: {cause.severity}, {_GRADES[clue.grade]}, "
            f"{100 * clue.confidence:.0f} %]",
            f"   seen:    {visible(clue.says)}",
            f"   change:  {_filled(cause.change, d, finding)}",
        ]
        if carried := carried_by(d, finding):
            lines.append(f"   carried: {carried}")
        if test := test_of(d, finding):
            lines.append(f"   test:    {test}")
        if where := place(d, finding):
            lines.append(f"   open:    sorl app, then /{where}")
        if finding.alternatives:
            lines.append(f"   or:      {', '.join(finding.alternatives[:3])}")
    lines += ["", *filter(None, [early_warning(d)]), first_signals(d)]
    if d.unanswered:
        lacking = sorted({name for names in d.unanswered.values() for name in names})
        lines.append(f"Cannot tell: {', '.join(d.unanswered)} (not logged: {', '.join(lacking)}).")
    return "\n".join(lines)


def markdown(d: Diagnosis) -> str:
    """Return for an issue or a report."""
    lines = [f"### {_escaped(headline(d))}", "", *([fallen(d), ""] if fallen(d) else [])]
    if not d.findings:
        lines.append(none_found(d))
    for rank, finding in enumerate(d.findings, start=1):
        clue, cause = finding.clue, finding.cause
        lines += [
            f"{rank}. **{cause.title}** (`{cause.name}`, {cause.severity}, {_GRADES[clue.grade]}, "
            f"{100 * clue.confidence:.0f} %). {_escaped(clue.says)}. {_filled(cause.change, d, finding)}"
            + (f" Carried {_escaped(carried)}." if (carried := carried_by(d, finding)) else "")
            + (f" Test: `{test}`" if (test := test_of(d, finding)) else "")
        ]
    lines += ["", *filter(None, [early_warning(d)]), _escaped(first_signals(d))]
    if d.unanswered:
        lines += ["", f"Cannot tell, not logged: {', '.join(f'`{name}`' for name in d.unanswered)}."]
    return "\n".join(lines)


def _escaped(words: str) -> str:
    return visible(words).replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def as_dict(d: Diagnosis) -> dict[str, Any]:
    """Plain data; a number that is NaN or Inf is a string, as JSON has none."""
    return {
        "log": d.log.name,
        "outcome": d.log.run.get("outcome"),
        "onset": d.onset,
        "critical_events": [{"step": step, "kind": kind} for step, kind in d.critical],
        "steps": d.log.steps,
        "slump": None if d.slump is None else asdict(d.slump),
        "findings": [
            {
                "cause": f.cause.name,
                "title": f.cause.title,
                "severity": f.cause.severity,
                "grade": f.clue.grade,
                "confidence": f.clue.confidence,
                "step": f.clue.step,
                "trajectory": f.clue.trajectory,
                "turn": f.clue.turn,
                "says": f.clue.says,
                "evidence": [
                    {"column": e.column, "step": e.step, "value": _plain(e.value), "usual": _plain(e.usual)}
                    for e in f.clue.evidence
                ],
                "change": _filled(f.cause.change, d, f),
                "test": test_of(d, f) or None,
                "open": place(d, f) or None,
                "carried_by": [culprit_as_dict(c) for c in d.carriers.get(f.clue.step, ())[:FIRST]],
                "alternatives": list(f.alternatives),
            }
            for f in d.findings
        ],
        "moved": [
            {"column": m.column, "step": m.step, "value": _plain(m.value), "usual": _plain(m.usual)} for m in d.moved
        ],
        "unanswered": d.unanswered,
    }


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)

"""The diagnosis of one log: run every cause, rank the findings, write the report."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from workbench.diagnosis.attribution import Culprit, attribute
from workbench.diagnosis.causes import CAUSES
from workbench.diagnosis.changepoint import first, slumped
from workbench.diagnosis.finding import Cause, Diagnosis, Evidence, Finding
from workbench.diagnosis.log import Log
from workbench.store.text import visible

# In the order of their rank, with the words of a report.
GRADES = {"proof": "the record contradicts itself", "sign": "clear sign", "pattern": "fits the pattern"}
FIRST = 5  # signals and culprits that are named
_KEYS = ("run_id", "step", "written_at", "success")
# No signals of training: clocks, fingerprints, counters.
_NO_SIGNAL = ("seconds_", "tokens_per_second", "memory_", "questions_hash", "batch_hash", "heldout_episodes", "updates",
              "first_log_ratio_abs_max")  # fmt: skip
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES) -> Diagnosis:
    """Look for every cause in the log; proofs come before signs before patterns, then by confidence, then by step."""
    unanswered = {cause.name: missing for cause in causes if (missing := cause.missing(log))}
    asked = (cause for cause in causes if cause.name not in unanswered)
    found = [(cause, clue) for cause in asked if (clue := cause.look(log)) is not None]
    found.sort(key=lambda pair: (list(GRADES).index(pair[1].grade), -pair[1].confidence, pair[1].step))
    names = [cause.name for cause, _ in found]
    ranked = tuple(Finding(cause, clue, tuple(n for n in names if n != cause.name)) for cause, clue in found)
    batches = ((step, log.batch(step)) for step in sorted({clue.step for _, clue in found}))
    culprits = ((step, tuple(c for c in attribute(b) if c.stands_out)) for step, b in batches if b is not None)
    carriers = {step: here for step, here in culprits if here}
    return Diagnosis(log, ranked, moved(log), unanswered, slumped(log.series("step", "success")), carriers)


def moved(log: Log) -> tuple[Evidence, ...]:
    """The step diagnostics that left their own past, earliest first; those after a collapse say nothing about it."""
    found = []
    for column in (c for c in log.table("step").columns if c not in _KEYS and not c.startswith(_NO_SIGNAL)):
        left = first(log.series("step", column), points=2, least=_LEAST if column.endswith("_frac") else 0.0)
        if left is not None and (log.onset is None or left.step <= log.onset):
            found.append(Evidence(f"step.{column}", left.step, left.value, left.usual))
    return tuple(sorted(found, key=lambda m: (m.step, m.column)))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def headline(d: Diagnosis) -> str:
    """Return how the run stands, in a line."""
    run, fell = d.log.run, f", onset at step {d.onset}" if d.onset is not None else ""
    outcome = run.get("outcome") or "undecided"
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
        f"certain at step {seen:.0f} (by a rule set to one false collapse in "
        f"{_one_in(d, 'false_collapse', 0.01)} runs)."
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
    parts = []
    for m in d.moved[:FIRST]:
        ahead = f", {d.onset - m.step} before the onset" if d.onset is not None and d.onset > m.step else ""
        parts.append(f"{m.column} at step {m.step} ({_number(m.usual)} -> {_number(m.value)}{ahead})")
    parts += [f"{len(d.moved) - FIRST} more later"] if len(d.moved) > FIRST else []
    return f"Moved first: {'; '.join(parts)}."


def place(d: Diagnosis, finding: Finding) -> str:
    """Address of the evidence in the app, relative to its start; empty for a log that is not in the store."""
    run, clue = d.log.run, finding.clue
    choices = {"experiment": run.get("experiment"), "run": run.get("run_id"), "step": clue.step}
    choices |= {} if clue.trajectory is None else {"trajectory": clue.trajectory}
    return "" if choices["run"] is None else "episode?" + urlencode(choices)


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
    if not (found := d.carriers.get(finding.clue.step, ())):
        return ""
    n = len(found) - 1
    more = f"; {n} more turn{'s stand' if n > 1 else ' stands'} out" if n else ""
    return f"in step {finding.clue.step} by {spot(found[0])}{more}"


def ranking(name: str, step: int, found: Sequence[Culprit], top: int) -> str:
    """Return for a terminal: the turns of a stored batch that its other tokens do not explain."""
    if not found:
        return f"{visible(name)}, step {step}: no token of the batch is unusual."
    here = [one for one in found if one.stands_out]
    title = "no turn stands out; the first of them"
    title = f"{len(here)} of its turns stand{'s' * (len(here) == 1)} out" if here else title
    lines = (f"{i}. {spot(culprit)}" for i, culprit in enumerate((here or found)[:top], 1))
    return "\n".join([f"{visible(name)}, step {step}: {title}", *lines])


def _sureness(finding: Finding) -> str:
    return f"{finding.cause.severity}, {GRADES[finding.clue.grade]}, {100 * finding.clue.confidence:.0f} %"


def text(d: Diagnosis) -> str:
    """Return for a terminal."""
    lines = [headline(d), *filter(None, [fallen(d), "" if d.findings else none_found(d)])]
    for rank, finding in enumerate(d.findings, start=1):
        cause, where = finding.cause, place(d, finding)
        said = {
            "seen": visible(finding.clue.says),
            "change": _filled(cause.change, d, finding),
            "carried": carried_by(d, finding),
            "test": test_of(d, finding),
            "open": where and f"sorl app, then /{where}",
            "or": ", ".join(finding.alternatives[:3]),
        }
        lines += ["", f"{rank}. {cause.title}  [{cause.name}: {_sureness(finding)}]"]
        lines += [f"   {f'{name}:':8} {words}" for name, words in said.items() if words]
    lines += ["", *filter(None, [early_warning(d)]), first_signals(d)]
    if d.unanswered:
        lacking = sorted({name for names in d.unanswered.values() for name in names})
        lines.append(f"Cannot tell: {', '.join(d.unanswered)} (not logged: {', '.join(lacking)}).")
    return "\n".join(lines)


def markdown(d: Diagnosis) -> str:
    """Return for an issue or a report."""
    lines = [f"### {_escaped(headline(d))}", "", *([fallen(d), ""] if fallen(d) else [])]
    lines += [] if d.findings else [none_found(d)]
    for rank, finding in enumerate(d.findings, start=1):
        cause, carried, test = finding.cause, carried_by(d, finding), test_of(d, finding)
        lines.append(
            f"{rank}. **{cause.title}** (`{cause.name}`, {_sureness(finding)}). {_escaped(finding.clue.says)}. "
            + _filled(cause.change, d, finding)
            + (f" Carried {_escaped(carried)}." if carried else "")
            + (f" Test: `{test}`" if test else "")
        )
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
        "findings": [_finding(d, finding) for finding in d.findings],
        "moved": [_data(m) for m in d.moved],
        "unanswered": d.unanswered,
    }


def _finding(d: Diagnosis, finding: Finding) -> dict[str, Any]:
    cause, clue = finding.cause, finding.clue
    return {
        "cause": cause.name, "title": cause.title, "severity": cause.severity, "grade": clue.grade,
        "confidence": clue.confidence, "step": clue.step, "trajectory": clue.trajectory, "turn": clue.turn,
        "says": clue.says, "evidence": [_data(e) for e in clue.evidence],
        "change": _filled(cause.change, d, finding),
        "test": test_of(d, finding) or None,
        "open": place(d, finding) or None,
        "carried_by": [culprit_as_dict(c) for c in d.carriers.get(clue.step, ())[:FIRST]],
        "alternatives": list(finding.alternatives),
    }  # fmt: skip


def culprit_as_dict(culprit: Culprit) -> dict[str, Any]:
    """Plain data of a culprit."""
    return {**_data(culprit), "stands_out": culprit.stands_out}


def _data(one: Any) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(one).items()}

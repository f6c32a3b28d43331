"""How a run stands, in words and figures: its outcome in a sentence, and the facts of its row in table `run`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from workbench.app.wording import duration, number, word

Row = Mapping[str, Any]

_OUTCOMES = {
    "healthy": "Healthy", "mild": "A mild fall", "collapsed": "Collapsed", "diverged": "Diverged",
    "recovered": "Collapsed and recovered", "falling": "Falling at its end, too late for the collapse rule",
    "no_learning": "Did not rise above its start",
}  # fmt: skip


def sentence(run: Row) -> str:
    """Outcome and numbers of a run; `run` is a row of table `run` with `steps` and `planned` as they are now."""
    return " ".join([_verdict(run), *_success(run), f"{_done(run)}."])


def ended_badly(run: Row) -> str:
    """Status and reason of a run that did not end well; empty for any other."""
    if run["status"] in ("finished", "running", "queued") and not run["reason"]:
        return ""
    return f"{word(run['status'])}: {run['reason']}" if run["reason"] else word(run["status"])


def title(run: Row) -> str:
    """The words that name a run: its arm and seed."""
    return f"{word(run['arm'])}, seed {word(run['seed'])}"


def facts(run: Row) -> Iterator[tuple[str, str]]:
    """Names and values of what is known of a run besides its settings; what is not known is left out."""
    yield "run", run["run_id"]
    yield "algorithm", word(run["algorithm"])
    yield "status", word(run["status"])
    if run["started_at"] is not None:
        yield "began", moment(run["started_at"])
    if run["ended_at"] is not None:
        yield "ended", moment(run["ended_at"])
    if run["seconds"] is not None:
        yield "training time", duration(run["seconds"])
    for name in ("generation", "attempt"):
        if (run[name] or 1) > 1:
            yield name, str(run[name])
    if run["config_hash"]:
        yield "settings hash", str(run["config_hash"])[:12]


def versions(run: Row) -> list[tuple[str, str]]:
    """Names and versions of what a run was trained with, and its machine; what is no JSON table is one text."""
    try:
        found = json.loads(run["versions"] or "{}")
    except ValueError:  # logs of another trainer may carry anything
        found = None
    if not isinstance(found, dict):
        return [("versions", str(run["versions"]))]
    return [(str(name), word(value)) for name, value in found.items()]


def moment(time: datetime) -> str:
    """A time of the database, to the minute."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _verdict(run: Row) -> str:
    fell, seen = run["collapse_step"], run["detection_step"]
    said = _OUTCOMES.get(run["outcome"] or "", "Undecided" if run["status"] != "running" else "Running")
    low, high = run["onset_low"], run["onset_high"]
    if fell is None and low is not None:
        return f"{said}: the fall began at step {low:,}{f' to {high:,}' if high > low else ''}."
    if fell is None:
        return f"{said}."
    sure = f" and was detected at step {seen:,}" if seen is not None else ""
    return f"{said}: the fall began at step {fell:,}{sure}."


def _success(run: Row) -> Iterator[str]:
    peak, last = run["peak_success"], run["final_success"]
    if peak is not None and last is not None:
        yield f"Success peaked at {number(peak)} (smoothed) and was {number(last)} over the last ten steps."
    elif peak is not None:
        yield f"Success peaked at {number(peak)} (smoothed)."


def _done(run: Row) -> str:
    planned, steps = run["planned"], run["steps"] or 0
    count = f"{steps:,} of {planned:,} steps" if planned else f"{steps:,} steps"
    if not run["seconds"] or not steps:
        return count
    return f"{count} in {duration(run['seconds'])}, {duration(run['seconds'] / steps)} a step"

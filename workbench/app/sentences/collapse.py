"""What happened to runs, in sentences: which collapsed and when, and which alarm told them apart."""

from collections.abc import Mapping, Sequence

import pandas as pd

from sorl.analysis.stats import fisher_exact, p_value
from sorl.analysis.survival import observed
from sorl.app.text import few
from sorl.spec import UNDECIDED
from sorl.spec.evidence import ALPHA

# that a sentence names one by one
SEEDS = 4
ARMS = 6
ALARMS = 4


def headline(runs: pd.DataFrame) -> str:
    """Say which runs collapsed and when, which came back, and what is still open."""
    rows = observed(runs).merge(runs[["run_id", "outcome", "collapse_step"]], on="run_id")
    if rows.empty:
        return "None of these runs has trained a step yet."
    collapsed = rows[rows["event"]]
    sentences = [_collapsed_sentence(rows, collapsed)]
    back = int((collapsed["outcome"] == "recovered").sum())
    if back:
        sentences.append(f"{back} of them came back.")
    up = rows[~rows["event"]]
    late = up[up["outcome"].isin(UNDECIDED)]
    open_ones = up[up["outcome"].isna()]
    sentences += _more(late, "down at the end, too late for the collapse rule")
    sentences += _more(open_ones, "not judged yet")
    return " ".join(sentences)


def _collapsed_sentence(rows: pd.DataFrame, collapsed: pd.DataFrame) -> str:
    if collapsed.empty:
        return "None of these runs collapsed."
    counts = rows["arm"].value_counts()
    each = [
        f"{arm} in {len(part)} of {counts[str(arm)]} ({_steps_of(part)})"
        for arm, part in collapsed.groupby("arm", sort=False)
    ]
    return f"{len(collapsed)} of {len(rows)} runs collapsed: {few(each, ARMS, '; ', ' arm')}."


def _steps_of(part: pd.DataFrame) -> str:
    """Say after which steps the collapsed runs of an arm fell; if one only diverged, no onset is known."""
    if len(part) > SEEDS:
        return f"after steps {part['time'].min():,.0f} to {part['time'].max():,.0f}"
    words = []
    for run in part.to_dict("records"):
        verb = "diverged at" if pd.isna(run["collapse_step"]) else "after"
        words.append(f"seed {run['seed']} {verb} step {run['time']:,.0f}")
    return ", ".join(words)


def _more(rows: pd.DataFrame, state: str) -> list[str]:
    names = [f"{arm} seed {seed}" for arm, seed in rows[["arm", "seed"]].to_numpy()]
    return [f"{len(names)} more: {state} ({few(names, ARMS)})."] if names else []


def first_warning(
    alarms: pd.DataFrame, collapsed: int, unwatched: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Say of many runs which of `alarm_leads` tells those that collapsed from those that did not, or that
    none does.

    `unwatched`: alarm -> those of the `collapsed` runs that fell before its rule could ring.
    """
    too_early = {name: len(runs) for name, runs in (unwatched or {}).items()}
    warned = [row for row in alarms.to_dict("records") if row["before"]]
    if not warned:
        return f"No alarm went off before an onset.{_too_early_sentence(too_early, collapsed)}"
    best = max(
        warned, key=lambda row: row["before"] / row["collapsed"] - row["false_alarms"] / max(row["steady"], 1)
    )
    early = too_early.get(str(best["alarm"]), 0)
    tail = _too_early_sentence({str(best["alarm"]): early} if early else {}, collapsed)
    return f"{_best_sentence(best, len(warned))}{tail}"


def _best_sentence(best: Mapping[object, object], warned: int) -> str:
    """Say of the alarm that tells most how well it does, given that it is the best of `warned`."""
    numbers = pd.Series(best)
    steady, false, before, fell = (
        int(numbers[name]) for name in ("steady", "false_alarms", "before", "collapsed")
    )
    name = numbers["alarm"]
    lead = f"{numbers['lead_median']:.3g} step{'' if numbers['lead_median'] == 1 else 's'}"
    facts = f"went off before the onset in {before} of {fell} runs that collapsed (median lead {lead})"
    if not steady:
        return f"{name} {facts}; no run stayed up, so nothing says that it would be silent there."
    facts += f", and in {false} of {steady} that did not"
    if before * steady <= false * fell:
        return f"No alarm told them apart: {name} {facts}."
    p = min(1.0, warned * fisher_exact(before, fell, false, steady))  # the best of so many
    written = p_value(p) if p < 0.001 else f"= {p_value(p)}"
    if p > ALPHA:
        return f"No alarm tells them apart beyond chance. The nearest, {name}, {facts} (p {written})."
    return f"{name} told them apart: it {facts} (p {written})."


def _too_early_sentence(counts: Mapping[str, int], collapsed: int) -> str:
    """Say how many runs fell before rules on a run's own first points could ring; nothing where none did."""
    if not counts:
        return ""
    each = [f"{name} in {count} of {collapsed}" for name, count in counts.items()]
    rules = "this rule, which compares a run with its own first points, could"
    if len(each) > 1:
        rules = "these rules, which compare a run with its own first points, could"
    return f" The fall began before {rules} ring: {few(each, ALARMS, ', ', ' alarms')}."


def letters_sentence(letters: Mapping[str, str]) -> str:
    """Say which alarm each letter of the timeline stands for; nothing without one."""
    names = " · ".join(f"{letter} {name}" for name, letter in letters.items())
    return f"Alarms: {names}." if names else ""


def survival_key(reference: str) -> str:
    """Say what the marks of survival curves mean."""
    return (
        "A step down is the onset of a collapse, a tick a run that was watched until there and had not"
        f" collapsed; dotted: {reference}. No interval from fewer than three runs."
    )

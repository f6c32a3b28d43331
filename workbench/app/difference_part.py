"""What a run differs in from runs that worked, as a part of its screen."""

from collections.abc import Sequence

import pandas as pd

from sorl.app import page
from sorl.app.queries import Store
from sorl.app.text import word
from sorl.app.url import choose_many
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import of_run
from sorl.difference import baseline, report
from sorl.difference.baseline import Baseline
from sorl.difference.difference import Difference, compare
from sorl.spec import InputError
from sorl.spec.baselines import baseline_names
from sorl.store.reader import Reader

TITLE = "What differs"
_MOST = 5  # good runs: each takes a second to diagnose
_SAVED = "baseline "  # before the name of a saved baseline


def show_difference(store: Store, each: pd.DataFrame, run_id: str) -> None:
    """Choose runs that worked, and say what this one differs in."""
    page.heading(TITLE)
    choices = _choices(store, each, run_id)
    if not choices:
        page.note("There is no other run to compare with in this experiment, and no saved baseline.")
        return
    good = choose_many("good", "Compare with runs that worked", choices, [], _MOST, implied=True)
    if not good:
        page.note("Choose one run that worked, or several: from three on their spread is the band.")
        return
    try:
        difference = _difference(store, good, run_id)
    except InputError as error:
        page.say(str(error))
        return
    page.answer(report.answer(difference))
    decides = report.what_would_decide(difference)
    if decides:
        page.note(f"What would decide: {decides}")
    for caveat in report.caveats(difference):
        page.note(caveat)
    for table in report.tables(difference):
        page.note(table.title)
        page.table(pd.DataFrame(table.rows, columns=list(table.head)), "sorl-settings")


def _choices(store: Store, each: pd.DataFrame, run_id: str) -> dict[str, str]:
    """Return what a run can be compared with: saved baselines, runs that stood, then the others."""
    others = each[each["run_id"].ne(run_id)]
    others = others.assign(fell=others["collapse_step"].notna() | others["onset_low"].notna())
    runs = others.sort_values("fell", kind="stable")
    saved = {f"{_SAVED}{name}": f"{_SAVED}{name}" for name in baseline_names(store.runs)}
    names = zip(runs["run_id"], runs["arm"], runs["seed"], runs["outcome"], strict=True)
    return saved | {run: _name(arm, seed, outcome) for run, arm, seed, outcome in names}


def _name(arm: str, seed: int, outcome: str | None) -> str:
    known = "not judged" if pd.isna(outcome) else word(outcome)
    return f"{arm}, seed {seed}, {known}"


def _difference(store: Store, good: Sequence[str], run_id: str) -> Difference:
    """Return the comparison. Raises InputError for a saved baseline that cannot be read."""
    saved = [choice.removeprefix(_SAVED) for choice in good if choice.startswith(_SAVED)]
    if saved and len(good) > 1:
        raise InputError("a saved baseline is compared with alone: it holds its runs already")

    def ask(reader: Reader) -> Difference:
        normal = baseline.load(store.runs, saved[0]) if saved else _of_runs(reader, good)
        return compare(normal, diagnose(of_run(reader, run_id, store.runs)))

    saved_at = [baseline.saved_at(store.runs, name) for name in saved]
    return store.computed(("difference", run_id, *good, *saved_at), ask)


def _of_runs(reader: Reader, good: Sequence[str]) -> Baseline:
    return Baseline.of([diagnose(of_run(reader, name)) for name in good])

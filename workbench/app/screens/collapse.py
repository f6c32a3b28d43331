"""Collapse: what happened when, how long the arms stay up, and which signal moves before the fall."""

import pandas as pd

from sorl.analysis import compare
from sorl.analysis.survival import curve, observed
from sorl.app import export
from sorl.app.choices import Arms, choose_arms
from sorl.app.data import alarmed, first_alarms, origins
from sorl.app.figures.common import AXES
from sorl.app.figures.runs import leads, letters, survival, timeline
from sorl.app.page import EPISODE, answer, heading, look, note, open_screen, run_links, screen, table
from sorl.app.queries import Store, dictionary
from sorl.app.sentences.collapse import first_warning, headline, letters_sentence, survival_key
from sorl.app.url import choose

_MOST = 120  # runs that the timeline draws
_AXIS = {"step": "step", "onset": "onset of the fall"}


@screen
def collapse(store: Store) -> None:
    """Show when runs collapse, how many, and which alarm comes before."""
    arms = choose_arms(store)
    if not arms.names:
        note("Choose at least one arm.")
        return
    answer(headline(arms.runs))
    heading("What happened when")
    _timeline(store, arms)
    heading("Survival: runs not yet collapsed")
    _survival(store, arms)
    heading("Which signal moves first")
    first = first_alarms(store, arms.runs, dictionary(store))
    alarms = first.leads
    fell = int(alarmed(store, arms.runs)["collapse_step"].notna().sum())
    if alarms.empty or not fell:
        none = (
            "None of these runs raised an alarm."
            if fell
            else "The runs that collapsed did not record their alarms."
        )
        note("None of these runs collapsed." if arms.runs["collapse_step"].isna().all() else none)
        return
    answer(first_warning(alarms, fell, first.unwatched))
    words = f"First alarms of {fell} collapsed runs, in steps from the onset of the collapse."
    key = (
        f"A dot is the first such alarm in a run that collapsed ({fell} of them); the tick is the median of"
        " those before the onset, the bar their quartiles. ↑ goes off above its threshold, ↓ below. An alarm"
        " that also fires in healthy runs is no warning."
    )
    export.figure(leads(alarms, first.dots, arms.styles, look()), "leads", alarms, describe=words, key=key)
    note(key)


def _timeline(store: Store, arms: Arms) -> None:
    axis = choose("x", "Align on", _AXIS, kind="row")
    starts = origins(arms.runs, axis)
    last = arms.runs["steps"].fillna(0) - 1 - starts
    runs = arms.runs.assign(start=starts, first=[-start for start in starts], last=last).head(_MOST)
    events = store.query("events", runs=list(runs["run_id"]), origins=list(runs["start"]))
    events = events.assign(run_id=runs["run_id"].to_numpy()[events["run"]]).drop(columns="run")
    picture = timeline(runs, events, arms.styles, look(), AXES[axis])
    words = f"Events of {len(runs)} runs over training, a line a run."
    key = letters_sentence(letters(events))
    clicked = export.figure(picture, "timeline", events, select=True, describe=words, key=key)
    if key:
        note(key)
    more = f" These are the first {_MOST} of {len(arms.runs)} runs." if len(arms.runs) > _MOST else ""
    note(f"Click an event to see that step's trajectories in Episode.{more}")
    run_links(runs, arms.experiment)
    if clicked:
        place, x = (int(value) for value in clicked[0])
        _open_episode(arms.experiment, runs.iloc[place], x)


def _open_episode(experiment: str, run: pd.Series, x: int) -> None:
    """Go to the step of a run at `x` on the axis of the timeline."""
    step = str(x + int(run["start"]))
    open_screen("episode", experiment=experiment, run=str(run["run_id"]), step=step, **EPISODE)


def _survival(store: Store, arms: Arms) -> None:
    rows = observed(arms.runs)
    names = list(rows["arm"].unique())
    if not names:
        note("None of these runs has trained a step yet.")
        return
    reference = choose("reference", "Compare with", names, width=320)
    mine = arms.runs[arms.runs["arm"].isin(names)]
    frame = store.computed(  # permutation tests take their time
        ("compared", arms.experiment, reference, *names), lambda _: compare.figures(mine, reference)
    )
    lines = [line for line in compare.reading(frame) if "IQM" not in line]
    none = "No log-rank test: it needs two arms at risk and a collapse."
    test = next((line for line in lines if line.startswith("Log-rank")), none)
    curves = curve(rows)
    picture = survival(curves, rows, arms.styles, look(), test, reference)
    export.figure(
        picture,
        "survival",
        curves,
        describe=f"Kaplan-Meier curves of {', '.join(names)}. {test}",
        key=survival_key(reference),
    )
    note(survival_key(reference))
    table(compare.time_to_collapse(frame))
    pairs = compare.against_reference(frame)
    if len(pairs) and (pairs["difference"] != compare.TOO_FEW).any():  # else a sentence says all of it
        several = (
            f", in parentheses after Holm's correction for {len(pairs)} comparisons" if len(pairs) > 1 else ""
        )
        note(f"Each arm against {reference}: p-values{several}.")
        table(pairs)
    for line in lines:
        if line != test:
            note(line)

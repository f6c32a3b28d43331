"""Collapse: what happened when, how long the arms stay up, and which signal moves before the fall."""

import pandas as pd

from sorl.analysis import compare
from sorl.analysis.survival import curve, observed
from sorl.app import export
from sorl.app.curve_data import alarmed, first_alarms, first_warning, origins
from sorl.app.experiments import Arms, choose_arms
from sorl.app.figures.common import AXES
from sorl.app.figures.runs import leads, letters, survival, timeline
from sorl.app.page import EPISODE, answer, heading, look, note, open_screen, run_links, screen, table
from sorl.app.store import Store, dictionary
from sorl.app.text import few
from sorl.app.url import choose
from sorl.spec import UNDECIDED

# that a sentence names one by one
SEEDS = 4
ARMS = 6
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
    alarms, dots = first_alarms(store, arms.runs, dictionary(store))
    fell = int(alarmed(store, arms.runs)["collapse_step"].notna().sum())
    if alarms.empty or not fell:
        none = (
            "None of these runs raised an alarm."
            if fell
            else "The runs that collapsed did not record their alarms."
        )
        note("None of these runs collapsed." if arms.runs["collapse_step"].isna().all() else none)
        return
    answer(first_warning(alarms))
    words = f"First alarms of {fell} collapsed runs, in steps from the onset of the collapse."
    export.figure(leads(alarms, dots, arms.styles, look()), "leads", alarms, describe=words)
    note(
        f"A dot is the first such alarm in a run that collapsed ({fell} of them); the tick is the median of"
        " those before the onset, the bar their quartiles. ↑ goes off above its threshold, ↓ below. An alarm"
        " that also fires in healthy runs is no warning."
    )


def headline(runs: pd.DataFrame) -> str:
    """Say which runs collapsed and when, which came back, and what is still open."""
    rows = observed(runs).merge(runs[["run_id", "outcome", "collapse_step"]], on="run_id")
    if rows.empty:
        return "None of these runs has trained a step yet."
    fell = rows[rows["event"]]
    many = rows["arm"].value_counts()
    each = []
    for arm, part in fell.groupby("arm", sort=False):
        of = part[["seed", "time", "collapse_step"]].itertuples(index=False, name=None)
        steps = ", ".join(  # of one that only diverged no onset is known
            f"seed {seed} {'diverged at' if pd.isna(onset) else 'after'} step {time:,.0f}"
            for seed, time, onset in of
        )
        if len(part) > SEEDS:
            steps = f"after steps {part['time'].min():,.0f} to {part['time'].max():,.0f}"
        each.append(f"{arm} in {len(part)} of {many[arm]} ({steps})")
    said = [
        (
            f"{len(fell)} of {len(rows)} runs collapsed: {few(each, ARMS, '; ', ' arms')}."
            if each
            else "None of these runs collapsed."
        )
    ]
    back = int((fell["outcome"] == "recovered").sum())
    said += [f"{back} of them came back."] if back else []
    up = rows[~rows["event"]]
    for which, words in (
        (up["outcome"].isin(UNDECIDED), "down at the end, too late for the collapse rule"),
        (up["outcome"].isna(), "not judged yet"),
    ):
        named = [f"{arm} seed {seed}" for arm, seed in up.loc[which, ["arm", "seed"]].to_numpy()]
        said += [f"{len(named)} more: {words} ({few(named, ARMS)})."] if named else []
    return " ".join(said)


def _timeline(store: Store, arms: Arms) -> None:
    axis = choose("x", "Align on", _AXIS, kind="row")
    starts = origins(arms.runs, axis)
    last = arms.runs["steps"].fillna(0) - 1 - starts
    runs = arms.runs.assign(start=starts, first=[-start for start in starts], last=last).head(_MOST)
    events = store.query("events", runs=list(runs["run_id"]), origins=list(runs["start"]))
    events = events.assign(run_id=runs["run_id"].to_numpy()[events["run"]]).drop(columns="run")
    picture = timeline(runs, events, arms.styles, look(), AXES[axis])
    words = f"Events of {len(runs)} runs over training, a line a run."
    clicked = export.figure(picture, "timeline", events, select=True, describe=words)
    if key := " · ".join(f"{letter} {name}" for name, letter in letters(events).items()):
        note(f"Alarms: {key}.")
    more = f" These are the first {_MOST} of {len(arms.runs)} runs." if len(arms.runs) > _MOST else ""
    note(f"Click an event to see that step's trajectories in Episode.{more}")
    run_links(runs, arms.experiment)
    if clicked:
        place, x = (int(value) for value in clicked[0])
        run = runs.iloc[place]
        step = str(x + int(run["start"]))
        open_screen("episode", experiment=arms.experiment, run=str(run["run_id"]), step=step, **EPISODE)


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
    export.figure(picture, "survival", curves, describe=f"Kaplan-Meier curves of {', '.join(names)}. {test}")
    note(
        "A step down is the onset of a collapse, a tick a run that was watched until there and had not"
        f" collapsed; dotted: {reference}. No interval from fewer than three runs."
    )
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

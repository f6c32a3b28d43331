"""Collapse: what happened when, how long the arms stay up, and which signal moves before the fall."""

from workbench.analysis import compare
from workbench.analysis.survival import curve, observed
from workbench.app import export
from workbench.app.curve_data import first_alarms, origins
from workbench.app.experiments import Arms, choose_arms, show_table
from workbench.app.figures.common import AXES
from workbench.app.figures.runs import leads, survival, timeline
from workbench.app.page import heading, look, note, open_screen, run_links, screen
from workbench.app.store import Store, dictionary
from workbench.app.trajectories import culprit
from workbench.app.url import choose

_MOST = 120  # runs that the timeline draws
_AXIS = {"step": "step", "onset": "before collapse"}


@screen
def collapse(store: Store) -> None:
    """Show when runs collapse, how many, and which alarm comes before."""
    arms = choose_arms(store)
    if not arms.names:
        note("Choose at least one arm.")
        return
    heading("What happened when")
    _timeline(store, arms)
    heading("Survival: runs not yet collapsed")
    _survival(store, arms)
    heading("Which signal moves first")
    _leads(store, arms)


def _timeline(store: Store, arms: Arms) -> None:
    axis = choose("x", "Align on", _AXIS, kind="row")
    starts = origins(arms.runs, axis)
    last = arms.runs["steps"].fillna(0) - 1 - starts
    runs = arms.runs.assign(start=starts, first=[-start for start in starts], last=last).head(_MOST)
    events = store.query("events", runs=list(runs["run_id"]), origins=list(runs["start"]))
    events = events.assign(run_id=runs["run_id"].to_numpy()[events["run"]]).drop(columns="run")
    clicked = export.figure(
        timeline(runs, events, arms.styles, look(), AXES[axis]), "timeline", events, select=True,
        describe=f"Events of {len(runs)} runs over training, a line a run.",
    )  # fmt: skip
    more = f" These are the first {_MOST} of {len(arms.runs)} runs." if len(arms.runs) > _MOST else ""
    note(f"Click an event to see that step's trajectories in Episode.{more}")
    run_links(runs, arms.experiment)
    if clicked:
        place, x = (int(value) for value in clicked[0])
        run = runs.iloc[place]
        where = culprit(store, str(run["run_id"]), x + int(run["start"]))
        open_screen("episode", experiment=arms.experiment, **where)


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
    export.figure(
        survival(curves, rows, arms.styles, look(), test), "survival", curves,
        describe=f"Kaplan-Meier curves of {', '.join(names)}. {test}",
    )  # fmt: skip
    note("A step down is the onset of a collapse, a tick a run that was watched until there and had not collapsed.")
    for words in (compare.time_to_collapse(frame), compare.against_reference(frame)):
        if len(words):
            show_table(words)
    for line in lines:
        if line != test:
            note(line)


def _leads(store: Store, arms: Arms) -> None:
    alarms, dots = first_alarms(store, arms.runs, dictionary(store))
    fell = int(arms.runs["collapse_step"].notna().sum())
    if alarms.empty or not fell:
        note("None of these runs collapsed." if not fell else "None of these runs raised an alarm.")
        return
    export.figure(
        leads(alarms, dots, arms.styles, look()), "leads", alarms,
        describe=f"First alarms of {fell} collapsed runs, in steps from the onset of the collapse.",
    )  # fmt: skip
    note(f"A dot is the first such alarm in a run that collapsed ({fell} of them); the tick is the median of those "
         "before the onset, the bar their quartiles. ↑ goes off above its threshold, ↓ below. An alarm that also fires "
         "in healthy runs is no warning.")  # fmt: skip

"""Run: everything about one run. How it stands, what stands out, its curves and events, its settings, time
and log.
"""

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st
from markupsafe import Markup
from rich.filesize import decimal

from sorl.analysis.runs import nested
from sorl.app import export, page, theme
from sorl.app.choices import (
    choose_experiment_and_run,
    ranked,
    settings_of,
    styles,
    watched,
)
from sorl.app.data import (
    Chosen,
    Drawing,
    Row,
    Window,
    alarmed,
    drawn,
    ended,
    extent,
    fall_of,
    first_alarm,
    onsets,
    panel,
)
from sorl.app.difference_part import TITLE as DIFFERENCE
from sorl.app.difference_part import show_difference
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import Arrangement, curves
from sorl.app.figures.runs import career, shares, spending
from sorl.app.page import address, anchor, episode_address, links, look, note
from sorl.app.part_notes import note_events, notes_of, show_notes, write_note
from sorl.app.queries import Diagnostics, Store, dictionary
from sorl.app.sentences.compare import too_early_sentence
from sorl.app.sentences.run import event_sentence, moment_sentence, rollback_sentence
from sorl.app.text import duration, few, number, table_html, tag, word
from sorl.app.url import choose_range
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.log import of_run
from sorl.diagnosis.place import opened
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.sentences import NOTHING, early_warning, first_signals, likely, none_found
from sorl.diagnosis.standing import counted, standing
from sorl.diagnosis.unanswered import not_checked
from sorl.spec import NOT_RISEN, InputError, RunSettings
from sorl.spec.evidence import Check
from sorl.spec.reading import Reading
from sorl.store import batches
from sorl.store.part_notes import PartNote
from sorl.store.reader import Reader
from sorl.store.segments import doing_of
from sorl.store.text import log_of, tail

# What a run is judged by besides success; of those that it measured the first nine are drawn.
CURVES = tuple(
    f"step.{name}"
    for name in (
        "grad_norm_max",
        "kl_k3",
        "clip_frac",
        "entropy",
        "ratio_max",
        "ess_frac_min",
        "explained_variance",
        "valid_action_frac",
        "reward",
        "zero_advantage_frac",
        "response_tokens",
    )
)
_MARKS = (
    "▼ onset of the collapse, △ an alarm, dotted line its threshold from where its rule can ring, ✕ NaN or"
    " Inf."
)
_PARTS = (
    "Curves",
    "What happened",
    "Notes",
    "Where the time went",
    "Settings",
    DIFFERENCE,
    "Audit",
    "Log and versions",
)
_UP = ("healthy", *NOT_RISEN)  # outcomes of runs that stayed up
_BARS = 80  # of the wall time
_LOOK_SECONDS = 2.0  # between two looks at what a running run is doing
_ARMS = 6  # that other screens show at first
_LONG = 2_000  # steps, up to which a diagnosis takes well under a second
# kinds of events that are listed, and steps of each
_EVENTS = 200
_STEPS = 12
_LINES = 400  # of the console log
_NO_END = 2**62  # a step that no run reaches
_PROGRESS = re.compile(r'\{"step": \d+, .*\}\s*$')  # lines of it that say what the curves do
# values of other arms that a setting names, and arms of each
_VALUES = 5
_NAMES = 3


class _Shown(NamedTuple):
    """The run that is shown, and what the parts of the screen ask about it."""

    experiment: str
    each: pd.DataFrame  # the runs of the experiment
    now: dict[str, Any]
    known: Diagnostics
    notes: Sequence[Row]
    tables: Sequence[Row]  # what was recorded of it

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return str(self.now["run_id"])

    @property
    def mine(self) -> pd.DataFrame:
        """The row of the run among those of its experiment."""
        return self.each[self.each["run_id"] == self.run_id]

    @property
    def styles(self) -> theme.Styles:
        """How its arm is drawn."""
        return styles(self.each, [self.now["arm"]])

    @property
    def colour(self) -> str:
        """The colour of its arm."""
        return self.styles[self.now["arm"]].colour


@page.screen
def run(store: Store) -> None:
    """How does this run stand, what happened to it, and what was it trained with?"""
    about = _choose(store)
    audits = st.session_state.setdefault("sorl audits", {})
    checks = tuple(Check.of(row) for row in audits.get(about.run_id, ()))
    standing_words, diagnosis = judge_run(store, about.now, checks)
    _title(about.now, standing_words, about.colour, look())
    if about.now["status"] == "running":
        _doing(store, about.experiment, about.run_id)
    _links(about.now, about.experiment, about.each, {table["table_name"] for table in about.tables})
    parts = [tag("a", part, href=f"#{page.place_of(part)}") for part in _PARTS]
    links(("On this page: ", Markup(", ").join(parts)))
    left, right = st.columns(2, gap="large")
    with left:
        page.heading("What stands out")
        st.html(Markup("").join(findings(store, about.known, about.now, about.each, diagnosis)))
    with right:
        above = st.container()
        ends = extent(store, about.mine, [0])
        first, last = choose_range("range", "Steps", *ends)
    chosen = Chosen(about.mine, "step", [0], Window.over(first, last, 1))
    with above:
        # What is evaluated after the last step stands one step behind it.
        _success(store, chosen, about, _NO_END if last == ends[1] else last)
    _curves(store, chosen, about)
    page.heading("What happened")
    _events(store.records("happened", run=about.run_id), about.experiment, about.now)
    page.heading("Notes")
    show_notes(store, about.experiment, about.run_id, about.notes)
    _write_note(store, about.experiment, about.run_id, ends)
    _time(store, about, first, last)
    _settings(about)
    show_difference(store, about.each, about.run_id)
    page.heading("Audit")
    _audit(store, about.experiment, about.run_id)
    _files(about)
    _log(store, about)


def _choose(store: Store) -> _Shown:
    """Choose an experiment and a run of it."""
    experiment, each, run = choose_experiment_and_run(store)
    now = as_it_is(store, run)
    run_id = str(now["run_id"])
    return _Shown(
        experiment,
        each,
        now,
        dictionary(store),
        notes_of(store, run_id),
        store.records("recorded", run=run_id),
    )


def _curves(store: Store, chosen: Chosen, about: _Shown) -> None:
    """Show what a run is judged by besides success, in at most nine panels."""
    page.heading("Curves")
    known = about.known
    every = {
        metric: panel(store, chosen, known, metric, Drawing(bands=False))
        for metric in CURVES
        if metric in known.rows
    }
    empty = [m for m, p in every.items() if p.data.empty and (p.broken is None or p.broken.empty)]
    measured = {m: p for m, p in every.items() if m not in empty}
    # three rows of three
    panels = [p._replace(name=known.title(m), definition=p.name) for m, p in [*measured.items()][:9]]
    key = f"{_MARKS}{too_early_sentence(panels)}"
    if panels:
        arrangement = Arrangement(columns=3, has_legend=False)
        figure = curves(
            panels, about.styles, look(), AXES["step"], onsets=onsets(chosen), arrangement=arrangement
        )
        export.figure(
            figure,
            "signals",
            lambda: drawn([*measured.values()]),
            describe=", ".join(p.name for p in panels),
            zooms="range",
            key=key,
        )
    missing = ", ".join(map(known.title, empty))
    absent = f" Not measured in this run: {missing}." if missing else ""
    note(f"{key}{absent} Drag over a part to zoom.")


def _time(store: Store, about: _Shown, first: int, last: int) -> None:
    page.heading("Where the time went")
    width = max(1, math.ceil((last - first + 1) / _BARS))
    spent = store.query("spent", run=about.run_id, first=first, last=last, width=width)
    if shares(spent):
        figure = spending(spent, look())
        export.figure(figure, "time", spent, describe="Wall time of a step, part by part.")
    else:
        note("This run recorded no wall times.")


def _settings(about: _Shown) -> None:
    """Show the settings that a run does not share with the defaults, its grid or another arm; then all."""
    page.heading("Settings")
    now = about.now
    others = about.each[about.each["arm"] != now["arm"]].drop_duplicates("arm")
    of_others = dict(zip(others["arm"], others["config"], strict=True))
    every = settings(now["config"], now["toml"], of_others)
    changed = every[["default", "base of the grid"]].ne(every["here"], axis=0).any(axis=1)
    special = changed | every["other arms"].ne("")
    page.table(every[special & every["setting"].ne("seed")], "sorl-settings")
    with st.expander(f"All {len(every)} settings"):
        page.table(every, "sorl-settings")


def _files(about: _Shown) -> None:
    page.heading("Files")
    _facts(
        (table["table_name"], f"{number(table['rows'] or 0)} rows, {decimal(table['bytes'] or 0)}")
        for table in about.tables
    )
    broken = sum(table["corrupt"] for table in about.tables)
    if broken:
        note(f"{broken} unreadable segments set aside: `sorl doctor` lists them.")


def _log(store: Store, about: _Shown) -> None:
    """Show the versions of a run and the end of its console, without lines of progress."""
    page.heading("Log and versions")
    _facts(facts(about.now))
    log = log_of(store.runs, about.experiment, about.run_id)
    whole = tail(log) if log else []
    lines = [line for line in whole if not _PROGRESS.match(line)][-_LINES:]
    if lines:
        st.html(tag("div", tag("pre", "\n".join(lines)), css="sorl-log"))
    elif whole:
        note("Its console.log has only lines of progress, whose numbers are in the curves.")
    else:
        note("Its console.log is empty." if log else "No console.log.")


class Judgement(NamedTuple):
    """How a run stands, and why."""

    standing: str  # in a sentence
    diagnosis: Diagnosis | None  # None of a run whose diagnosis takes longer than a page may


def judge_run(store: Store, now: Row, checks: tuple[Check, ...] = ()) -> Judgement:
    """Return how a run stands, and its diagnosis with the `checks` of its audit."""

    def ask(reader: Reader) -> Judgement:
        log = of_run(reader, now["run_id"])
        is_short = (now["steps"] or 0) <= _LONG
        return Judgement(standing(log), diagnose(log, checks=checks) if is_short else None)

    # a NaN of a check is no other one's equal, its text is
    return store.computed(("told", now["run_id"], repr(checks)), ask)


def as_it_is(store: Store, run: Row) -> dict[str, Any]:
    """Return a run's row of table `run` with steps and seconds so far; `run` is its row of the experiment's
    runs.
    """
    row = store.records("run", run=run["run_id"])[0]
    planned: int | None = None if pd.isna(run["planned"]) else int(run["planned"])
    now = {"steps": int(run["steps"]), "planned": planned, "arm": run["arm"]}
    if row["status"] == "running":  # table `run` knows them when it has ended
        spent = store.query("spent", run=run["run_id"], first=0, last=_NO_END, width=_NO_END)
        seconds = float(spent[["total", "record"]].sum().sum())
        now["seconds"] = seconds if len(spent) else None  # before its first step nothing is known
    return row | now


def _title(now: Row, stands: str, colour: str, palette: theme.Palette) -> None:
    outcome = now["outcome"] or ""
    status = word(now["status"])
    reason = now["reason"]
    ink = palette.outcomes.get(outcome, palette.outcomes[""])
    steps = now["steps"] or 0
    look = f"background:{theme.faded(ink, 0.16)};border-color:{ink}"
    pill = tag("span", ended(now) if outcome else status, css="sorl-pill", style=look)
    swatch = tag("span", css="sorl-swatch", style=f"background:{colour}")
    length = f"{steps:,} of {counted(now['planned'])}" if now["planned"] else counted(steps)
    if now["seconds"] and steps:
        length += f" in {duration(now['seconds'])}, {duration(now['seconds'] / steps)} a step"
    title = tag("h2", swatch, f"{word(now['arm'])}, seed {word(now['seed'])}", pill, css="sorl-question")
    st.html(title + tag("p", f"{stands} {length}.", css="sorl-answer"))
    if reason or status not in ("finished", "running", "queued"):
        who = "The trainer said at its end" if status == "finished" else status  # by the rules of that time
        page.say(f"{who}: {reason}" if reason else status)


@st.fragment(run_every=_LOOK_SECONDS)
def _doing(store: Store, experiment: str, run_id: str) -> None:
    doing = doing_of(store.runs, experiment, run_id)
    note(f"Now: {doing}." if doing else "")


def facts(now: Row) -> Iterator[tuple[str, str]]:
    """Yield names and values of what is known of a run besides its settings, the versions of its libraries
    last.
    """
    yield from (
        ("run", now["run_id"]),
        ("algorithm", word(now["algorithm"])),
        ("status", word(now["status"])),
    )
    for name, column in (("began", "started_at"), ("ended", "ended_at")):
        if isinstance(now[column], datetime):
            yield name, f"{now[column]:%Y-%m-%d %H:%M} UTC"
    if now["seconds"] is not None:
        yield "training time", duration(now["seconds"])
    yield from ((name, str(now[name])) for name in ("generation", "attempt") if (now[name] or 1) > 1)
    if now["config_hash"]:
        yield "config hash", str(now["config_hash"])[:12]
    if (text := now["versions"]) and text != "{}":  # logs of another trainer may carry anything
        yield from ((name, word(value)) for name, value in (nested(text) or {"versions": text}).items())


def _facts(pairs: Iterable[tuple[str, str]]) -> None:
    st.html(tag("p", *(tag("span", tag("b", name), value) for name, value in pairs), css="sorl-facts"))


_Line = tuple[object, ...]  # words and links


def _links(now: Row, experiment: str, each: pd.DataFrame, tables: set[str]) -> None:
    """Show where else this run can be looked at, and which runs belong to it."""
    screens = Markup(", ").join(_screens_of(now, experiment, each, tables))
    run_id = str(now["run_id"])
    lines = [
        *_other_seeds(now, experiment, each),
        *_newer_start(run_id, experiment, each),
        *_origin(now, experiment),
    ]
    links(("This run in ", screens), *lines)


def _screens_of(now: Row, experiment: str, each: pd.DataFrame, tables: set[str]) -> Iterator[Markup]:
    """Yield a link to each screen that has rows of this run."""
    arm = str(now["arm"])
    run_id = str(now["run_id"])
    arms = [arm, *(other for other in each["arm"].unique() if other != arm)][:_ARMS]
    aligned = {"x": "onset"} if now["collapse_step"] is not None else {}
    choices: dict[str, dict[str, Any]] = {
        "overview": {},
        "compare": {"arm": arms, **aligned},
        "turns": {"arm": [arm], "seed": str(now["seed"])},
        "collapse": {"arm": arms},
        "episode": {"run": run_id},
        "replay": {"run": run_id},
    }
    needs = {"turns": "turn_step", "episode": "trajectory", "replay": "trajectory"}
    for name, choice in choices.items():
        if name not in needs or needs[name] in tables:
            yield anchor(name.capitalize(), address(name, experiment=experiment, **choice))


def _run_link(text: str, experiment: str, run_id: str) -> Markup:
    return anchor(text, address("run", experiment=experiment, run=run_id))


def _other_seeds(now: Row, experiment: str, each: pd.DataFrame) -> Iterator[_Line]:
    """Yield a line with the replicates of a run."""
    others = each[(each["arm"] == now["arm"]) & (each["run_id"] != now["run_id"])]
    if len(others):
        seeds = [
            _run_link(f"{row['seed']} ({ended(row)})", experiment, row["run_id"])
            for row in others.to_dict("records")
        ]
        yield "Other seeds of this arm: ", Markup(", ").join(seeds)


def _newer_start(run_id: str, experiment: str, each: pd.DataFrame) -> Iterator[_Line]:
    """Yield, of an earlier start, that it was given up, with the start that its cell ended with."""
    own = each[each["run_id"] == run_id].iloc[0]
    if own.get("is_earlier") is not True:
        return
    newer = each[(each["arm"] == own["arm"]) & (each["seed"] == own["seed"]) & (each["run_id"] != run_id)]
    names = Markup(", ").join(_run_link(word(run), experiment, run) for run in newer["run_id"])
    yield "An earlier start, which was given up; what became of it: ", names


def _origin(now: Row, experiment: str) -> Iterator[_Line]:
    """Yield a line with the run that this one goes on from, by a rollback or as a fork."""
    if now["parent"] is None:
        return
    parent = str(now["parent"])
    # Its experiment is in the configuration.
    origin = settings_of(now["config"]).get("fork.experiment", "").strip('"')
    if origin == experiment and now["draw"] == 0:
        words = f"After a rollback it goes on from step {now['forked_at']} of "
    else:
        words = f"Draw {now['draw']} of the forks at step {now['forked_at']} of "
    yield words, _run_link(word(parent), origin, parent)


class _Remark(NamedTuple):
    """Something that stands out of a run, and where to look."""

    severity: str
    text: str
    step: int | None = None
    trajectory: int | None = None


def findings(
    store: Store, known: Diagnostics, now: Row, each: pd.DataFrame, diagnosis: Diagnosis | None
) -> Iterator[Markup]:
    """Yield how an imported log was read, diagnosed causes, the first alarms, the first NaN or Inf, held-out
    success, and the sharpest spike.
    """
    reading = Reading.from_json(now.get("reading"))  # of an imported log
    remarks = [_Remark("warning", f"{sentence}.") for sentence in (reading.warnings if reading else ())]
    remarks += _diagnosed(now["run_id"], diagnosis)
    remarks += _watched(store, known, now, each)
    remarks += [_Remark("info", f"{sentence}.") for sentence in (reading.notes if reading else ())]
    for remark in remarks:
        yield _finding_html(store, now, remark)


def _finding_html(store: Store, now: Row, remark: _Remark) -> Markup:
    where = {} if remark.step is None else recorded(store, now["run_id"], remark.step, remark.trajectory)
    link: str = ""
    if where:
        to = episode_address(experiment=now["experiment"], run=now["run_id"], **where)
        link = anchor("episode", to)
    return tag("p", remark.text, " ", link, css=f"sorl-finding sorl-{remark.severity}")


def _diagnosed(run_id: str, diagnosis: Diagnosis | None) -> Iterator[_Remark]:
    """Yield the causes of a diagnosis, what warned early, and what could not be checked."""
    if diagnosis is None:
        yield _Remark("info", f"This run is long; for its causes type: sorl diagnose {run_id}")
        return
    for finding in in_order(diagnosis):
        clue = finding.clue
        side = likely(diagnosis, finding)
        start = f"{side.capitalize()}. " if side else ""
        text = f"{start}{finding.cause.title}: {clue.says}. {finding.cause.change}"
        yield _Remark(finding.severity, text, clue.shown, clue.trajectory)
    none = "" if diagnosis.findings else none_found(diagnosis)
    if none not in ("", NOTHING):
        yield _Remark("warning", f"{none} {first_signals(diagnosis)}")
    early = early_warning(diagnosis)
    if early:
        yield _Remark("warning", early)
    for sentence in not_checked(diagnosis):
        yield _Remark("info", sentence)


def _watched(store: Store, known: Diagnostics, now: Row, each: pd.DataFrame) -> Iterator[_Remark]:
    """Yield the first alarms, the first NaN or Inf, held-out success and the sharpest step of a run."""
    run_id = now["run_id"]
    events = store.records("happened", run=run_id)
    yield _alarms(store, now, each, events)
    broken = not_finite(events)
    if broken:
        yield _Remark("warning", *broken)
    held = held_out(store.records("evaluation", run=run_id, first=0, last=_NO_END))
    if held:
        yield _Remark("info", held)
    signal = watched(store, known, now)
    is_measured = signal.spike in signal.points.dropna(subset=["value"])["step"].to_numpy()
    rows = ranked(store, run_id, signal.spike)
    if is_measured and rows:
        yield _Remark("info", moment_sentence(signal, rows), signal.spike, rows[0]["trajectory"])


def _alarms(store: Store, now: Row, each: pd.DataFrame, events: Sequence[Row]) -> _Remark:
    """Say which alarms of a run came first, and in how many runs that stayed up they rang too."""
    is_mine = each["run_id"] == now["run_id"]
    if not len(alarmed(store, each[is_mine])):
        return _Remark("info", "Alarms were not recorded.")
    rung = {}
    for event in reversed(events):
        if event["kind"] == "alarm" and event["step"] is not None:
            rung[event["diagnostic"]] = event["step"]
    stayed_up = alarmed(store, each[each["outcome"].isin(_UP) & ~is_mine])
    leads = store.query("leads", runs=list(stayed_up["run_id"])).dropna(subset=["step"])
    rings = leads["diagnostic"].value_counts().to_dict()
    fall = fall_of(now)
    onset = None if fall is None else fall.step
    return _Remark("warning" if rung else "info", first_alarm(rung, onset, rings, len(stayed_up)))


def recorded(store: Store, run: str, step: int, trajectory: int | None = None) -> dict[str, str]:
    """Return what a link to the step names, as `opened` chooses it; empty where nothing of the step was
    recorded.
    """
    rows = ranked(store, run, step)
    every = [row["trajectory"] for row in rows]
    with_tokens = [row["trajectory"] for row in rows if row["kept"]]
    place = opened(step, every, with_tokens, trajectory)
    return {key: str(number) for key, number in place.items()}


def not_finite(events: Sequence[Row]) -> tuple[str, int] | None:
    """Say where the first NaN or Inf was, of the rows of `happened`, and return its step; None
    without one.
    """
    broken = [event for event in events if event["kind"] == "non_finite" and event["step"] is not None]
    if not broken:
        return None
    first = broken[0]["step"]
    names = list(dict.fromkeys(str(e["diagnostic"]) for e in broken if e["diagnostic"]))
    return f"First NaN or Inf at step {first:,}, in {few(names, 3) or 'the loss or a gradient'}.", first


def held_out(rows: Sequence[Row]) -> str:
    """Say what success was on questions that are not trained on, first and last, of the rows of
    `evaluation`.
    """
    sets: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        sets[row["data"]].append(f"{number(row['success'])} at step {row['step']:,}")
    parts = [f"{data} {', '.join(dict.fromkeys((of[0], of[-1])))}" for data, of in sets.items()]
    return f"Held-out success: {'; '.join(parts)}." if parts else ""


def _success(store: Store, chosen: Chosen, about: _Shown, last: int) -> None:
    """Show success up to step `last` with events, notes, evaluations and forks."""
    name = about.run_id
    first = chosen.window.first
    points = chosen.points(store, "step", "success").dropna(subset=["mean"])[["x", "mean", "low", "high"]]
    events = _events_between(store, about, first, last)
    opens_episodes = bool(events["episode"].any())
    held_out = store.query("evaluation", run=name, first=first, last=last)
    forks = store.query("children", run=name)
    starts = store.query("starts", run=name)
    rows = about.known.rows
    formula = rows["step.success"]["formula"] if "step.success" in rows else ""
    clicked = export.figure(
        career(points, held_out, events, about.colour, look(), formula, forks, starts),
        "career",
        points,
        select=opens_episodes,
        describe=f"Success of {name} over training, with {len(events)} events.",
    )
    _open_clicked_step(store, about, clicked)
    _explain_forks(forks)
    _explain_starts(starts, about.experiment)
    if opens_episodes:
        note("Click an event to see the trajectories of its step.")


def _events_between(store: Store, about: _Shown, first: int, last: int) -> pd.DataFrame:
    """Return the events of a run in these steps, with what people noted."""
    events = store.query("happened", run=about.run_id)
    if about.notes:
        events = pd.concat([events, note_events(about.notes)], ignore_index=True)
    return events[events["step"].astype(float).between(first, last)]


def _open_clicked_step(store: Store, about: _Shown, clicked: Sequence[object]) -> None:
    """Go to the step of the first event that was clicked, if anything of it was recorded."""
    step = next((carried for carried in clicked if isinstance(carried, int)), None)
    if step is not None and recorded(store, about.run_id, step):
        where = {"experiment": about.experiment, "run": about.run_id, "step": str(step)}
        page.open_screen("episode", **where, **page.EPISODE)


def _explain_forks(forks: pd.DataFrame) -> None:
    """Say what the thin lines are, of query `children`."""
    if len(forks):
        experiments = forks["experiment"].unique()
        names = [anchor(name, address("compare", experiment=name, x="fork")) for name in experiments]
        links(("Thin lines: its forks, each arm in a colour. In Compare: ", Markup(", ").join(names)))


def _explain_starts(starts: pd.DataFrame, experiment: str) -> None:
    """Say what a guard gave up, of query `starts`."""
    if len(starts):
        note(rollback_sentence(starts))
        names = [_run_link(word(run), experiment, run) for run in starts["start"].unique()]
        links(("Given up in part or whole: ", Markup(", ").join(names)))


def _write_note(store: Store, experiment: str, run_id: str, ends: tuple[int, int]) -> None:
    """Offer to write a note on the run, or on one of its steps."""
    with st.expander("Write a note"):
        step = st.number_input("About step", ends[0], ends[1], None, key="sorl note step", placeholder="-")
        places = {"the run": PartNote("")}
        if step is not None:
            places = {f"step {step:,}": PartNote("", step=int(step)), **places}
        write_note(store, experiment, run_id, places)


def _events(events: Sequence[Row], experiment: str, now: Row) -> None:
    """Show the events of a run, those of one kind and diagnostic in a row."""
    if not events:
        note("No event was recorded.")
        return
    header = [
        ("steps", "with the value of the diagnostic there; each opens its trajectories in Episode"),
        "severity",
        "event",
        "diagnostic",
        "times",
        ("threshold", "that the first crossed"),
        ("in words", "the first"),
        ("look at", "the first step in Turns"),
    ]
    groups = defaultdict[tuple[Any, Any], list[Row]](list)
    for event in events:
        groups[event["kind"], event["diagnostic"]].append(event)
    rows = [_event_cells(group, experiment, now) for group in [*groups.values()][:_EVENTS]]
    st.html(table_html(header, rows, "sorl-events"))
    if len(groups) > _EVENTS:
        note(f"The first {_EVENTS} of {len(groups):,} kinds of events.")


def _event_cells(group: Sequence[Row], experiment: str, now: Row) -> list[Any]:
    """Write the events of one kind and diagnostic as the cells of a row."""
    first = group[0]
    name = first["diagnostic"] or ""
    severity = word(max((event["severity"] for event in group), key=lambda one: one == "critical"))
    fall = fall_of(now)
    message = event_sentence(word(first["message"]), first["step"], None if fall is None else fall.step)
    look_at: Any = ""
    if first["turns"]:
        arm = str(now["arm"])
        cell = {"seed": str(now["seed"]), "arm": [arm], "cell": [arm, str(first["step"]), "1"]}
        look_at = anchor("turns", address("turns", experiment=experiment, **cell))
    return [
        Markup(", ").join(_event_steps(group, experiment, now)),
        tag("span", tag("i", css=f"sorl-dot sorl-{severity}"), severity),
        word(first["kind"]).replace("_", " "),
        anchor(name, address("glossary", part="diagnostics", find=name)) if name else "",
        f"{len(group):,}",
        "" if first["threshold"] is None else number(first["threshold"]),
        message,
        look_at,
    ]


def _event_steps(group: Sequence[Row], experiment: str, now: Row) -> Iterator[str]:
    """Yield the first steps of some events, with the value there, and how many more there are."""
    for event in group[:_STEPS]:
        step: str = "–" if event["step"] is None else f"{event['step']:,}"
        if event["episode"]:
            place = {"experiment": experiment, "run": now["run_id"], "step": str(event["step"])}
            step = anchor(step, episode_address(**place))
        yield tag("span", step, "" if event["value"] is None else f" ({number(event['value'])})")
    if len(group) > _STEPS:
        yield f"and {len(group) - _STEPS:,} more, the last at step {number(group[-1]['step'])}"


def _audit(store: Store, experiment: str, run: str) -> None:
    folder = batches.folder_of(store.runs, experiment, run)
    if folder is None or not batches.steps(folder):
        note(
            "No step of this run was stored, so nothing can be computed again. `record.batches.mb` keeps"
            " some."
        )
        return
    note("Computes rewards, log-probs, advantages, losses, gradients and weights of stored steps again.")
    answers = st.session_state.setdefault("sorl audits", {})
    # of a run that goes on, the answer stays that of the steps which it names
    if st.button("Audit this run"):
        words = ["--runs", str(store.runs.absolute()), "audit", run, "--format", "json"]
        try:
            with st.spinner("Auditing ..."):
                state = str(batches.steps(folder))
                answers[run] = page.answered(
                    words, f"sorl audit {run}", seconds=300.0, state=state, codes=(0, 1)
                )
        except InputError as error:  # it says what to install where torch is missing
            page.say(str(error))
        else:
            st.rerun()  # what the audit proves stands at the head of the findings
    if run in answers:
        sentence, broken = audited(answers[run])
        note(sentence)
        if len(broken):
            page.table(broken)


def audited(checks: Sequence[Row]) -> tuple[str, pd.DataFrame]:
    """Say which identities of `sorl audit` hold and which cannot be checked; return a row for each violated
    one.
    """
    names = ["identity", "step", "state", "missing", "logged", "expected", "says"]
    every = pd.DataFrame(checks).reindex(columns=names).fillna({"missing": "", "says": ""})
    broken = every[every["state"] == "violated"]
    held = every.loc[
        (every["state"] == "holds") & ~every["identity"].isin(broken["identity"]), "identity"
    ].unique()
    sentence = f"Steps {batches.ranges(sorted({*every['step']}))}. Hold: {', '.join(held) or 'none'}."
    for why, mine in every[every["state"] == "missing"].groupby("missing", sort=False):
        at = batches.ranges(sorted({*mine["step"]}))
        sentence += f" Cannot be checked at {at}: {', '.join(mine['identity'].unique())} ({why})."
    if len(broken):
        sentence += f" Violated, so one of two numbers is wrong: {', '.join(broken['identity'].unique())}."
    first = broken.drop_duplicates("identity").drop(columns=["state", "missing"])
    return sentence, first.set_axis(["identity", "first at step", "logged", "must be", "what"], axis=1)


def settings(config: str | None, toml: str | None, arms: Mapping[str, str | None]) -> pd.DataFrame:
    """Return a row a setting: its value in the run, in the grid's base, by default, and where other `arms`
    differ.
    """
    try:
        grid = tomllib.loads(toml or "").get("base", {})
    except tomllib.TOMLDecodeError:
        grid = {}
    own = settings_of(config)
    default = settings_of(RunSettings().model_dump(mode="json"))
    base = default | (settings_of(grid) if isinstance(grid, dict) else {})
    elsewhere = {arm: settings_of(text) for arm, text in arms.items()}
    rows = []
    for key in dict.fromkeys(chain(own, *elsewhere.values())):
        value = own.get(key, "–")
        values = {} if key == "seed" else {arm: of_arm.get(key, "–") for arm, of_arm in elsewhere.items()}
        rows.append((key, value, base.get(key, "–"), default.get(key, "–"), _other_values(value, values)))
    return pd.DataFrame(rows, columns=["setting", "here", "base of the grid", "default", "other arms"])


def _other_values(value: str, values: Mapping[str, str]) -> str:
    """Name the values of a setting that differ from `value`, each with its arms; `values` are by arm."""
    arms_of = defaultdict[str, list[str]](list)
    for arm, other in values.items():
        if other != value:
            arms_of[other].append(arm)
    parts = []
    for other, arms in arms_of.items():
        # An arm whose name says its value needs no second word for it; a name with a comma stands in quotes.
        names = [f"“{name}”" if ", " in name else name for name in arms if name != other]
        named = ", ".join(names) if len(names) <= _NAMES else f"{len(names)} arms"
        parts.append(f"{other}: {named}" if names else other)
    return few(parts, _VALUES, "; ")

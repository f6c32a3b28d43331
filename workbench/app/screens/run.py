"""Run: everything about one run. How it stands, what stands out, its curves and events, its settings, time
and log.
"""

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup
from rich.filesize import decimal

from sorl.analysis.runs import nested
from sorl.app import experiments, export, page, theme
from sorl.app.curve_data import (
    Chosen,
    Drawing,
    Row,
    Window,
    alarmed,
    drawn,
    ended,
    extent,
    first_alarm,
    onsets,
    panel,
)
from sorl.app.experiments import (
    choose_experiment,
    choose_run,
    ranked,
    runs,
    settings_of,
    share_of,
    watched,
)
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import curves
from sorl.app.figures.runs import Signal, career, shares, spending
from sorl.app.page import address, anchor, episode_address, links, look, note
from sorl.app.sentences.compare import too_early_sentence
from sorl.app.store import Diagnostics, Store, dictionary
from sorl.app.text import duration, few, number, table_html, tag, word
from sorl.app.url import choose_range
from sorl.diagnosis.changepoint import MARGIN, spread
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.log import of_run
from sorl.diagnosis.report import (
    NOTHING,
    early_warning,
    first_signals,
    in_order,
    likely,
    none_found,
    not_checked,
    opened,
)
from sorl.diagnosis.standing import counted, from_onset, standing
from sorl.spec import NOT_RISEN, InputError, RunSettings
from sorl.spec.evidence import Check
from sorl.spec.reading import Reading
from sorl.store import batches
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
_PARTS = ("Curves", "What happened", "Where the time went", "Settings", "Audit", "Log and versions")
_UP = ("healthy", *NOT_RISEN)  # outcomes of runs that stayed up
_BARS = 80  # of the wall time
_LOOK_SECONDS = 2.0  # between two looks at what a running run is doing
_ARMS = 6  # that other screens show at first
_LONG = 2_000  # steps, up to which a diagnosis takes well under a second
# kinds of events that are listed, and steps of each
_EVENTS = 200
_STEPS = 12
_LINES = 400  # of the console log
_PROGRESS = re.compile(r'\{"step": \d+, .*\}\s*$')  # lines of it that say what the curves do
# values of other arms that a setting names, and arms of each
_VALUES = 5
_NAMES = 3


@page.screen
def run(store: Store) -> None:
    """How does this run stand, what happened to it, and what was it trained with?"""
    left, right = st.columns([1, 2])
    with left:
        experiment = choose_experiment(store)
    each = runs(store, experiment)
    with right:
        now = as_it_is(store, choose_run(each))
    known = dictionary(store)
    palette = look()
    name = now["run_id"]
    looks = experiments.styles(each, [now["arm"]])
    audits = st.session_state.setdefault("sorl audits", {})
    stands, said = told(store, now, tuple(Check.of(row) for row in audits.get(name, ())))
    tables = store.records("recorded", run=name)
    _title(now, stands, looks[now["arm"]].colour, palette)
    if now["status"] == "running":
        _doing(store, experiment, name)
    _links(now, experiment, each, {one["table_name"] for one in tables})
    links(
        (
            "On this page: ",
            Markup(", ").join(tag("a", part, href=f"#{page.place_of(part)}") for part in _PARTS),
        )
    )
    left, right = st.columns(2, gap="large")
    with left:
        page.heading("What stands out")
        st.html(Markup("").join(findings(store, known, now, each, said)))
    mine = each[each["run_id"] == name]
    with right:
        above = st.container()
        ends = extent(store, mine, [0])
        first, last = choose_range("range", "Steps", *ends)
    chosen = Chosen(mine, "step", [0], Window.over(first, last, 1))
    with above:  # what is evaluated after the last step stands one step behind it
        _success(
            store, chosen, known, experiment, looks[now["arm"]].colour, 2**62 if last == ends[1] else last
        )
    page.heading("Curves")
    every = {
        metric: panel(store, chosen, known, metric, Drawing(bands=False))
        for metric in CURVES
        if metric in known.rows
    }
    empty = [m for m, p in every.items() if p.data.empty and (p.broken is None or p.broken.empty)]
    shown = {m: p for m, p in every.items() if m not in empty}
    panels = [
        p._replace(name=known.title(m), definition=p.name) for m, p in [*shown.items()][:9]
    ]  # three rows of three
    if panels:
        figure = curves(panels, looks, palette, AXES["step"], onsets=onsets(chosen), columns=3, legend=False)
        words = ", ".join(p.name for p in panels)
        export.figure(
            figure,
            "signals",
            lambda: drawn([*shown.values()]),
            describe=words,
            zooms="range",
            key=f"{_MARKS}{too_early_sentence(panels)}",
        )
    missing = ", ".join(map(known.title, empty))
    absent = f" Not measured in this run: {missing}." if missing else ""
    note(f"{_MARKS}{too_early_sentence(panels)}{absent} Drag over a part to zoom.")
    page.heading("What happened")
    _events(store.records("happened", run=name), experiment, now)
    page.heading("Where the time went")
    spent = store.query(
        "spent", run=name, first=first, last=last, width=max(1, math.ceil((last - first + 1) / _BARS))
    )
    if shares(spent):
        export.figure(spending(spent, palette), "time", spent, describe="Wall time of a step, part by part.")
    else:
        note("This run recorded no wall times.")
    page.heading("Settings")
    others = each[each["arm"] != now["arm"]].drop_duplicates("arm")
    found = settings(now["config"], now["toml"], dict(zip(others["arm"], others["config"], strict=True)))
    changed = found[["default", "base of the grid"]].ne(found["here"], axis=0).any(axis=1)
    special = changed | found["other arms"].ne("")
    page.table(found[special & found["setting"].ne("seed")], "sorl-settings")
    with st.expander(f"All {len(found)} settings"):
        page.table(found, "sorl-settings")
    page.heading("Audit")
    _audit(store, experiment, name)
    page.heading("Files")
    _facts(
        (one["table_name"], f"{number(one['rows'] or 0)} rows, {decimal(one['bytes'] or 0)}")
        for one in tables
    )
    if broken := sum(one["corrupt"] for one in tables):
        note(f"{broken} unreadable segments set aside: `sorl doctor` lists them.")
    page.heading("Log and versions")
    _facts(facts(now))
    log = log_of(store.runs, experiment, name)
    whole = tail(log) if log else []
    if lines := [line for line in whole if not _PROGRESS.match(line)][-_LINES:]:
        st.html(tag("div", tag("pre", "\n".join(lines)), css="sorl-log"))
    elif whole:
        note("Its console.log has only lines of progress, whose numbers are in the curves.")
    else:
        note("Its console.log is empty." if log else "No console.log.")


def told(store: Store, now: Row, checks: tuple[Check, ...] = ()) -> tuple[str, Diagnosis | None]:
    """Return how a run stands, and its diagnosis with the `checks` of its audit: None of a run whose
    diagnosis takes longer than a page may.
    """

    def ask(reader: Reader) -> tuple[str, Diagnosis | None]:
        log = of_run(reader, now["run_id"])
        is_short = (now["steps"] or 0) <= _LONG
        return standing(log), diagnose(log, checks=checks) if is_short else None

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
        spent = store.query("spent", run=run["run_id"], first=0, last=2**62, width=2**62)
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


def _links(now: Row, experiment: str, each: pd.DataFrame, tables: set[str]) -> None:
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
    here = [
        anchor(name.capitalize(), address(name, experiment=experiment, **choice))
        for name, choice in choices.items()
        if name not in needs or needs[name] in tables
    ]
    seeds = [
        anchor(f"{row['seed']} ({ended(row)})", address("run", experiment=experiment, run=row["run_id"]))
        for row in each[(each["arm"] == arm) & (each["run_id"] != run_id)].to_dict("records")
    ]
    others = [("Other seeds of this arm: ", Markup(", ").join(seeds))] if seeds else []
    if now["parent"] is not None:  # its experiment is in the configuration
        origin = settings_of(now["config"]).get("fork.experiment", "").strip('"')
        to = anchor(str(now["parent"]), address("run", experiment=origin, run=str(now["parent"])))
        others.append((f"Draw {now['draw']} of the forks at step {now['forked_at']} of ", to))
    links(("This run in ", Markup(", ").join(here)), *others)


def findings(
    store: Store, known: Diagnostics, now: Row, each: pd.DataFrame, said: Diagnosis | None
) -> Iterator[Markup]:
    """Yield how an imported log was read, diagnosed causes, the first alarms, the first NaN or Inf, held-out
    success, and the sharpest spike.
    """
    name = now["run_id"]
    events = store.records("happened", run=now["run_id"])
    onset = now["onset_low"] if now["collapse_step"] is None else now["collapse_step"]

    def finding(severity: str, text: str, step: int | None = None, trajectory: int | None = None) -> Markup:
        where = {} if step is None else recorded(store, name, step, trajectory)
        link = (
            anchor("episode", episode_address(experiment=now["experiment"], run=name, **where))
            if where
            else ""
        )
        return tag("p", text, " ", link, css=f"sorl-finding sorl-{severity}")

    reading = Reading.from_json(now.get("reading"))  # of an imported log
    for sentence in reading.warnings if reading else ():
        yield finding("warning", f"{sentence}.")
    if said is None:
        yield finding("info", f"This run is long; for its causes type: sorl diagnose {name}")
    else:
        for found in in_order(said):
            clue = found.clue
            side = likely(said, found)
            start = f"{side.capitalize()}. " if side else ""
            text = f"{start}{found.cause.title}: {clue.says}. {found.cause.change}"
            yield finding(found.severity, text, clue.shown, clue.trajectory)
        if not said.findings and (none := none_found(said)) != NOTHING:
            yield finding("warning", f"{none} {first_signals(said)}")
        if early := early_warning(said):
            yield finding("warning", early)
        for sentence in not_checked(said):
            yield finding("info", sentence)
    rung = {
        e["diagnostic"]: e["step"] for e in reversed(events) if e["kind"] == "alarm" and e["step"] is not None
    }
    up = alarmed(store, each[each["outcome"].isin(_UP) & (each["run_id"] != name)])
    rings = store.query("leads", runs=list(up["run_id"])).dropna(subset=["step"])["diagnostic"].value_counts()
    is_known = len(alarmed(store, each[each["run_id"] == name])) > 0
    alarms = first_alarm(rung, onset, rings.to_dict(), len(up)) if is_known else "Alarms were not recorded."
    yield finding("warning" if rung else "info", alarms)
    if broken := not_finite(events):
        yield finding("warning", *broken)
    if held := held_out(store.records("evaluation", run=name, first=0, last=2**62)):
        yield finding("info", held)
    signal = watched(store, known, now)
    value = signal.points.set_index("step")["value"].get(signal.spike)
    rows = ranked(store, name, signal.spike)
    if value is not None and rows:
        yield finding("info", moment(signal, float(value), onset, rows), signal.spike, rows[0]["trajectory"])
    for sentence in reading.notes if reading else ():
        yield finding("info", f"{sentence}.")


def recorded(store: Store, run: str, step: int, trajectory: int | None = None) -> dict[str, str]:
    """Return what a link to the step names, as `opened` chooses it; empty where nothing of the step was
    recorded.
    """
    rows = ranked(store, run, step)
    kept = [row["trajectory"] for row in rows if row["kept"]]
    return {
        key: str(n) for key, n in opened(step, [row["trajectory"] for row in rows], kept, trajectory).items()
    }


def not_finite(events: Sequence[Row]) -> tuple[str, int] | None:
    """Say where the first NaN or Inf was, of the rows of `happened`, and return its step; None
    without one.
    """
    found = [event for event in events if event["kind"] == "non_finite" and event["step"] is not None]
    if not found:
        return None
    first = found[0]["step"]
    names = list(dict.fromkeys(str(e["diagnostic"]) for e in found if e["diagnostic"]))
    return f"First NaN or Inf at step {first:,}, in {few(names, 3) or 'the loss or a gradient'}.", first


def held_out(rows: Sequence[Row]) -> str:
    """Say what success was on questions that are not trained on, first and last, of the rows of
    `evaluation`.
    """
    sets: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        sets[row["data"]].append(f"{number(row['success'])} at step {row['step']:,}")
    said = [f"{data} {', '.join(dict.fromkeys((of[0], of[-1])))}" for data, of in sets.items()]
    return f"Held-out success: {'; '.join(said)}." if said else ""


def moment(signal: Signal, value: float, onset: int | None, rows: Sequence[Row]) -> str:
    """Say at which step a run is at its sharpest, and who did most there: `rows` of query
    `ranking`, ranked.
    """
    what = signal.title
    values = signal.points["value"].dropna().to_numpy(float)
    usual, wide = spread(values, 0.05) if len(values) > 1 else (value, 1.0)
    if onset is None and abs(value - usual) <= MARGIN * wide:
        return (
            f"No step stands out by its {what}: {number(value)} at step {signal.spike:,}, {number(usual)} as"
            " a rule."
        )
    when = "" if onset is None else f", {from_onset(signal.spike, onset)}"
    said = f"The sharpest moment: step {signal.spike:,}{when}, with {what} {number(value)}"
    share = rows[0]["gradient_share"]
    if share is None:
        return f"{said}."
    most = f", the most of {len(rows)}" if len(rows) > 1 and math.isfinite(share) else ""
    return Markup("{}; {}{}.").format(said, share_of(rows[0], len(rows)), most)


def _success(
    store: Store, chosen: Chosen, known: Diagnostics, experiment: str, colour: str, last: int
) -> None:
    first = chosen.window.first
    name = chosen.ids[0]
    points = chosen.points(store, "step", "success").dropna(subset=["mean"])[["x", "mean", "low", "high"]]
    events = store.query("happened", run=name)
    events = events[events["step"].astype(float).between(first, last)]
    leads = bool(events["episode"].any())
    held_out = store.query("evaluation", run=name, first=first, last=last)
    forks = store.query("children", run=name)
    formula = known.rows["step.success"]["formula"] if "step.success" in known.rows else ""
    clicked = export.figure(
        career(points, held_out, events, colour, look(), formula, forks),
        "career",
        points,
        select=leads,
        describe=f"Success of {name} over training, with {len(events)} events.",
    )
    for step in [carried for carried in clicked if isinstance(carried, int)][:1]:
        if recorded(store, name, step):
            page.open_screen("episode", experiment=experiment, run=name, step=str(step), **page.EPISODE)
    if len(forks):
        names = [
            anchor(one, address("compare", experiment=one, x="fork")) for one in forks["experiment"].unique()
        ]
        links(("Thin lines: its forks, each arm in a colour. In Compare: ", Markup(", ").join(names)))
    if leads:
        note("Click an event to see the trajectories of its step.")


def _events(events: Sequence[Row], experiment: str, now: Row) -> None:
    if not events:
        note("No event was recorded.")
        return
    arm = str(now["arm"])
    here = {"experiment": experiment, "run": now["run_id"]}
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
    rows = []
    groups = defaultdict[tuple[Any, Any], list[Row]](list)
    for event in events:
        groups[event["kind"], event["diagnostic"]].append(event)
    for group in [*groups.values()][:_EVENTS]:
        first = group[0]
        named = group[0]["diagnostic"] or ""
        steps = list[str]()
        for event in group[:_STEPS]:
            step: str = "–" if event["step"] is None else f"{event['step']:,}"
            if event["episode"]:
                step = anchor(step, episode_address(**here, step=str(event["step"])))
            steps.append(tag("span", step, "" if event["value"] is None else f" ({number(event['value'])})"))
        if len(group) > _STEPS:
            steps.append(f"and {len(group) - _STEPS:,} more, the last at step {number(group[-1]['step'])}")
        severity = word(max((event["severity"] for event in group), key=lambda one: one == "critical"))
        cell = {"seed": str(now["seed"]), "arm": [arm], "cell": [arm, str(first["step"]), "1"]}
        rows.append(
            [
                Markup(", ").join(steps),
                tag("span", tag("i", css=f"sorl-dot sorl-{severity}"), severity),
                word(first["kind"]).replace("_", " "),
                anchor(named, address("glossary", part="diagnostics", find=named)) if named else "",
                f"{len(group):,}",
                "" if first["threshold"] is None else number(first["threshold"]),
                word(first["message"]),
                anchor("turns", address("turns", experiment=experiment, **cell)) if first["turns"] else "",
            ]
        )
    st.html(table_html(header, rows, "sorl-events"))
    if len(groups) > _EVENTS:
        note(f"The first {_EVENTS} of {len(groups):,} kinds of events.")


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
        said, broken = audited(answers[run])
        note(said)
        if len(broken):
            page.table(broken)


def audited(checks: Sequence[Row]) -> tuple[str, pd.DataFrame]:
    """Say which identities of `sorl audit` hold and which cannot be checked; return a row for each violated
    one.
    """
    names = ["identity", "step", "state", "missing", "logged", "expected", "says"]
    found = pd.DataFrame(checks).reindex(columns=names).fillna({"missing": "", "says": ""})
    broken = found[found["state"] == "violated"]
    held = found.loc[
        (found["state"] == "holds") & ~found["identity"].isin(broken["identity"]), "identity"
    ].unique()
    said = f"Steps {batches.ranges(sorted({*found['step']}))}. Hold: {', '.join(held) or 'none'}."
    for why, mine in found[found["state"] == "missing"].groupby("missing", sort=False):
        at = batches.ranges(sorted({*mine["step"]}))
        said += f" Cannot be checked at {at}: {', '.join(mine['identity'].unique())} ({why})."
    if len(broken):
        said += f" Violated, so one of two numbers is wrong: {', '.join(broken['identity'].unique())}."
    first = broken.drop_duplicates("identity").drop(columns=["state", "missing"])
    return said, first.set_axis(["identity", "first at step", "logged", "must be", "what"], axis=1)


def settings(config: str | None, toml: str | None, arms: Mapping[str, str | None]) -> pd.DataFrame:
    """Return a row a setting: its value in the run, in the grid's base, by default, and where other `arms`
    differ.
    """
    try:
        grid = tomllib.loads(toml or "").get("base", {})
    except tomllib.TOMLDecodeError:
        grid = {}
    here = settings_of(config)
    default = settings_of(RunSettings().model_dump(mode="json"))
    base = default | (settings_of(grid) if isinstance(grid, dict) else {})
    elsewhere = {arm: settings_of(text) for arm, text in arms.items()}
    rows = []
    for key in dict.fromkeys(key for one in (here, *elsewhere.values()) for key in one):
        value = here.get(key, "–")
        others = defaultdict[str, list[str]](list)
        told = list[str]()
        for arm, one in elsewhere.items():
            if key != "seed" and one.get(key, "–") != value:
                others[one.get(key, "–")].append(arm)
        for other, arms_of in others.items():
            # An arm whose name says its value needs no second word for it; a name with a comma stands in
            # quotes.
            names = [f"“{name}”" if ", " in name else name for name in arms_of if name != other]
            named = ", ".join(names) if len(names) <= _NAMES else f"{len(names)} arms"
            told.append(f"{other}: {named}" if names else other)
        rows.append((key, value, base.get(key, "–"), default.get(key, "–"), few(told, _VALUES, "; ")))
    return pd.DataFrame(rows, columns=["setting", "here", "base of the grid", "default", "other arms"])

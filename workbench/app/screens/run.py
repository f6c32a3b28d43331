"""Run: everything about one run. Its outcome, what stands out, its curves and events, its settings, time and log."""

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup
from rich.filesize import decimal

from workbench.app import export, theme
from workbench.app.curve_data import Chosen, Window, drawn, extent, onsets, panel
from workbench.app.experiments import choose_experiment, runs, settings_of, styles
from workbench.app.figures.common import AXES
from workbench.app.figures.curves import curves
from workbench.app.figures.runs import career, shares, spending
from workbench.app.page import address, anchor, episode_address, heading, links, look, note, open_screen, say, screen
from workbench.app.store import Diagnostics, Store, dictionary
from workbench.app.text import duration, few, number, percent, table_html, tag, word
from workbench.app.trajectories import Row, choose_run, culprit, ended, ranked, signals, watched
from workbench.app.url import choose_range
from workbench.diagnosis.diagnose import diagnose, fallen, none_found
from workbench.diagnosis.log import of_run
from workbench.spec import RunSettings
from workbench.store.text import log_of, tail

# What a run is judged by besides success; those that it did not measure are left out.
CURVES = ("step.grad_norm_max", "step.kl_k3", "step.clip_frac", "step.entropy", "step.ratio_max", "step.ess_frac_min",
          "step.explained_variance", "step.valid_action_frac", "step.reward")  # fmt: skip
_STEPS = "▼ onset of the collapse, △ an alarm, dotted line its threshold, ✕ NaN or Inf. Drag over a part to zoom."
_OUTCOMES = {
    "healthy": "Healthy", "mild": "A mild fall", "collapsed": "Collapsed", "diverged": "Diverged",
    "recovered": "Collapsed and recovered", "falling": "Falling at its end, too late for the collapse rule",
    "no_learning": "Did not rise above its start",
}  # fmt: skip
_BARS = 80  # of the wall time
_ARMS = 6  # that other screens show at first
_LONG = 2_000  # steps, up to which a diagnosis takes well under a second
_EVENTS = 200  # that are listed
_LINES = 400  # of the console log


@screen
def run(store: Store) -> None:
    """How does this run stand, what happened to it, and what was it trained with?"""
    left, right = st.columns([1, 2])
    with left:
        experiment = choose_experiment(store)
    each = runs(store, experiment)
    with right:
        now = as_it_is(store, choose_run(each))
    known, palette, name = dictionary(store), look(), now["run_id"]
    looks = styles(each, [now["arm"]])
    colour = looks[now["arm"]].colour
    _title(now, colour, palette)
    _links(now, experiment, each)
    _facts(facts(now))
    heading("What stands out")
    st.html(Markup("").join(findings(store, known, now, experiment)))
    mine = each[each["run_id"] == name]
    first, last = choose_range("range", "Steps", *extent(store, mine, [0]))
    chosen = Chosen(mine, "step", [0], Window.over(first, last, 1))
    _success(store, chosen, known, experiment, colour)
    panels = [panel(store, chosen, known, metric, bands=False) for metric in CURVES if metric in known.rows]
    missing = [p.name for p in panels if p.data.empty and (p.broken is None or p.broken.empty)]
    panels = [p for p in panels if p.name not in missing]
    if panels:
        figure = curves(panels, looks, palette, AXES["step"], onsets=onsets(chosen), columns=3, legend=False)
        words = ", ".join(p.name for p in panels)
        export.figure(figure, "signals", lambda: drawn(panels), describe=words, zooms="range")
    note(f"{_STEPS} Not measured in this run: {', '.join(missing)}." if missing else _STEPS)
    heading("What happened")
    _events(store.records("happened", run=name), experiment, now)
    heading("Where the time went")
    width = max(1, -(-(last - first + 1) // _BARS))
    spent = store.query("spent", run=name, first=first, last=last, width=width)
    if shares(spent):
        export.figure(spending(spent, palette), "time", spent, describe="Wall time of a step, part by part.")
    else:
        note("This run recorded no wall times.")
    heading("Settings")
    others = each[each["arm"] != now["arm"]].drop_duplicates("arm")
    found = settings(now["config"], now["toml"], dict(zip(others["arm"], others["config"], strict=True)))
    here = found["here"]
    special = here.ne(found["default"]) | here.ne(found["base of the grid"]) | found["other arms"].ne("")
    st.dataframe(found[special & found["setting"].ne("seed")], hide_index=True)
    with st.expander(f"All {len(found)} settings"):
        st.dataframe(found, hide_index=True)
    heading("Files")
    tables = store.records("recorded", run=name)
    _facts((one["table_name"], f"{number(one['rows'] or 0)} rows, {decimal(one['bytes'] or 0)}") for one in tables)
    if broken := sum(one["corrupt"] for one in tables):
        note(f"{broken} unreadable segments set aside: `sorl doctor` lists them.")
    log = log_of(store.runs, experiment, name)
    if lines := tail(log)[-_LINES:] if log else []:
        st.html(tag("div", tag("pre", "\n".join(lines)), css="sorl-log"))
    else:
        note("Its console.log is empty." if log else "No console.log.")


def as_it_is(store: Store, run: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a run's row of table `run` with steps and seconds so far; `run` is its row of the experiment's runs."""
    row = store.records("run", run=run["run_id"])[0]
    planned = None if pd.isna(run["planned"]) else int(run["planned"])
    now = {"steps": int(run["steps"]), "planned": planned, "arm": run["arm"]}
    if row["status"] == "running":  # table `run` knows them when it has ended
        spent = store.query("spent", run=run["run_id"], first=0, last=2**62, width=2**62)
        now["seconds"] = float(spent[["total", "record"]].sum().sum())
    return row | now


def _title(now: Row, colour: str, palette: theme.Palette) -> None:
    outcome, status, reason = now["outcome"] or "", word(now["status"]), now["reason"]
    ink = palette.outcomes.get(outcome, palette.outcomes[""])
    look = f"background:{theme.faded(ink, 0.16)};border-color:{ink}"
    pill = tag("span", outcome.replace("_", " ") or status, css="sorl-pill", style=look)
    swatch = tag("span", css="sorl-swatch", style=f"background:{colour}")
    title = tag("p", swatch, f"{word(now['arm'])}, seed {word(now['seed'])}", pill, css="sorl-question")
    st.html(title + tag("p", sentence(now), css="sorl-answer"))
    if reason or status not in ("finished", "running", "queued"):
        say(f"{status}: {reason}" if reason else status)


def sentence(now: Row) -> str:
    """Say outcome and numbers of a run; `now` is a row of table `run` as `as_it_is` completes it."""
    fell, detected, low, high = (now[name] for name in ("collapse_step", "detection_step", "onset_low", "onset_high"))
    said = _OUTCOMES.get(now["outcome"] or "", "Running" if now["status"] == "running" else "Undecided")
    if fell is not None:
        said += f": the fall began at step {fell:,}"
        said += "" if detected is None else f" and was detected at step {detected:,}"
    elif low is not None:
        said += f": the fall began at step {low:,}" + (f" to {high:,}" if high > low else "")
    peak, last, planned, steps = now["peak_success"], now["final_success"], now["planned"], now["steps"] or 0
    if peak is not None:
        said += f". Success peaked at {number(peak)} (smoothed)"
        said += "" if last is None else f" and was {number(last)} over the last ten steps"
    said += f". {steps:,} of {planned:,} steps" if planned else f". {steps:,} steps"
    if now["seconds"] and steps:
        said += f" in {duration(now['seconds'])}, {duration(now['seconds'] / steps)} a step"
    return f"{said}."


def facts(now: Row) -> Iterator[tuple[str, str]]:
    """Yield names and values of what is known of a run besides its settings, the versions of its libraries last."""
    yield from (("run", now["run_id"]), ("algorithm", word(now["algorithm"])), ("status", word(now["status"])))
    for name, column in (("began", "started_at"), ("ended", "ended_at")):
        if isinstance(now[column], datetime):
            yield name, f"{now[column]:%Y-%m-%d %H:%M} UTC"
    if now["seconds"] is not None:
        yield "training time", duration(now["seconds"])
    yield from ((name, str(now[name])) for name in ("generation", "attempt") if (now[name] or 1) > 1)
    if now["config_hash"]:
        yield "config hash", str(now["config_hash"])[:12]
    try:
        versions = json.loads(now["versions"] or "{}")
    except ValueError:  # logs of another trainer may carry anything
        versions = now["versions"]
    for name, value in versions.items() if isinstance(versions, dict) else [("versions", versions)]:
        yield str(name), word(value)


def _facts(pairs: Iterable[tuple[str, str]]) -> None:
    st.html(tag("p", *(tag("span", tag("b", name), value) for name, value in pairs), css="sorl-facts"))


def _links(now: Row, experiment: str, each: pd.DataFrame) -> None:
    arm, run_id = str(now["arm"]), str(now["run_id"])
    arms = [arm, *(other for other in each["arm"].unique() if other != arm)][:_ARMS]
    aligned = {"x": "onset"} if now["collapse_step"] is not None else {}
    choices: dict[str, dict[str, Any]] = {
        "overview": {}, "compare": {"arm": arms, **aligned}, "turns": {"arm": [arm], "seed": str(now["seed"])},
        "collapse": {"arm": arms}, "episode": {"run": run_id}, "replay": {"run": run_id},
    }  # fmt: skip
    here = [anchor(name.capitalize(), address(name, experiment=experiment, **of)) for name, of in choices.items()]
    seeds = [
        anchor(f"{row['seed']} ({ended(row)})", address("run", experiment=experiment, run=row["run_id"]))
        for row in each[(each["arm"] == arm) & (each["run_id"] != run_id)].to_dict("records")
    ]
    others = [("Other seeds of this arm: ", Markup(", ").join(seeds))] if seeds else []
    links(("This run in ", Markup(", ").join(here)), *others)


def findings(store: Store, known: Diagnostics, now: Row, experiment: str) -> Iterator[Markup]:
    """Yield diagnosed causes, the first alarms, the first NaN or Inf, the trajectory behind the sharpest spike."""
    name, onset = now["run_id"], now["collapse_step"]

    def finding(severity: str, text: str, step: int | None = None, trajectory: int | None = None) -> Markup:
        link = "" if step is None else _to_episode(experiment, name, step, trajectory)
        return tag("p", text, " ", link, css=f"sorl-finding sorl-{severity}")

    if (now["steps"] or 0) > _LONG:
        yield finding("info", f"This run is long; for its causes type: sorl diagnose {name}")
    else:
        said = store.computed(("diagnosis", name), lambda reader: diagnose(of_run(reader, name)))
        if fell := fallen(said):
            yield finding("critical", fell)
        for cause, clue in ((found.cause, found.clue) for found in said.findings):
            text = f"{cause.title} ({round(100 * clue.confidence)} %): {clue.says}. {cause.change}"
            yield finding(cause.severity, text, clue.step, clue.trajectory)
        if not said.findings and (none := none_found(said)) != "Nothing found.":
            yield finding("warning", none)
    alarms = store.query("leads", runs=[name]).dropna(subset=["step"])
    yield finding("info" if alarms.empty else "warning", _first_alarms(alarms, onset))
    broken = [event for event in store.records("happened", run=name) if event["kind"] == "non_finite"]
    if broken and broken[0]["step"] is not None:
        yield finding("critical", f"NaN or Inf from step {broken[0]['step']:,} on.", broken[0]["step"])
    for signal in (watched(store, known, now, first) for first in signals(known)[:1]):
        value = signal.points.set_index("step")["value"].get(signal.spike)
        rows = ranked(store, name, signal.spike)
        if value is not None and rows and (share := rows[0]["gradient_share"]) is not None:
            when = "Up to the onset" if onset is not None else "In this run"
            worst, part = rows[0]["trajectory"], percent(share) if share == share else "NaN"
            text = (f"{when}, {signal.name} was {'lowest' if signal.lowest else 'largest'} at step {signal.spike:,} "
                    f"({number(float(value))}); trajectory {worst} had the largest share of the gradient: {part} "
                    f"(of {len(rows)} trajectories).")  # fmt: skip
            yield finding("info", text, signal.spike, worst)


def _to_episode(experiment: str, run: str, step: int, trajectory: int | None = None) -> Markup:
    place = {} if trajectory is None else {"trajectory": str(trajectory)}
    return anchor("episode", episode_address(experiment=experiment, run=run, step=str(step), **place))


def _first_alarms(found: pd.DataFrame, onset: int | None) -> str:
    if found.empty:
        return "No alarm went off."
    first = int(found["step"].min())
    said = f"First alarm: {' and '.join(found.loc[found['step'] == first, 'diagnostic'])} at step {first:,}"
    if onset is not None:
        ahead = f"{onset - first:,} step{'' if onset - first == 1 else 's'} before"
        said += f", {ahead if onset > first else 'not before'} the onset"
    if count := int((found["step"] > first).sum()):
        said += f"; {count} more kind{'' if count == 1 else 's'} of alarm later"
    return f"{said}."


def _success(store: Store, chosen: Chosen, known: Diagnostics, experiment: str, colour: str) -> None:
    window, name = chosen.window, chosen.ids[0]
    points = chosen.points(store, "step", "success").dropna(subset=["mean"])[["x", "mean", "low", "high"]]
    events = store.query("happened", run=name)
    events = events[events["step"].astype(float).between(window.first, window.last)]
    held_out = store.query("evaluation", run=name, first=window.first, last=window.last)
    formula = known.rows["step.success"]["formula"] if "step.success" in known.rows else ""
    clicked = export.figure(
        career(points, held_out, events, colour, look(), formula), "career", points, select=True,
        describe=f"Success of {name} over training, with {len(events)} events.",
    )  # fmt: skip
    if step := [carried for carried in clicked if isinstance(carried, int)]:
        open_screen("episode", experiment=experiment, **culprit(store, name, step[0]))
    if len(events):
        note("Click an event to see the trajectories of its step.")


def _events(events: Sequence[Row], experiment: str, now: Row) -> None:
    if not events:
        note("No event was recorded.")
        return
    arm, rows = str(now["arm"]), []
    header = [
        ("step", "training step"), "severity", "event", "diagnostic", ("value", "of the diagnostic at the event"),
        ("threshold", "that it crossed"), "in words", ("look at", "the step in other screens"),
    ]  # fmt: skip
    for event in events[:_EVENTS]:
        step, named, severity = event["step"], event["diagnostic"] or "", word(event["severity"])
        cell = {"seed": str(now["seed"]), "arm": [arm], "cell": [arm, str(step), "1"]}
        turns = anchor("turns", address("turns", experiment=experiment, **cell))
        rows.append([
            "–" if step is None else f"{step:,}",
            tag("span", tag("i", css=f"sorl-dot sorl-{severity}"), severity),
            word(event["kind"]).replace("_", " "),
            anchor(named, address("glossary", part="diagnostics", find=named)) if named else "",
            *("" if event[column] is None else number(event[column]) for column in ("value", "threshold")),
            word(event["message"]),
            "" if step is None else _to_episode(experiment, now["run_id"], step) + ", " + turns,
        ])  # fmt: skip
    st.html(table_html(header, rows, "sorl-events"))
    if len(events) > _EVENTS:
        note(f"The first {_EVENTS} of {len(events):,} events.")


def settings(config: str | None, toml: str | None, arms: Mapping[str, str | None]) -> pd.DataFrame:
    """Return a row a setting: its value in the run, in the grid's base, by default, and where other `arms` differ."""
    try:
        grid = tomllib.loads(toml or "").get("base", {})
    except tomllib.TOMLDecodeError:
        grid = {}
    here, default = settings_of(config), settings_of(RunSettings().model_dump(mode="json"))
    base = default | (settings_of(grid) if isinstance(grid, dict) else {})
    elsewhere = {arm: settings_of(text) for arm, text in arms.items()}
    rows = []
    for key in dict.fromkeys(key for one in (here, *elsewhere.values()) for key in one):
        value = here.get(key, "–")
        others: dict[str, list[str]] = defaultdict(list)
        for arm, one in elsewhere.items():
            if key != "seed" and one.get(key, "–") != value:
                others[one.get(key, "–")].append(arm)
        words = "; ".join(f"{other}: {few(names, 4)}" for other, names in others.items())
        rows.append((key, value, base.get(key, "–"), default.get(key, "–"), words))
    return pd.DataFrame(rows, columns=["setting", "here", "base of the grid", "default", "other arms"])

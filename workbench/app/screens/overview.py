"""Overview: the question of a grid, its answer in a sentence, what to look at first, every run as a cell and
a row.
"""

import json
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st
from markupsafe import Markup

from sorl.analysis import compare
from sorl.analysis.region_words import headline, readable_series
from sorl.analysis.runs import with_updates
from sorl.app import page, theme
from sorl.app.choices import (
    choose_experiment,
    differing,
    is_region,
    question,
    ranked,
    runs,
    settings_of_runs,
    styles,
    visible_runs,
    watched,
)
from sorl.app.data import STATES, Chosen, Row, Window, extent, fall_of, stands
from sorl.app.episode_data import side_of
from sorl.app.export import button, drawing
from sorl.app.figures.matrix import layout, matrix, parts
from sorl.app.page import address, anchor, episode_address, heading, links, note, run_links, say, table
from sorl.app.queries import Store, dictionary
from sorl.app.run_search import find_runs
from sorl.app.screens.region import Region, draw_region, region_of
from sorl.app.screens.run import judge_run
from sorl.app.sentences.episode import verdict
from sorl.app.text import duration, html_text, number, tag
from sorl.app.url import choose, choose_many, follow, keep, search_box
from sorl.diagnosis.alerts import RATE
from sorl.diagnosis.changepoint import LOST
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.rank import in_order, is_later
from sorl.diagnosis.sentences import first_signals, likely, none_found
from sorl.spec import OUTCOMES, InputError
from sorl.store import notes
from sorl.store.connect import Busy
from sorl.store.notes import Notes
from sorl.store.part_notes import LONGEST_TAG, PartNote, append_note

_WORST = ("diverged", "collapsed", "falling", "failed", "recovered", "mild")  # what is looked at first
_KEY = (
    "Curve: success, 0 to 1, over the longest run; peak: its highest median of five steps; last: its last"
    " step; dotted line: where the fall began; dashed border: falling; ✎ has notes."
)


@page.screen
def overview(store: Store) -> None:
    """Show which arm collapsed, in how many seeds, and when."""
    with store.reader.together():
        _overview(store)


def _overview(store: Store) -> None:
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        experiment = choose_experiment(store)
    run_notes = notes.every(store.runs, experiment)
    each = now(store, visible_runs(store, experiment, run_notes))
    with right:
        counts = (f"{count} {status}" for status, count in each["status"].value_counts().items())
        note(" · ".join([f"{len(each)} runs", *counts]))
    _warn_of_falls(each)
    st.html(tag("h2", question(store, experiment), css="sorl-question"))
    region = _region_to_show(store, experiment)
    shows = {"region": "the region", "runs": "every run"}
    if region is not None and choose("show", "Show", shows, kind="row") == "region":
        draw_region(region, experiment, "collapsed")
        table(readable_series(region.series))
        links([anchor("More in Region", address("region", experiment=experiment))])
        return
    above = st.container()
    cells = layout(each)
    narrow = cells["across"].iloc[0] <= 4  # columns, which leave room for words next to them
    sides = st.columns([2, 3], gap="large") if narrow else [st.container(), st.container()]
    with sides[1]:
        # before the answer: intervals of a thousand runs take longer
        _runs(store, experiment, each, cells, run_notes)
    summary = summarised(store, experiment, each)
    with above:
        page.answer(compare.answer(summary) if region is None else headline(region.landscape, region.columns))
    with sides[0]:
        look_first(store, experiment, each)
    _arms(experiment, summary)
    heading("Runs")
    _table(store, experiment, runs(store, experiment), run_notes)


def _warn_of_falls(each: pd.DataFrame) -> None:
    """Say which runs are falling now."""
    falling = each[each["slump"].notna()]
    if len(falling):
        which = "; ".join(f"{r.arm}, seed {r.seed}, since step {r.slump:.0f}" for r in falling.itertuples())
        note(f"Falling now: {which}. Success is {100 * LOST:.0f} % or more below its best: {RATE}.")


def _region_to_show(store: Store, experiment: str) -> Region | None:
    """Return the region of an experiment of that kind; None while no run can be judged."""
    if not is_region(store, experiment):
        return None
    try:
        return region_of(store, experiment)
    except InputError as error:
        if isinstance(error, Busy):
            raise
        return None


def _arms(experiment: str, summary: pd.DataFrame) -> None:
    """Show a table of the arms; each opens in Compare."""
    heading("Arms")
    written = compare.readable(summary)
    arms = [anchor(arm, address("compare", experiment=experiment, arm=[arm])) for arm in written["arm"]]
    table(written.assign(arm=arms), "sorl-figures sorl-listing")
    note(f"{compare.ABOUT} An arm opens in Compare.")
    button("CSV of this table", lambda: written.to_csv(index=False).encode(), "sorl-arms.csv", "text/csv")


def prepare(store: Store) -> None:
    """Answer what the first page asks, before anybody asks it: a browser takes as long to start."""
    with store.reader.together():
        known = store.query("experiments")["experiment"].head(1)
        for experiment in known[[not is_region(store, name) for name in known]]:
            each = now(store, runs(store, experiment))
            success(store, each)
            for run in worst(each).to_dict("records"):
                where(store, experiment, run), why(store, experiment, run)
            summarised(store, experiment, each)  # loads scipy.stats, which takes as long as all the rest


def now(store: Store, each: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `slump`: the step since which one that is training is falling, NaN
    of the others.
    """
    since = {alert.run_id: alert.step for alert in page.happened(store) if alert.kind == "falling"}
    return each.assign(slump=each["run_id"].map(since).astype(float))


def summarised(store: Store, experiment: str, each: pd.DataFrame) -> pd.DataFrame:
    """Return `compare.summarise` of the runs."""
    key = ("summary", experiment, tuple(each["run_id"]))
    return store.computed(key, lambda reader: compare.summarise(with_updates(reader, experiment, each)))


def worst(each: pd.DataFrame) -> pd.DataFrame:
    """Return the runs to look at first: by how they stand, then by how much of their peak they have lost."""
    stands = (
        each["outcome"].where(each["outcome"].notna(), each["status"]).where(each["slump"].isna(), "falling")
    )
    bad = each.assign(stands=stands.map({name: place for place, name in enumerate(_WORST)}))
    bad = bad.assign(left=bad["final_success"] / bad["peak_success"])
    return bad.dropna(subset=["stands"]).sort_values(["stands", "left"], kind="stable").head(3)


def look_first(store: Store, experiment: str, each: pd.DataFrame) -> None:
    """Show the worst runs: since when, in which turn and token, why, and what to change; say so where none is
    bad.
    """
    heading("Look at these first")
    runs_to_see = worst(each)
    if runs_to_see.empty:
        note("No run has collapsed, failed, or lost a fifth of its best." if len(each) else "")
    for run in runs_to_see.to_dict("records"):
        title = anchor(
            f"{run['arm']}, seed {run['seed']}", address("run", experiment=experiment, run=run["run_id"])
        )
        fall = fall_of(run)
        is_one = pd.notna(run["collapse_step"])  # else `stands` names the whole interval
        has_interval = fall is not None and fall.high > fall.low and is_one
        stood = stands(run) + (f" (95 %: {fall.low:,} to {fall.high:,})" if fall and has_interval else "")
        parts = title, stood, where(store, experiment, run), why(store, experiment, run)
        st.html(tag("div", Markup("{}: {}. {} {}").format(*parts), css="sorl-finding"))


def where(store: Store, experiment: str, run: Row) -> Markup:
    """Say which trajectory, turn and token had most of the gradient at the moment of a run that fell or
    diverged.
    """
    fall = fall_of(run)
    name = str(run["run_id"])
    known = dictionary(store)
    if (fall is None and run["outcome"] != "diverged") or not run["steps"]:
        return Markup()

    def ask(_: object) -> Markup:
        signal = watched(store, known, run)
        step = signal.spike
        tables = {row["table_name"] for row in store.records("recorded", run=name)}
        if "trajectory" not in tables:
            return html_text("No trajectory was recorded, so nothing says which turn or token it was.")
        rows = ranked(store, name, step)
        value = signal.points.set_index("step")["value"].get(step)
        moment = f"At {'the fall, ' if fall and fall.low <= step <= fall.high else ''}step {step:,}"
        moment += f" ({signal.title} {number(float(value))})" if pd.notna(value) else ""
        if not rows:
            return html_text(f"{moment}, no trajectory was recorded.")

        def link(words: str, turn: int | None = None) -> Markup:
            if turn is None:
                place = {"run": name, "step": str(step), "trajectory": str(rows[0]["trajectory"])}
                return anchor(words, episode_address(experiment=experiment, **place))
            cell = {"seed": str(run["seed"]), "arm": [run["arm"]], "cell": [run["arm"], str(step), str(turn)]}
            opens_turns = "turn_step" in tables
            return (
                anchor(words, address("turns", experiment=experiment, **cell))
                if opens_turns
                else html_text(words)
            )

        side = side_of(store, name, {**rows[0], "step": step})
        return Markup("{}, {}").format(moment, verdict(rows[0], len(rows), side.turns, side.tokens, link))

    return store.computed(("where", name), ask)


def why(store: Store, experiment: str, run: Row) -> Markup:
    """Say the likely cause of a run and what to change, with a link to its diagnosis; of one that failed its
    error.
    """
    name = str(run["run_id"])
    if run["status"] == "failed":
        return html_text(
            f"It ended with: {run['reason']}" if isinstance(run["reason"], str) else "It left no message."
        )
    diagnosis = judge_run(store, run).diagnosis
    if diagnosis is None:
        return html_text(f"It is long; for its cause type: sorl diagnose {name}")
    more = anchor("Diagnosis", address("run", experiment=experiment, run=name) + "#what-stands-out")
    return Markup("{} {}").format(reason(diagnosis), more if diagnosis.findings else "")


def reason(diagnosis: Diagnosis) -> str:
    """Say the first finding if it may be a cause, and what to change; else that none is known, and what
    moved.
    """
    for finding in in_order(diagnosis)[:1]:
        if not is_later(diagnosis, finding):
            side = likely(diagnosis, finding)
            start = f"{side.capitalize()}: " if side else ""
            return f"{start}{finding.cause.title}. {finding.cause.change}"
    return f"{none_found(diagnosis)} {first_signals(diagnosis)}"


def success(store: Store, each: pd.DataFrame) -> pd.DataFrame:
    """Return success of every run in few points: run_id, x (step), mean, and the last step of the longest
    run.
    """
    zero = [0] * len(each)
    window = Window.over(0, extent(store, each, zero)[1], most=40)
    points = Chosen(each, "step", zero, window).points(store, "step", "success")
    return points.assign(x=points["bucket"] * window.width, last=window.last)


def _runs(
    store: Store, experiment: str, each: pd.DataFrame, every: pd.DataFrame, run_notes: Mapping[str, Notes]
) -> None:
    """Draw every run as a cell."""
    palette = page.look()
    of_cells = pd.Series({run: run_notes.get(run) for run in every["run_id"]}, dtype=object)
    named = parts(every.assign(notes=every["run_id"].map(of_cells)))
    cells = named[choose("rows", "Rows", list(named), kind="row") if len(named) > 1 else next(iter(named))]
    key = _outcome_key(set(each["outcome"].fillna("")), palette)
    st.html(tag("p", *key, tag("span", f"{_KEY} A cell opens its run."), css="sorl-key"))
    picture = matrix(
        cells,
        success(store, each),
        palette,
        lambda run: address("run", experiment=experiment, run=run),
        styles(each, list(each["arm"].unique())),
    )
    run = drawing(
        picture,
        "grid",
        each[each["run_id"].isin(cells["run_id"])].drop(columns="config"),
        key=_KEY,
        describe=(
            f"The runs of {experiment}: a row an arm, a column a seed, the outcome as colour, success as a"
            " curve."
        ),
    )
    if run is not None:
        page.open_screen("run", experiment=experiment, run=run)


def _outcome_key(occurring: set[str], palette: theme.Palette) -> list[Markup]:
    """Return the colours of the outcomes that occur, in words."""
    key = []
    for outcome in (*OUTCOMES, ""):
        if outcome in occurring:
            colour = palette.outcomes[outcome]
            swatch = tag("i", style=f"background:{theme.faded(colour, 0.16)};border-color:{colour}")
            key.append(tag("span", swatch, STATES.get(outcome, outcome) or "undecided or running"))
    return key


# Every run as a row: found by words and conditions, picked, compared, and annotated.

_USUAL = ("arm", "seed", "outcome", "onset", "peak", "final", "steps", "duration", "tags", "note", "hidden")


def rows(each: pd.DataFrame, settings: pd.DataFrame, run_notes: Mapping[str, Notes]) -> pd.DataFrame:
    """Return one row per run, by run_id: what it came to, its notes, and the `settings` in which the runs
    differ.
    """
    mine = [run_notes.get(run, Notes()) for run in each["run_id"]]
    frame = pd.DataFrame(
        {
            "arm": each["arm"],
            "seed": each["seed"],
            "outcome": [stands(run) for run in each.to_dict("records")],
            "onset": each[["collapse_step", "onset_low"]].bfill(axis=1).iloc[:, 0],
            "peak": each["peak_success"],
            "final": each["final_success"],
            "steps": each["steps"],
            "duration": each["seconds"],
            "tags": [", ".join(of_run.tags) for of_run in mine],
            "note": [of_run.note for of_run in mine],
            "hidden": ["yes" if of_run.hidden else "no" for of_run in mine],
        }
    ).set_axis(each["run_id"])
    return frame.join(settings.drop(columns=["seed"], errors="ignore").replace("", "–"))


def _table(store: Store, experiment: str, each: pd.DataFrame, run_notes: Mapping[str, Notes]) -> None:
    # Those picked in the table are compared and can be given notes.
    frame = rows(each, differing(store, experiment, each), run_notes)
    left, right = st.columns(2)
    with left:
        asked = search_box(
            "find", "Find runs", "words, and conditions such as  staleness > 4 and outcome = collapsed"
        )
    with right:
        columns = choose_many("column", "Columns", list(map(str, frame)), _USUAL, implied=True)
    answer = find_runs(frame, asked, settings_of_runs(store, experiment, each))
    fitting = answer.runs
    for remark in answer.remarks:
        say(remark)
    picked = keep("picked", experiment, lambda given: [run for run in given if run in frame.index], list[str])
    if fitting.empty:
        note(f"None of {len(frame)} runs fits.")
    else:
        _pick(fitting, columns or list(_USUAL), picked)
    mine = each[each["run_id"].isin(picked)].drop_duplicates("run_id")
    if len(mine):
        _picked(store, experiment, mine, run_notes)


def _pick(runs: pd.DataFrame, columns: Sequence[str], picked: Sequence[str]) -> None:
    """Draw the table; a change of its selection is a step in the address, which it follows in turn."""
    ids = [str(run) for run in runs.index]
    session = st.session_state
    # another selection than the widget's: make a new one
    if session.get("runs picked") not in (None, list(picked)):
        session["runs drawn"] = session.get("runs drawn", 0) + 1
    session["runs picked"] = list(picked)
    at = [ids.index(run) for run in picked if run in ids]
    lengths = [duration(None if pd.isna(seconds) else seconds) for seconds in runs["duration"]]
    written = runs.assign(duration=lengths)[list(columns)]
    event = st.dataframe(
        written,
        hide_index=True,
        key=f"runs {session.get('runs drawn', 0)} {hash(tuple(ids))}",
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": at}},
        placeholder="–",
        alt="The runs of this experiment, a row a run: arrow keys move, Space picks a row.",
        column_config={name: st.column_config.NumberColumn(format="%.2f") for name in ("peak", "final")},
    )
    rows = [row for row in event["selection"]["rows"] if row < len(ids)]
    if sorted(rows) != sorted(at):
        chosen = [run for run in picked if run not in ids] + [ids[row] for row in rows]
        session["runs picked"] = chosen
        follow("picked", chosen)


def _picked(store: Store, experiment: str, mine: pd.DataFrame, run_notes: Mapping[str, Notes]) -> None:
    arms = list(mine["arm"].astype(str).unique())
    ids = list(mine["run_id"].astype(str))
    where = address("compare", experiment=experiment, arm=arms, runs=ids, seeds="single")
    links([anchor("Compare the curves of these runs", where)])
    run_links(mine, experiment)
    if len(ids) > 1:
        heading("What differs between them")
        settings = differing(store, experiment, mine).drop(columns="seed", errors="ignore").replace("", "–")
        named = [f"{run.arm}, seed {run.seed}" for run in mine.itertuples()]
        if settings.empty:
            note("Nothing but the seed.")
        else:
            table(settings.set_axis(named).T.rename_axis("setting").reset_index(), "")
    _write_notes(store, experiment, ids, run_notes)


def _write_notes(store: Store, experiment: str, ids: Sequence[str], run_notes: Mapping[str, Notes]) -> None:
    """Offer the notes of some runs for a change; a new text is a row of table `note` as well."""
    first = run_notes.get(ids[0], Notes())
    under = json.dumps(ids)
    # A form of its own for each selection: what is typed for one run never lands on another.
    with st.form(f"notes {under}", border=False):
        text = st.text_area("Note", first.note, max_chars=notes.LONGEST, key=f"note {under}", height=80)
        tags = st.text_input(
            "Tags, separated by commas", ", ".join(first.tags), key=f"tags {under}", max_chars=400
        )
        hidden = st.checkbox(
            "Hide from Overview, Compare, Turns and Collapse", first.hidden, key=f"hide {under}"
        )
        saved = st.form_submit_button(
            f"Save for {len(ids)} runs" if len(ids) > 1 else "Save", key=f"save {under}"
        )
    if saved:
        words = tuple(dict.fromkeys(filter(None, map(str.strip, tags.split(",")))))[: notes.TAGS]
        try:
            for run in ids:
                notes.write(store.runs, experiment, run, Notes(text.strip(), words, hidden))
                if text.strip() not in ("", run_notes.get(run, Notes()).note):
                    append_note(store.runs, experiment, run, PartNote(text, ", ".join(words)[:LONGEST_TAG]))
        except InputError as error:
            say(str(error))
        else:
            st.rerun()

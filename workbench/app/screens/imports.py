"""Import: what `sorl diagnose` says of the log of another trainer, and a button that files it as a run."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from markupsafe import Markup

from sorl.app import export, page, uploads
from sorl.app.cited import panels_of
from sorl.app.figures.evidence import evidence
from sorl.app.page import address, anchor, answer, heading, links, look, note, say
from sorl.app.queries import Store
from sorl.app.text import few, table_html, tag
from sorl.app.uploads import Given, Upload
from sorl.app.url import choose, name_view
from sorl.diagnosis.finding import Diagnosis, Finding
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.report import markdown
from sorl.diagnosis.sentences import (
    SHOWN,
    early_warning,
    finding_text,
    headline,
    none_found,
    others_by_name,
    reading_warnings,
    signals_line,
)
from sorl.diagnosis.standing import counted
from sorl.diagnosis.unanswered import not_checked, not_looked_at
from sorl.importing.filing import DEFAULT
from sorl.importing.logs import Imported
from sorl.spec import InputError

_SOURCES = {"file": "A file", "text": "Text to paste"}
_FORMATS = (
    "JSON lines, CSV, Parquet, console text, trainer_state.json, TensorBoard events, W&B, notebooks; several"
    " as a zip."
)
_KEPT = "Nothing is kept until you file it."
_HALVES = (6, 5)  # widths of the text and of what stands beside it
_PANELS = 6  # metrics that are drawn
_NAMES = 12  # metrics that a line names
_LINKS = 20  # runs that a line opens
_PASTED = "imports pasted"
_READ = "imports read"
_FILED = "imports filed"


@page.screen
def imports(store: Store) -> None:
    """What happened in the log of another trainer?"""
    invitation = st.empty()
    given = _choose_log()
    if given is None:
        with invitation:
            answer("Give the log of a training run, and read what went wrong in it, if anything.")
        return
    try:
        upload = _read(given)
    except InputError as error:
        say(f"{str(error).removesuffix('.')}.")
        return
    number = _choose_run(upload)
    run = upload.parts[number].run
    with st.spinner("Looking for causes ..."):
        diagnosis = upload.diagnosis(number)
    name_view(run.name, diagnosis.log.name)
    _say_verdict(diagnosis)
    left, right = st.columns(_HALVES, gap="large")
    with left:
        _show_findings(diagnosis)
        _offer_filing(store, given, upload)
    with right:
        _draw_evidence(diagnosis, run)
    left, right = st.columns(_HALVES, gap="large")
    with left:
        _show_unanswered(diagnosis)
        _show_reading(diagnosis, run, upload)
    with right:
        _show_names(run)
    with st.expander("The diagnosis as Markdown, to copy"):
        st.code(markdown(diagnosis), language=None, wrap_lines=True)


# What the user hands over


def _choose_log() -> Given | None:
    """Return the file that was dropped or the text that was pasted; None while there is neither."""
    source = choose("log", "Log of another trainer", _SOURCES, kind="row")
    return _choose_file() if source == "file" else _choose_text()


def _choose_file() -> Given | None:
    file = st.file_uploader(
        "Log of another trainer",
        key="imports file",
        max_upload_size=uploads.LIMIT_MIB,
        label_visibility="collapsed",
    )
    if file is None:
        note(f"{_FORMATS} {_KEPT}")
        return None
    return Given(file.name, file.getvalue())


def _choose_text() -> Given | None:
    kept = st.session_state.get(_PASTED, "")
    pasted = st.text_area(
        "Console text",
        value=kept,
        key="imports text",
        height=140,
        placeholder="What the trainer printed, or lines of its log",
        label_visibility="collapsed",
    )
    st.session_state[_PASTED] = pasted  # Streamlit forgets a box that is not drawn
    st.button("Diagnose")  # a click ends the typing, and the page is drawn with the text
    if not pasted.strip():
        note(_KEPT)
        return None
    return Given("pasted.txt", pasted.encode(errors="replace"))


def _read(given: Given) -> Upload:
    """Return what was read of a log, once for as long as it stays on the page. Raises InputError."""
    known = st.session_state.get(_READ)
    if known is None or known[0] != given.digest:
        with st.spinner("Reading ..."):
            try:
                outcome: Upload | InputError = uploads.read(given)
            except InputError as error:
                outcome = error
        known = (given.digest, outcome)
        st.session_state[_READ] = known
    if isinstance(known[1], InputError):
        raise known[1]
    upload: Upload = known[1]
    return upload


def _choose_run(upload: Upload) -> int:
    """Return the place of the run that is looked at, the first unless another is chosen."""
    if len(upload.parts) == 1:
        return 0
    words = {}
    for number, part in enumerate(upload.parts):
        words[str(number)] = f"{part.run.name}: {counted(len(part.run.steps))}"
    number = int(choose("part", f"One of {len(words)} runs", words))
    if upload.left_out:
        note(f"{upload.left_out:,} more runs of the file are not listed; filing takes them along.")
    return number


# What is said of it


def _say_verdict(diagnosis: Diagnosis) -> None:
    """Show what stands at the head of the diagnosis: how much of the log is missing from it, the verdict."""
    for warning in reading_warnings(diagnosis):
        say(warning)
    st.html(tag("h2", headline(diagnosis), css="sorl-question"))
    if not diagnosis.findings:
        answer(none_found(diagnosis))


def _show_findings(diagnosis: Diagnosis) -> None:
    """Show the first causes with their evidence and what to change, the others by name, then what else
    moved.
    """
    ranked = in_order(diagnosis)
    if ranked:
        heading("What the log shows")
    for rank, finding in enumerate(ranked[:SHOWN], start=1):
        st.html(_finding_html(diagnosis, finding, rank))
    for sentence in (others_by_name(ranked), early_warning(diagnosis), signals_line(diagnosis)):
        if sentence:
            answer(sentence)


def _show_unanswered(diagnosis: Diagnosis) -> None:
    """Show which causes the log cannot answer, and what it lacks for them."""
    lines = [*not_looked_at(diagnosis), *not_checked(diagnosis)]
    if lines:
        heading("What could not be looked at")
        _notes(lines)


def _notes(lines: Sequence[str]) -> None:
    """Show small remarks close below each other."""
    st.html(Markup("").join(tag("p", line, css="sorl-note sorl-remark") for line in lines))


def _finding_html(diagnosis: Diagnosis, finding: Finding, rank: int) -> Markup:
    """Return a finding: its title, how sure it is, what was seen, what to change."""
    told = finding_text(diagnosis, finding)
    title = tag("b", f"{rank}. {finding.cause.title}")
    parts = [tag("div", title, " ", tag("span", told.sure, css="sorl-unit"))]
    for label, words in (("Seen: ", f"{told.seen}."), ("Change: ", told.change), ("Options: ", told.options)):
        if words:
            parts.append(tag("div", tag("span", label, css="sorl-unit"), words))
    return tag("div", *parts, css=f"sorl-finding sorl-{finding.severity}")


# The curves behind it


def _draw_evidence(diagnosis: Diagnosis, run: Imported) -> None:
    """Draw the reward and the metrics that the findings cite, with their steps marked."""
    panels = panels_of(diagnosis, run)
    if not panels:
        return
    is_marked = any(panel.marks for panel in panels)
    heading("The curves behind it" if is_marked else "The reward")
    drawn = panels[:_PANELS]
    metrics = [panel.metric for panel in panels]
    onset = diagnosis.log.onset
    key = []
    if is_marked:
        key.append("Dotted line: the step that the finding with this number names.")
    if onset is not None:
        key.append("▼ and line: the last step before the fall.")
    if any(len(panel.broken) for panel in drawn):
        key.append("✕ NaN or infinite.")
    if len(panels) > _PANELS:
        key.append(f"Not drawn: {few(metrics[_PANELS:], 3)}.")
    export.figure(
        evidence(drawn, onset, look()),
        "evidence",
        lambda: pd.concat([panel.frame for panel in drawn], ignore_index=True),
        describe=f"{', '.join(metrics[:_PANELS])} over training.",
        key=" ".join(key),
    )
    note(" ".join(key))


# How it was read


def _show_reading(diagnosis: Diagnosis, run: Imported, upload: Upload) -> None:
    """Show what was assumed, kept and left out, and the settings."""
    heading("How the log was read")
    reading = diagnosis.log.reading
    lines = [f"{sentence}." for sentence in reading.notes] if reading else []
    if run.kept:
        lines.append(f"Kept under their own names: {few(list(run.kept), _NAMES)}.")
    if run.left:
        lines.append(f"Left out, as there are too many: {few(run.left, _NAMES)}.")
    settings = [f"{key} = {value}" for key, value in run.settings.items()]
    lines.append(f"Settings: {few(settings, _NAMES) or 'none found'}.")
    lines += [f"Not read: {line.removesuffix('.')}." for line in upload.refused]
    _notes(lines)


def _show_names(run: Imported) -> None:
    """Show which metric of the log was read as which column."""
    heading("What was read as what")
    rows = [(metric, column) for column, metric in sorted(run.read.items())]
    st.html(table_html(["metric of the log", "read as"], rows, "sorl-figures"))


# Filing


def _offer_filing(store: Store, given: Given, upload: Upload) -> None:
    """Offer to file the runs as `sorl import` does, and lead to them once they are."""
    heading("Keep this run" if len(upload.parts) == 1 else "Keep these runs")
    if reason := uploads.why_not_filed(store.runs):
        note(reason)
        return
    count = len(upload.parts) + upload.left_out
    what = "this run" if count == 1 else f"all {count:,} runs"
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.text_input("Experiment", value=DEFAULT, key="imports experiment", max_chars=200, width=240)
        wanted = st.button(f"File {what}")
    filed: dict[str, tuple[str, list[str]]] = st.session_state.setdefault(_FILED, {})
    if wanted:
        try:
            with st.spinner("Filing ..."):
                filed[given.digest] = (name, uploads.file_in(store.runs, given, name))
                page.store_of(str(store.runs))[1].look(5.0)
        except InputError as error:
            say(f"{str(error).removesuffix('.')}.")
            return
    if given.digest in filed:
        _link_to_filed(*filed[given.digest])
    else:
        note("Filed in the runs folder under that experiment, for Overview, Run, Compare and SQL to show.")


def _link_to_filed(experiment: str, run_ids: Sequence[str]) -> None:
    """Show links to the runs that were filed."""
    opened = [anchor(run, address("run", experiment=experiment, run=run)) for run in run_ids[:_LINKS]]
    more = f" and {len(run_ids) - _LINKS} more" if len(run_ids) > _LINKS else ""
    whole = anchor(experiment, address("overview", experiment=experiment))
    links(
        [f"Filed {counted(len(run_ids), 'run')} in ", whole, "."],
        ["Open in Run: ", Markup(", ").join(opened), more],
    )

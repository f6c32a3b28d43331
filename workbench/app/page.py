"""What every screen shares: the menu and links, its store, live refresh, what to say where nothing is; small
parts.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from markupsafe import Markup
from streamlit.navigation.page import Page

from sorl.app import url, views
from sorl.app.export import button, file_name
from sorl.app.queries import State, Store
from sorl.app.sync import BackgroundSync
from sorl.app.text import table_html, tag, visible
from sorl.app.theme import DARK, LIGHT, Palette
from sorl.diagnosis.alerts import Alert, alerts
from sorl.spec import InputError
from sorl.spec.files import IMPORTED_FROM
from sorl.store.connect import Busy, database
from sorl.store.text import plain

# Module, function and address of a screen have its name. The app opens at the first, whose address needs no
# name. They stand in the order of the hunt: from the grid to the run, its turn and its token; then over runs;
# then to look up; then to bring in.
SCREENS = (
    "overview",
    "run",
    "turns",
    "conversations",
    "episode",
    "replay",
    "compare",
    "collapse",
    "region",
    "sql",
    "glossary",
    "imports",
)
TITLES = {
    "sql": "SQL",
    "imports": "Import",
}  # of a screen whose name is no title: `import` is a word of Python
_INSIDE = re.compile(rf"(\./|{'|'.join(SCREENS)})(\?.*)?", re.DOTALL)
EPISODE = {"rank": "gradient", "epoch": "worst"}  # what Episode opens with from other screens
_SEEDS = 10  # of an arm that a line of links names
_PULSE = 0.5  # seconds between two looks at whether the database has changed
_PATIENCE = 0.5  # seconds that a screen waits for the first sync of a session
_DRAWN = "sorl drawn"
_KNOWN = "sorl alerts"
_STYLE, *_SCRIPTS = (
    Path(__file__).parent / name for name in ("style.css", "figure.js", "scroll.js", "link.js", "bell.js")
)


class Empty(InputError):
    """The database has no run yet."""


@st.cache_resource(show_spinner=False)
def store_of(runs: str) -> tuple[Store, BackgroundSync]:
    """Return the answers and the sync of a runs folder, shared by every session of the app."""
    return Store(Path(runs)), BackgroundSync(Path(runs))


def screen(body: Callable[[Store], None]) -> Callable[[], None]:
    """Make a function that draws one screen a page, drawn again when new rows arrive; an InputError is a
    sentence.
    """

    @wraps(body)
    def drawn() -> None:
        st.html(_STYLE)
        palette = look()
        st.html(tag("style", f":root {{ --sorl-surface: {palette.surface}; --sorl-text: {palette.text}; }}"))
        # who cannot see the menu hears where they are
        st.html(tag("h1", title(body.__name__), css="sorl-title"))
        script = "".join(file.read_text(encoding="utf-8") for file in _SCRIPTS)
        st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)
        bell = st.container(key="sorl-bell")
        store, syncing = store_of(os.environ.get("SORL_RUNS") or "runs")
        syncing.look(0.0 if "sorl seen" in st.session_state else _PATIENCE)
        st.session_state["sorl seen"] = True
        state = store.state()
        url.begin(body.__name__)
        try:
            body(store)
            _foot(store, body.__name__)
            with st.container(key="sorl-address"):
                url.finish(SCREENS)
        except Busy as busy:
            say(f"Waiting for the database: {busy}.")
        except InputError as error:
            if database(store.runs).exists() and not isinstance(error, Empty):
                say(str(error))
            else:
                folder = store.runs.absolute()
                none = (
                    f"Nothing to show yet: no run is recorded in {folder}. Train a first grid, or name its"
                    " folder:"
                )
                say(none, "sorl run experiments/quickstart.toml", "sorl app --runs OTHER/FOLDER")
                links(["Or drop the log of another trainer: ", anchor("Import", address("imports"))])
        for line in syncing.notes:
            note(line)
        falling = 0
        with suppress(InputError), bell:  # the screen has said what is wrong
            falling = _ring(store, syncing)
        st.set_page_config(page_title=tab_title(body.__name__, url.view_names().short, falling))
        st.session_state[_DRAWN] = True
        _pulse(store, syncing, state)

    return drawn


def happened(store: Store) -> list[Alert]:
    """Return what has happened to any run that a person would want to know."""
    return store.computed("alerts", alerts)


def _ring(store: Store, syncing: BackgroundSync) -> int:
    """Hand the page what has happened since it was opened, which bell.js tells; return how many runs are
    falling.
    """
    every = happened(store)
    session = st.session_state
    if _KNOWN not in session and not syncing.syncing:  # what the first sync of a session brings is old
        session[_KNOWN] = {(alert.run_id, alert.kind) for alert in every}
    news = []
    if _KNOWN in session:
        news = [alert for alert in every if (alert.run_id, alert.kind) not in session[_KNOWN]]
    messages = [_message(alert) for alert in news[-50:]]  # more would be too many for a page
    blocked = (
        "This browser does not show messages of this page; `sorl app --notify URL` posts them to a webhook."
    )
    words = tag("button", "Tell me in this browser when a run falls", type="button"), tag("span", blocked)
    live = store.query("experiments")["running"].sum() > 0
    st.html(tag("div", *(words if live else ()), css="sorl-bell", data_news=json.dumps(messages)))
    return len({alert.run_id for alert in every if alert.kind == "falling"})


def _message(alert: Alert) -> list[str]:
    """An alert as bell.js tells it: title, text, its identity, and the address that it opens."""
    where = address("run", experiment=alert.experiment, run=alert.run_id)
    return [alert.title, alert.says, f"{alert.kind} {alert.run_id}", where]


def _foot(store: Store, screen: str) -> None:
    """Show what a screen hands on: its link, views under a name, and the report of its experiment."""
    words = tag("button", "Copy link", type="button"), tag("span", aria_live="polite")
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        st.html(tag("div", *words, css="sorl-copy"), width="content")
        with st.popover("Saved views", width="content"):
            _views(store, screen)
    if experiment := url.chosen("experiment"):
        _report(store, experiment)


def _views(store: Store, screen: str) -> None:
    """Save the view, open and delete saved ones, and exchange them as a file."""
    saved = views.read(store.runs)
    with st.form("save view", border=False, clear_on_submit=True):
        name = st.text_input("Save this view as", max_chars=views.LONGEST_NAME)
        if st.form_submit_button("Save view") and name.strip():
            choices = address(screen, **url.choices()).removeprefix("./?")
            where = f"{SCREENS[0]}?{choices}" if screen == SCREENS[0] else choices
            _change_views(lambda: views.save(store.runs, [views.View(name, where)]))
    for view in saved.views:
        links([anchor(view.name, view.address)])
    if saved.remark:
        say(saved.remark)
    if saved.views:
        gone = st.selectbox("Delete a view", [view.name for view in saved.views], index=None)
        if gone is not None and st.button("Delete"):
            _change_views(lambda: views.delete(store.runs, gone))
        text = views.written(saved.views).encode()
        st.download_button("Download as TOML", text, views.FILE, "application/toml", on_click="ignore")
    given = st.file_uploader("Load views from a TOML file", type="toml", max_upload_size=1)
    if given is not None and st.button("Load"):
        loaded = views.parse(given.getvalue().decode("utf-8", errors="replace"))
        if loaded.remark:
            say(loaded.remark)
        if loaded.views:
            _change_views(lambda: views.save(store.runs, loaded.views))


def _change_views(change: Callable[[], None]) -> None:
    try:
        change()
    except InputError as error:
        say(str(error))
    else:
        st.rerun()


def _report(store: Store, experiment: str) -> None:
    def made() -> bytes:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "report.html"
            words = ["--runs", str(store.runs.absolute()), "report", "--output", str(file), "--", experiment]
            run_sorl(words, f"sorl report {experiment}", seconds=300.0)
            return file.read_bytes()

    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        note(f"Report of {experiment}: one page that needs no network", width="content")
        button("HTML", made, f"{file_name(experiment, 'report')}.html", "text/html")


@st.fragment(run_every=_PULSE)
def _pulse(store: Store, syncing: BackgroundSync, drawn: State) -> None:
    # A new segment is drawn as soon as it is in the database, not at the next pulse. The first check belongs
    # to the drawing of the whole screen, which must not wait.
    syncing.look(0.0 if st.session_state.pop(_DRAWN, False) else _PULSE)
    if not syncing.syncing and store.state() != drawn:
        st.rerun()


def look() -> Palette:
    """Return the colours of the theme that the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def _paragraph(css: str, text: str, **more: Any) -> None:
    st.html(tag("p", text, css=css), **more)


answer = partial(_paragraph, "sorl-answer")  # the sentence that answers the question of a screen
note = partial(_paragraph, "sorl-note")  # a small remark


def place_of(title: str) -> str:
    """Return the name of a part of a page in an address."""
    return title.lower().replace(" ", "-")


def heading(title: str) -> None:
    """Show the title of a part of a screen, to which an address with its place leads."""
    st.html(tag("h2", title, css="sorl-question sorl-heading", id=place_of(title)))


def say(text: str, *typed: str) -> None:
    """Show a sentence in place of what cannot be shown, and what to type, ready to be copied."""
    _paragraph("sorl-warning", text)
    if typed:
        st.code("\n".join(typed), language=None)  # colours of a language have too little contrast


def not_recorded(missing: str, needs: str) -> None:
    """Say in a sentence that `missing` is not recorded, what the screen needs, and what records it."""
    say(
        f"{missing} is recorded: this screen needs {needs}, which a run that is trained here records:",
        "sorl run FILE.toml",
    )


def table(frame: pd.DataFrame, css: str = "sorl-figures") -> None:
    """Show a small table that never cuts a cell; the usual one breaks only cells of the first column into
    lines.
    """
    st.html(table_html(list(frame), frame.astype(object).to_numpy().tolist(), css))


# What `sorl` says, by a process of its own: the app itself has no torch, and a long answer must not stop it.


def run_sorl(words: Sequence[str], typed: str, seconds: float, codes: Sequence[int] = (0,)) -> str:
    """Return what `sorl WORDS` prints; if it ends with none of `codes`, InputError has its message or says
    `typed`.
    """
    paths = [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from sorl.cli.main import main; main()", *words],
            capture_output=True,
            timeout=seconds,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"this took more than {seconds:.0f} s; type it on a terminal: {typed}") from None
    except OSError as error:
        raise InputError(
            f"sorl could not be started ({error.strerror}); type it on a terminal: {typed}"
        ) from None
    if done.returncode not in codes:
        message = plain(done.stderr).strip().removeprefix("sorl: ")
        raise InputError(" ".join(message[-600:].split()) or f"`{typed}` ended with code {done.returncode}")
    return done.stdout


@st.cache_data(max_entries=64, show_spinner=False)
def answered(
    words: Sequence[str], typed: str, seconds: float, state: Hashable, codes: Sequence[int] = (0,)
) -> Any:
    """Return the JSON that `sorl WORDS` prints, asked once for each `state` of what it reads; raises as
    `run_sorl` does.
    """
    return json.loads(run_sorl(words, typed, seconds, codes))


# The menu, and links between screens.


def title(name: str) -> str:
    """Return the name of a screen as the menu writes it."""
    return TITLES.get(name, name.capitalize())


def tab_title(name: str, chosen: str, falling: int = 0) -> str:
    """Return what a tab and the history of a browser call a screen: how many runs fall, then what is chosen
    on it.
    """
    alarm = f"▼ {falling} falling" if falling else ""
    about = visible(chosen) if chosen != name else ""
    return " · ".join(dict.fromkeys(filter(None, [alarm, about, title(name), "sorl"])))


def page(name: str, path: str | None = None, *, in_menu: bool = True) -> Page:
    """Make a screen a page of the app, at `path`; by default that is its name, and the root for the first
    screen.
    """
    drawn = getattr(import_module(f"sorl.app.screens.{name}"), name)
    # A page at the root reserves a name all the same: one that is no screen's.
    first = path is None and name == SCREENS[0]
    return st.Page(
        drawn,
        title=title(name),
        url_path=path or ("start" if first else name),
        default=first,
        visibility="visible" if in_menu else "hidden",
    )


def open_screen(name: str, **choices: str | list[str]) -> None:
    """Go to another screen with these choices, from the address that the browser shows: one step of its
    history.
    """
    st.switch_page(page(name), query_params=url.hand_to_next_screen(choices))


def address(screen: str, **choices: str | Sequence[str]) -> str:
    """Return the address of a screen with these choices, relative to any other. Raises ValueError for no
    screen.
    """
    if screen not in SCREENS:
        raise ValueError(f"'{screen}' is no screen of this app")
    return ("./" if screen == SCREENS[0] else screen) + "?" + urlencode(choices, doseq=True)


def episode_address(**place: str) -> str:
    """Return the address of an episode at its worst epoch: experiment, run, step and, if known,
    trajectory.
    """
    return address("episode", **place, **EPISODE)


def anchor(words: str, where: str) -> Markup:
    """Make a link to an address of this app. Raises ValueError for an address that leaves the app."""
    if not _INSIDE.fullmatch(where):
        raise ValueError(f"'{where}' is no screen of this app")
    return tag("a", words, href=where)


def links(*parts: Sequence[object]) -> None:
    """Show a line of links and words; each part stays together where the line breaks."""
    st.html(tag("p", *(tag("span", *part) for part in parts), css="sorl-note sorl-links"))


def run_links(runs: pd.DataFrame, experiment: str) -> None:
    """Show a line that opens each of `runs` (arm, seed, run_id) in screen Run; where these are grouped by a
    setting, `own_arm` tells them apart.
    """
    lines = []
    for arm, part in runs.groupby("arm", sort=False):
        is_grouped = "own_arm" in part and (part["own_arm"] != part["arm"]).any()
        first = part.head(_SEEDS).to_dict("records")
        names = [f"{run['own_arm']}, seed {run['seed']}" if is_grouped else str(run["seed"]) for run in first]
        places = [address("run", experiment=experiment, run=str(run["run_id"])) for run in first]
        opened = [anchor(name, place) for name, place in zip(names, places, strict=True)]
        more = f" and {len(part) - _SEEDS} more" if len(part) > _SEEDS else ""
        separator = "; " if is_grouped else ", "
        lines.append((arm, ": " if is_grouped else ": seed ", Markup(separator).join(opened), more))
    links(["Open a run:"], *lines)

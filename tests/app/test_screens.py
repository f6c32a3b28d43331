"""The app and its menu, what every screen promises, and the screens of arms."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote_plus

import duckdb
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.analysis import compare
from sorl.analysis.runs import runs as runs_of
from sorl.app import page, queries, sync
from sorl.app.choices import choices_of, default_arms, differing, seeds_of
from sorl.app.export import file_name
from sorl.app.figures.common import AXES
from sorl.app.page import SCREENS, TITLES, tab_title
from sorl.app.screens.compare import default_metrics, differences, regrouped
from sorl.app.screens.turns import Cell
from sorl.app.sentences import collapse
from sorl.app.sentences.collapse import first_warning
from sorl.app.sentences.compare import against
from sorl.app.text import apart, html_text
from sorl.app.theme import LIGHT
from sorl.store.connect import database, writer
from sorl.store.reader import Reader
from sorl.store.sync import SyncReport
from tests.app.conftest import (
    HOSTILE,
    SMALL,
    Open,
    Patch,
    Read,
    Visit,
    assert_literal,
    region_arms,
    visit,
    write_queued,
)
from tests.store.fixture import Shape, write_grid, write_run
from tests.store.processes import ROOT

CHOICE = "choose_many('arm', 'Arms', ['a', 'b', 'c'], ['a'])"


@pytest.mark.parametrize("file", ["app.py", "workbench/app/main.py"])
def test_the_app_opens_on_the_overview(file: str, grid: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SORL_RUNS", str(grid))
    app = Visit(str(ROOT / file), default_timeout=60).run()
    assert app.selectbox(key="experiment").value == "demo"


@pytest.mark.parametrize(
    "address", [None, "http://localhost", "http://localhost/overview", "http://localhost/compare"]
)
def test_the_overview_has_an_address_of_its_own_and_one_place_in_the_menu(address: str | None) -> None:
    app = visit(
        "import streamlit as st\nfrom sorl.app.main import menu\n"
        f"pages = menu({address!r})\nst.navigation(pages)\n"
        "st.session_state['pages'] = [(p.title, p.url_path, p.visibility) for p in pages]\n"
    )
    pages = app.session_state["pages"]
    shown = [(title, path) for title, path, visibility in pages if visibility == "visible"]
    assert [title for title, _ in shown] == [TITLES.get(name, name.capitalize()) for name in SCREENS]
    files = {file.stem for file in (ROOT / "workbench" / "app" / "screens").glob("*.py")} - {"__init__"}
    assert files == set(SCREENS), "a screen has a file of its own"
    assert shown[0][1] == ("overview" if (address or "").endswith("overview") else "")
    assert {path for _, path, _ in pages} >= {"", "overview"}


def test_a_choice_goes_along_to_the_next_screen() -> None:
    # The browser asks for the next screen with the choices of this one where a look for new rows is asked for
    # with it.
    app = visit(
        "import streamlit as st\nfrom sorl.app.url import begin, choose_many, finish\n"
        f"def one():\n    begin('one')\n    {CHOICE}\n    finish([])\n"
        f"def two():\n    begin('two')\n    {CHOICE}\n    finish([])\n"
        "pages = [st.Page(one), st.Page(two)]\n"
        "st.session_state['hashes'] = [page._script_hash for page in pages]\n"
        "st.navigation(pages).run()\n"
    )
    app.multiselect(key="arm").set_value(["c", "b"]).run()
    app._page_hash = app.session_state["hashes"][1]
    app.query_params.clear()
    app.run()
    assert app.multiselect(key="arm").value == app.query_params["arm"] == ["c", "b"]
    assert app.steps == 1, "the choice; the opening completes its address"


def test_no_screen_imports_torch() -> None:
    code = (
        "import sys\nfrom sorl.app.page import SCREENS, page\nimport sorl.app.main\n"
        "[page(name) for name in SCREENS]\nfrom sorl.analysis import compare\n"
        "print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_says_what_to_type_without_a_run_and_waits_for_a_busy_database(
    name: str, tmp_path: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    if name == "imports":  # which needs no database: test_imports.py
        return
    # which explains all without a run
    for folder in (tmp_path, tmp_path / "nowhere") if name != "glossary" else ():
        assert "sorl run" in "".join(code.value for code in open_screen(name, folder).code)
    (busy := tmp_path / "busy").mkdir()
    (none := tmp_path / "none").mkdir()
    database(none).write_text("not a database")
    assert "sorl sync" in open_screen(name, none).source
    monkeypatch.setattr(queries, "_WAIT", 0.05)
    monkeypatch.setattr(sync, "_LOCK", 0.05)
    with writer(busy, 30.0):
        assert "Waiting for the database" in open_screen(name, busy).source


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_shows_hostile_text_literally(name: str, hostile: Path, open_screen: Open) -> None:
    assert_literal(open_screen(name, hostile))


def test_a_screen_that_shows_no_update_reads_none(
    grid: Path, searched: Path, tmp_path: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sync, "sync", lambda *_, **__: SyncReport())  # it would bring the table back
    folders = {place: Path(shutil.copytree(place, tmp_path / place.name)) for place in (grid, searched)}
    for folder in folders.values():
        with duckdb.connect(str(database(folder))) as db:
            db.execute("DROP TABLE minibatch")
    for screen in ("compare", "turns", "collapse", "episode", "overview"):
        app = open_screen(screen, folders[searched if screen == "overview" else grid])
        assert app.figures, screen
        assert "does not exist" not in app.source, screen
    assert "does not exist" in open_screen("compare", folders[grid], metric=["minibatch.grad_norm"]).source


def test_a_live_run_shows_its_new_rows(tmp_path: Path, open_screen: Open, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sync, "_PERIOD", 0.0)
    for number, run in enumerate("ab"):
        write_run(tmp_path, "demo", run, shape=SMALL, seed=number, status="running")
        assert f"{number + 1} runs" in open_screen("overview", tmp_path).source


def test_a_bare_address_opens_the_newest_collapse(tmp_path: Path, open_screen: Open) -> None:
    small = Shape(trajectories=2, turns=3, epochs=1, steps_per_segment=30)
    write_grid(tmp_path, "fell", small)
    write_run(tmp_path, "young", "later", shape=small, seed=9)
    for screen, newest in (
        ("overview", "young"),
        ("compare", "fell"),
        ("turns", "fell"),
        ("collapse", "fell"),
    ):
        assert open_screen(screen, tmp_path).value("experiment") == newest


@pytest.mark.parametrize("screen", ["compare", "turns", "collapse"])
def test_a_screen_of_arms_asks_for_one_and_leads_to_the_region(
    screen: str, searched: Path, open_screen: Open
) -> None:
    app = open_screen(screen)
    assert "All points in Region" not in app.source
    app.multiselect(key="arm").set_value([]).run()
    assert "Choose at least one arm" in app.source
    app = open_screen(screen, searched)
    assert 'href="region?experiment=searched"' in app.source
    assert {arm.partition(" ")[0] for arm in app.multiselect(key="arm").value} == {"ppo", "st-ppo"}


def test_a_choice_changes_figure_and_address_in_one_step_and_an_opening_is_none(open_screen: Open) -> None:
    app = open_screen("compare", arm=["ppo"], scale="log")
    assert (app.query_params["experiment"], app.steps) == (["demo"], 0)
    app.multiselect(key="arm").set_value(["ppo", "grpo"]).run()
    app.run()
    assert (app.query_params["arm"], app.steps) == (["ppo", "grpo"], 1)
    assert "What differs" in app.source
    app.query_params["scale"] = "linear"  # an address from outside wins over the widgets
    assert app.run().session_state["scale"] == "linear"
    before = dict(app.query_params)
    app.slider(key="range").set_range(3, 20).run()
    assert app.value("range") == "3..20"
    for back in (before, {}):  # a step back is no step forward, and takes back what its address leaves out
        app.query_params = dict(back)
        assert (app.run().slider(key="range").value, app.steps) == ((0, 29), 2)


def test_compare_takes_its_view_from_the_address_and_says_what_it_ignores(open_screen: Open) -> None:
    address = {
        "arm": ["st-ppo", "ppo"],
        "metric": "minibatch.grad_norm",
        "x": "updates",
        "seeds": "single",
        "scale": "log",
        "smooth": "5",
        "range": "3..20",
    }
    app = open_screen("compare", **address)
    assert {name: app.value(name) for name in address} == address
    (figure,) = app.figures
    assert [t["name"] for t in figure["data"] if t.get("showlegend") is not False] == ["st-ppo", "ppo"]
    assert figure["layout"]["yaxis"]["type"] == "log"
    metrics = ["step.success", "minibatch.clip_bias_norm", "turn_step.ratio_max"]
    for x, seeds in (("step", "band"), ("updates", "single"), ("tokens", "band"), ("onset", "single")):
        (figure,) = open_screen("compare", metric=metrics, x=x, seeds=seeds).figures
        assert not any("not measured" in a["text"] for a in figure["layout"]["annotations"]), x
    app = open_screen("compare", arm=["ppo", "<b>x</b>"], metric=["step.nope"], x="sideways", range="9..1")
    for words in ("arm = '<b>x</b>'", "metric = 'step.nope'", "x = 'sideways'", "range = '9..1'"):
        assert html_text(words) in app.source
    assert app.multiselect(key="arm").value == ["ppo"]


def test_no_choice_is_lost_to_a_wrong_address_or_to_the_next_choice(
    open_screen: Open, monkeypatch: Patch
) -> None:
    app = open_screen("compare", scale="sideways")
    app.query_params = {"scale": "sideways"}  # what a browser says until it hears of another address
    app.segmented_control(key="scale").set_value("log").run()
    assert app.value("scale") == "log"
    app = open_screen("compare")
    with monkeypatch.context() as cut_short:
        # the second comes while the first is drawn
        cut_short.setattr("sorl.app.url.finish", lambda _: None)
        app.segmented_control(key="scale").set_value("log").run()
    app.segmented_control(key="seeds").set_value("single").run()
    assert (app.session_state["scale"], app.session_state["seeds"], app.steps) == ("log", "single", 1)


@pytest.mark.parametrize(
    ("screen", "dragged", "kept"),
    [
        ("run", (9.6, 20.3), "10..20"),
        ("compare", (12.2, 12.6), "11..13"),
        ("compare", (-3.0, 7.5), "0..7"),
        ("turns", (20.3, 9.6), "10..20"),
    ],
)
def test_a_drag_over_a_figure_is_the_range_of_the_address(
    screen: str, dragged: tuple[float, float], kept: str, open_screen: Open, monkeypatch: Patch
) -> None:
    drawn: list[str] = []

    def chart(
        _: object, *, key: str, selection_mode: str | tuple[str, ...], **__: object
    ) -> dict[str, object]:
        boxes = "box" in selection_mode and not any(other.startswith(key[:-2]) for other in drawn)
        drawn.append(key)
        inside = [{"customdata": [1, 12, 3]}] if boxes and "points" in selection_mode else []
        return {"selection": {"box": [{"x": list(dragged)}] if boxes else [], "points": inside}}

    monkeypatch.setattr("streamlit.plotly_chart", chart)
    app = open_screen(screen)
    assert app.value("range") == kept
    zoomed = [key for key in drawn if key.startswith(("curves", "signals", "turns"))]
    assert len(set(zoomed)) == 2, "the new figure is another one, in which nothing is selected"
    assert "cell" not in app.query_params, "what lies in the part was not clicked"


def test_overview_shows_question_answer_a_cell_a_run_and_the_table_of_the_terminal(
    grid: Path, open_screen: Open
):
    app = open_screen("overview")
    for words in ("Does the clip stop the collapse?", "Collapsed: ppo in 2 of 2", "8 runs"):
        assert words in app.source
    (cells,) = app.drawings
    assert cells.count("data-key=") == 8
    assert 'href="run?experiment=demo&amp;run=ppo-s0-aaaa0000"' in cells
    assert "show" not in app.session_state
    summary = compare.readable(compare.summarise(runs_of(Reader(grid), "demo"))).astype(str)
    assert {"clip fraction", "grad norm median", "grad norm max"} <= set(summary.columns)
    for row in summary.to_numpy().tolist():
        assert "".join(f"<td>{html_text(cell)}</td>" for cell in row[1:]) in app.source
        assert f'href="compare?experiment=demo&amp;arm={quote_plus(row[0])}"' in app.source


def test_region_shows_a_map_an_arm_and_its_overview_lists_runs_on_demand(
    searched: Path, open_screen: Open
) -> None:
    app = open_screen("region", searched)
    for words in (
        "At staleness 8, half of the runs collapse ",
        "above the highest value tried with st-ppo (0.4)",
        "Stable area, from the largest: st-ppo",
        "half of the runs collapse, by staleness.",
    ):
        assert words in app.source
    words = [t["text"] for t in app.figures[0]["data"] if "text" in t.get("mode", "")]
    assert words == [["0/1", "1/1", "1/1"] * 2, ["0/1"] * 6]
    links = re.findall(r'<a href="compare\?([^"]*)">([^<]*)</a>', app.source)
    arms_of = {parse_qs(where.replace("&amp;", "&"))["arm"][0] for where, _ in links}
    assert arms_of == {name for name, *_ in region_arms()} == {words for _, words in links}
    assert "No region search yet" in open_screen("region").source
    assert len(open_screen("region").code[0].value.splitlines()) == 2
    app = open_screen("overview", searched)
    assert "Stable area, from the largest: st-ppo" in app.source
    assert 'href="region?experiment=searched"' in app.source
    (figure,) = app.figures
    assert "customdata" in str(figure)
    assert not app.drawings, "no cell a run"
    app = open_screen("overview", searched, show="runs")
    assert (app.drawings[0].count("data-key="), app.value("show")) == (12, "runs")


def test_compare_marks_the_onset_and_draws_the_alarms_of_the_dictionary(open_screen: Open) -> None:
    app = open_screen("compare", arm=["ppo", "st-ppo"], metric=["step.success"], x="onset")
    marks = [t for t in app.figures[0]["data"] if t.get("marker", {}).get("symbol") == "triangle-down"]
    assert [m["marker"]["color"] for m in marks] == [LIGHT.algorithms["ppo"]]
    assert "2 of 4 runs did not fall" in app.source
    app = open_screen("compare", arm=["ppo", "st-ppo"], metric=["step.ess_frac_min", "step.grad_norm_max"])
    data = app.figures[0]["data"]
    words = [t["hovertemplate"] for t in data if t.get("line", {}).get("dash") == "2px,3px"]
    assert "alarm at 0.3<extra></extra>" in words
    assert any("for st-ppo" in w for w in words)
    assert sum(t.get("marker", {}).get("symbol") == "triangle-up-open" for t in data) == 2


def arms(**onsets: list[int | None]) -> pd.DataFrame:
    """Arms `algorithm_condition`, each with the onset of its runs."""
    rows = [(arm, arm.split("_")[0], *run) for arm, steps in onsets.items() for run in enumerate(steps)]
    found = pd.DataFrame(rows, columns=["arm", "algorithm", "seed", "collapse_step"])
    found["collapse_step"] = found["onset_low"] = found["collapse_step"].astype("Int64")
    return found.assign(outcome="healthy")


def alarms(*rows: tuple[str, int, int, float]) -> pd.DataFrame:
    found = pd.DataFrame(list(rows), columns=["alarm", "before", "first", "lead_median"])
    return found.assign(collapsed=3, steady=2, false_alarms=1)


def test_few_arms_are_all_shown_and_of_many_one_collapsed_and_one_healthy_of_each_algorithm() -> None:
    assert default_arms(arms(b=[None], a=[3])) == ["b", "a"]
    each = arms(
        ppo_1=[None, None],
        ppo_2=[4, None],
        ppo_3=[4, 5],
        ppo_4=[3, 6],
        st_1=[None],
        st_2=[None, None],
        st_3=[None],
        so_1=[None, 5, 6],
        so_2=[None],
    )
    assert default_arms(each, most=5) == ["ppo_1", "ppo_3", "st_2", "so_1", "so_2"]
    rare = arms(
        ppo_1=[6, None, None], ppo_2=[None, None, None], turn=[None], s=[None], st=[None], grpo=[None], so=[9]
    )
    assert default_arms(rare, most=6) == [
        "ppo_1",
        "ppo_2",
        "turn",
        "s",
        "st",
        "so",
    ], "a rare collapse is shown"


def test_success_stands_first_and_then_what_warned_before_most_collapses() -> None:
    told = alarms(("entropy", 0, 0, 0.0), ("kl_k3", 2, 0, 5.0), ("ratio_max", 3, 2, 2.0))
    charted = [f"step.{name}" for name in ("success", "entropy", "kl_k3", "ratio_max", "grad_norm_max")]
    usual = ["step.success", "step.grad_norm_max", "step.absent", "step.entropy"]
    assert default_metrics(told, charted, usual) == [charted[i] for i in (0, 3, 2, 4)]
    everywhere = told.assign(before=3, false_alarms=[1, 2, 2])
    assert default_metrics(everywhere, charted, usual)[1] == "step.entropy", (
        "what rings in all runs gets no panel"
    )
    assert default_metrics(pd.DataFrame(), charted, usual) == [
        "step.success",
        "step.grad_norm_max",
        "step.entropy",
    ]


def test_the_headline_of_collapse_is_by_run_and_tells_what_came_back_and_what_is_open() -> None:
    runs = arms(ppo=[17, 20, None, None], st=[None, None]).assign(
        run_id=list("abcdef"),
        detected=None,
        steps=36.0,
        outcome=["collapsed", "recovered", "diverged", "falling", "healthy", None],
    )
    assert (
        collapse.headline(runs.assign(onset_low=runs["onset_low"].fillna(30)))
        == "3 of 6 runs collapsed: ppo in 3 of 4 (seed 0 after step 17, seed 1 after step 20, seed 2 diverged"
        " at step 35). 1 of them came back. 1 more: down at the end, too late for the collapse rule (ppo"
        " seed 3). 1 more: not judged yet (st seed 1)."
    )
    assert collapse.headline(runs.iloc[4:5]) == "None of these runs collapsed."
    assert collapse.headline(runs.assign(steps=0.0).iloc[4:]) == "None of these runs has trained a step yet."
    many = arms(ppo=[*range(3, 9)]).assign(
        run_id=list("abcdef"), detected=None, steps=36.0, outcome="collapsed"
    )
    assert "ppo in 6 of 6 (after steps 3 to 8)" in collapse.headline(many)


def test_an_alarm_is_a_warning_only_if_it_is_silent_in_the_runs_that_stayed_up() -> None:
    rang = alarms(("kl_k3", 3, 3, 1.0), ("chi2", 2, 0, 9.0))
    assert first_warning(rang.assign(false_alarms=2), 3).startswith(
        "No alarm told them apart: kl_k3 went off before the"
    )
    assert first_warning(rang, 3).startswith(
        "No alarm tells them apart beyond chance. The nearest, kl_k3, went off before the onset in 3 of 3"
        " runs that collapsed (median lead 1 step), and in 1 of 2 that did not (p = "
    )
    shown = first_warning(rang.assign(collapsed=10, before=[9, 2], steady=10, false_alarms=[0, 1]), 10)
    assert shown.startswith("kl_k3 told them apart: it went off before the onset in 9 of 10 runs")
    assert shown.endswith("and in 0 of 10 that did not (p < 0.001).")
    assert "nothing says that it would be silent" in first_warning(rang.assign(steady=0, false_alarms=0), 3)
    assert first_warning(rang.assign(before=0), 3) == "No alarm went off before an onset."


def config(algorithm: str, lr: float, **more: Any) -> str:
    learn = {"staleness": 16, "policy": {"lr": lr}}
    return json.dumps({"algorithm": algorithm, "slots": more, "seed": 1, "learn": learn})


def test_a_region_opens_at_one_point_where_most_algorithms_were_tried() -> None:
    each = arms(
        ppo_1=[3, 4], ppo_2=[None, None], ppo_3=[3, None], st_1=[5], st_2=[None], st_3=[None], so_1=[None]
    )
    rates = {"1": 0.8, "2": 0.1, "3": 0.4}
    each = each.assign(config=[config(a.split("_")[0], rates[a[-1]]) for a in each["arm"]])
    assert default_arms(each, most=6) == ["ppo_1", "st_1", "so_1"], "three algorithms, and both ends"
    assert default_arms(each[each["algorithm"] == "ppo"], most=2) == [
        "ppo_1",
        "ppo_2",
    ], "one algorithm has no point"


def test_what_differs_are_the_slots_and_settings_and_not_the_name() -> None:
    store: Any = SimpleNamespace(computed=lambda _, question: question(None))

    def differs(**arms: list[str]) -> pd.DataFrame:
        rows = [(arm, f"{arm}-{i}", text) for arm, texts in arms.items() for i, text in enumerate(texts)]
        runs = pd.DataFrame(rows, columns=["arm", "run_id", "config"])
        return differences(differing(store, "demo", runs), runs["arm"])

    found = differs(**{name: [config(name, 0.2)] for name in ("ppo", "s-ppo", "st-ppo")})
    assert found.columns.tolist() == ["ratio level", "stabilise"]
    assert found["ratio level"].to_dict() == {"ppo": "token", "s-ppo": "token", "st-ppo": "turn"}
    assert found.loc["ppo", "stabilise"] == "none"
    rates = {"learn.policy.lr": {"a": "0.2", "b": "0.1, 0.4"}}
    assert differs(a=[config("ppo", 0.2)], b=[config("ppo", rate) for rate in (0.1, 0.4)]).to_dict() == rates
    assert choices_of(config("ppo", 0.2, ratio="turn"))["ratio level"] == "turn", (
        "a slot that the arm changed"
    )
    for strange in (
        '{"algorithm": "theirs", "x": 1}',
        "[1]",
        "nothing",
        '{"algorithm": {"base": 3}, "slots": 1}',
    ):
        assert "ratio" not in choices_of(strange)


def test_runs_are_grouped_and_filtered_by_any_setting() -> None:
    every = arms(a=[None], b=[3], c=[4]).assign(run_id=["r0", "r1", "r2"])
    settings = pd.DataFrame({"lr": ["10.0", "9.0", ""], "seed": ["0", "0", "1"]}, index=every["run_id"])
    assert list(regrouped(every, settings, "lr")["arm"]) == ["lr = 9.0", "lr = 10.0", "lr not set"]
    assert list(regrouped(every, settings, "arm", [("lr", "9.0"), ("lr", "")])["run_id"]) == ["r1", "r2"]
    assert list(regrouped(every, settings, "arm", [("lr", "9.0"), ("seed", "1")])["run_id"]) == []


def test_every_value_of_a_setting_is_drawn_up_to_a_limit_and_what_is_left_out_is_said(
    searched: Path, open_screen: Open
) -> None:
    app = open_screen("compare", searched, group="learn.policy.lr")
    assert app.value("arm") == [f"learn.policy.lr = {rate}" for rate in (0.1, 0.2, 0.4)]
    assert "left out:" not in app.source
    app.multiselect(key="arm").set_value(["learn.policy.lr = 0.1"]).run()
    assert "1 of 3 values of learn.policy.lr are drawn; left out: 0.2, 0.4." in app.source


def test_runs_grouped_by_a_setting_are_told_apart_where_they_are_opened(
    searched: Path, open_screen: Open
) -> None:
    source = open_screen("compare", searched, group="learn.policy.lr").source
    names = re.findall(r'<a href="run\?[^"]*">([^<]*)</a>', source)
    assert len(set(names)) == len(names) == 12


def test_a_setting_that_all_runs_share_is_said_to_form_no_groups(open_screen: Open) -> None:
    app = open_screen("compare", group="learn.episodes")
    assert "learn.episodes is 1000 in all 8 runs, so it forms no groups." in app.source
    assert "The same in all 8 runs, so not in this list: learn.policy.lr is" in app.source


def test_an_old_link_smooths_and_says_over_which_steps(open_screen: Open) -> None:
    app = open_screen("compare", metric=["step.success"], seeds="single", smooth="5")
    assert "the mean of itself, the 2 steps before it and the 2 after it" in app.source
    assert "Pale: what was measured." in app.source
    assert "Smoothed" not in open_screen("compare", metric=["step.success"]).source


def test_an_arm_that_a_link_shows_alone_stays_alone(open_screen: Open) -> None:
    app = open_screen("compare", arm=["ppo", "st-ppo"], metric=["step.success"], only="st-ppo")
    hidden = {t["name"] for t in app.figures[0]["data"] if t.get("visible") == "legendonly"}
    assert hidden == {"ppo"}
    assert app.value("only") == "st-ppo"
    app = open_screen("compare", arm=["ppo"], only="<b>x</b>")
    assert html_text("only = '<b>x</b>'") in app.source


def test_a_chosen_number_of_panels_stands_in_a_row(open_screen: Open) -> None:
    metrics = ["step.success", "step.entropy", "step.grad_norm_max"]
    for columns in ("1", "3"):
        (figure,) = open_screen("compare", metric=metrics, columns=columns).figures
        lefts = {figure["layout"][axis]["domain"][0] for axis in ("xaxis", "xaxis2", "xaxis3")}
        assert len(lefts) == int(columns)


def test_nothing_is_claimed_of_fewer_than_three_runs_that_fell(open_screen: Open) -> None:
    source = open_screen("compare", arm=["ppo", "st-ppo"]).source
    assert "2 runs fell and 2 did not: nothing is claimed from fewer than 3 of each." in source


def test_what_sets_the_runs_that_fell_apart_is_ranked_with_links_that_draw_it(
    searched: Path, open_screen: Open
) -> None:
    arms = [name for name, *_ in region_arms()]
    source = open_screen("compare", searched, arm=arms).source
    assert "4 runs fell and 8 did not." in source
    assert "4 of 4" in source
    drawn = re.findall(r'<a href="compare\?([^"]*)">draw it</a>', source)
    assert 1 <= len(drawn) <= 10
    for where in drawn:
        (metric,) = parse_qs(where.replace("&amp;", "&"))["metric"]
        assert metric.startswith("step.")
        assert "seconds" not in metric


def test_figures_of_collapse_are_saved_with_the_key_that_stands_below_them(open_screen: Open) -> None:
    source = Read(open_screen("collapse").source)
    captions = {e["data-figure"]: e["data-caption"] for e in source.all("div") if "data-caption" in e}
    assert re.search(r"Alarms: a \w+", captions["timeline"])
    assert "the tick is the median" in captions["leads"]
    assert "A step down is the onset" in captions["survival"]


@pytest.mark.parametrize("screen", ["compare", "collapse", "run"])
def test_a_mark_that_is_explained_below_a_figure_is_explained_in_its_saved_picture(
    screen: str, open_screen: Open
) -> None:
    page_text = Read(open_screen(screen).source)
    captions = "".join(e["data-caption"] for e in page_text.all("div") if "data-caption" in e)
    explained = set("▼△✕") & set("".join(page_text.words("p")))
    assert explained <= set(captions)


def test_a_fall_before_the_rule_can_ring_is_said_with_the_alarms() -> None:
    none = pd.DataFrame()
    assert first_warning(none, 3) == "No alarm went off before an onset."
    assert first_warning(none, 3, {"grad_norm_max": ["a", "b"]}).endswith(
        "The fall began before this rule, which compares a run with its own first points, could ring:"
        " grad_norm_max in 2 of 3."
    )


def test_a_baseline_is_compared_by_the_end_of_the_runs() -> None:
    runs = pd.DataFrame({"arm": ["ppo", "ppo", "st", "new"], "final_success": [0.0, 0.2, 0.5, None]})
    assert against(runs, "ppo").endswith("minus that of ppo: st +0.40 (1 run).")
    assert against(runs, "new").startswith("There is nothing to compare with new")


def test_compare_groups_filters_and_subtracts_from_the_address(searched: Path, open_screen: Open) -> None:
    address = {
        "group": "learn.staleness",
        "where": "learn.policy.lr = 0.2",
        "layout": "by arm",
        "baseline": "learn.staleness = 0",
        "x": "seconds",
        "metric": "step.success",
    }
    app = open_screen("compare", searched, **address)
    assert {name: app.value(name) for name in address} == address
    assert app.value("arm") == ["learn.staleness = 0", "learn.staleness = 8"]
    (figure,) = app.figures
    assert figure["layout"]["yaxis"]["title"]["text"] == "fraction, minus learn.staleness = 0"
    assert AXES["seconds"] in axis_titles(figure)
    for words in ("2 runs for each line", "minus that of learn.staleness = 0", "differences to the line of"):
        assert words in app.source, words
    assert "2 seeds for each line. Thick line: mean; thin lines: its seeds." in open_screen("compare").source


def test_compare_shows_picked_runs_and_names_the_arms_by_what_tells_them_apart(
    searched: Path, open_screen: Open
):
    picked = Reader(searched).query("SELECT run_id, arm FROM run ORDER BY 1").head(2)
    app = open_screen(
        "compare", searched, runs=list(picked["run_id"]), arm=list(picked["arm"]), seeds="single"
    )
    assert app.value("runs") == list(picked["run_id"])
    assert "2 runs." in app.source
    short, shared = apart(list(picked["arm"]))
    assert f"All at {shared}. " * bool(shared) in app.source
    assert {trace.get("name") for trace in app.figures[0]["data"] if trace.get("showlegend")} == set(
        short.values()
    )
    caption = Read(next(e.proto.body for e in app.get("html") if 'class="sorl-export"' in e.proto.body)).all(
        "div"
    )[0]
    assert "▼ onset of a fall" in caption["data-caption"]


@given(
    st.lists(st.text("ab ·", max_size=9), max_size=4, unique=True), st.sampled_from(["", " · x", " · x · y"])
)
def test_names_keep_what_tells_them_apart(names: list[str], end: str) -> None:
    whole = [name + end for name in names]
    short, shared = apart(whole)
    assert list(short) == whole
    assert len(set(short.values())) == len(whole)
    assert all(f"{one} · {shared}" == name if shared else one == name for name, one in short.items())


def axis_titles(figure: Any) -> list[str]:
    axes = [axis for name, axis in figure["layout"].items() if name.startswith("xaxis")]
    return [text for axis in axes if (text := axis.get("title", {}).get("text"))]


def test_collapse_shows_events_survival_and_leads_and_takes_its_view_from_the_address(
    open_screen: Open,
) -> None:
    app = open_screen("collapse")
    assert [axis_titles(figure) for figure in app.figures] == [[AXES["step"]], [], [AXES["onset"]]]
    for words in (
        "2 of 8 runs collapsed: ppo in 2 of 2 (seed 0 after step",
        "Too few seeds to tell any arm from ",
        "Alarms: a ess_frac_min · b grad_norm_max.",
    ):
        assert words in app.source
    assert "log-rank p" not in app.source, "no test could show anything"
    _, curves, order = (figure["layout"] for figure in app.figures)
    assert any(a["text"].startswith("Log-rank test that all 4 arms") for a in curves["annotations"])
    assert order["yaxis"]["ticktext"] == ["ess_frac_min ↓", "grad_norm_max ↑"]
    texts = [a["text"] for a in order["annotations"]]
    assert texts.count("2/2") >= 3  # both alarms warned in both runs, the first of them came first twice
    address = {"arm": ["st-ppo", "ppo"], "x": "onset", "reference": "ppo"}
    app = open_screen("collapse", **address)
    assert {name: app.value(name) for name in address} == address
    assert axis_titles(app.figures[0]) == [AXES["onset"]]
    marks = next(t for t in app.figures[0]["data"] if t.get("name") == "onset of the collapse")
    assert [c[1] for c in marks["customdata"]] == [0, 0]
    assert "No log-rank test" in str(open_screen("collapse", arm=["ppo"]).figures)
    assert "None of these runs collapsed." in open_screen("collapse", arm=["st-ppo"]).source


def test_a_queued_run_breaks_nothing_and_a_running_run_is_watched_until_now(
    tmp_path: Path, open_screen: Open
) -> None:
    write_queued(tmp_path, "queue")
    write_run(tmp_path, "demo", "a", shape=SMALL, status="running")
    assert "has trained a step" in open_screen("collapse", tmp_path, experiment="queue").source
    survival = open_screen("collapse", tmp_path, experiment="demo").figures[1]
    assert survival["layout"]["xaxis"]["range"][1] == pytest.approx(12 * 1.04)


def test_turns_takes_its_view_from_the_address(open_screen: Open) -> None:
    address = {
        "arm": ["st-ppo", "ppo"],
        "measure": "advantage",
        "x": "onset",
        "seed": "1",
        "cells": "extreme",
        "range": "-6..4",
        "cell": ["ppo", "-2", "3"],
    }
    app = open_screen("turns", **address)
    assert {name: app.value(name) for name in address} == address
    layout = app.figures[0]["layout"]
    assert layout["xaxis"]["range"] == [-6.5, 4.5]
    assert "reward" in layout["coloraxis"]["colorbar"]["title"]["text"]


def test_turns_shows_a_map_an_arm_and_a_picked_cell_lists_its_episodes(open_screen: Open) -> None:
    app = open_screen("turns")
    assert [t["type"] for t in app.figures[0]["data"]].count("heatmap") == 4
    assert app.value("measure") == "ratio_geo"
    assert "Click a cell" in app.source
    said = (
        r"Geometric turn ratio. ppo seed \d: turn \d first leaves its usual band at step \d+, .* with [\d.]+"
    )
    assert re.search(said, app.source)
    where = re.findall(r'<a href="turns\?([^"]*)">ppo seed \d, turn', app.run().source)[0].replace(
        "&amp;", "&"
    )
    linked = open_screen("turns", **parse_qs(where))
    assert linked.value("arm") == app.value("arm")
    assert re.search(r"ppo, turn \d, step \d+: 16 trajectories", linked.source)
    app.session_state["cell picked"] = ["ppo", "12", "3"]
    assert "ppo, turn 3, step 12: 16 trajectories" in app.run().source
    assert app.source.count('<a href="episode?experiment=demo&amp;run=ppo-s') == 16
    for measure, by in (("clip_frac", "share of tokens clipped"), ("n_turns", "sum of log-ratios")):
        app.selectbox(key="measure").set_value(measure).run()
        assert app.value("cell") == ["ppo", "12", "3"], "it stays while the diagnostic changes"
        assert f"ordered by {by}" in app.source


def test_a_cell_that_is_not_there_is_none_and_one_without_a_trajectory_says_so(open_screen: Open) -> None:
    app = open_screen("turns", arm=["ppo"], cell=["ppo", "12", "9"])
    assert "no trajectory of these runs is recorded there" in app.source
    for cell in (
        [],
        ["ppo"],
        ["nobody", "1", "2"],
        ["ppo", "x", "2"],
        ["ppo", "1", "--2"],
        ["ppo", "1", "²"],
    ):
        assert Cell.read(cell, ["ppo"]) is None, cell
    assert "Click a cell" in open_screen("turns", arm=["ppo"], cell=["ppo", "999", "1"]).source


@pytest.mark.parametrize("carried", [[1, 12, 3], {"0": 1, "1": 12, "2": 3}])
def test_a_click_opens_its_cell_and_a_second_one_draws_nothing(
    carried: object, open_screen: Open, monkeypatch: Patch
):
    drawn = count()

    def chart(*_: object, **__: object) -> dict[str, object]:
        assert next(drawn) < 5, "drawn for ever"
        return {"selection": {"points": [{"customdata": carried}], "box": []}}

    monkeypatch.setattr("streamlit.plotly_chart", chart)
    app = open_screen("turns", arm=["grpo", "ppo"])
    assert app.query_params["cell"] == ["ppo", "12", "3"]
    assert "ppo, turn 3, step 12: 16 trajectories" in app.source


def test_a_tab_is_named_after_what_is_chosen_and_the_menu_follows_the_hunt(
    open_screen: Open, monkeypatch: Patch
):
    titles: list[str] = []
    monkeypatch.setattr("streamlit.set_page_config", lambda page_title: titles.append(page_title))
    open_screen("episode", run="ppo-s1-aaaa0001")
    open_screen("compare", arm=["grpo", "st-ppo", "ppo"])
    open_screen("sql")
    assert titles == [
        "demo ppo s1 · Episode · sorl",
        "demo grpo, st-ppo and 1 more · Compare · sorl",
        "SQL · sorl",
    ]
    assert tab_title("run", "\u202etxet") == "\ufffdtxet · Run · sorl"
    assert tab_title("sql", "sql", falling=2) == "▼ 2 falling · SQL · sorl"
    assert SCREENS[:6] == ("overview", "run", "turns", "conversations", "episode", "replay")


@pytest.mark.parametrize("screen", ["run", "compare", "collapse", "turns", "episode"])
def test_a_figure_is_saved_under_its_name_with_title_and_caption_and_its_marks_have_a_place_for_keys(
    screen: str, open_screen: Open
) -> None:
    app = open_screen(screen)
    read = [one for element in app.get("html") if 'class="sorl-export"' in (one := element.proto.body)]
    assert len(read) == len(app.figures)
    for rows, marks in ((Read(one).all("div")[0], Read(one).all("div")[1]) for one in read):
        assert re.fullmatch(rf"sorl-demo-[a-z0-9-]+-{rows['data-figure']}", rows["data-file"])
        assert re.search(
            r"^demo · (ppo, seed 0: collapsed after step 15|.*ppo.*; 2 seeds each)$", rows["data-title"]
        )
        assert rows["data-caption"] in f"{marks['aria-label']} {rows['data-caption']}"
        assert (marks["class"], marks["tabindex"]) == ("sorl-marks", "0")


def test_a_title_says_how_many_seeds_each_arm_has() -> None:
    assert seeds_of(arms(ppo=[1, None], st=[None, None])) == "ppo, st; 2 seeds each"
    assert seeds_of(arms(ppo=[1])) == "ppo; 1 seed"
    assert seeds_of(arms(ppo=[1, None], st=[None])) == "ppo (2 seeds), st (1 seed)"


def test_a_file_is_named_after_what_it_shows_whatever_that_is() -> None:
    assert file_name("My Grid ppo, on-policy s1", "curves") == "sorl-my-grid-ppo-on-policy-s1-curves"
    for text in HOSTILE:
        assert re.fullmatch(r"sorl(-[a-z0-9]+)*", file_name(text, "x" * 100))


def test_the_report_of_the_experiment_is_written_by_the_command(grid: Path, monkeypatch: Patch) -> None:
    made: list[Callable[[], bytes]] = []
    monkeypatch.setattr(page, "button", lambda label, make, file, kind: made.append(make))
    page._report(queries.Store(grid), "demo")
    text = made[0]()
    assert text.startswith(b"<!doctype html>")
    assert b"Does the clip stop the collapse?" in text

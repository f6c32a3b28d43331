"""Screen Collapse and its figures: events, survival, and which alarm comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import HOSTILE, Open, figures, html
from tests.app.hostile_figures import assert_literal, checked
from tests.store.fixture import Shape, write_experiment, write_run, write_status
from workbench.analysis.survival import curve
from workbench.app.collapse_data import alarm_leads
from workbench.app.figures.collapse import TITLE, leads, survival, timeline
from workbench.app.figures.common import AXES, KINDS
from workbench.app.store import Diagnostics
from workbench.app.theme import LIGHT, styles
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync


def axis_titles(app: AppTest) -> list[list[str]]:
    layouts = [json.loads(figure)["layout"] for figure in figures(app)]
    axes = [[axis for name, axis in layout.items() if name.startswith("xaxis")] for layout in layouts]
    return [[text for axis in found if (text := axis.get("title", {}).get("text"))] for found in axes]


def test_collapse_shows_events_survival_and_leads(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid)
    assert not app.exception
    assert axis_titles(app) == [[AXES["step"]], [TITLE], [AXES["onset"]]]
    shown = html(app)
    for words in ("What happened when", "Survival", "Which signal moves first", "permuted log-rank p"):
        assert words in shown
    _, curves, order = (json.loads(figure)["layout"] for figure in figures(app))
    assert any(a["text"].startswith("Log-rank test that all 4 arms") for a in curves["annotations"])
    assert order["yaxis"]["ticktext"] == ["ess_frac_min ↓", "grad_norm_max ↑"]
    texts = [a["text"] for a in order["annotations"]]
    assert texts.count("2/2") >= 3  # both alarms warned in both runs, the first of them came first twice


def test_collapse_takes_its_view_from_the_address(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid, arm=["st-ppo", "ppo"], x="onset", reference="ppo")
    assert not app.exception
    assert app.query_params["arm"] == ["st-ppo", "ppo"]
    for name, value in (("x", "onset"), ("reference", "ppo")):
        assert app.query_params[name] in (value, [value])
    assert axis_titles(app)[0] == [AXES["onset"]]
    marks = next(t for t in json.loads(figures(app)[0])["data"] if t.get("name") == "onset of the collapse")
    assert [c[1] for c in marks["customdata"]] == [0, 0]


@pytest.mark.parametrize(
    ("arm", "words"), [("ppo", "No log-rank test"), ("st-ppo", "None of these runs collapsed.")]
)  # fmt: skip
def test_what_cannot_be_tested_or_ordered_is_said(arm: str, words: str, grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid, arm=[arm])
    assert not app.exception
    assert words in html(app) + "".join(figures(app))


def test_collapse_without_arms_asks_for_one(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid)
    app.multiselect(key="arm").set_value([]).run()
    assert not app.exception
    assert "Choose at least one arm" in html(app)


def test_a_queued_run_breaks_nothing_and_a_running_run_is_watched_until_now(tmp_path: Path, open_screen: Open) -> None:
    folder = write_experiment(tmp_path, "queue") / "queued"
    folder.mkdir()
    write_status(folder, status="queued", outcome=None, steps=None, ended_at=None, started_at=None)
    small = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)
    write_run(tmp_path, "demo", "a", shape=small, status="running")
    sync(tmp_path, CATALOGUE)
    queued, running = (open_screen("collapse", tmp_path, experiment=name) for name in ("queue", "demo"))
    assert not queued.exception
    assert "has trained a step" in html(queued)
    assert json.loads(figures(running)[1])["layout"]["xaxis"]["range"][1] == pytest.approx(12 * 1.02)


def watched(*arms: tuple[str, list[tuple[float, bool]]]) -> pd.DataFrame:
    return pd.DataFrame(
        [{"run_id": f"{arm}-{i}", "arm": arm, "seed": i, "time": time, "event": event}
         for arm, runs in arms for i, (time, event) in enumerate(runs)]
    )  # fmt: skip


ROWS = watched(
    ("ppo", [(10, True), (10, False), (20, True), (36, False)]), ("st-ppo", [(36, False), (36, False), (30, False)])
)


def draw_survival(rows: pd.DataFrame = ROWS, words: str = "p = 0.1") -> Any:
    arms = [(a, a) for a in rows["arm"].unique()]
    return checked(survival(curve(rows), rows, styles(arms, LIGHT), LIGHT, words))


def test_the_curve_is_the_kaplan_meier_estimate_drawn_in_steps_with_a_tick_for_censored_runs() -> None:
    # 4 at risk at 10: 1 - 1/4 = .75 (the run censored there was still at risk); 2 at risk at 20: .75 (1 - 1/2) = .375.
    figure = draw_survival()
    line = next(t for t in figure.data if t.line.shape == "hv" and t.line.color == LIGHT.algorithms["ppo"])
    assert list(line.x) == [0, 10, 20, 36]
    assert list(line.y) == pytest.approx([1.0, 0.75, 0.375, 0.375])
    ticks = {t.marker.line.color: t for t in figure.data if t.marker.symbol == "line-ns"}
    assert list(ticks[LIGHT.algorithms["ppo"]].x) == [10, 36]
    last = ticks[LIGHT.algorithms["st-ppo"]]
    assert (list(last.x), list(last.customdata)) == ([30, 36], [1, 2])


def test_the_runs_at_risk_stand_below_at_every_tick_of_the_axis() -> None:
    figure = draw_survival()
    ticks = list(figure.layout.xaxis.tickvals)
    counts = [t for t in figure.data if t.mode == "text"]
    assert [list(t.x) for t in counts] == [ticks, ticks]
    for arm, found in zip(("ppo", "st-ppo"), counts, strict=True):
        times = ROWS.loc[ROWS["arm"] == arm, "time"]
        assert list(found.text) == [str(int((times >= t).sum())) for t in ticks]


def test_equal_curves_do_not_hide_each_other_and_none_leaves_its_height() -> None:
    rows = watched(("a", [(36, False)] * 2), ("b", [(36, False)] * 2))
    first, second = (t for t in draw_survival(rows).data if t.line.shape == "hv" and t.hoverinfo != "skip")
    assert list(first.y) == list(second.y) == [1.0, 1.0]
    assert first.line.width > second.line.width


def test_few_arms_show_the_interval_and_many_do_not() -> None:
    many = watched(*[(f"a{i}", [(10.0, True), (20.0, False), (20.0, False)]) for i in range(5)])
    assert any(t.fill == "toself" for t in draw_survival().data)
    assert not any(t.fill == "toself" for t in draw_survival(many).data)


def test_the_axes_of_survival_say_what_they_count_and_the_test_is_told() -> None:
    figure = draw_survival(words="Log-rank test: p = 0.02")
    titles = figure.layout.xaxis.title.text, figure.layout.yaxis.title.text
    assert titles == (TITLE, "runs not yet collapsed (fraction)")
    assert {"Log-rank test: p = 0.02", "runs at risk"} <= {a.text for a in figure.layout.annotations}


@pytest.mark.parametrize("end", [1, 2, 7, 36, 100, 9_999])
def test_the_ticks_are_whole_and_few_whatever_the_length(end: int) -> None:
    ticks = list(draw_survival(watched(("ppo", [(end, False)]))).layout.xaxis.tickvals)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 11
    assert all(t == int(t) for t in ticks)


RUNS = pd.DataFrame(
    [{"arm": arm, "seed": seed, "run_id": f"{arm}-{seed}", "first": 0, "last": 29}
     for arm in ("ppo", "st-ppo") for seed in range(2)]
)  # fmt: skip


def draw_timeline(*rows: tuple[str, int, str], runs: pd.DataFrame = RUNS, message: str = "it moved") -> Any:
    events = pd.DataFrame(
        [{"run_id": run, "x": x, "kind": kind, "severity": "warning", "diagnostic": "d", "message": message}
         for run, x, kind in rows],
        columns=["run_id", "x", "kind", "severity", "diagnostic", "message"],
    )  # fmt: skip
    return checked(timeline(runs, events, styles([(a, a) for a in runs["arm"].unique()], LIGHT), LIGHT, AXES["step"]))


def marks(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.mode == "markers"}


def test_a_run_is_a_line_from_its_first_step_to_its_last_in_a_row_below_the_name_of_its_arm() -> None:
    figure = draw_timeline()
    lines = [t for t in figure.data if t.mode == "lines"]
    assert [v for v in lines[0].x if v == v] == [0, 29, 0, 29]
    assert list(figure.layout.yaxis.tickvals) == [1, 2, 4, 5]
    heads = {a.y: a.text for a in figure.layout.annotations}
    assert ("ppo" in heads[0], "st-ppo" in heads[3]) == (True, True)


def test_each_kind_of_event_has_its_own_mark_and_an_unknown_kind_is_shown_all_the_same() -> None:
    kinds = [kind for kind in KINDS if kind != "other"]
    figure = draw_timeline(*[("ppo-0", i, kind) for i, kind in enumerate([*kinds, "guard_mask"])])
    assert list(marks(figure)) == [words for _, words, _ in KINDS.values()]
    assert [t.name for t in figure.data if t.showlegend is not False] == list(marks(figure))
    assert len({(t.marker.symbol, t.marker.color) for t in marks(figure).values()}) == len(KINDS)
    assert "guard mask" in marks(figure)["other event"].text[0]


def test_events_of_one_step_stand_above_each_other_and_a_click_tells_run_and_step() -> None:
    figure = draw_timeline(
        ("ppo-0", 5, "alarm"), ("ppo-0", 5, "alarm"), ("ppo-0", 6, "alarm"), ("st-ppo-1", 7, "onset")
    )
    heights = list(marks(figure)["alarm"].y)
    assert heights[1] < heights[0] == heights[2]
    assert [list(c) for c in marks(figure)["onset of the collapse"].customdata] == [[3, 7]]


KNOWN = Diagnostics({"step.grad_norm_max": {"alarm_when": "above"}, "step.ess_frac_min": {"alarm_when": "below"}})


def first_alarms() -> pd.DataFrame:
    """Four runs that collapse at 20 and two that do not; None where a run never raised the alarm."""
    steps = {
        "grad_norm_max": [18, 16, 21, None, None, None],
        "ess_frac_min": [10, None, None, None, 5, 7],
        "chi2": [18, 19, 20, None, None, None],
    }
    rows = [
        {"diagnostic": name, "run": run, "collapse_step": 20 if run < 4 else None, "step": step,
         "lead": 20 - step if step is not None and run < 4 else None}
        for name, found in steps.items() for run, step in enumerate(found)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_alarms_are_counted_run_by_run_the_earliest_on_top() -> None:
    found = alarm_leads(first_alarms(), KNOWN)
    names = ["alarm", "direction", "before", "after", "never", "collapsed", "first", "false_alarms", "steady"]
    assert found[names].to_numpy().tolist() == [
        ["ess_frac_min", "↓", 1, 0, 3, 4, 1, 2, 2],
        ["grad_norm_max", "↑", 2, 1, 1, 4, 1, 0, 2],
        ["chi2", "", 2, 1, 1, 4, 0, 0, 2],  # an alarm at the onset is no warning
    ]
    row = found.iloc[1]  # over the runs that it warned in
    assert (row["lead_median"], row["lead_low"], row["lead_high"]) == (3.0, 2.5, 3.5)
    assert alarm_leads(first_alarms().head(0), KNOWN).empty


def test_a_tie_counts_for_each_and_an_alarm_that_never_warned_comes_last() -> None:
    found = first_alarms()
    found.loc[(found["diagnostic"] == "chi2") & (found["run"] == 1), ["step", "lead"]] = [16, 4]
    late = first_alarms().query("diagnostic == 'chi2'").assign(diagnostic="late", lead=lambda f: f["lead"] - 9)
    table = alarm_leads(pd.concat([late, found]), KNOWN)
    assert table.set_index("alarm").loc["chi2", "first"] == 1
    assert (table["alarm"].iloc[-1], table["before"].iloc[-1]) == ("late", 0)


def draw_leads(found: pd.DataFrame, text: str = "ppo") -> Any:
    dots = found.dropna(subset=["lead"]).assign(alarm=lambda f: f["diagnostic"], arm=text, run_id=text, seed=1)
    return checked(leads(alarm_leads(found, KNOWN), dots, styles([(text, text)], LIGHT), LIGHT))


def test_a_dot_a_run_stands_at_its_steps_from_the_onset_next_to_the_counts() -> None:
    figure = draw_leads(first_alarms())
    dots = next(t for t in figure.data if t.customdata is not None and t.marker.symbol == "circle")
    assert sorted(dots.x) == [-10.0, -4.0, -2.0, -2.0, -1.0, -0.0, 1.0]
    assert figure.layout.xaxis.title.text == AXES["onset"]
    heads = {"came<br>first", "before<br>the onset", "never", "in healthy<br>runs", "2/4", "2/2"}
    assert heads <= {a.text for a in figure.layout.annotations}


def test_dots_of_one_alarm_and_one_lead_do_not_hide_each_other() -> None:
    found = first_alarms()
    found.loc[found["diagnostic"] == "grad_norm_max", ["lead"]] = 3.0
    trace = next(t for t in draw_leads(found).data if t.customdata is not None and t.marker.symbol == "circle")
    places = list(zip(trace.x, trace.y, strict=True))
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_literal(draw_survival(watched((text, [(3.0, True), (5.0, False)])), words=text))
    runs = RUNS.head(1).assign(arm=text, run_id=text)
    assert_literal(draw_timeline((text, 3, text), (text, 3, "alarm"), runs=runs, message=text))
    assert_literal(draw_leads(first_alarms(), text))
    assert_literal(draw_leads(first_alarms().assign(diagnostic=text).drop_duplicates("run")))

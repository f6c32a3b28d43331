from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import HOSTILE, Open, Read, assert_literal, figures, html, value
from tests.store.fixture import Shape, write_experiment, write_run, write_segment, write_status
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


def links(app: AppTest) -> list[tuple[str, dict[str, list[str]]]]:
    return [(urlsplit(href).path, parse_qs(urlsplit(href).query)) for href in Read(html(app)).hrefs]


def test_it_opens_on_a_collapsed_run_and_says_how_it_fell(grid: Path, open_screen: Open) -> None:
    app = open_screen("run", grid)
    assert not app.exception
    assert app.selectbox(key="run").value == "ppo-s0-aaaa0000"
    shown = Read(html(app)).text
    assert "ppo, seed 0" in shown
    assert "Collapsed: the fall began at step 15 and was detected at step" in shown
    assert "30 of 80 steps in 1 min 0 s, 2 s a step." in shown
    assert "First alarm: ess_frac_min at step 12, 3 steps before the onset; 1 more kind of alarm later." in shown
    assert "torch" in shown
    assert "2026-11-01 12:00 UTC" in shown


def test_success_is_drawn_with_held_out_intervals_and_events(grid: Path, open_screen: Open) -> None:
    data = json.loads(figures(open_screen("run", grid, run="ppo-s0-aaaa0000"))[0])["data"]
    named = {trace["name"]: trace for trace in data if trace.get("name")}
    assert list(named)[:2] == ["in training", "held-out: facts"]
    assert len(named["held-out: facts"]["customdata"]) == 3
    assert named["alarm"]["customdata"] == [12, 14]
    assert named["onset of the collapse"]["customdata"] == [15]


def test_an_event_leads_to_its_step_in_other_screens(grid: Path, open_screen: Open) -> None:
    found = links(open_screen("run", grid, run="ppo-s0-aaaa0000"))
    steps = [query["step"] for path, query in found if path == "episode" and "step" in query]
    assert ["12"] in steps
    cells = [query["cell"] for path, query in found if path == "turns" and "cell" in query]
    assert ["ppo", "12", "1"] in cells
    assert ("./", {"experiment": ["demo"]}) in found
    (compare,) = [query for path, query in found if path == "compare"]
    assert compare["arm"] == ["ppo", "grpo", "so-grpo", "st-ppo"]
    assert compare["x"] == ["onset"]
    assert ("run", {"experiment": ["demo"], "run": ["ppo-s1-aaaa0001"]}) in found


@pytest.mark.parametrize("name", ["compare", "turns", "episode"])
def test_a_link_names_nothing_that_its_screen_does_not_know(name: str, grid: Path, open_screen: Open) -> None:
    query = next(q for path, q in links(open_screen("run", grid, run="ppo-s0-aaaa0000")) if path == name)
    app = open_screen(name, grid, **query)
    assert not app.exception
    assert "Ignored in the address" not in html(app)
    assert {key: app.query_params[key] for key in query} == query


def test_a_range_of_steps_narrows_curves_events_and_times(grid: Path, open_screen: Open) -> None:
    app = open_screen("run", grid, run="ppo-s0-aaaa0000", range="13..20")
    assert value(app, "range") == "13..20"
    success, signals, time = (json.loads(figure)["data"] for figure in figures(app))
    assert next(t for t in success if t.get("name") == "alarm")["customdata"] == [14]
    assert [t["name"].split()[0] for t in time][:2] == ["sampling", "updates"]
    assert any(t.get("marker", {}).get("symbol") == "triangle-down" for t in signals)


def test_a_failed_run_shows_its_reason_and_the_end_of_its_log(grid: Path, open_screen: Open) -> None:
    app = open_screen("run", grid, run="so-grpo-s0-bbbb0000")
    shown = Read(html(app)).text
    assert "failed: RuntimeError: out" in shown
    assert "RuntimeError: [bold]CUDA out of memory[/bold]" in shown
    assert "\x1b" not in html(app)


def test_settings_tell_this_run_from_base_default_and_other_arms(tmp_path: Path, open_screen: Open) -> None:
    folder = tmp_path / "demo"
    toml = '[base.learn]\nepochs = 4\n[[arms]]\nname = "calm"\n"learn.epochs" = 1\n'
    write_segment(folder, "experiment", {"experiment": ["demo"], "question": ["why?"], "toml": [toml]})
    for arm, epochs in (("ppo", 4), ("calm", 1)):
        write_run(tmp_path, "demo", arm, shape=SMALL, arm=arm)
        write_status(folder / arm, arm=arm, config=json.dumps({"learn": {"epochs": epochs}, "seed": 0, "x": "<b>"}))
    sync(tmp_path, CATALOGUE)
    app = open_screen("run", tmp_path, run="calm")
    assert not app.exception
    changed, every = (element.value for element in app.dataframe)
    assert changed.values.tolist() == [["learn.epochs", "1", "4", "1", "4: ppo"], ["x", "<b>", "–", "–", ""]]
    assert every["setting"].tolist() == ["learn.epochs", "seed", "x"]


def test_a_log_without_settings_versions_or_times_is_shown(tmp_path: Path, open_screen: Open) -> None:
    folder = tmp_path / "other" / "a"
    rows = {"run_id": ["a"], "experiment": ["other"], "algorithm": ["gspo"], "arm": ["gspo"], "seed": [0],
            "status": ["finished"], "config": [None], "versions": ["verl 0.6 <b>"]}  # fmt: skip
    write_segment(folder, "run", rows)
    write_segment(folder, "step", {"run_id": ["a"] * 3, "step": [0, 1, 2], "success": [0.1, 0.2, None]})
    sync(tmp_path)
    app = open_screen("run", tmp_path)
    assert not app.exception
    shown = Read(html(app)).text
    assert "verl 0.6 <b>" in shown
    assert "This run recorded no wall times." in shown
    assert "No console.log." in shown


def test_a_running_run_counts_its_steps_and_no_log_of_another_folder_is_shown(
    tmp_path: Path, open_screen: Open
) -> None:
    write_run(tmp_path, "demo", "a", shape=SMALL, status="running")
    (tmp_path / "secret").write_text("password\n")
    (tmp_path / "demo" / "a" / "console.log").unlink()
    (tmp_path / "demo" / "a" / "console.log").symlink_to(tmp_path / "secret")
    sync(tmp_path, CATALOGUE)
    app = open_screen("run", tmp_path)
    assert "12 of 80 steps in" in Read(html(app)).text
    assert "password" not in html(app)
    assert "No console.log." in html(app)


def test_hostile_events_and_logs_stay_text(tmp_path: Path, open_screen: Open) -> None:
    write_experiment(tmp_path, "demo")
    folder = write_run(tmp_path, "demo", "a", shape=SMALL, arm=HOSTILE[0], log="\n".join(HOSTILE))
    texts, n = list(HOSTILE), len(HOSTILE)
    event = {"run_id": ["a"] * n, "step": list(range(n)), "kind": texts, "severity": texts, "diagnostic": texts,
             "value": [float("nan")] * n, "threshold": [None] * n, "message": texts}  # fmt: skip
    write_segment(folder, "event", event)
    sync(tmp_path, CATALOGUE)
    shown = assert_literal(open_screen("run", tmp_path))
    for text in HOSTILE[:5]:
        assert shown.count(text) >= 3  # as a kind, in a message, in the log
    assert "NaN" in shown

from __future__ import annotations

import json
import re
from pathlib import Path

from streamlit.testing.v1 import AppTest

from tests.app.conftest import HOSTILE, Open, figures, html
from tests.app.test_safe import read
from tests.store.fixture import Shape, write_experiment, write_run, write_segment, write_status
from workbench.app.safe import visible
from workbench.diagnostics import CATALOGUE
from workbench.store.reader import Reader
from workbench.store.sync import sync

SMALL = Shape(steps=4, trajectories=2, turns=2, epochs=2, tokens=0, steps_per_segment=4)


def chosen(app: AppTest) -> dict[str, str]:
    names = ("run", "step", "trajectory")
    found = {name: app.query_params[name] for name in names if name in app.query_params}
    return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}


def test_episode_opens_at_the_spike_of_the_run_that_fell_and_at_its_culprit(grid: Path, open_screen: Open) -> None:
    app = open_screen("episode", grid)
    assert not app.exception
    at = chosen(app)
    ask = Reader(grid)
    assert at["run"] == "ppo-s0-aaaa0000"
    onset = ask.query("SELECT collapse_step FROM run WHERE run_id = 'ppo-s0-aaaa0000'")["collapse_step"].item()
    spike = ask.query(
        "SELECT arg_max(step, grad_norm_max) AS s FROM step WHERE run_id = 'ppo-s0-aaaa0000' AND step <= ?", [onset]
    )
    assert int(at["step"]) == spike["s"].item()
    culprit = ask.query(
        "SELECT arg_max(trajectory, gradient_share) AS t FROM trajectory WHERE run_id = ? AND step = ?",
        [at["run"], int(at["step"])],
    )
    assert int(at["trajectory"]) == culprit["t"].item()


def test_episode_takes_its_view_from_the_address(grid: Path, open_screen: Open) -> None:
    address = {"run": "st-ppo-s1-aaaa0001", "signal": "ess_frac_min", "step": "7", "rank": "ratio mass",
               "trajectory": "0", "epoch": "1"}  # fmt: skip
    app = open_screen("episode", grid, **address)
    assert not app.exception
    for name, value in address.items():
        assert app.query_params[name] in (value, [value])
    shown = html(app)
    assert 'data-tip="' in shown
    assert "Trajectory 0: answered" in shown


def test_the_turns_of_the_transcript_have_the_figures_of_the_chosen_epoch(grid: Path, open_screen: Open) -> None:
    for epoch in ("0", "1"):
        app = open_screen("episode", grid, run="st-ppo-s1-aaaa0001", step="7", trajectory="0", epoch=epoch)
        assert set(re.findall(r"gradient in epoch (\d)", html(app))) == {epoch}


def test_trajectories_without_tokens_say_so_and_name_those_that_have_them(grid: Path, open_screen: Open) -> None:
    app = open_screen("episode", grid, run="ppo-s0-aaaa0000", step="7", trajectory="5")
    shown = html(app)
    assert "did not keep the tokens of trajectory 5; of this step it kept <a href=" in shown
    assert "&amp;trajectory=0&amp;" in shown
    assert 'data-tip="' not in shown
    assert "sorl-ledger" in shown


def test_another_step_begins_at_its_own_culprit(grid: Path, open_screen: Open) -> None:
    app = open_screen("episode", grid, run="ppo-s0-aaaa0000", step="7", trajectory="5")
    app.session_state["step picked"] = ["9"]
    app.run()
    assert not app.exception
    top = Reader(grid).query(
        "SELECT arg_max(trajectory, gradient_share) AS t FROM trajectory WHERE run_id = 'ppo-s0-aaaa0000' AND step = 9"
    )
    assert chosen(app) == {"run": "ppo-s0-aaaa0000", "step": "9", "trajectory": str(top["t"].item())}
    assert app.number_input(key="step").value == 9


def test_a_picked_trajectory_is_in_the_address_and_stays_when_the_ranking_changes(
    grid: Path, open_screen: Open
) -> None:
    app = open_screen("episode", grid, run="ppo-s0-aaaa0000", step="7")
    app.session_state["trajectory picked"] = ["3"]
    app.run()
    assert chosen(app)["trajectory"] == "3"
    app.session_state["rank"] = "log-ratio"
    app.run()
    assert not app.exception
    assert chosen(app)["trajectory"] == "3"


def test_what_the_address_gets_wrong_is_ignored(grid: Path, open_screen: Open) -> None:
    for address in ({"step": "999"}, {"step": "<b>"}, {"trajectory": "999"}, {"trajectory": "-1"}, {"run": "nope"}):
        app = open_screen("episode", grid, **address)
        assert not app.exception, address
        assert "sorl-ledger" in html(app), address


def test_the_ranking_is_drawn_and_can_be_taken_along(grid: Path, open_screen: Open) -> None:
    app = open_screen("episode", grid, run="ppo-s0-aaaa0000", step="7")
    bars = [t for t in json.loads(figures(app)[1])["data"] if t["type"] == "bar"]
    assert len(bars) == 2
    assert len(app.get("download_button")) == 2


def test_a_run_without_a_step_says_what_is_missing(tmp_path: Path, open_screen: Open) -> None:
    folder = write_experiment(tmp_path, "demo") / "queued"
    folder.mkdir()
    write_status(folder, status="queued", outcome=None, steps=None, ended_at=None, started_at=None)
    write_run(tmp_path, "demo", "b", shape=SMALL)  # brings the dictionary
    sync(tmp_path, CATALOGUE)
    app = open_screen("episode", tmp_path, run="queued")
    assert not app.exception
    assert "No trajectory of step 0 is recorded" in html(app)


def test_hostile_episodes_are_shown_literally(tmp_path: Path, open_screen: Open) -> None:
    texts = [*HOSTILE, "\u202egnp.exe", "W" * 400, "</span></div><h1>x</h1>", "\x00\x1b[2J"]
    said_once = " ".join(texts)
    folder = write_run(tmp_path, "demo", "a", shape=SMALL)
    words = [*texts, "<think>", *texts, "</think>", *texts]
    n = len(texts)
    rows = {
        "run_id": ["a"], "step": [0], "trajectory": [0], "token": [words], "token_id": [list(range(len(words)))],
        "trained": [[False] * n + [True] * (n + 2) + [False] * n],
        "turn_index": [[0] * n + [1] * (n + 2) + [0] * n],
        "log_ratio": [[None] * n + [0.1, *[float("nan")] * n, -3.0] + [None] * n],
    }  # fmt: skip
    write_segment(folder, "token", rows)
    asked = {
        "run_id": ["a"],
        "step": [0],
        "trajectory": [0],
        **{key: [said_once] for key in ("question", "gold", "answer")},
    }
    for file in (folder / "segments" / "trajectory").glob("*.parquet"):
        file.unlink()
    write_segment(folder, "trajectory", asked | {"ended": [said_once], "success": [False], "gradient_share": [0.5]})
    sync(tmp_path, CATALOGUE)
    app = open_screen("episode", tmp_path, run="a", step="0", trajectory="0")
    assert not app.exception
    allowed = {"p", "a", "span", "i", "b", "style", "div", "table", "tr", "th", "td", "button", "script"}
    for element in app.get("html"):
        assert set(read(element.proto.body).tags) <= allowed
    said = "".join(read(element.proto.body).text for element in app.get("html"))
    assert not [text for text in texts if said.count(visible(text).strip()) < 5]

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.app.conftest import HOSTILE, SMALL, Open, Read, Visit, assert_literal
from tests.store.fixture import write_experiment, write_run, write_segment, write_status
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

PPO = "ppo-s0-aaaa0000"


def links(app: Visit) -> list[tuple[str, dict[str, list[str]]]]:
    return [(urlsplit(href).path, parse_qs(urlsplit(href).query)) for href in Read(app.source).values("href")]


def test_it_opens_on_a_collapsed_run_says_how_it_fell_and_draws_its_events(open_screen: Open) -> None:
    app = open_screen("run")
    assert app.selectbox(key="run").value == PPO
    shown = Read(app.source).text
    for words in (
        "ppo, seed 0", "Collapsed: the fall began at step 15 and was detected at step", "torch",
        "30 of 80 steps in 1 min 0 s, 2 s a step.", "2026-11-01 12:00 UTC",
        "First alarm: ess_frac_min at step 12, 3 steps before the onset; 1 more kind of alarm later.",
    ):  # fmt: skip
        assert words in shown
    named = {trace["name"]: trace for trace in app.figures[0]["data"] if trace.get("name")}
    assert list(named)[:2] == ["in training", "held-out: facts"]
    assert len(named["held-out: facts"]["customdata"]) == 3
    assert (named["alarm"]["customdata"], named["onset of the collapse"]["customdata"]) == ([12, 14], [15])


def test_a_run_and_its_events_lead_to_other_screens_which_know_all_that_the_links_name(open_screen: Open) -> None:
    found = links(open_screen("run", run=PPO))
    by_path = {name: [query for path, query in found if path == name] for name, _ in found}
    assert ["12"] in [query.get("step") for query in by_path["episode"]]
    assert ["ppo", "12", "1"] in [query.get("cell") for query in by_path["turns"]]
    assert by_path["./"] == [{"experiment": ["demo"]}]
    (compare,) = by_path["compare"]
    assert (compare["arm"], compare["x"]) == (["ppo", "grpo", "so-grpo", "st-ppo"], ["onset"])
    assert {"experiment": ["demo"], "run": ["ppo-s1-aaaa0001"]} in by_path["run"]
    for name in ("compare", "turns", "episode"):
        app = open_screen(name, **by_path[name][0])
        assert "Ignored in the address" not in app.source
        assert app.query_params | by_path[name][0] == app.query_params


def test_a_range_of_steps_narrows_curves_events_and_times(open_screen: Open) -> None:
    app = open_screen("run", run=PPO, range="13..20")
    assert app.value("range") == "13..20"
    success, signals, time = (figure["data"] for figure in app.figures)
    assert next(t for t in success if t.get("name") == "alarm")["customdata"] == [14]
    assert [t["name"].split()[0] for t in time][:2] == ["sampling", "updates"]
    assert any(t.get("marker", {}).get("symbol") == "triangle-down" for t in signals)


def test_a_failed_run_shows_its_reason_and_the_end_of_its_log(open_screen: Open) -> None:
    app = open_screen("run", run="so-grpo-s0-bbbb0000")
    for words in ("failed: RuntimeError: out", "RuntimeError: [bold]CUDA out of memory[/bold]"):
        assert words in Read(app.source).text
    assert "\x1b" not in app.source


def test_settings_tell_this_run_from_base_default_and_other_arms(tmp_path: Path, open_screen: Open) -> None:
    toml = '[base.learn]\nepochs = 4\n[[arms]]\nname = "calm"\n"learn.epochs" = 1\n'
    write_segment(tmp_path / "demo", "experiment", {"experiment": ["demo"], "question": ["why?"], "toml": [toml]})
    for arm, epochs in (("ppo", 4), ("calm", 1)):
        run = write_run(tmp_path, "demo", arm, shape=SMALL, arm=arm)
        write_status(run, arm=arm, config=json.dumps({"learn": {"epochs": epochs}, "seed": 0, "x": "<b>"}))
    sync(tmp_path, CATALOGUE)
    changed, every = (element.value for element in open_screen("run", tmp_path, run="calm").dataframe)
    assert changed.values.tolist() == [["learn.epochs", "1", "4", "1", "4: ppo"], ["x", "<b>", "–", "–", ""]]
    assert every["setting"].tolist() == ["learn.epochs", "seed", "x"]


def test_a_log_without_settings_versions_or_times_is_shown(tmp_path: Path, open_screen: Open) -> None:
    rows = {"run_id": ["a"], "experiment": ["other"], "algorithm": ["gspo"], "arm": ["gspo"], "seed": [0],
            "status": ["finished"], "config": [None], "versions": ["verl 0.6 <b>"]}  # fmt: skip
    write_segment(tmp_path / "other" / "a", "run", rows)
    steps = {"run_id": ["a"] * 3, "step": [0, 1, 2], "success": [0.1, 0.2, None]}
    write_segment(tmp_path / "other" / "a", "step", steps)
    sync(tmp_path)
    shown = Read(open_screen("run", tmp_path).source).text
    for words in ("verl 0.6 <b>", "This run recorded no wall times.", "No console.log."):
        assert words in shown


def test_a_running_run_counts_its_steps_and_no_log_elsewhere_is_shown(tmp_path: Path, open_screen: Open) -> None:
    log = write_run(tmp_path, "demo", "a", shape=SMALL, status="running") / "console.log"
    (tmp_path / "secret").write_text("password\n")
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    sync(tmp_path, CATALOGUE)
    shown = Read(open_screen("run", tmp_path).source).text
    assert "12 of 80 steps in" in shown
    assert "password" not in shown
    assert "No console.log." in shown


def test_hostile_events_and_logs_stay_text(tmp_path: Path, open_screen: Open) -> None:
    write_experiment(tmp_path, "demo")
    folder = write_run(tmp_path, "demo", "a", shape=SMALL, arm=HOSTILE[0], log="\n".join(HOSTILE))
    texts, n = list(HOSTILE), len(HOSTILE)
    event = {"run_id": ["a"] * n, "step": list(range(n)), "kind": texts, "severity": texts, "diagnostic": texts,
             "value": [float("nan")] * n, "threshold": [None] * n, "message": texts}  # fmt: skip
    write_segment(folder, "event", event)
    sync(tmp_path, CATALOGUE)
    shown = assert_literal(open_screen("run", tmp_path))
    assert all(shown.count(text) >= 3 for text in HOSTILE[:5])  # as a kind, in a message, in the log
    assert "NaN" in shown

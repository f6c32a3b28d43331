"""One run: its screen, and the screen Replay, a batch through several algorithms by a process of its own."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.app import page
from sorl.app.choices import runs as runs_of
from sorl.app.data import first_alarm, first_alarms, stands
from sorl.app.queries import Store, dictionary
from sorl.app.screens import replay
from sorl.app.screens.run import as_it_is, findings, held_out, judge_run, not_finite, settings
from sorl.app.text import percent
from sorl.diagnosis.place import place
from sorl.spec import InputError
from sorl.spec.files import lock_file
from sorl.spec.heartbeat import NAME, Doing
from sorl.store.sync import sync
from tests.app.conftest import HOSTILE, SMALL, Open, Patch, Read, Visit, assert_literal, press
from tests.app.kinds import KEPT, KINDS, MILD, write_kinds
from tests.diagnosis.sentences import checked
from tests.store.fixture import Shape, write_experiment, write_run, write_segment, write_status
from tests.store.stored_batch import write_batch

PPO = "ppo-s0-aaaa0000"


def links(app: Visit) -> list[tuple[str, dict[str, list[str]]]]:
    return [(urlsplit(href).path, parse_qs(urlsplit(href).query)) for href in Read(app.source).values("href")]


def test_it_opens_on_a_collapsed_run_says_how_it_fell_and_draws_its_events(open_screen: Open) -> None:
    app = open_screen("run")
    assert app.selectbox(key="run").value == PPO
    shown = Read(app.source).text
    for words in (
        "ppo, seed 0",
        "Collapsed: success fell from",
        "The fall began after step 15 and was certain at step",
        "torch",
        "30 of 80 steps in 1 min 0 s, 2 s a step.",
        "2026-11-01 12:00 UTC",
        "ppo, seed 0",
        "First alarm: ess_frac_min at step 12, 3 steps before the onset; 1 more kind of alarm later. Of the ",
    ):
        assert words in shown
    named = {trace["name"]: trace for trace in app.figures[0]["data"] if trace.get("name")}
    assert list(named)[:2] == ["in training", "held-out: facts"]
    assert len(named["held-out: facts"]["customdata"]) == 3
    assert (named["alarm"]["customdata"], named["onset of the collapse"]["customdata"]) == ([12, 14], [15])


def test_a_run_and_its_events_lead_to_other_screens_which_know_all_that_the_links_name(
    open_screen: Open,
) -> None:
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
    write_segment(
        tmp_path / "demo", "experiment", {"experiment": ["demo"], "question": ["why?"], "toml": [toml]}
    )
    for arm, epochs in (("ppo", 4), ("calm", 1)):
        run = write_run(tmp_path, "demo", arm, shape=SMALL, arm=arm)
        write_status(run, arm=arm, config=json.dumps({"learn": {"epochs": epochs}, "seed": 0, "x": "<b>"}))
    source = open_screen("run", tmp_path, run="calm").source
    tables = [part for part in source.split("<table") if "sorl-settings" in part]
    changed, every = (Read(part.split("</table>")[0]).words("td") for part in tables)
    assert changed == ["learn.epochs", "1", "4", "1", "4: ppo", "x", "<b>", "–", "–"]
    assert [word for word in every if word in ("learn.epochs", "seed", "x")] == ["learn.epochs", "seed", "x"]
    others = {
        arm: json.dumps({"algorithm": arm.split(",")[0], "n": 2})
        for arm in ("ppo", "ppo, on-policy", "a", "b")
    }
    table = settings(json.dumps({"algorithm": "grpo", "n": 1}), None, others).set_index("setting")
    assert table["other arms"].to_dict() == {"algorithm": "ppo: “ppo, on-policy”; a; b", "n": "2: 4 arms"}


def test_a_log_without_settings_versions_or_times_is_shown(tmp_path: Path, open_screen: Open) -> None:
    about = {"experiment": "other", "algorithm": "gspo", "arm": "gspo", "seed": 0, "status": "finished"}
    write_segment(tmp_path / "other" / "a", "run", about | {"config": None, "versions": "verl 0.6 <b>"})
    write_segment(tmp_path / "other" / "a", "step", {"step": [0, 1, 2], "success": [0.1, 0.2, None]})
    shown = Read(open_screen("run", tmp_path).source).text
    for words in ("verl 0.6 <b>", "This run recorded no wall times.", "No console.log."):
        assert words in shown


def test_a_running_run_counts_its_steps_and_no_log_elsewhere_is_shown(
    tmp_path: Path, open_screen: Open
) -> None:
    log = write_run(tmp_path, "demo", "a", shape=SMALL, status="running") / "console.log"
    log.write_text('{"step": 1, "steps": 80}\nwarning: slow\n')
    shown = Read(open_screen("run", tmp_path).source).text
    assert "warning: slow" in shown
    assert '"steps": 80' not in shown
    (tmp_path / "secret").write_text("password\n")
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    shown = Read(open_screen("run", tmp_path).source).text
    assert "12 of 80 steps in" in shown
    assert "password" not in shown
    assert "No console.log." in shown


def test_a_run_that_is_trained_now_says_what_it_is_doing(tmp_path: Path, open_screen: Open) -> None:
    folder = write_run(tmp_path, "demo", "a", shape=SMALL, status="running")
    (folder / NAME).write_text(Doing("rollout <b>", 3, 80, 12, 32, "episodes ended").as_json())
    now = "Now: step 4 of 80: rollout <b>, 12 of 32 episodes ended."
    with lock_file(folder / "lock"):
        assert now in Read(open_screen("run", tmp_path).source).text
        (folder / NAME).write_text("")  # by an earlier version
        assert "Now:" not in Read(open_screen("run", tmp_path).source).text


def test_hostile_events_and_logs_stay_text(tmp_path: Path, open_screen: Open) -> None:
    write_experiment(tmp_path, "demo")
    folder = write_run(tmp_path, "demo", "a", shape=SMALL, arm=HOSTILE[0], log="\n".join(HOSTILE))
    event = {name: list(HOSTILE) for name in ("kind", "severity", "diagnostic", "message")}
    write_segment(
        folder, "event", event | {"step": range(len(HOSTILE)), "value": math.nan, "threshold": None}
    )
    shown = assert_literal(open_screen("run", tmp_path))
    assert all(shown.count(text) >= 3 for text in HOSTILE[:5])  # as a kind, in a message, in the log
    assert "NaN" in shown


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("kinds")
    write_kinds(folder)
    return Store(folder)


def told_of(store: Store, name: str) -> tuple[str, list[Read]]:
    """What screen Run says of a run: how it stands, and what stands out."""
    each = runs_of(store, "kinds")
    now = as_it_is(store, each.set_index("run_id", drop=False).loc[name].to_dict())
    stands, said = judge_run(store, now)
    return stands, [Read(one) for one in findings(store, dictionary(store), now, each, said)]


WORDS = {
    "healthy": ["Healthy. Its success", "No step stands out by its largest gradient norm"],
    "fast": [
        "Collapsed: success fell",
        "Likely cause. The rollouts are too old",
        "1 more kind of alarm later",
    ],
    "slow": ["Collapsed: success fell"],
    "falling": [
        "Falling at its end, too late for the collapse rule: success fell",
        "at the onset, so no warning",
    ],
    "recovered": ["Collapsed and recovered: success fell", "% of its best. The fall began after step 8"],
    "climbing": ["Climbing back since step 33: 0.7", "too short to call it recovered"],
    "diverged": [
        "Diverged: success fell",
        "Critical: NaN or Inf at step 20",
        "First NaN or Inf at step 20, in s",
    ],
    "never": ["Did not rise above its start."],
    "nan": ["First NaN or Inf at step 7, in kl_k3.", "No alarm went off."],
    "imported": [
        "Only curves are logged, and causes need the updates",
        "At the fall: ",
        "Alarms were not recorded.",
    ],
    "one": ["Undecided: too few steps to judge. Its success was ", " over its 1 step."],
    "mild": [f"A mild fall: {MILD}."],
}


@pytest.mark.parametrize("name", WORDS)
def test_every_number_that_is_said_of_a_run_is_what_its_rows_say(kinds: Store, name: str) -> None:
    stands, found = told_of(kinds, name)
    text = "\n".join([stands, *(one.text for one in found)])
    for words in WORDS[name]:
        assert words in text
    assert ("None of the known causes" in text) <= (name == "mild")

    def ask(sql: str, given: dict[str, Any]) -> dict[str, Any]:
        answer = kinds.reader.rows(sql, given)
        return dict(zip(answer.columns, answer.rows[0], strict=True))

    assert checked(text, name, ask) >= {"one": 2, "imported": 4}.get(name, 3)


def test_links_of_findings_lead_to_the_step_that_is_named_and_to_tokens_that_were_kept(kinds: Store) -> None:
    for name in KINDS:
        for one in told_of(kinds, name)[1]:
            for href in one.values("href"):
                where = {key: values[0] for key, values in parse_qs(urlsplit(href).query).items()}
                assert re.search(rf"step {where['step']}\b", one.text)
                assert where.get("trajectory") == (None if KEPT[name] != 2 else "2")
    assert not [href for one in told_of(kinds, "imported")[1] for href in one.values("href")]
    d = judge_run(kinds, {"run_id": "fast", "steps": 36}).diagnosis
    assert d is not None
    assert "step=14&trajectory=2" in place(d, d.findings[0]), "sorl diagnose leads to the same place"


def test_the_curve_ends_with_the_evaluation_after_the_last_step_or_with_the_part(
    kinds: Store, open_screen: Open
):
    for chosen, ends in (({}, [0, 36]), ({"range": "0..20"}, [0])):
        drawn = open_screen("run", kinds.runs, run="fast", **chosen).figures[0]["data"]
        assert [trace["x"] for trace in drawn if trace.get("name") == "held-out: facts"] == [ends]


def test_events_of_one_kind_and_diagnostic_share_a_row_with_their_steps(
    grid: Path, open_screen: Open
) -> None:
    shown = open_screen("run", grid, run=PPO).source
    (table,) = (part.split("</table>")[0] for part in shown.split("<table") if "sorl-events" in part[:40])
    rows = Read(table).tags.count("tr") - 1
    asked = "SELECT count(DISTINCT (kind, diagnostic)) AS n FROM event WHERE run_id = $run"
    assert rows == 1 + Store(grid).reader.rows(asked, {"run": PPO}).rows[0][0], "and the onset"


def test_a_run_with_many_alarms_of_one_kind_names_the_first_and_the_last_step(
    tmp_path: Path, open_screen: Open
):
    folder = write_run(tmp_path, "demo", "a", shape=SMALL)
    alarm = {"kind": "alarm", "severity": "warning", "diagnostic": "chi2"}
    write_segment(folder, "event", alarm | {"step": range(40), "value": np.arange(40.0)})
    shown = Read(open_screen("run", tmp_path, run="a").source).text
    assert "10 (10), 11 (11), and 28 more, the last at step 39" in shown


@pytest.mark.parametrize("screen", ["turns", "episode", "replay"])
def test_a_run_of_curves_alone_says_in_one_sentence_what_a_screen_needs(
    screen: str, kinds: Store, open_screen: Open
):
    app = open_screen(screen, kinds.runs, arm=["imported"], run="imported")
    (said,) = re.findall(r'class="sorl-warning">([^<]*)<', app.source)
    lacks = {
        "turns": "No turn of these runs is recorded: this screen needs tables turn and turn_step",
        "episode": (
            "No trajectory of this run is recorded: this screen needs tables trajectory, turn and token"
        ),
        "replay": "Run imported has no stored batch, which this screen needs; ",
    }
    assert said.startswith(lacks[screen])
    assert screen == "episode" or not app.figures, "empty maps tell nothing"
    assert said.count(":") <= 2
    assert said.endswith(":")
    assert "." not in said.replace("record.batches.mb", "")
    assert [code.value for code in app.code] == ["sorl run FILE.toml" + " --fresh" * (screen == "replay")]


def test_the_silence_of_a_run_whose_alarms_were_not_recorded_tells_nothing(
    kinds: Store, open_screen: Open
) -> None:
    shown = open_screen("collapse", kinds.runs, arm=["imported", "healthy"]).source
    assert "The runs that collapsed did not record their alarms." in shown
    every = runs_of(kinds, "kinds")
    leads = first_alarms(kinds, every, dictionary(kinds)).leads
    fell = every["collapse_step"].notna() & (every["run_id"] != "imported")
    assert set(leads["collapsed"]) == {int(fell.sum())}
    assert "None of these runs collapsed." in open_screen("collapse", kinds.runs, arm=["never", "one"]).source
    assert "None of these runs raised an alarm." in open_screen("collapse", kinds.runs, arm=["slow"]).source


def test_a_run_in_a_list_says_after_which_step_it_fell() -> None:
    def run(outcome: str | None, onset: int | None, *ends: int) -> str:
        fall = dict(zip(("onset_low", "onset_high"), ends or (None, None), strict=True))
        return stands({"outcome": outcome, "status": "running", "collapse_step": onset, **fall})

    assert run("collapsed", 5, 5, 5) == "collapsed after step 5"
    assert run("recovered", 1234, 1230, 1240) == "recovered, fell after step 1,234"
    assert run("diverged", 14, 14, 14) == "diverged, fell after step 14"
    assert (run("falling", None, 34, 34), run("falling", None, 30, 34)) == (
        "falling after step 34",
        "falling after steps 30 to 34",
    )
    assert (run("no_learning", None), run(None, None)) == ("did not rise", "running")


def test_an_alarm_that_rings_in_every_run_that_stays_up_tells_nothing() -> None:
    assert first_alarm({}, 9, {}, 3) == "No alarm went off."
    rung = {"kl_k3": 4, "entropy": 4, "chi2": 6}
    assert (
        first_alarm({"kl_k3": 8}, 9, {"kl_k3": 6}, 6)
        == "First alarm: kl_k3 at step 8, 1 step before the onset. It also rang in all 6 other runs that"
        " stayed up, so it tells nothing."
    )
    said = first_alarm(rung, 3, {"kl_k3": 1, "entropy": 1}, 1)
    assert said.endswith("They also rang in the only other run that stayed up, so they tell nothing.")
    said = first_alarm(rung, None, {"kl_k3": 2}, 2)
    assert (
        said
        == "First alarm: kl_k3 and entropy at step 4; 1 more kind of alarm later. Of the 2 other runs that"
        " stayed up, kl_k3 rang in 2 and entropy rang in 0."
    )
    late = "First alarm: kl_k3 and entropy at step 4, 1 step after the onset, so no"
    assert first_alarm(rung, 3, {}, 0).startswith(late)


def test_what_was_not_measured_is_not_said() -> None:
    assert (held_out([]), not_finite([])) == ("", None)
    assert not_finite([{"kind": "non_finite", "step": 3, "diagnostic": ""}]) == (
        "First NaN or Inf at step 3, in the loss or a gradient.",
        3,
    )


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which the second has batches, with tokens of hostile text."""
    folder = tmp_path_factory.mktemp("two_runs")
    for name in ("bare", "full"):
        shape = Shape(steps=4, trajectories=2, turns=2, epochs=1, tokens=0, steps_per_segment=4)
        run = write_run(folder, "demo", name, shape=shape)
    (segment,) = (run / "segments" / "step").glob("*.parquet")
    norms = pd.Series([1.0, 1.0, 9.0, 50.0])  # the spike, next to which a stored step is chosen
    pd.read_parquet(segment).assign(grad_norm_max=norms).to_parquet(segment, index=False)
    for step in (1, 3):
        write_batch(run, step, text=HOSTILE[0])
    sync(folder)
    return folder


@pytest.fixture
def runs(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(two_runs, tmp_path, dirs_exist_ok=True))


def test_algorithms_stand_side_by_side_and_are_asked_once(
    runs: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    app = open_screen("replay", runs, algorithm=["ppo", "st-ppo"], measure="clip_frac")
    assert (app.value("run"), app.value("step")) == (
        "full",
        "3",
    ), "the first run that has something to replay"
    for words in (
        "The trainer of ppo logged loss 0.5 (replayed: ",
        "computed again from the stored rewards, differ",
        'href="episode?experiment=demo&amp;run=full&amp;step=3',
    ):
        assert words in app.source
    assert "<script>alert" not in app.source
    tokens = app.dataframe[0].value
    assert list(tokens.columns) == ["turn", "token", "log-ratio", "ppo", "st-ppo"]
    assert set(tokens["token"]) == {HOSTILE[0]}
    (drawn,) = app.figures
    assert [trace["name"] for trace in drawn["data"]] == ["ppo", "st-ppo"]
    (table,) = (
        part.split("</table>")[0] for part in app.source.split("<table") if "sorl-listing" in part[:40]
    )
    turns = Read(table)
    assert turns.words("b") == [
        "ppo",
        "st-ppo",
    ], "with most of the gradient, under the algorithm that gives it them"
    assert re.fullmatch(r"(trajectory \d+)+", "".join(turns.words("a")))
    assert all("algorithm=st-ppo" in href for href in turns.values("href"))

    def refuse(*_: object) -> str:
        raise InputError("nothing more is asked")

    # What was asked once is read from the disk, and another trajectory is another question.
    monkeypatch.setattr(page, "run_sorl", refuse)
    for other, words in (
        ({"measure": "gradient_share"}, "logged loss 0.5"),
        ({"trajectory": "2"}, "nothing more"),
    ):
        assert words in open_screen("replay", runs, algorithm=["ppo", "st-ppo"], **other).source


def test_an_audit_is_asked_by_a_button_and_says_what_holds_what_is_violated_and_what_cannot_be_checked(
    two_runs: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    at = {"step": 3, "update": 0, "gap": 1.0, "tolerance": 0.0, "logged": 0.5, "expected": "NaN"}
    checks = [
        {"identity": name, "state": state, **at, **more}
        for name, state, more in (
            ("reward", "holds", {"step": 1}),
            ("reward", "violated", {"says": HOSTILE[0]}),
            ("loss", "holds", {}),
            ("weights", "missing", {"missing": "needs the weights"}),
        )
    ]
    asked: list[Any] = []
    monkeypatch.setattr(page, "run_sorl", lambda words, *_, **__: asked.append(words) or json.dumps(checks))
    app = open_screen("run", two_runs, run="full")
    assert not asked, "it takes seconds"
    press(app, "Audit this run")
    assert [words[2:] for words in asked] == [["audit", "full", "--format", "json"]]
    shown = assert_literal(app)
    said = (
        "Steps 1, 3. Hold: loss. Cannot be checked at 3: weights (needs the weights). Violated, so one of"
        " two "
    )
    assert said in shown
    assert "reward30.5NaN" + HOSTILE[0] in shown
    assert "so nothing can be computed again" in open_screen("run", two_runs, run="bare").source


def test_an_episode_of_a_stored_step_leads_to_its_replay(two_runs: Path, open_screen: Open) -> None:
    link = 'href="replay?experiment=demo&amp;run=full&amp;step=3&amp;trajectory=0"'
    assert link in open_screen("episode", two_runs, run="full", step="3", trajectory="0").source
    assert "replay?" not in open_screen("episode", two_runs, run="full", step="2", trajectory="0").source


def test_what_the_command_refuses_or_takes_too_long_for_is_said_and_not_kept(
    runs: Path, monkeypatch: Patch
) -> None:
    folder = runs / "demo" / "full"
    (folder / "batches" / "000001.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be read"):
        replay.replayed(folder, 1, ["ppo"])
    monkeypatch.setattr(replay, "SECONDS", 0.01)
    with pytest.raises(InputError, match=r"sorl replay .*full --step 3"):
        replay.replayed(folder, 3, ["ppo"])


def test_an_answer_is_asked_once_for_each_batch(runs: Path, monkeypatch: Patch) -> None:
    folder = runs / "demo" / "full"
    empty: dict[str, Any] = {"own": "ppo", "summary": [], "turns": [], "culprits": [], "tokens": []}
    asked: list[list[str]] = []
    monkeypatch.setattr(page, "run_sorl", lambda words, *_: asked.append(words) or json.dumps(empty))
    for text in ("x", "x", "another"):
        if text != "x":
            write_batch(folder, 3, text=text)
        assert replay.replayed(folder, 3, ["ppo"]) == empty
    assert len(asked) == 2
    assert "--algorithm" in asked[0]


def test_nan_is_shown_as_itself_and_null_as_a_dash() -> None:
    row = {"algorithm": "a", "update": 0, "source": "replayed", "reason": None}
    told = {
        "own": "a",
        "summary": [row | dict.fromkeys(replay.FIGURES) | {"ess_frac": "NaN", "clip_frac": 0.25}],
    }
    header, rows = replay.summary(told, [])
    assert (header, [cell for _, cell in rows]) == (["", "a"], ["–", "–", "–", "–", "NaN", "25 %", "–", "–"])
    assert replay.logged(told) == ""
    told["summary"].append(row | {"source": "logged", "policy_loss": 0.253, "stabiliser_ratio": "NaN"})
    said = "The trainer of a logged loss 0.253 (replayed: –), stabiliser ratio NaN (replayed: –)."
    assert replay.logged(told) == said
    turns = [
        {"algorithm": "a", "turn_index": k, "update": 0, "clip_frac": v} for k, v in ((1, 0.5), (2, "NaN"))
    ]
    assert replay.by_turn({"own": "a", "turns": turns}, "clip_frac", []).to_numpy().tolist() == [
        ["a", 1, 0.5]
    ]


Figures = tuple[Any, Any, dict[int, Any]]  # clip_frac, weight_abs, gradient_share by turn


def answered(own: str, **algorithms: Figures) -> dict[str, Any]:
    """An answer of `sorl replay`, whose first update says something else than all of them together."""
    summary: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for name, (clip, weight, shares) in algorithms.items():
        row = {"algorithm": name, "source": "replayed", "reason": None}
        summary += [
            row | {"update": 0, "clip_frac": 0.9, "weight_abs": 1.0},
            row | {"update": None, "clip_frac": clip, "weight_abs": weight},
        ]
        turns += [{"algorithm": name, "update": 0, "turn_index": 9, "gradient_share": 1.0}] * bool(shares)
        turns += [
            {"algorithm": name, "update": None, "turn_index": k, "gradient_share": v}
            for k, v in shares.items()
        ]
    summary.append(
        {"algorithm": "grpo", "source": "replayed", "update": None, "reason": "it compares rollouts"}
    )
    return {"own": own, "summary": summary, "turns": turns}


PPO_FELL: Figures = (0.369, 7.57, {1: 0.3, 2: 0.4})


@pytest.mark.parametrize(
    ("algorithms", "says"),
    [
        (
            {"ppo": PPO_FELL, "turn": (0.615, 0.93, {1: 0.34, 2: 0.3})},
            (
                "turn in place of ppo clips 1.7 x as much (62 % of the tokens, ppo 37 %) and has gradient"
                " weights 8.1 x smaller; the largest share of the batch's gradient moves from turn 2 (40 %)"
                " to turn 1 (34 %)."
            ),
        ),
        (
            {"ppo": PPO_FELL, "turn": (0.37, 7.6, {2: 0.5, 1: 0.3}), "s": (0.1, 7.7, {})},
            (
                "s in place of ppo clips 3.7 x as little (10 % of the tokens, ppo 37 %) and has gradient "
                "weights of the same size."
            ),
        ),
        (
            {"ppo": PPO_FELL, "turn": (0.37, 7.6, {2: 0.5, 1: 0.3})},
            (
                "turn in place of ppo clips as much (37 % of the tokens, ppo 37 %) and has gradient "
                "weights of the same size; turn 2 keeps the largest share of the batch's gradient (40 %, then"
                " 50 %)."
            ),
        ),
        (
            {"ppo": (0, 2.0, {}), "turn": (0, 400.0, {})},
            "turn in place of ppo clips no token either and has gradient weights 200 x larger.",
        ),
        (
            {"ppo": (0.2, 2.0, {}), "turn": (1.0, 0, {}), "s": (None, 1.0, {})},
            (
                "turn in place of ppo clips 5 x as much (100 % of the tokens, ppo 20 %) and has no "
                "gradient at all."
            ),
        ),
        (
            {"ppo": (0.2, 2.0, {}), "s": (None, 1.0, {1: "NaN"})},
            "s in place of ppo has gradient weights 2 x smaller.",
        ),
        ({"ppo": (0.2, 2.0, {}), "s": ("NaN", "NaN", {})}, "The gradient of s is NaN."),
        ({"ppo": (0.2, "NaN", {}), "s": (0.1, 2.0, {})}, "The gradient of ppo is NaN."),
        (
            {"ppo": (1.0, 0, {}), "s": (0.1, 2.0, {})},
            "The update of ppo has no gradient that another could be compared with.",
        ),
        ({"ppo": PPO_FELL}, "Of the chosen algorithms only ppo, which trained on this batch, has an answer."),
    ],
    ids=range(10),
)
def test_the_headline_says_what_changes_the_update_most(algorithms: dict[str, Figures], says: str) -> None:
    assert replay.headline(answered("ppo", **algorithms), ["turn", "s", "grpo"]) == says


_MISSING = st.none() | st.just("NaN")
_SHARE = st.floats(0, 1) | _MISSING
_FIGURES = st.tuples(_SHARE, st.floats(0.01, 1e6) | _MISSING, st.dictionaries(st.integers(1, 6), _SHARE))


@given(st.dictionaries(st.sampled_from(["s-ppo", "turn-ppo", "st-ppo"]), _FIGURES), _FIGURES)
def test_what_the_headline_names_is_what_the_answer_holds(others: dict[str, Figures], own: Figures) -> None:
    every = {"ppo": own, **others}
    said = replay.headline(answered("ppo", **every), list(others))
    found = re.match(r"(\S+) in place of ppo ", said)
    if found is None:
        return
    weights = {name: one[1] / own[1] for name, one in every.items() if isinstance(one[1], float)}
    name = found[1]
    assert abs(math.log(weights[name])) == max(abs(math.log(weight)) for weight in weights.values())
    if times := re.search(r"weights ([\d.,]+) x (larger|smaller)", said):
        ratio = weights[name] if times[2] == "larger" else 1 / weights[name]
        assert float(times[1].replace(",", "")) == pytest.approx(ratio, rel=0.06)
    for one, at in ((own, 1), (every[name], 3)):
        if moved := re.search(r"from turn (\d) \((.*?)\) to turn (\d) \((.*?)\)", said):
            share = one[2][int(moved[at])]
            assert share == max(value for value in one[2].values() if isinstance(value, float))
            assert percent(share) == moved[at + 1]


def test_algorithms_that_cannot_answer_are_one_line() -> None:
    told = {"grpo": "it compares rollouts", "so-grpo": "it compares rollouts", "ppo": "it needs a critic"}
    said = "Not possible on this batch: grpo, so-grpo (compares rollouts); ppo (needs a critic)."
    assert (replay.impossible(told), replay.impossible({})) == (said, "")

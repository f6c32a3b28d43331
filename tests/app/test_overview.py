"""Overview: what to look at first, the table of runs, what differs between those picked, notes, and falling
now.
"""

import fcntl
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.analysis.runs import outcomes
from sorl.app.choices import differing, settings_of_runs
from sorl.app.run_search import find_runs
from sorl.app.screens.overview import reason, rows, worst
from sorl.diagnosis.finding import Cause, Clue, Diagnosis, Finding
from sorl.spec.files import lock_file
from sorl.store import notes
from sorl.store.notes import Notes, read, write
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.app.conftest import HOSTILE, SMALL, Open, Patch, Read, Visit, assert_literal, press, write_queued
from tests.store.fixture import Shape, write_experiment, write_run, write_segment, write_status


def frame(*found: dict[str, Any]) -> pd.DataFrame:
    usual = {
        "arm": "ppo",
        "seed": 0,
        "outcome": "healthy",
        "status": "finished",
        "collapse_step": None,
        "reason": None,
        "onset_low": None,
        "peak_success": 0.5,
        "final_success": 0.5,
        "steps": 36,
        "seconds": 60.0,
        "slump": None,
        "config": "{}",
    }
    return pd.DataFrame([{"run_id": f"r{number}", **usual, **one} for number, one in enumerate(found)])


def test_the_worst_runs_come_first_by_how_they_stand_then_by_what_they_lost() -> None:
    each = frame(
        {},
        {"outcome": "mild"},
        {"outcome": "collapsed", "final_success": 0.2},
        {"outcome": "no_learning"},
        {"outcome": "collapsed", "final_success": 0.1},
        {"outcome": None, "status": "running", "slump": 9.0},
    )
    assert worst(each)["run_id"].tolist() == ["r4", "r2", "r5"]
    assert worst(each[each["outcome"].isin(["healthy", "no_learning"])]).empty, (
        "a run that never rose lost nothing"
    )
    ended = frame({"outcome": None, "status": "failed"}, {"outcome": "diverged"})
    assert worst(ended)["run_id"].tolist() == ["r1", "r0"]


CONFIGS = [
    json.dumps({"seed": n, "learn": {"staleness": s, "policy": {"lr": lr}}})
    for n, (s, lr) in enumerate([(0, 0.1), (8, 0.1), (16, 0.1)])
]


def test_a_table_has_the_settings_that_differ_and_is_filtered_by_words_and_conditions() -> None:
    each = frame(*({"config": config, "seed": n} for n, config in enumerate(CONFIGS)))
    store: Any = SimpleNamespace(computed=lambda _, question: question(None))
    settings = differing(store, "demo", each)
    assert list(settings) == ["seed", "learn.staleness"], "and not what is the same"
    assert differing(store, "demo", each.assign(config=None)).empty
    table = rows(each, settings, {"r1": Notes("look", ("odd", "late"))})
    everything = settings_of_runs(store, "demo", each)
    for asked, left in {
        "": "r0 r1 r2",
        "staleness > 4": "r1 r2",
        "learn.staleness <= 8, seed != 0": "r1",
        "learn.staleness <= 8 AND seed != 0": "r1",
        "seed=0 and staleness = 0": "r0",
        "odd": "r1",
        "ODD": "r1",
        "outcome = healthy": "r0 r1 r2",
        "staleness = 16": "r2",
        "tags = late": "r1",
        "tags != late": "r0 r2",
        "lr = .1": "r0 r1 r2",
        "lr >= 10%": "r0 r1 r2",
        "lr > 0.1": "",
        "onset > 0": "",
        "hidden = no, LATE": "r1",
        'hidden = "no"': "r0 r1 r2",
    }.items():
        answer = find_runs(table, asked, everything)
        assert (" ".join(answer.runs.index), answer.remarks) == (left, []), asked


def test_an_outcome_is_found_by_its_first_word_and_an_arm_by_its_whole_name() -> None:
    table = pd.DataFrame(
        {
            "arm": ["ppo", "turn-ppo", "ppo, on-policy"],
            "outcome": ["collapsed after step 11", "healthy", "healthy"],
        },
        index=["r0", "r1", "r2"],
    )
    assert list(find_runs(table, "outcome = collapsed").runs.index) == ["r0"]
    assert list(find_runs(table, "outcome != collapsed").runs.index) == ["r1", "r2"]
    assert list(find_runs(table, "arm = ppo").runs.index) == ["r0"]
    assert list(find_runs(table, 'arm = "ppo, on-policy"').runs.index) == ["r2"]
    assert list(find_runs(table, "outcome = lapsed").runs.index) == []


@pytest.mark.parametrize(
    ("asked", "left", "remark"),
    [
        ("stalenes > 4", 3, r"called 'stalenes' \(did you mean 'staleness'\?\); 'stalenes > 4' is left out"),
        ("staleness >", 3, "'staleness >' compares with nothing"),
        ("> 3", 3, "'> 3' names no column"),
        ("staleness > many", 0, "'many' is no number to compare learn.staleness with"),
        ("purple", 0, "'purple' is in no cell"),
        ("lr > 0", 3, "'lr' was read as learn.policy.lr, not as learn.critic.lr"),
    ],
)
def test_what_was_not_understood_is_said(asked: str, left: int, remark: str) -> None:
    table = pd.DataFrame({"seed": [0, 1, 2], "learn.staleness": ["0", "8", "16"]}, index=["r0", "r1", "r2"])
    settings = pd.DataFrame({"learn.policy.lr": ["0.1"] * 3, "learn.critic.lr": ["1"] * 3}, index=table.index)
    answer = find_runs(table, asked, settings)
    assert len(answer.runs) == left
    assert re.search(remark, answer.remarks[0])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_answered(asked: str) -> None:
    table = pd.DataFrame({"arm": ["ppo", None], "onset": [3.0, float("nan")]}, index=["r0", "r1"])
    answer = find_runs(table, asked)
    assert set(answer.runs.index) <= {"r0", "r1"}
    assert len(answer.runs) or answer.remarks or any(sign in asked for sign in "<>=")


@pytest.fixture
def mine(grid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grid, tmp_path / "runs"))


def runs_of(app: Visit) -> list[str]:
    return re.findall(r'data-key="([^"]+)"', app.drawings[0])


# Written here a second time, in SQL alone: the moment of a run, and what had most of the gradient there.
_SPIKE = """
    SELECT step, grad_norm_max AS value FROM step JOIN run USING (run_id)
    WHERE run_id = $run AND step BETWEEN onset_low AND onset_high ORDER BY grad_norm_max DESC, step LIMIT 1
"""
_CULPRIT = """
    SELECT trajectory, gradient_share AS share, count(*) OVER () AS among FROM trajectory
    WHERE run_id = $run AND step = $step ORDER BY abs(gradient_share) DESC, trajectory LIMIT 1
"""
_TURNS = """
    SELECT turn_index, abs(gradient_share) / sum(gradient_share) OVER () AS share FROM turn
    WHERE run_id = $run AND step = $step AND trajectory = $trajectory AND epoch = $epoch
    ORDER BY abs(gradient_share) DESC LIMIT 2
"""
_EPOCH = """
    SELECT epoch FROM turn WHERE run_id = $run AND step = $step AND trajectory = $trajectory
    ORDER BY abs(gradient_share) DESC LIMIT 1
"""


def test_what_is_looked_at_first_is_what_the_database_says(grid: Path, open_screen: Open) -> None:
    source = open_screen("overview").source.split("Look at these first")[1].split("Arms")[0]
    ask = Reader(grid).query
    fell = ask("SELECT * FROM run WHERE outcome = 'collapsed' ORDER BY run_id")
    links = [urlsplit(link["href"]) for link in Read(source).all("a")]
    opened = [(link.path, parse_qs(link.query)) for link in links]
    text = Read(source).text
    named = list(dict.fromkeys(choices["run"][0] for path, choices in opened if path == "run"))
    assert len(named) <= 3
    assert set(named[: len(fell)]) == set(fell["run_id"])
    for run in fell.itertuples():
        place: dict[str, Any] = {"run": run.run_id}
        when = f" (95 %: {run.onset_low} to {run.onset_high})" * (run.onset_high > run.onset_low)
        assert f"{run.arm}, seed {run.seed}: collapsed after step {run.collapse_step}{when}. " in text
        (spike,) = ask(_SPIKE, place).to_dict("records")
        place["step"] = spike["step"]
        (top,) = ask(_CULPRIT, place).to_dict("records")
        place["trajectory"] = top["trajectory"]
        kept = ask(
            "SELECT * FROM token WHERE run_id = $run AND step = $step AND trajectory = $trajectory", place
        )
        epoch = int(kept["worst_epoch"].iloc[0]) if len(kept) else int(ask(_EPOCH, place)["epoch"].iloc[0])
        first, second = ask(_TURNS, place | {"epoch": epoch}).to_dict("records")
        here = f"At the fall, step {spike['step']} (largest gradient norm {spike['value']:.3g}), "
        said = text[text.index(here) :].split(". ")[0]
        assert (
            f"trajectory {top['trajectory']} has {100 * top['share']:.0f} % of this step's gradient" in said
        )
        stands_out = float(f"{first['share'] / second['share']:.2g}") >= 2
        where = f"{100 * first['share']:.0f} % of its gradient is in turn {first['turn_index']}, "
        assert (where in said) == stands_out
        assert ("no turn stands out" in said) != stands_out
        there = {"run": [run.run_id], "step": [str(spike["step"])], "trajectory": [str(top["trajectory"])]}
        episodes = [
            choices for path, choices in opened if path == "episode" and choices["run"] == [run.run_id]
        ]
        assert episodes
        assert all(choices.items() >= there.items() for choices in episodes)
        cells = [
            choices["cell"]
            for path, choices in opened
            if path == "turns" and choices["seed"] == [str(run.seed)]
        ]
        assert cells == [[run.arm, str(spike["step"]), str(first["turn_index"])]] * stands_out
        if len(kept):
            (row,) = kept.to_dict("records")
            weights = {
                w: i for i, w in enumerate(map(abs, row["worst_gradient_weight"])) if row["trained"][i]
            }
            heavy, following = sorted(weights, reverse=True)[:2]
            clear = float(f"{heavy / following:.2g}") >= 2
            assert (f"the token is “{row['token'][weights[heavy]]}”" in said) == clear
            assert ("no token stands out" in said) != clear
        else:
            assert "its tokens were not kept" in said


def test_what_no_trajectory_tells_is_left_out_and_a_run_that_is_up_has_no_moment(
    tmp_path: Path, open_screen: Open
):
    write_run(tmp_path, "demo", "gone", shape=Shape(steps=30, tokens=0), collapse=15)
    write_run(tmp_path, "demo", "bare", shape=Shape(steps=30, trajectories=0), collapse=15, seed=1)
    write_run(tmp_path, "demo", "up", shape=SMALL, seed=2)
    source = open_screen("overview", tmp_path).source.split("Look at these first")[1].split("Arms")[0]
    shown = re.findall('<div class="sorl-finding">.*?</div>', source)
    gone, bare = (Read(part) for part in sorted(shown, key=len, reverse=True))
    assert "its tokens were not kept" in gone.text
    assert "No trajectory was recorded, so nothing says which turn or token it was." in bare.text
    assert {urlsplit(link["href"]).path for link in bare.all("a")} == {"run"}


def test_a_finding_that_shows_only_after_the_fall_is_not_called_its_cause() -> None:
    class Down:
        fallen_by = 10
        onset = 9
        critical = ()
        run: ClassVar = {"outcome": "collapsed"}
        steps = 20
        ledger = True
        reading = None

        def measured(self, *_: str) -> bool:
            return True

        def table(self, _: str) -> pd.DataFrame:
            return pd.DataFrame({"entropy": [0.5] * 20})

    def said(step: int) -> str:
        clue = Clue("sign", 0.6, step, "it shows")
        cause = Cause(
            "late", "Too large", lambda _: None, severity="warning", needs=(), change="Halve it.", test=""
        )
        return reason(Diagnosis(Down(), (Finding(cause, clue),), (), {}, None, {}))  # type: ignore[arg-type]

    assert said(10) == "Likely cause: Too large. Halve it."
    with mock.patch("sorl.diagnosis.sentences.swung", return_value=()):
        assert said(11).startswith("None of the known causes fits.")


def tags_box(app: Visit) -> Any:
    return next(box for box in app.text_input if box.label.startswith("Tags"))


def test_picked_runs_are_in_the_address_compared_and_annotated(mine: Path, open_screen: Open) -> None:
    app = open_screen("overview", mine)
    first = sorted(runs_of(app))[0]
    other = sorted(runs_of(app))[-1]
    app = open_screen("overview", mine, picked=[first, other, "nobody"])
    assert app.query_params["picked"] == [first, other]
    assert "column" not in app.query_params, "what is always shown makes no link longer"
    assert f"runs={first}&amp;runs={other}" in app.source
    assert "What differs between them" in app.source
    arms = Reader(mine).query("SELECT run_id, arm FROM run").drop_duplicates().set_index("run_id")["arm"]
    assert f"arm={arms[first]}" in app.source
    app = open_screen("overview", mine, picked=[first])
    assert "What differs" not in app.source
    app.text_area[0].set_value(f"It fell. {HOSTILE[0]}")
    tags_box(app).set_value("keep, keep, late")
    press(app, "Save")
    assert read(mine, "demo", first) == Notes(f"It fell. {HOSTILE[0]}", ("keep", "late"), False)
    again = open_screen("overview", mine)
    assert again.drawings[0].count("✎") == 1
    assert "&lt;script&gt;" in again.drawings[0]
    assert_literal(again)


def test_a_run_of_which_only_curves_were_recorded_is_said_to_be_so(tmp_path: Path, open_screen: Open) -> None:
    folder = write_experiment(tmp_path, "curves") / "r1"
    curve = [0.6] * 8 + [0.0] * 12
    write_segment(folder, "step", {"step": range(20), "success": curve})
    write_status(folder, status="finished", outcome="collapsed", collapse_step=8)
    source = open_screen("overview", tmp_path).source.split("Look at these first")[1]
    said = (
        "No trajectory was recorded, so nothing says which turn or token it was. Only curves are logged, and"
    )
    assert said in source
    assert "No diagnostic besides success is logged." in source
    assert "None of the known causes" not in source
    assert "left its usual range" not in source
    for screen, said in (
        ("compare", "Alarms were not recorded."),
        ("collapse", "did not record their alarms."),
    ):
        source = open_screen(screen, tmp_path).source
        assert said in source
        assert "No alarm went off" not in source
    assert open_screen("overview", tmp_path, column=["onset"]).dataframe[0].value["onset"].tolist() == [8]


def test_hidden_runs_are_left_out_and_counted_and_can_be_found_again(mine: Path, open_screen: Open) -> None:
    every = runs_of(open_screen("overview", mine))
    write(mine, "demo", every[0], Notes(hidden=True))
    app = open_screen("overview", mine)
    assert runs_of(app) == every[1:]
    said = "1 hidden run is left out of all that is shown and counted here; `sorl compare` counts every run."
    assert said in app.source
    assert "1 hidden run is left out" in open_screen("compare", mine).source
    assert len(app.dataframe[0].value) == len(every), "the table still has it"
    for run in every:
        write(mine, "demo", run, Notes(hidden=True))
    assert "shown all the same: no other is left" in open_screen("overview", mine).source


def test_the_notes_of_a_run_are_read_once_a_redraw(mine: Path, open_screen: Open, monkeypatch: Patch) -> None:
    for run in runs_of(open_screen("overview", mine))[:2]:
        write(mine, "demo", run, Notes("look", ("late",)))
    asked: list[str] = []
    monkeypatch.setattr(notes, "read", lambda *place: asked.append(place[-1]) or read(*place))
    app = open_screen("overview", mine)
    assert len(asked) == len(set(asked)) == 2
    app.run()
    assert len(asked) == 4


def test_notes_that_cannot_be_kept_are_a_sentence(mine: Path, open_screen: Open, monkeypatch: Patch) -> None:
    run = runs_of(open_screen("overview", mine))[0]
    app = open_screen("overview", mine, picked=[run])
    shutil.rmtree(mine / "demo" / run)
    app.text_area[0].set_value("too late")
    press(app, "Save")
    assert (
        f"cannot keep notes of &#x27;{run}&#x27;" in app.source
        or f"cannot keep notes of '{run}'" in app.source
    )


def test_a_live_run_that_is_down_is_falling_now_by_its_rows(tmp_path: Path, open_screen: Open) -> None:
    folder = write_experiment(tmp_path, "demo") / "r1"
    write_segment(folder, "step", {"step": range(12), "success": [0.6] * 8 + [0.1] * 4})
    write_status(folder, status="running", outcome=None, ended_at=None, collapse_step=None, peak_success=None)
    with lock_file(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        app = open_screen("overview", tmp_path)
        assert (
            "Falling now: ppo, seed 0, since step 9. Success is 55 % or more below its best: about one"
            in app.source
        )
        assert "since step 9" in app.drawings[0]
        (bell,) = [one for one in Read(app.source).all("div") if one.get("class") == "sorl-bell"]
        assert bell["data-news"] == "[]", "what a page finds when it opens is no news"
        assert "Tell me in this browser when a run falls" in app.source
    write_status(folder, status="finished", outcome="healthy")
    assert "Falling now" not in open_screen("overview", tmp_path).source


def test_a_queued_run_has_no_duration_and_a_running_one_the_time_of_its_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "demo", "running", shape=SMALL, status="running")
    write_queued(tmp_path, "demo")
    with lock_file(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sync(tmp_path)
    reader = Reader(tmp_path)
    seconds = outcomes(reader, "demo").set_index("run_id")["seconds"]
    spent = reader.query("SELECT sum(seconds_total + seconds_record) AS s FROM step")["s"].item()
    assert seconds["running"] == pytest.approx(spent)
    assert pd.isna(seconds["queued"])


def test_a_duration_that_is_not_known_is_a_dash(tmp_path: Path, open_screen: Open) -> None:
    write_run(tmp_path, "demo", "done", shape=SMALL)
    write_queued(tmp_path, "demo")
    table = open_screen("overview", tmp_path).dataframe[0].value
    assert sorted(table["duration"]) == ["1 min 0 s", "–"]


def test_the_peak_of_a_cell_is_that_of_the_tables(tmp_path: Path, open_screen: Open) -> None:
    write_run(tmp_path, "demo", "done", shape=SMALL)
    app = open_screen("overview", tmp_path)
    peak = app.dataframe[0].value["peak"].item()
    assert f"peak {peak:.2f}, last" in app.drawings[0]
    assert "peak: its highest median of five steps" in app.source

"""Import: what is said of the log of another trainer that somebody drops or pastes, and filing it."""

import io
import json
import math
import os
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sorl.app import uploads
from sorl.app.cited import panels_of
from sorl.app.figures.evidence import evidence, extremes
from sorl.app.theme import LIGHT
from sorl.app.uploads import Given
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.report import markdown, text
from sorl.importing.logs import log_of
from sorl.spec import InputError
from sorl.store.connect import database, writer
from sorl.store.sync import sync
from tests.app.conftest import (
    HOSTILE,
    Open,
    Patch,
    Visit,
    assert_figure_literal,
    assert_literal,
    checked,
    press,
)

STEPS = 60
FALLS_AFTER = 40


def log_lines(*, falls: bool = True, **more: object) -> bytes:
    """A log of TRL: after step 40 the reward falls and answers run into the token limit."""
    draw = np.random.default_rng(0)
    lines = []
    for step in range(1, STEPS + 1):
        is_down = falls and step > FALLS_AFTER
        row = {
            "step": step,
            "reward": draw.normal(0.05 if is_down else 0.2 + 0.008 * step, 0.01),
            "entropy": 0.8 - 0.005 * step,
            "completions/clipped_ratio": 1.0 if is_down else 0.02,
            "grad_norm": math.nan if falls and step >= 50 else 0.5,
            **more,
        }
        lines.append(json.dumps(row))
    return "\n".join(lines).encode()


def zipped(**files: bytes) -> bytes:
    """A zip with these files, each named `NAME.jsonl`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.jsonl", content)
    return packed.getvalue()


def drop(app: Visit, name: str, content: bytes) -> Visit:
    """Drop a file on the screen."""
    app.file_uploader[0].set_value((name, content, "application/octet-stream")).run()
    return app


def words(app: Visit) -> str:
    """All that the screen says, in one line; nothing of it is markup."""
    return " ".join(assert_literal(app).split())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_without_a_log_it_asks_for_one_and_needs_no_run(runs: Path, open_screen: Open) -> None:
    shown = words(open_screen("imports", runs))
    assert "Nothing is kept until you file it" in shown
    assert "Nothing to show yet" not in shown


def test_it_opens_while_the_database_is_busy_or_broken(
    tmp_path: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("sorl.app.queries._WAIT", 0.05)
    monkeypatch.setattr("sorl.app.sync._LOCK", 0.05)
    (busy := tmp_path / "busy").mkdir()
    (broken := tmp_path / "broken").mkdir()
    database(broken).write_text("not a database")
    with writer(busy, 30.0):
        assert "Collapsed" in words(drop(open_screen("imports", busy), "a.jsonl", log_lines()))
    assert "Collapsed" in words(drop(open_screen("imports", broken), "a.jsonl", log_lines()))


def test_a_dropped_file_is_diagnosed_with_its_findings_curves_and_reading(
    runs: Path, open_screen: Open
) -> None:
    app = drop(open_screen("imports", runs), "my log.jsonl", log_lines(custom=1.0))
    shown = words(app)
    given = Given("my log.jsonl", log_lines(custom=1.0))
    diagnosis = uploads.read(given).diagnosis(0)
    for line in text(diagnosis).split("\n\n", 1)[0].splitlines():
        assert " ".join(line.split()) in shown
    assert diagnosis.findings
    for finding in diagnosis.findings:
        assert finding.cause.title in shown
        assert finding.clue.says in shown
    assert "completions/clipped_ratiostep.truncated_frac" in shown
    assert "Kept under their own names: custom." in shown
    assert [code.value for code in app.code] == [markdown(diagnosis)]
    (figure,) = app.figures
    titles = [note["text"] for note in figure["layout"]["annotations"]]
    assert titles[0].startswith("<b>reward</b>")


def test_a_pasted_text_is_diagnosed(runs: Path, open_screen: Open) -> None:
    app = open_screen("imports", runs, log="text")
    lines = [json.loads(line) for line in log_lines().decode().splitlines()]
    app.text_area(key="imports text").set_value("\n".join(map(str, lines))).run()
    assert "pasted.txt" in words(app)
    assert "Answers run into the token limit" in words(app)


def test_what_cannot_be_read_is_one_sentence_without_the_folder_it_was_written_to(
    runs: Path, open_screen: Open
) -> None:
    for name, content in (("notes.txt", b"no metric here"), ("empty.csv", b""), ("a.zip", b"PK\3\4broken")):
        app = drop(open_screen("imports", runs), name, content)
        shown = words(app)
        assert f"'{name}'" in shown
        assert "sorl-upload" not in shown
        assert not app.code
        assert not app.exception


def test_one_of_several_runs_is_chosen_from_a_list(runs: Path, open_screen: Open) -> None:
    content = zipped(one=log_lines(), two=log_lines(falls=False), words=b"hello")
    app = drop(open_screen("imports", runs), "both.zip", content)
    assert ": Collapsed: the reward falls" in words(app)
    assert "Not read: " in words(app)
    app.selectbox(key="part").set_value("1").run()
    assert app.value("part") == "1"
    shown = words(app)
    assert "two.jsonl (trainer not known, 60 rows" in shown
    assert "one.jsonl" not in shown


def test_a_filed_run_is_shown_by_the_other_screens_and_is_one_run_however_often_it_is_filed(
    runs: Path, open_screen: Open
) -> None:
    app = drop(open_screen("imports", runs), "trl.jsonl", log_lines())
    app.text_input(key="imports experiment").set_value("theirs").run()
    press(app, "File this run")
    (folder,) = (runs / "theirs").glob("trl-*")
    assert f'href="run?experiment=theirs&amp;run={folder.name}"' in app.source
    assert "Filed 1 run in theirs" in words(app)
    press(app, "File this run")
    assert [*(runs / "theirs").glob("trl-*")] == [folder]
    assert {path.name for path in runs.iterdir() if path.name.startswith(".")} == set()
    sync(runs)
    assert "Answers run into the token limit" in words(open_screen("run", runs, run=folder.name))


def test_all_runs_of_a_file_are_filed(runs: Path, open_screen: Open) -> None:
    content = zipped(one=log_lines(), two=log_lines(falls=False))
    app = press(drop(open_screen("imports", runs), "both.zip", content), "File all 2 runs")
    assert "Filed 2 runs in imported" in words(app)
    assert len([*(runs / "imported").glob("*/segments")]) == 2


def test_a_name_that_is_no_folder_is_refused(runs: Path, open_screen: Open) -> None:
    app = drop(open_screen("imports", runs), "trl.jsonl", log_lines())
    app.text_input(key="imports experiment").set_value("../out").run()
    press(app, "File this run")
    assert "is no name of a folder" in words(app)
    assert not runs.exists()


def test_a_runs_folder_that_cannot_be_written_is_said_and_the_diagnosis_is_shown(
    tmp_path: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    (tmp_path / "file").write_text("")
    app = drop(open_screen("imports", tmp_path / "file" / "runs"), "trl.jsonl", log_lines())
    assert "Nothing can be filed" in words(app)
    assert "Answers run into the token limit" in words(app)
    assert not [button for button in app.button if button.label.startswith("File ")]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "Nothing can be filed" in uploads.why_not_filed(tmp_path)


def test_nothing_is_filed_in_the_recorded_example(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (example := tmp_path / "sorl" / "example-0123456789ab").mkdir(parents=True)
    assert "recorded example" in uploads.why_not_filed(example)
    with pytest.raises(InputError, match="recorded example"):
        uploads.file_in(example, Given("trl.jsonl", log_lines()), "theirs")
    assert not [*example.iterdir()]


def test_hostile_names_and_metrics_are_shown_literally(runs: Path, open_screen: Open) -> None:
    lines = [f"{text} is no JSON" for text in HOSTILE]
    lines += log_lines(**dict.fromkeys(HOSTILE, 1.0)).decode().splitlines()
    for name in (f"{HOSTILE[0]}.jsonl", "../../etc/passwd", "a\x00b", "\u202etxet.jsonl", "x" * 500):
        app = drop(open_screen("imports", runs), name, "\n".join(lines).encode())
        words(app)
        assert_figure_literal(app.figures)
        assert "no JSON" not in "".join(m.value for m in app.markdown)


@pytest.mark.parametrize(
    "name", ["..", "", "/", ".hidden", "../../etc/passwd", "a/b\\c.log", "é" * 300, "\0"]
)
def test_a_file_of_any_name_is_written_below_its_folder(name: str, tmp_path: Path) -> None:
    path = Given(name, b"x").write_below(tmp_path)
    assert path.read_bytes() == b"x"
    assert path.parent.parent == tmp_path
    assert not path.name.startswith(".")


def test_nothing_that_was_uploaded_stays_behind(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    upload = uploads.read(Given("both.zip", zipped(one=log_lines(), two=zipped(deep=log_lines()))))
    assert upload.diagnosis(0).findings
    assert not [*tmp_path.iterdir()]


def test_a_file_beyond_the_limit_is_refused_by_server_and_screen(monkeypatch: Patch) -> None:
    settings = Path(uploads.__file__).parent / ".streamlit" / "config.toml"
    assert tomllib.loads(settings.read_text())["server"]["maxUploadSize"] == uploads.LIMIT_MIB
    monkeypatch.setattr(uploads, "LIMIT_MIB", 0.001)
    with pytest.raises(InputError, match=r"'big.jsonl' is larger than .* sorl diagnose FILE"):
        uploads.read(Given("big.jsonl", log_lines()))


def test_a_file_of_many_runs_lists_some_and_counts_the_others(monkeypatch: Patch) -> None:
    monkeypatch.setattr(uploads, "RUNS", 1)
    upload = uploads.read(Given("both.zip", zipped(one=log_lines(), two=log_lines())))
    assert (len(upload.parts), upload.left_out) == (1, 1)


def test_the_panels_are_the_reward_and_what_the_findings_cite_with_their_steps() -> None:
    run = uploads.read(Given("trl.jsonl", log_lines())).parts[0].run
    diagnosis = diagnose(log_of(run, Path("trl.jsonl")))
    panels = {panel.column: panel for panel in panels_of(diagnosis, run)}
    assert next(iter(panels)) == "step.reward"
    assert panels["step.truncated_frac"].metric == "completions/clipped_ratio"
    assert panels["minibatch.grad_norm"].broken.tolist() == list(range(50, STEPS + 1))
    drawn: set[int] = set()
    for panel in panels.values():
        drawn |= {mark.step for mark in panel.marks}
    for finding in diagnosis.findings:
        assert {figure.step for figure in finding.clue.evidence} <= drawn
    figure = checked(evidence([*panels.values()], diagnosis.log.onset, LIGHT))
    assert_figure_literal(figure)
    assert {shape.x0 for shape in figure.layout.shapes} >= {diagnosis.log.onset}


def test_a_long_curve_keeps_its_spikes() -> None:
    values = np.zeros(100_000)
    values[12_345] = 9.0
    values[77_777] = -9.0
    places = extremes(values, 1_000)
    assert len(places) <= 1_000
    assert {12_345, 77_777} <= set(places.tolist())

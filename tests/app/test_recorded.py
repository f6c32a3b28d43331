"""A run of another trainer on the screens and in the answers: recorded from TRL's own numbers."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sorl.analysis.runs import runs as runs_of
from sorl.cli.main import app as command
from sorl.store.example import runs_folder
from sorl.store.reader import Reader
from sorl.store.sync import sync
from sorl.trainers import trl
from tests.app.conftest import Open
from tests.recording.local import Local
from tests.trainers.fake_trl import FakeGRPO


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A runs folder with a run of TRL, next to one of ours, and the name of TRL's."""
    runs = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl, "Ledger", Local)
        trainer = FakeGRPO()
        book = trl.record(trainer, runs, experiment="quickstart", arm="TRL", tokens=16)
        trainer.train()
    ours = next(folder for folder in (runs_folder() / "quickstart").glob("grpo-s*") if folder.is_dir())
    shutil.copytree(ours, runs / "quickstart" / ours.name)
    sync(runs)
    return runs, book.run_id


def answered(runs: Path, *words: str) -> str:
    found = CliRunner().invoke(command, ["--runs", str(runs), *words])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_overview_shows_it_next_to_ours_and_turns_its_ledger(
    open_screen: Open, recorded: tuple[Path, str]
) -> None:
    assert "TRL" in open_screen("overview", recorded[0]).source
    app = open_screen("turns", recorded[0], run=recorded[1])
    assert app.figures or app.drawings
    assert "turn" in app.source


def test_an_episode_shows_its_transcript(open_screen: Open, recorded: tuple[Path, str]) -> None:
    app = open_screen("episode", recorded[0], run=recorded[1], step="1", trajectory="3")
    told = FakeGRPO().told["rollouts"][1]
    assert told["prompts"][3][0]["content"] in app.source
    first = told["out"]["prompt_ids"][3][told["out"]["prompt_mask"][3].index(1)]
    assert f"&lt;{first}&gt;" in app.source


def test_its_stored_batches_are_replayed(open_screen: Open, recorded: tuple[Path, str]) -> None:
    runs, run = recorded
    app = open_screen("replay", runs, run=run, step="1")
    assert "no answer" in app.source or app.figures
    found = json.loads(answered(runs, "replay", run, "--step", "1", "--format", "json"))
    assert found["updates"] == 8
    every = [row for row in found["summary"] if row["update"] is not None]
    logged = [row for row in every if row["own"] and row["source"] == "replayed"]
    asked = "SELECT clip_frac, approx_kl FROM minibatch WHERE run_id = ? AND step = 1 ORDER BY update"
    rows = Reader(runs).rows(asked, [run])
    assert [row["clip_frac"] for row in logged] == pytest.approx([clip for clip, _ in rows.rows], abs=1e-6)
    assert [row["approx_kl"] for row in logged] == pytest.approx([kl for _, kl in rows.rows], abs=1e-5)
    assert found["advantage_gap"] < 1e-4  # TRL's advantages follow from its rewards and groups


def test_diagnose_and_compare_take_it_as_any_run(recorded: tuple[Path, str]) -> None:
    runs, run = recorded
    said = answered(runs, "diagnose", run)
    assert run in said
    assert "minibatch.ratio_max" not in said  # the ledger is there
    table = answered(runs, "compare", "quickstart")
    assert "TRL" in table
    assert "grpo" in table
    assert set(runs_of(Reader(runs), "quickstart")["arm"]) == {"TRL", "grpo"}

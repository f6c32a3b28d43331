"""The screen Replay: a batch through several algorithms, by a process of its own, kept beside the batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import HOSTILE, Open, Patch
from tests.store.fixture import Shape, write_run
from tests.store.stored_batch import write_batch
from workbench.app.screens import replay
from workbench.diagnostics import CATALOGUE
from workbench.spec import InputError
from workbench.store.sync import sync


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which the second has batches, with tokens of hostile text."""
    folder = tmp_path_factory.mktemp("two_runs")
    for name in ("bare", "full"):
        shape = Shape(steps=4, trajectories=2, turns=2, epochs=1, tokens=0, steps_per_segment=4)
        run = write_run(folder, "demo", name, shape=shape)
    for step in (1, 3):
        write_batch(run, step, text=HOSTILE[0])
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def runs(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(two_runs, tmp_path, dirs_exist_ok=True))


def test_algorithms_stand_side_by_side_and_are_asked_once(runs: Path, open_screen: Open, monkeypatch: Patch) -> None:
    app = open_screen("replay", runs, algorithm=["ppo", "st-ppo"], measure="clip_frac")
    assert (app.value("run"), app.value("step")) == ("full", "3"), "the first run that has something to replay"
    for words in (
        "ppo (as logged)", "The advantages of ppo, computed again from the stored rewards, differ",
        'href="episode?experiment=demo&amp;run=full&amp;step=3',
    ):  # fmt: skip
        assert words in app.source
    assert "<script>alert" not in app.source
    tokens = app.dataframe[0].value
    assert list(tokens.columns) == ["turn", "token", "log-ratio", "ppo", "st-ppo"]
    assert set(tokens["token"]) == {HOSTILE[0]}
    (drawn,) = app.figures
    assert [trace["name"] for trace in drawn["data"]] == ["ppo", "st-ppo"]

    def refuse(words: list[str]) -> str:
        raise InputError("nothing more is asked")

    # What was asked once is read from the disk, and another trajectory is another question.
    monkeypatch.setattr(replay, "_ask", refuse)
    for other, words in (({"measure": "gradient_share"}, "ppo (as logged)"), ({"trajectory": "2"}, "nothing more")):
        assert words in open_screen("replay", runs, algorithm=["ppo", "st-ppo"], **other).source


def test_a_run_without_batches_says_what_to_type(two_runs: Path, open_screen: Open) -> None:
    app = open_screen("replay", two_runs, run="bare")
    assert "Run bare has no stored batch" in app.source
    assert "sorl run FILE.toml --fresh" in "".join(code.value for code in app.code)


def test_an_episode_of_a_stored_step_leads_to_its_replay(two_runs: Path, open_screen: Open) -> None:
    link = 'href="replay?experiment=demo&amp;run=full&amp;step=3&amp;trajectory=0"'
    assert link in open_screen("episode", two_runs, run="full", step="3", trajectory="0").source
    assert "replay?" not in open_screen("episode", two_runs, run="full", step="2", trajectory="0").source


def test_what_the_command_refuses_or_takes_too_long_for_is_said_and_not_kept(runs: Path, monkeypatch: Patch) -> None:
    folder = runs / "demo" / "full"
    (folder / "batches" / "000001.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be read"):
        replay.replayed(folder, 1, ["ppo"])
    monkeypatch.setattr(replay, "SECONDS", 0.01)
    with pytest.raises(InputError, match=r"sorl replay .*full --step 3"):
        replay.replayed(folder, 3, ["ppo"])
    assert not (folder / "batches" / ".replay").exists()


def test_an_answer_that_is_torn_or_of_another_batch_is_asked_again(runs: Path, monkeypatch: Patch) -> None:
    folder = runs / "demo" / "full"
    empty: dict[str, Any] = {"own": "ppo", "summary": [], "turns": [], "culprits": [], "tokens": []}
    asked: list[list[str]] = []
    monkeypatch.setattr(replay, "_ask", lambda words: asked.append(words) or json.dumps(empty))
    for _ in range(2):
        assert replay.replayed(folder, 3, ["ppo"]) == empty
    assert len(asked) == 1
    (kept,) = (folder / "batches" / ".replay").iterdir()
    kept.write_text("{")
    replay.replayed(folder, 3, ["ppo"])
    write_batch(folder, 3, text="another")
    replay.replayed(folder, 3, ["ppo"])
    assert len(asked) == 3
    assert "--algorithm" in asked[0]


def test_nan_is_shown_as_itself_and_null_as_a_dash() -> None:
    row = {"algorithm": "a", "update": 0, "source": "replayed", "reason": None}
    told = {"summary": [row | dict.fromkeys(replay.FIGURES) | {"ess_frac": "NaN", "clip_frac": 0.25}]}
    (cells,) = replay.summary(told)
    assert cells == ["a", "–", "–", "–", "–", "NaN", "0.25", "–", "–"]
    turns = [{"algorithm": "a", "turn_index": k, "update": 0, "clip_frac": v} for k, v in ((1, 0.5), (2, "NaN"))]
    assert replay.by_turn({"turns": turns}, "clip_frac").to_numpy().tolist() == [["a", 1, 0.5]]

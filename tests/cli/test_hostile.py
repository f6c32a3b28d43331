"""Whatever is typed or lies in a folder, a command ends in bounded time with one clear message, and obeys no name."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import done, sorl, told
from tests.cli.hostile import QUESTION, Case, cases
from tests.store.fixture import Shape, write_run
from tests.store.processes import ROOT
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

SECONDS, MEMORY = 10.0, 2 * 2**30
# Control characters, and those that reorder the text around them; lines may end.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CASES = list(cases())
assert len({case.name for case in CASES}) == len(CASES) > 300


@pytest.fixture(scope="module")
def small_grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("hostile") / "runs"
    shape = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=6)
    for seed in (0, 1):
        write_run(runs, "demo", f"ppo-s{seed}", shape=shape, seed=seed)
    sync(runs, CATALOGUE)
    return runs


def words_of(case: Case, folder: Path, grid: Path) -> list[str]:
    """Fill the folder, return the words of the command."""
    if case.grid:
        shutil.copytree(grid, folder / "runs")
    words = case.make(folder)
    return words if "--runs" in words else [*words, "--runs", str(folder / "runs")]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    found = [(path, path.lstat()) for path in folder.rglob("*")]
    return {str(path): (state.st_size, 0 if path.is_dir() else state.st_mtime_ns) for path, state in found}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if not case.heavy])
def test_bad_input_ends_in_one_message_and_changes_nothing(
    case: Case, small_grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = words_of(case, tmp_path, small_grid)
    before, since = contents(tmp_path), time.monotonic()
    result = sorl(*words)
    assert time.monotonic() - since < SECONDS
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in case.codes, result.output
    assert not OBEYED.search(result.output), ascii(result.output)
    if result.exit_code == 2:
        assert result.stdout == ""
        assert result.stderr.startswith(("sorl: ", "Usage: ", "corrupt segment set aside", "'"))
        assert len(result.stderr) < 6000
        if not case.grid:  # with one, the index may have been brought up to date
            assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for i, case in enumerate(CASES) if case.heavy or i % 12 == 0]
)
def test_a_process_ends_in_ten_seconds_and_two_gibibytes(case: Case, small_grid: Path, tmp_path: Path) -> None:
    words = words_of(case, tmp_path, small_grid)
    if any("\0" in word for word in words):
        pytest.skip("no process can be given a NUL")
    with (tmp_path / "said").open("wb+") as out:
        command = [sys.executable, str(ROOT / "cli.py"), *(os.fsencode(word) for word in words)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        since = time.monotonic()
        while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.monotonic() - since > 3 * SECONDS:
                process.kill()
                process.wait()
                pytest.fail("it hangs")
            time.sleep(0.02)
    _, status, used = waited
    process.returncode = os.waitstatus_to_exitcode(status)
    text = (tmp_path / "said").read_text(encoding="utf-8", errors="surrogateescape")
    assert "Traceback" not in text, text
    assert process.returncode in case.codes, text
    assert not OBEYED.search(text), ascii(text)
    assert used.ru_maxrss * 1024 < MEMORY
    assert used.ru_utime + used.ru_stime < SECONDS  # of its own: others share the machine


def test_json_has_a_name_with_its_escapes_and_means_it(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(QUESTION + '[[arms]]\nname = "a\\u001b\\u202e\\u0085"\n')
    words = ("plan", tmp_path / "grid.toml")
    assert r"a\u001b\u202e\u0085" in done(*words, "--format", "json", runs=tmp_path).stdout
    assert told(*words, runs=tmp_path)["cells"][0]["arm"] == "a\x1b\u202e\x85"


def test_no_verb_prints_past_the_one_function_that_shows_control_characters() -> None:
    past = re.compile(r"typer\.echo\(|(?<![\w.])print\(")
    found = [p.name for p in (ROOT / "workbench" / "cli").glob("*.py") if past.search(p.read_text(encoding="utf-8"))]
    assert found == ["tables.py"]

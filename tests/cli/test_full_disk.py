"""On a full disk every verb names the file that it could not write, and nothing is lost."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from docs.generate.render import ROOT
from sorl.analysis import results
from sorl.grid import folder
from tests.cli.command import done, refused
from tests.store.fixture import write_run

FULL = "no space is left on its disk; make room and run the same command again"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """A disk of its own with a runs folder, and what fills it to the last byte; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = "size=6m,nr_inodes=10000"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    (disk / "runs").mkdir()

    def fill() -> Path:
        ballast = os.open(disk / "ballast", os.O_CREAT | os.O_WRONLY)
        with suppress(OSError):
            while os.write(ballast, b"x" * 4096):
                pass
        os.close(ballast)
        return disk

    try:
        yield fill
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_on_a_full_disk_the_file_is_named_and_what_there_is_can_be_read(full, tmp_path, small, two_results):
    runs = tmp_path / "disk" / "runs"
    write_run(runs, "demo", "a", shape=small)
    done("sync", runs=runs)
    write_run(runs, "demo", "b", shape=small)
    disk = full()
    refused(f"database '{runs}/sorl.duckdb' cannot be written: {FULL}", "sync", runs=runs)
    listed = done("ls", runs=runs)
    assert "demo: 1 runs" in listed.stdout
    assert FULL in listed.stderr
    (tmp_path / "log.jsonl").write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(12)))
    refused(f"parquet': {FULL}", "import", tmp_path / "log.jsonl", runs=runs)
    refused(f"run.json': {FULL}", "sync", "--from", two_results, runs=runs)
    for words in (("--format", "md", "-o", disk / "r.md"), ("--export", disk / "r.parquet")):
        refused(f"cannot write '{words[-1]}': {FULL}", "report", "--from", two_results, *words, runs=runs)
    (disk / "ballast").unlink()
    assert "2 runs from" in done("sync", "--from", two_results, runs=runs).stdout, "no half a run is left"
    assert "demo: 2 runs" in done("ls", runs=runs).stdout


@pytest.fixture
def two_results(tmp_path: Path) -> Path:
    """The shipped results of two runs."""
    shipped = results.read(ROOT / "experiments" / "results" / "six_by_five.parquet")
    results.write(replace(shipped, table=shipped.table.slice(0, 2)), tmp_path / "two.parquet")
    return tmp_path / "two.parquet"


def test_a_device_that_takes_nothing_is_named(two_results, tmp_path):
    """As above, for those who may not mount a disk."""
    words = ("report", "--from", two_results, "--format", "md", "-o", "/dev/full")
    refused(f"cannot write '/dev/full': {FULL}", *words, runs=tmp_path)
    (tmp_path / f".run.json.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as refusal:
        folder.write(tmp_path / "run.json", "{}")
    assert refusal.value.filename == str(tmp_path / "run.json")
    (tmp_path / "segments" / "run").mkdir(parents=True)
    (tmp_path / "segments" / "run" / f".queue-000000.parquet.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as refusal:
        folder.append(tmp_path, "run", {"run_id": "a"})
    assert refusal.value.filename == str(tmp_path / "segments" / "run" / "queue-000000.parquet")

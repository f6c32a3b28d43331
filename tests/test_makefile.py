"""Every target of the Makefile is started once, or its help line names what it needs."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^([a-z-]+):.*?## (.*)$", MAKEFILE, re.MULTILINE))
SUITES = {"test", "check", "test-slow"}  # they run this very suite
NEEDS = {name for name, line in TARGETS.items() if re.search(r"; needs [\w-]+", line)}
STARTED = {"help", "clean", "docs", "bench", "bench-collapse", "run", "example", "demo", "app"}
# One arm, two iterations: enough to be a run, too little to learn anything.
TINY = """
question = "Does the Makefile start?"
[base]
iterations = 2
[base.learn]
episodes = 8
[base.warmstart]
steps = 2
[base.evaluation]
episodes = 8
[axes]
algorithm = ["ppo"]
"""


def make(target: str, folder: Path = ROOT, **variables: object) -> list[str]:
    """The command that starts a target in this environment, without installing anything."""
    environment = Path(sys.prefix)
    ready = []
    for stamp in (".core", ".app", ".test"):
        ready += ["-o", str(environment / "bin" / stamp)]
    given = [f"{name}={value}" for name, value in variables.items()]
    return ["make", "-C", str(folder), *ready, target, f"VENV={environment}", *given]


def started(target: str, folder: Path = ROOT, **variables: object) -> str:
    """What a target prints; the test fails if the target does."""
    done = subprocess.run(make(target, folder, **variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_target_is_started_here_or_says_what_it_needs() -> None:
    assert set(TARGETS) == SUITES | NEEDS | STARTED
    assert not STARTED & NEEDS


def test_help_lists_every_target() -> None:
    printed = started("help")
    assert all(re.search(rf"^{name}\s", printed, re.MULTILINE) for name in TARGETS)


@pytest.mark.parametrize("target", sorted(SUITES | NEEDS))
def test_the_recipe_of_a_target_that_is_not_started_is_complete(target: str) -> None:
    assert started(target, MAKEFLAGS="n")


def test_clean_removes_caches_and_environments_and_no_runs(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    for name in (".venv/bin", ".venv-trl", ".mypy_cache", "runs/mine"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["make", "-C", str(tmp_path), "clean"], check=True, capture_output=True)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["Makefile", "runs"]
    assert (tmp_path / "runs" / "mine").is_dir()


def test_docs_rewrites_a_generated_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- [[[cog\nimport cog\ncog.outl('new')\n]]] -->\nold\n<!-- [[[end]]] -->\n")
    started("docs", GENERATED=page)
    assert "new" in page.read_text()
    assert "old" not in page.read_text()


def test_bench_collapse_prints_its_table_of_a_few_runs() -> None:
    assert "| noise | fall |" in started("bench-collapse", SCALE=0.002)


@pytest.mark.slow
def test_bench_measures_one_part_in_one_round(tmp_path: Path) -> None:
    assert "ingest" in started("bench", BENCH="--only ingest --rounds 1")


@pytest.mark.slow
def test_run_trains_a_grid_and_example_packs_it(tmp_path: Path) -> None:
    grid = tmp_path / "quickstart.toml"
    grid.write_text(TINY)
    assert "ppo" in started("run", GRID=grid, RUNS=tmp_path / "runs")
    archive = tmp_path / "example.tar.xz"
    printed = started("example", GRID=grid, EXAMPLE_RUNS=tmp_path / "runs", EXAMPLE=archive)
    assert archive.stat().st_size > 0
    assert f"{archive}: " in printed


@pytest.mark.slow
@pytest.mark.parametrize("target", ["demo", "app"])
def test_the_app_answers(target: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = make(target, RUNS=tmp_path / "runs", APP=f"--port {port}")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        assert _answers(f"http://127.0.0.1:{port}/_stcore/health", seconds=60)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def _answers(address: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            time.sleep(0.2)
    return False


def test_the_commit_hooks_name_files_that_exist() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    named = re.findall(r"\b(?:docs|workbench)/\S+\.\w+\b", hooks)
    assert named
    assert all((ROOT / name).is_file() for name in named)

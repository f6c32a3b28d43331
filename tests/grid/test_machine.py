from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.grid import machine
from workbench.grid.child import Child, peak_of
from workbench.grid.machine import cores, oom_kills, quota
from workbench.grid.memory import Footprint


@pytest.mark.parametrize(
    ("text", "expected"), [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", None)]
)
def test_a_container_may_use_the_whole_cores_of_its_quota(tmp_path: Path, text: str, expected: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(f"{text}\n")
    assert quota(file) == expected
    assert quota(tmp_path / "none") is None


def test_cores_are_those_of_the_affinity_unless_a_quota_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "quota", lambda file: None)
    assert cores() == 8
    monkeypatch.setattr(machine, "quota", lambda file: 3)
    assert cores() == 3
    monkeypatch.setattr(machine, "quota", lambda file: 64)
    assert cores() == 8


def test_the_kernels_count_of_kills_is_read_or_unknown(tmp_path: Path) -> None:
    file = tmp_path / "vmstat"
    file.write_text("pgfault 9\noom_kill 4\nthp_zero_page_alloc 0\n")
    assert oom_kills(file) == 4
    file.write_text("pgfault 9\n")
    assert oom_kills(file) is None
    assert oom_kills(tmp_path / "none") is None


def test_a_process_that_grows_and_dies_between_two_looks_still_has_its_peak(tmp_path: Path) -> None:
    ours = peak_of(resource.getrusage(resource.RUSAGE_SELF))
    size = ours + 64 * 2**20
    child = Child([sys.executable, "-c", f"import time; b = b'x' * {size}; time.sleep(0.2)"], tmp_path / "log", 1)
    time.sleep(3)
    deadline = time.monotonic() + 60
    while (sight := child.look()).code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sight.code == 0
    assert size <= sight.peak < size + 64 * 2**20


def test_a_footprint_is_that_of_the_whole_family_and_remembers_its_peak() -> None:
    mib = 2**20
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', \"b = b'x' * (64 << 20); print(1, flush=True); input()\"], "
        "stdin=-1, stdout=-1)\nchild.stdout.readline(); print(1, flush=True); input()\n"
        "child.communicate(b'x'); print(2, flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        footprint = Footprint(process.pid)
        both = footprint.measure()
        assert both > 64 * mib
        process.stdin.write("x\n")
        process.stdin.flush()
        process.stdout.readline()
        assert footprint.measure() < both - 60 * mib
        assert footprint.peak == both
        process.stdin.write("x\n")
    assert footprint.measure() == 0
    assert Footprint(process.pid).measure() == 0, "no such process any more"

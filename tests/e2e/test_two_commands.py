"""`sorl run` typed twice at the same time."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.test_killed_grid import ROOT, place
from tests.grid.harness import starts


def test_two_commands_at_once_train_no_cell_twice_and_print_the_same_table(tmp_path: Path) -> None:
    both = place(tmp_path / "both", seeds=1, base={"iterations": 5}, scripted=True)
    command = both.sorl("run", str(both.folder / "kill.toml"), "--workers", "2")
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) for _ in range(2)]
    ends = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    (first, said), (second, also_said) = ends
    assert first == second
    assert first.count("1/1 [") == first.count("0/1 [") == 3, first
    assert [starts(cell) for cell in both.cells()] == [1] * 6
    assert "trained by another process" in said + also_said, "they met"

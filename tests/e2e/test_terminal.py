"""A terminal that is closed while a grid runs in it: a window, or a connection that broke."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path

from tests.e2e.test_killed_grid import ROOT, place
from tests.grid.harness import row


def test_a_closed_terminal_is_a_ctrl_c_and_the_cells_write_their_checkpoints(tmp_path: Path) -> None:
    mine = place(tmp_path / "mine", seeds=1, base={"iterations": 200}, scripted=True)
    terminal, inside = pty.openpty()
    command = mine.sorl("run", str(mine.folder / "kill.toml"), "--workers", "2")
    grid = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True, cwd=ROOT,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(inside)
    os.set_blocking(terminal, False)
    deadline = time.monotonic() + 120
    while not any((cell / "checkpoints").exists() for cell in mine.cells()) and time.monotonic() < deadline:
        with suppress(BlockingIOError):
            os.read(terminal, 65536)  # or it fills up, and the grid waits
        time.sleep(0.02)
    os.close(terminal)
    grid.wait(120)
    stopped = [row(cell) for cell in mine.cells() if row(cell)["status"] != "queued"]
    assert stopped
    assert {(r["status"], r["reason"]) for r in stopped} <= {
        ("interrupted", "stopped by SIGINT"),
        ("interrupted", "stopped before its first step"),
    }
    assert any(r["steps"] for r in stopped)

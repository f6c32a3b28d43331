from __future__ import annotations

import threading
from pathlib import Path

from tests.store.contents import one
from tests.store.processes import HOLD, python
from workbench.diagnostics import CATALOGUE
from workbench.record.segments import SegmentWriter
from workbench.store.connect import Busy
from workbench.store.reader import Reader
from workbench.store.sync import sync

STEPS = 40


def test_a_run_that_everybody_watches_writes_on_and_loses_no_row(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "a"
    writer = SegmentWriter(folder, flush_seconds=60.0)
    writer.append("step", {"run_id": "a", "step": 0, "success": 0.0})
    assert writer.flush()
    sync(tmp_path, CATALOGUE)
    shells = [python(HOLD, tmp_path / "sorl.duckdb", "read") for _ in range(2)]
    for shell in shells:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "open\n"
    seen: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            seen.append(Reader(tmp_path).rows("SELECT count(*) FROM step").rows[0][0])
            try:
                sync(tmp_path, CATALOGUE, seconds=0.0)
            except Busy:
                continue

    watcher = threading.Thread(target=ask)
    watcher.start()
    # The shells let go only when everything is written: a writer that waited for them would never come to its end.
    for step in range(1, STEPS):
        writer.append("step", {"run_id": "a", "step": step, "success": step / STEPS})
        assert writer.flush()
    writer.close()
    for shell in shells:
        shell.communicate(timeout=120)
    over.set()
    watcher.join(timeout=120)
    sync(tmp_path, CATALOGUE)
    assert len(seen) > 0
    assert seen == sorted(seen)
    assert one(tmp_path, "SELECT list(step ORDER BY step) FROM step") == list(range(STEPS))

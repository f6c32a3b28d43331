from __future__ import annotations

import faulthandler
from pathlib import Path

from workbench.grid.log import last_line, last_step, where


def test_the_last_line_that_says_something_is_neither_progress_nor_somebodys_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('ValueError: no\n{"step": 3, "steps": 9}\n 30%|###   | 3/9 [00:01<00:02, 2.5it/s]\n\n')
    assert last_line(log) == "ValueError: no"
    assert last_step(log) == 3
    assert last_line(log, since=len("ValueError: no\n")) == ""
    assert last_line(tmp_path / "none") == ""
    assert last_step(tmp_path / "none") is None


def test_a_line_that_only_looks_like_progress_is_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"step": 4}\n{"step" is not JSON\n{"step": null}\n')
    assert last_line(log) == '{"step": null}'
    assert last_step(log) == 4


def test_the_place_where_a_process_stands_is_the_top_of_its_main_threads_last_dump(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert where(log) == ""
    with log.open("w") as handle:
        handle.write("some words\n")
        handle.flush()
        faulthandler.dump_traceback(handle, all_threads=True)
    assert where(log).startswith(
        "test_the_place_where_a_process_stands_is_the_top_of_its_main_threads_last_dump (test_log.py:"
    )
    assert where(log, since=log.stat().st_size) == ""

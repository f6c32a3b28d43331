from __future__ import annotations

import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest

from workbench.grid.process import cores, ending, last_line, last_step, one_line, where
from workbench.spec.outcomes import cause


@pytest.mark.parametrize(
    ("code", "said", "kind", "reason", "named"),
    [
        (0, "any words", "", "", ""),
        (3, "stopped by SIGINT after step 4", "interrupted", "stopped by SIGINT after step 4", ""),
        (2, "sorl: no model at 'x'", "failed", "no model at 'x'", "failed"),
        (1, "ValueError: no", "failed", "ValueError: no", "failed"),
        (1, "", "failed", "exit code 1, nothing in console.log", "failed"),
        (-9, "", "killed", "killed by SIGKILL, often because memory ran out", "killed"),
        (-11, "Fatal: x", "killed", "killed by SIGSEGV: Fatal: x", "killed"),
        (-15, "", "killed", "killed by SIGTERM", "killed"),
        (1, "lost with its Ray worker: node", "killed", "lost with its Ray worker: node", "killed"),
        (1, "hang: no sign of life for 9 s", "hang", "hang: no sign of life for 9 s", "hang"),
        (1, "out of memory: 2 GiB, over", "out_of_memory", "out of memory: 2 GiB, over", "out of memory"),
        *(
            (code, said, "out_of_memory", f"out of memory: {said}", "out of memory")
            for code, said in [
                (1, "MemoryError"),
                (
                    1,
                    "numpy._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (10,)",
                ),
                (1, "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"),
                (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
                (1, "pyarrow.lib.ArrowMemoryError: malloc of size 99999 failed"),
                (1, "OSError: [Errno 12] Cannot allocate memory"),
                (-6, "terminate called after throwing an instance of 'std::bad_alloc'"),
            ]
        ),
    ],
)
def test_an_exit_code_and_the_last_words_are_a_cause_that_the_row_alone_tells(
    code: int, said: str, kind: str, reason: str, named: str
) -> None:
    found = ending(code, said)
    assert found.status == {"": "finished", "interrupted": "interrupted"}.get(kind, "failed")
    assert (found.kind, found.reason, found.again) == (kind, reason, code not in (0, 2, 3))
    assert cause({"status": found.status, "reason": reason or None}) == named


def test_a_divergence_is_a_cause_of_its_own() -> None:
    row: dict[str, Any] = {"status": "finished", "outcome": "diverged", "reason": "loss is not finite"}
    assert cause(row) == "diverged"
    assert cause({"status": "interrupted", "reason": "stopped by SIGINT"}) == ""


def test_a_reason_is_one_line_of_bounded_length_without_control_characters() -> None:
    assert one_line("a\n\tb\x1b[31m c\x00") == "a b c"
    assert len(one_line("x" * 10_000)) == 400
    assert one_line("x" * 10_000).endswith(" ...")


def test_the_last_line_of_text_is_neither_progress_nor_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('ValueError: no\n{"step": 3, "steps": 9}\n 30%|###   | 3/9 [00:01<00:02, 2.5it/s]\n\n')
    assert (last_line(log), last_step(log)) == ("ValueError: no", 3)
    assert last_line(log, since=len("ValueError: no\n")) == ""
    assert (last_line(tmp_path / "none"), last_step(tmp_path / "none")) == ("", None)
    log.write_text('{"step": 4}\n{"step" is not JSON\n{"step": null}\n')
    assert (last_line(log), last_step(log)) == ('{"step": null}', 4), "what only looks like progress is text"


def test_the_place_where_a_process_hangs_is_the_top_of_its_main_thread_in_the_last_dump(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert where(log) == ""
    with log.open("w") as handle:
        handle.write("some words\n")
        handle.flush()
        faulthandler.dump_traceback(handle, all_threads=True)
    name = "test_the_place_where_a_process_hangs_is_the_top_of_its_main_thread_in_the_last_dump (test_folder.py:"
    assert where(log).startswith(name)
    assert where(log, since=log.stat().st_size) == ""


@pytest.mark.parametrize(
    ("quota", "expected"), [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8)]
)
def test_cores_are_those_of_the_affinity_unless_a_containers_quota_is_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cores(tmp_path / "cpu.max") == expected
    assert cores(tmp_path / "none") == 8

import os
from pathlib import Path

import pytest

from workbench.grid.process import cores, ending, last_line, last_step
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
                (1, "numpy._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (10,)"),
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
    assert len(ending(1, "x" * 10_000).reason) <= 420


def test_the_last_line_of_text_is_neither_progress_nor_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('ValueError: no\n{"step": 3, "steps": 9}\n 30%|###   | 3/9 [00:01<00:02, 2.5it/s]\n\n')
    assert (last_line(log), last_step(log)) == ("ValueError: no", 3)
    assert last_line(log, since=len("ValueError: no\n")) == ""
    assert (last_line(tmp_path / "none"), last_step(tmp_path / "none")) == ("", None)
    log.write_text('{"step": 4}\n{"step" is not JSON\n{"step": null}\n')
    assert (last_line(log), last_step(log)) == ('{"step": null}', 4), "what only looks like progress is text"


def test_cores_are_those_of_the_affinity_unless_a_containers_quota_is_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for quota, expected in (("200000", 2), ("250000", 2), ("50000", 1), ("max", 8)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert cores(tmp_path / "cpu.max") == expected
    assert cores(tmp_path / "none") == 8

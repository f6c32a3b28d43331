from __future__ import annotations

from typing import Any

import pytest

from workbench.grid.child import Sight
from workbench.grid.ending import cause, ending, hang, one_line, over_memory

GIB = 2**30


@pytest.mark.parametrize(
    ("code", "said", "status", "kind", "reason", "again"),
    [
        (0, "whatever", "finished", "", "", False),
        (3, "stopped by SIGINT after step 4", "interrupted", "interrupted", "stopped by SIGINT after step 4", False),
        (2, "sorl: no model at 'x'", "failed", "failed", "no model at 'x'", False),
        (1, "ValueError: no", "failed", "failed", "ValueError: no", True),
        (1, "", "failed", "failed", "exit code 1, nothing in console.log", True),
        (-9, "", "failed", "killed", "killed by SIGKILL at 1.5 GiB", True),
        (-11, "Fatal: x", "failed", "killed", "killed by SIGSEGV: Fatal: x", True),
        (-15, "", "failed", "killed", "killed by SIGTERM", True),
    ],
)
def test_an_exit_code_and_the_last_words_are_a_cause(
    code: int, said: str, status: str, kind: str, reason: str, again: bool
) -> None:
    found = ending(Sight(code, peak=GIB * 3 // 2), said)
    assert (found.status, found.kind, found.reason, found.again) == (status, kind, reason, again)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "MemoryError"),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (10,)"),
        (1, "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
        (1, "pyarrow.lib.ArrowMemoryError: malloc of size 99999 failed"),
        (1, "OSError: [Errno 12] Cannot allocate memory"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'"),
    ],
)
def test_every_way_to_say_that_memory_ran_out_is_one_cause_with_the_peak(code: int, said: str) -> None:
    found = ending(Sight(code, peak=GIB // 2), said)
    assert found.kind == "out_of_memory"
    assert found.reason == f"out of memory at 0.5 GiB: {said}"


def test_the_kernel_alone_knows_that_it_killed_for_want_of_memory() -> None:
    found = ending(Sight(-9, peak=3 * GIB, starved=True), "step 4")
    assert (found.kind, found.reason) == ("out_of_memory", "out of memory: the kernel killed it at 3 GiB")


def test_a_worker_that_is_lost_may_be_tried_again() -> None:
    found = ending(Sight(lost="with its Ray worker: node died"), "")
    assert (found.kind, found.reason, found.again) == ("killed", "lost: with its Ray worker: node died", True)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"status": "finished", "outcome": "healthy"}, ""),
        ({"status": "finished", "outcome": "diverged", "reason": "loss is not finite"}, "diverged"),
        ({"status": "interrupted", "reason": "stopped by SIGINT"}, ""),
        ({"status": "failed", "reason": hang(300.4, 41, "recv (socket.py:706)").reason}, "hang"),
        ({"status": "failed", "reason": over_memory(Sight(peak=GIB), GIB // 2).reason}, "out of memory"),
        ({"status": "failed", "reason": ending(Sight(-9, starved=True), "").reason}, "out of memory"),
        ({"status": "failed", "reason": ending(Sight(1), "MemoryError").reason}, "out of memory"),
        ({"status": "failed", "reason": ending(Sight(-9), "").reason}, "killed"),
        ({"status": "failed", "reason": ending(Sight(lost="node"), "").reason}, "killed"),
        ({"status": "failed", "reason": "ValueError: no"}, "failed"),
        ({"status": "failed", "reason": None}, "failed"),
    ],
)
def test_the_row_alone_tells_the_cause_whoever_wrote_it(row: dict[str, Any], expected: str) -> None:
    assert cause(row) == expected


def test_a_hang_says_since_when_in_which_step_and_where() -> None:
    assert hang(300.4, 41, "recv (socket.py:706)").reason == (
        "hang: no sign of life for 300 s in step 41, in recv (socket.py:706)"
    )
    assert hang(300.4, 41).reason == "hang: no sign of life for 300 s in step 41"


def test_a_reason_is_one_line_of_bounded_length_without_control_characters() -> None:
    assert one_line("a\n\tb\x1b[31m c\x00") == "a b c"
    assert len(one_line("x" * 10_000)) == 400
    assert one_line("x" * 10_000).endswith(" ...")

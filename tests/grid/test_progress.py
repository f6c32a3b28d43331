"""How long a grid takes, before it runs and while it does, and how its processes end."""

import io
import os
from itertools import pairwise

import pytest
from rich.console import Console

from sorl.algorithms import resolve
from sorl.grid import progress as progress_module
from sorl.grid.cell import estimate, rough
from sorl.grid.config import load
from sorl.grid.cost import START
from sorl.grid.process import cores, ending, last_line, last_step
from sorl.grid.progress import Display, duration, sparkline
from sorl.grid.run import Result
from sorl.learn import pulse as pulse_module
from sorl.learn.pulse import Pulse
from sorl.spec import RunSettings
from sorl.spec import heartbeat as heartbeat_module
from sorl.spec.heartbeat import NAME
from sorl.spec.vocabulary import cause
from tests.grid.harness import grid_file

SLOW = 3.0 / rough(RunSettings(), resolve("grpo"))  # three seconds an iteration of grpo, which has no critic


@pytest.mark.parametrize(
    ("overrides", "training"),
    [
        (["seeds=[0]"], 30.0),
        (["stop.updates=10"], 9.0),  # 4 updates an iteration
        (["stop.seconds=5.0"], 5.0),
        (["stop.updates=400"], 30.0),
    ],
)
def test_recorded_runs_set_the_pace_and_budgets_bound_it(tmp_path, overrides, training):
    text = (
        'seeds = [0, 1, 2]\n[base]\nalgorithm = "grpo"\niterations = 10\nlearn.minibatches ='
        " 4\nlearn.epochs = 1"
    )
    cells = load(grid_file(tmp_path, text), overrides).cells
    costly = SLOW * rough(RunSettings(), resolve("grpo")) / rough(cells[0].settings, cells[0].resolved)
    one_by_one = estimate(cells, [costly], workers=1)
    assert one_by_one.seconds == pytest.approx(len(cells) * (START + training))
    assert one_by_one.recorded == 1
    assert estimate(cells, [costly], workers=3).seconds == pytest.approx(START + training)
    without = estimate(cells)
    warm = estimate(cells, warm_starts=[cells[0].settings])
    assert (without.recorded, estimate([]).seconds) == (0, 0.0)
    assert warm.seconds > without.seconds + 10


def test_durations_read_like_speech_and_a_sparkline_has_a_gap_where_nothing_was_measured():
    assert [duration(s) for s in (None, 0.4, 59.6, 185, 4800)] == [
        "?",
        "0 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 20 min",
    ]
    assert sparkline([0.0, 0.5, None, 1.0, float("nan"), 2.0, -1.0]) == "▁▅ █ █▁"
    assert len(sparkline([0.1] * 100)) == 24


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", ["ppo", r"[/red] [bold]\u001b]0;x\u0007\u202e"])
def test_a_terminal_shows_a_live_table_a_log_plain_lines_and_names_as_text(tmp_path, terminal, name):
    (cell,) = load(grid_file(tmp_path, f'[[arms]]\nname = "{name}"')).cells
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=terminal, width=120, color_system=None))
    display.begin([cell], [], 2)
    display.started(cell, False, tmp_path)
    for step in (1, 2, 3):
        row = {"step": step, "steps": 80, "success": 0.2 * step, "clip_frac": 0.0213, "grad_norm": 12.3}
        display.stepped(cell, row)
    display.tick()
    display.ended(Result(cell, "failed", tmp_path, "RuntimeError: no memory", seconds=61))
    display.note(cell.arm)
    display.close()
    text = out.getvalue()
    assert f"failed  {name}  seed 0  step 3/80, success 0.600, 1 min 01 s: RuntimeError: no memory" in text
    assert ("▂▄▅" in text) == terminal
    assert ("0.021" in text and "12.3" in text) == terminal
    assert ("\x1b" in text) == terminal, "no control sequence reaches a log file"
    assert (f"start  {name}  seed 0" in text) == (not terminal)
    assert not any(mark in text for mark in ("\x1b]", "\x07", "\u202e"))


class Clock:
    """A clock that tests set, in place of module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


class Heard(io.StringIO):
    """Remembers when something new was written."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.times = [0.0]
        self.known: set[str] = set()

    def write(self, text: str) -> int:
        if text not in self.known:
            self.known.add(text)
            self.times.append(self.clock.now)
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_ten_seconds_never_pass_in_silence_while_a_step_takes_minutes(tmp_path, monkeypatch, terminal):
    clock = Clock()
    for module in (progress_module, pulse_module, heartbeat_module):
        monkeypatch.setattr(module, "time", clock)
    (cell,) = load(grid_file(tmp_path, '[[arms]]\nname = "ppo"')).cells
    out = Heard(clock)
    display = Display(Console(file=out, force_terminal=terminal, width=160, color_system=None))
    before = Pulse(tmp_path / NAME)  # an attempt that was killed
    before.part("an update of yesterday")
    display.begin([cell], [], 1)
    display.started(cell, True, tmp_path)
    pulse = Pulse(tmp_path / NAME)
    ended = 0
    for tenth in range(2400):
        clock.now = tenth / 10
        if tenth == 100:  # the libraries are there
            pulse.part("loading the [bold]model")
        if tenth == 600:
            pulse.begin()
            pulse.step(0, 80)
            pulse.part("rollout", 32, "episodes ended")
        if tenth > 600 and tenth % 150 == 0:
            ended += 1
            pulse.count(ended, detail="turn 1 of 4")
        display.tick()
    gaps = [later - sooner for sooner, later in pairwise([*out.times, clock.now])]
    display.stepped(cell, {"step": 1, "steps": 80, "success": 0.5})
    display.close()
    text = out.getvalue()
    assert max(gaps) < 10
    assert "yesterday" not in text
    assert "loading the [bold]model, for 30 s" in text
    assert "step 1 of 80: rollout, turn 1 of 4, 8 of 32 episodes ended" in text


def test_a_pipe_is_told_that_all_cells_that_are_left_are_trained_elsewhere(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    cells = load(grid_file(tmp_path, '[[arms]]\nname = "ppo"')).cells
    out = io.StringIO()
    display = Display(Console(file=out, width=160))
    display.begin(cells, [], 1)
    clock.now = 9.0
    display.tick()
    assert "0 of 1 cells done, ? left; another process trains what is left" in out.getvalue()


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
                (
                    1,
                    (
                        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't"
                        " allocate memory"
                    ),
                ),
                (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
                (1, "pyarrow.lib.ArrowMemoryError: malloc of size 99999 failed"),
                (1, "OSError: [Errno 12] Cannot allocate memory"),
                (-6, "terminate called after throwing an instance of 'std::bad_alloc'"),
            ]
        ),
    ],
)
def test_an_exit_code_and_the_last_words_are_a_cause_that_the_row_alone_tells(
    code, said, kind, reason, named
):
    found = ending(code, said)
    assert found.status == {"": "finished", "interrupted": "interrupted"}.get(kind, "failed")
    assert (found.kind, found.reason, found.again) == (kind, reason, code not in (0, 2, 3))
    assert cause({"status": found.status, "reason": reason or None}) == named
    assert len(ending(1, "x" * 10_000).reason) <= 420


def test_the_last_line_of_text_is_neither_progress_nor_a_progress_bar(tmp_path):
    log = tmp_path / "log"
    log.write_text('ValueError: no\n{"step": 3, "steps": 9}\n 30%|###   | 3/9 [00:01<00:02, 2.5it/s]\n\n')
    assert (last_line(log), last_step(log)) == ("ValueError: no", 3)
    assert last_line(log, since=len("ValueError: no\n")) == ""
    assert (last_line(tmp_path / "none"), last_step(tmp_path / "none")) == ("", None)
    log.write_text('{"step": 4}\n{"step" is not JSON\n{"step": null}\n')
    assert (last_line(log), last_step(log)) == ('{"step": null}', 4), "what only looks like progress is text"


def test_cores_are_those_of_the_affinity_unless_a_containers_quota_is_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for quota, expected in (("200000", 2), ("250000", 2), ("50000", 1), ("max", 8)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert cores(tmp_path / "cpu.max") == expected
    assert cores(tmp_path / "none") == 8

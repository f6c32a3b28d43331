from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from workbench.grid.config import load
from workbench.grid.progress import duration, sparkline, watch
from workbench.grid.run import Result


def test_a_sparkline_has_a_bar_per_point_from_0_to_1_and_a_gap_where_nothing_was_measured() -> None:
    assert sparkline([0.0, 0.5, None, 1.0, float("nan"), 2.0, -1.0]) == "▁▅ █ █▁"
    assert len(sparkline([0.1] * 100)) == 24


def test_durations_read_like_speech() -> None:
    assert [duration(s) for s in (None, 0.4, 59.6, 185, 4800)] == ["?", "0 s", "1 min 00 s", "3 min 05 s", "1 h 20 min"]


def test_without_a_terminal_there_are_plain_lines_and_with_one_a_table_that_is_redrawn(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('question = "What does it show?"\n[axes]\nalgorithm = ["ppo", "grpo"]')
    cells = load(path).cells
    for terminal in (False, True):
        out = io.StringIO()
        display = watch(Console(file=out, force_terminal=terminal, width=110, color_system=None))
        display.begin(cells, [], 2)
        display.started(cells[0], False)
        for step in (1, 2, 3):
            row = {"step": step, "steps": 80, "success": 0.2 * step, "clip_frac": 0.0213, "grad_norm": 12.3}
            display.stepped(cells[0], row)
        display.tick()
        display.ended(Result(cells[0], "failed", tmp_path, "RuntimeError: no memory", seconds=61))
        display.close()
        text = out.getvalue()
        assert "failed  ppo  seed 0  step 3/80, success 0.600, 1 min 01 s: RuntimeError: no memory" in text
        assert ("▂▄▅" in text) == terminal
        assert ("0.021" in text and "12.3" in text) == terminal
        assert ("\x1b" in text) == terminal, "no control sequence reaches a log file"
        assert ("start  ppo  seed 0" in text) == (not terminal)


def test_a_name_with_markup_and_escapes_is_text_in_both_displays(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('question = "Is a name obeyed?"\n[[arms]]\nname = "[/red] [bold]\\u001b]0;x\\u0007\\u202e"')
    (cell,) = load(path).cells
    for terminal in (False, True):
        out = io.StringIO()
        display = watch(Console(file=out, force_terminal=terminal, width=110, color_system=None))
        display.begin([cell], [], 1)
        display.started(cell, False)
        display.stepped(cell, {"step": 1, "steps": 80, "success": 0.5})
        display.tick()
        display.note(cell.arm)
        display.ended(Result(cell, "finished", tmp_path, cell.arm))
        display.close()
        assert r"[/red] [bold]\u001b]0;x\u0007\u202e" in out.getvalue()
        assert not any(mark in out.getvalue() for mark in ("\x1b]", "\x07", "\u202e"))

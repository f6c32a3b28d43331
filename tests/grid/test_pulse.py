from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.grid.pulse import FLOOR, STARTUP, TIMES, Pulse


def beat(file: Path, at: int) -> None:
    file.touch()
    os.utime(file, (at, at))


def test_silence_is_counted_from_the_last_step_or_heartbeat_whichever_came_later(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    pulse = Pulse(file, now=100.0)
    assert pulse.silence(110.0) == 10.0
    pulse.step(120.0)
    assert pulse.silence(125.0) == 5.0
    beat(file, 1)
    assert pulse.silence(130.0) == 0.0
    assert pulse.silence(137.0) == 7.0, "a heartbeat that was seen is not seen again"
    beat(file, 2)
    assert pulse.silence(140.0) == 0.0


def test_the_heartbeat_of_an_earlier_attempt_is_no_sign_of_life(tmp_path: Path) -> None:
    beat(tmp_path / "heartbeat", 7)
    pulse = Pulse(tmp_path / "heartbeat", now=0.0)
    assert pulse.silence(50.0) == 50.0


def test_without_a_limit_it_follows_the_longest_pause_and_never_falls_below_the_floor(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "heartbeat", now=0.0)
    assert pulse.limit == STARTUP
    pulse.step(400.0)  # a slow start is not the pace
    assert pulse.limit == FLOOR
    pulse.step(401.0)
    assert pulse.limit == FLOOR
    pulse.step(421.0)  # an evaluation, say
    assert pulse.limit == pytest.approx(TIMES * 20.0)
    pulse.step(422.0)
    assert pulse.limit == pytest.approx(TIMES * 20.0), "one long pause is enough to know that there are some"


def test_a_limit_of_its_own_holds_from_the_first_step_on(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "heartbeat", now=0.0, limit=5.0)
    assert pulse.limit == STARTUP, "imports and loading are no hang"
    pulse.step(10.0)
    pulse.step(14.0)
    assert pulse.limit == 5.0
    assert Pulse(tmp_path / "heartbeat", now=0.0, limit=9999.0).limit == 9999.0


def test_zero_switches_it_off(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "heartbeat", now=0.0, limit=0.0)
    assert pulse.limit == float("inf")
    pulse.step(1.0)
    assert pulse.limit == float("inf")

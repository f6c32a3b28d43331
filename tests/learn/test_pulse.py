"""What a trainer says about itself while it works, and that the file's time stays the sign of life."""

import json
import os
import time
from copy import deepcopy

import pytest
import torch

from sorl.learn import pulse as pulse_module
from sorl.learn.pulse import Pulse, beat_at_passes
from sorl.spec.heartbeat import NAME, Doing, read_heartbeat


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1000.0 + self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pulse_module, "time", made)
    monkeypatch.setattr("sorl.spec.heartbeat.time", made)
    return made


def test_a_part_is_written_at_once_and_its_counts_at_most_once_a_second(tmp_path, clock):
    pulse = Pulse(tmp_path / NAME)
    pulse.step(3, 60)
    pulse.part("rollout", 32, "episodes ended")
    assert read_heartbeat(tmp_path).words == "step 4 of 60: rollout, 0 of 32 episodes ended"
    pulse.count(1, detail="turn 1 of 4, 90 tokens")
    assert read_heartbeat(tmp_path).done == 1, "the first count of a part may be followed by a long silence"
    pulse.count(2, detail="turn 1 of 4, 95 tokens")
    assert read_heartbeat(tmp_path).done == 1
    clock.now += 1.0
    pulse.count(12, detail="turn 2 of 4, 1,100 tokens")
    text = "step 4 of 60: rollout, turn 2 of 4, 1,100 tokens, 12 of 32 episodes ended"
    assert read_heartbeat(tmp_path).words == text
    assert json.loads((tmp_path / NAME).read_text())["step"] == 3
    pulse.part("update", 16)
    pulse.count(3)
    clock.now += 12.0
    pulse.detail("micro-batch 2 of 4")
    assert read_heartbeat(tmp_path).words == "step 4 of 60: update 3 of 16, micro-batch 2 of 4, for 12 s"
    assert sorted(file.name for file in tmp_path.iterdir()) == [NAME], "nothing unfinished stays"


def test_before_training_begins_the_time_of_the_file_stays_so_that_no_silence_is_a_hang(tmp_path):
    file = tmp_path / NAME
    for before in (0, 123_456_789_000):
        if before:
            file.touch()
            os.utime(file, ns=(before, before))
        pulse = Pulse(file)
        pulse.part("loading the model")
        assert (file.stat().st_mtime_ns, read_heartbeat(tmp_path).doing) == (before, "loading the model")
        pulse.begin()
        pulse.part("rollout")
        assert time.time() - file.stat().st_mtime < 60
        file.unlink()


def test_passes_through_the_network_and_its_copies_beat_at_most_once_a_second(tmp_path, clock):
    network = torch.nn.Linear(2, 2)
    before = network(torch.ones(2))
    lost = Pulse(tmp_path / "none" / NAME)  # a folder that cannot be written ends nothing
    lost.begin()
    beat_at_passes(lost, network)
    pulse = Pulse(tmp_path / NAME)
    pulse.begin()
    beat_at_passes(pulse, network)
    file = tmp_path / NAME
    assert not file.exists(), "nothing has moved yet"
    copied = deepcopy(network)  # a sampler may work on a copy in another precision
    for now, passed, written in ((200.0, network, True), (200.5, network, False), (201.1, copied, True)):
        clock.now = now
        assert torch.equal(passed(torch.ones(2)), before)
        assert file.exists() is written
        file.unlink(missing_ok=True)
    assert set(network.state_dict()) == {"weight", "bias"}


def test_a_full_disk_still_gets_a_sign_of_life(tmp_path, monkeypatch):
    file = tmp_path / NAME
    file.touch()
    os.utime(file, ns=(1, 1))
    pulse = Pulse(file)
    pulse.begin()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.open", refuse)
    pulse.part("rollout")
    monkeypatch.undo()
    assert file.stat().st_mtime_ns > 1
    assert file.read_text() == ""


@pytest.mark.parametrize(
    "content", ["", "\n", "{", "[]", "null", '{"doing": 3}', "[" * 5000, '{"doing": "' + "x" * 9000 + '"}']
)
def test_a_file_that_says_nothing_is_nothing(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    assert read_heartbeat(tmp_path) is None
    assert read_heartbeat(tmp_path / "none") is None


def test_odd_values_are_left_out(tmp_path):
    odd = {"doing": "x" * 1000, "step": True, "done": "3", "of": None, "detail": [1], "since": "now"}
    (tmp_path / NAME).write_text(json.dumps(odd))
    assert read_heartbeat(tmp_path) == Doing("x" * 120)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / NAME).symlink_to(tmp_path / NAME)
    assert read_heartbeat(tmp_path / "link") is None

"""The black box keeps what a post-mortem needs, within its bounds, and never stops a run."""

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.collapse.events import Event
from sorl.collapse.rule import Watch
from sorl.grid.cell import config_hash
from sorl.recording.recorder import MB, BlackBox, doomed
from sorl.spec import BatchesSettings, RunSettings

SMALL = BatchesSettings(last=4, every=10, before=2, mb=10)


def write(box: BlackBox, step: int, size: int = 1000) -> None:
    box.write(step, {"tokens": np.zeros(size, np.uint8)}, {})


def stored(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in (folder / "batches").glob("*.safetensors"))


def alarm(step: int, severity: str = "warning", kind: str = "alarm") -> Event:
    return Event(step, kind, severity, "")  # type: ignore[arg-type]


def test_the_last_steps_every_nth_and_those_before_an_alarm_stay_and_an_info_pins_nothing(
    tmp_path: Path,
) -> None:
    box = BlackBox(tmp_path, SMALL)
    for step in range(30):
        write(box, step)
        box.see(step, [alarm(step)] if step == 7 else [alarm(step, "info")] if step == 14 else [], None)
    assert stored(tmp_path) == [0, 5, 6, 7, 10, 20, 26, 27, 28, 29]


def test_the_batches_about_the_onset_of_a_collapse_are_there_however_late_it_is_detected(
    tmp_path: Path,
) -> None:
    box = BlackBox(tmp_path, SMALL)
    watch = Watch(episodes=10_000)
    rise = [0.1 + 0.02 * i for i in range(35)]
    slow_fall = [0.8 - 0.01 * i for i in range(1, 70)]
    for step, success in enumerate([0.1] * 6 + rise + [0.8] * 20 + slow_fall):
        write(box, step)
        box.see(step, watch.step(step, {"success": success}), watch.brink)
    onset = watch.verdict.onset
    detection = watch.verdict.detection
    assert onset is not None
    assert detection is not None
    assert detection - onset > 3 * SMALL.last, "the ring alone would have lost it"
    assert {onset - 1, onset, onset + 1} | set(range(detection - 2, detection + 1)) <= set(stored(tmp_path))


def test_a_fall_that_recovers_leaves_nothing_behind(tmp_path: Path) -> None:
    box = BlackBox(tmp_path, SMALL)
    for step in range(40):
        write(box, step)
        box.see(step, [], 12 if 12 <= step < 25 else step)
        if step == 24:
            assert {10, 11, 12, 13, 14} <= set(stored(tmp_path))
    assert stored(tmp_path) == [0, 10, 20, 30, 36, 37, 38, 39]


@given(
    sizes=st.dictionaries(st.integers(0, 60), st.integers(1, 4 * MB), min_size=1, max_size=40),
    alarmed=st.sets(st.integers(0, 60)),
    fell=st.sets(st.integers(0, 60)),
)
def test_the_cap_holds_and_the_newest_step_stays(
    sizes: dict[int, int], alarmed: set[int], fell: set[int]
) -> None:
    now = max(sizes)
    left = set(sizes) - doomed(sizes, now, alarmed, fell, SMALL)
    assert now in left
    assert sum(sizes[step] for step in left) <= SMALL.mb * MB
    wanted = {s for s in sizes if s in alarmed | fell or s > now - SMALL.last or s % SMALL.every == 0}
    assert left <= wanted
    if sum(sizes[step] for step in wanted) <= SMALL.mb * MB:
        assert left == wanted


def test_over_the_cap_go_every_nth_then_the_late_alarms_then_the_oldest_of_the_last_then_falls() -> None:
    sizes = dict.fromkeys(range(0, 41), MB)

    def keep(mb: int) -> list[int]:
        return sorted(set(sizes) - doomed(sizes, 40, {5, 25}, {15}, SMALL.model_copy(update={"mb": mb})))

    assert keep(11) == [0, 5, 10, 15, 20, 25, 30, 37, 38, 39, 40]
    assert keep(10) == [0, 5, 15, 20, 25, 30, 37, 38, 39, 40], "10 leaves the others evenly spread"
    assert [keep(7), keep(6)] == [[5, 15, 25, 37, 38, 39, 40], [5, 15, 37, 38, 39, 40]]
    assert [keep(5), keep(3), keep(1)] == [[15, 37, 38, 39, 40], [15, 39, 40], [40]]


def test_a_batch_larger_than_the_cap_is_not_kept_and_said_once(tmp_path: Path, caplog) -> None:
    box = BlackBox(tmp_path, SMALL)
    for step in range(2):
        write(box, step, 11 * MB)
    assert stored(tmp_path) == []
    assert [r.message for r in caplog.records] == ["a batch of 11 MB is not kept: record.batches.mb = 10"]


def test_a_full_disk_or_a_killed_process_keeps_what_was_there_and_leaves_no_torn_file(
    tmp_path, caplog, monkeypatch
):
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / ".000007.writing").write_bytes(b"half")  # left by a killed process
    box = BlackBox(tmp_path, SMALL)
    real = Path.write_bytes
    write(box, 0)

    def full(self: Path, data: bytes) -> int:
        real(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    write(box, 1)
    write(box, 2)
    assert [p.name for p in (tmp_path / "batches").iterdir()] == ["000000.safetensors"]
    assert len(caplog.records) == 1
    monkeypatch.undo()
    write(box, 3)
    assert stored(tmp_path) == [0, 3], "it goes on as soon as there is room"


def test_the_settings_change_no_run_and_are_not_told_where_they_are_the_default() -> None:
    assert "batches" not in RunSettings().model_dump(mode="json")["record"]
    other = RunSettings.model_validate({"record": {"batches": {"last": 40, "mb": 9}}})
    assert other.model_dump(mode="json")["record"]["batches"]["last"] == 40
    assert config_hash(other) == config_hash(RunSettings())
    with pytest.raises(ValueError, match="needs last = 9 or more"):
        RunSettings.model_validate({"record": {"batches": {"last": 4}}})

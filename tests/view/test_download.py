"""A file that is made when a button is pressed, in the media manager of Streamlit itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from streamlit import runtime
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

from workbench.view import download


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> MediaFileManager:
    made = MediaFileManager(MemoryMediaFileStorage("/media"))
    monkeypatch.setattr(runtime, "exists", lambda: True)
    monkeypatch.setattr(runtime, "get_instance", lambda: SimpleNamespace(media_file_mgr=made))
    return made


def pressed(manager: MediaFileManager, data: bytes, place: str = "1.2") -> str:
    """What a press of a button does: the name of the file that the browser is told to fetch."""
    wanted = manager.add_deferred(lambda: download.held(data, "a.csv", "text/csv"), "text/csv", place, "a.csv")
    return manager.execute_deferred(wanted).rsplit("/", 1)[-1].split(".")[0]


def runs_end(manager: MediaFileManager, times: int = 5) -> None:
    for _ in range(times):
        manager.remove_orphaned_files()


def test_a_file_outlives_the_runs_that_end_before_the_browser_comes(manager: MediaFileManager) -> None:
    name = pressed(manager, b"a,b\n1,2\n")
    runs_end(manager)
    found = manager.read_file(name)
    assert found is not None
    assert found.content == b"a,b\n1,2\n"


def test_a_file_is_not_held_for_ever(manager: MediaFileManager, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[tuple[object, ...]] = []

    class Later:
        daemon = False

        def __init__(self, seconds: float, call: object, words: list[object]) -> None:
            assert seconds >= 30
            released.append((call, words))

        def start(self) -> None:
            assert self.daemon, "it would hold up the end of the app"

    monkeypatch.setattr(download, "Timer", Later)
    names = [pressed(manager, bytes([i]), place=str(i)) for i in range(12)]
    for call, words in released[:8]:  # in four of the places another file is by now
        call(*words)  # type: ignore[operator, misc]
    runs_end(manager)
    assert [i for i, name in enumerate(names) if manager.read_file(name) is not None] == [8, 9, 10, 11]


def test_only_the_last_files_are_held(manager: MediaFileManager) -> None:
    names = [pressed(manager, bytes([i]), place=str(i)) for i in range(20)]
    runs_end(manager)
    kept = [i for i, name in enumerate(names) if manager.read_file(name) is not None]
    assert kept == list(range(12, 20))

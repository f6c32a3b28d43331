"""A file that is made when a button is pressed, in the media manager of Streamlit itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from streamlit import runtime
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

from workbench.app import export

if TYPE_CHECKING:
    from streamlit.runtime.scriptrunner import ScriptRunContext


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> MediaFileManager:
    made = MediaFileManager(MemoryMediaFileStorage("/media"))
    monkeypatch.setattr(runtime, "get_instance", lambda: SimpleNamespace(media_file_mgr=made))
    return made


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the timers would call, in place of timers."""
    calls: list[Callable[[], None]] = []

    class Later:
        daemon = False

        def __init__(self, seconds: float, call: Callable[..., None], words: list[object]) -> None:
            assert seconds >= 30
            calls.append(lambda: call(*words))

        def start(self) -> None:
            assert self.daemon, "it would hold up the end of the app"

    monkeypatch.setattr(export, "Timer", Later)
    return calls


def pressed(manager: MediaFileManager, data: bytes, place: str = "1.2") -> str:
    """What a press of a button does, in a thread of its own: the name of the file that the browser is told to fetch."""
    drawing = cast("ScriptRunContext", SimpleNamespace(session_id="a browser", pages_manager=None))

    def make() -> bytes:
        export.hold(data, "a.csv", "text/csv", drawing)
        return data

    with ThreadPoolExecutor() as others:
        wanted = manager.add_deferred(make, "text/csv", place, "a.csv")
        address = others.submit(manager.execute_deferred, wanted).result()
    assert drawing.session_id == "a browser"
    return address.rsplit("/", 1)[-1].split(".")[0]


def runs_end(manager: MediaFileManager) -> None:
    for _ in range(5):
        manager.remove_orphaned_files()


def test_a_file_outlives_the_runs_that_end_and_the_session_that_asked_for_it_but_is_not_held_for_ever(
    manager: MediaFileManager, later: list[Callable[[], None]]
) -> None:
    names = [pressed(manager, bytes([i]), place=str(i)) for i in range(12)]
    runs_end(manager)
    manager.clear_session_refs("a browser")
    runs_end(manager)
    assert [found.content for name in names if (found := manager.read_file(name))] == [bytes([i]) for i in range(12)]
    for release in later[:8]:
        release()
    runs_end(manager)
    assert [i for i, name in enumerate(names) if manager.read_file(name) is not None] == [8, 9, 10, 11]

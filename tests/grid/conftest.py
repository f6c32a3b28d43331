"""The scripted trainer in the place of the real one, and processes that tests start themselves."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.grid.harness import put_scripted_trainer

Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    put_scripted_trainer(monkeypatch)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts processes that do not outlive the test."""
    begun: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()

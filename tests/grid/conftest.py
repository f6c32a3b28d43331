"""Processes that tests of the grid start beside themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts processes that do not outlive the test, whatever becomes of it."""
    begun: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()

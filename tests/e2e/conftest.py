"""The shipped example, served to a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

# tests.e2e.browser skips a module without Playwright: here it is imported where a test asks for it.


@pytest.fixture(scope="module")
def example_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with the shipped example and a search over learning rates."""
    from tests.e2e.screenshots import example_with_regions

    folder = tmp_path_factory.mktemp("example")
    example_with_regions(folder)
    return folder


@pytest.fixture(scope="module")
def example_address(example_runs: Path) -> Iterator[str]:
    from tests.e2e.browser import served

    with served(example_runs) as url:
        yield url

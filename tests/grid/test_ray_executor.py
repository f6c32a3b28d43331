from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from workbench.grid.executor import executor_of
from workbench.spec import InputError


@pytest.mark.slow
def test_a_ray_actor_runs_a_command_and_follows_its_log(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    program = "import sys; print('{\"step\": 1}'); sys.exit(3)"
    process = executor_of("ray").start([sys.executable, "-c", program], tmp_path / "log", 1, ())
    deadline = time.monotonic() + 60
    while (code := process.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert code == 3
    assert list(process.rows()) == [{"step": 1}]


def test_without_ray_the_option_says_what_to_install() -> None:
    if "ray" in sys.modules or __import__("importlib.util").util.find_spec("ray"):
        pytest.skip("Ray is installed here")
    with pytest.raises(InputError, match=r"pip install 'sorl\[ray\]'"):
        executor_of("ray")

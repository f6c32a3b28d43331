"""Every tensor of a training step is where it belongs, on a pretended GPU: tests/learn/placement.py."""

import subprocess
import sys

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no spare device that Python can provide",
)
FEW = (
    "mixed devices",
    "passes without gradient",
    "sampling",
    "update of ppo",  # with a critic
    "update of so-grpo",  # changes gradients
)


def checked(*names: str) -> list[str]:
    """The names of the checks that passed; the test fails where one does not."""
    command = [sys.executable, "-m", "tests.learn.placement", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.removeprefix("ok: ") for line in done.stdout.splitlines()]


def test_a_training_step_mixes_no_devices_and_its_results_come_back_to_the_batch() -> None:
    assert checked(*FEW) == list(FEW)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_algorithm_and_no_option_mixes_devices() -> None:
    passed = checked()
    assert set(FEW) < set(passed)
    assert len(passed) > 40

"""A wheel installs `sorl` and nothing else: PyPI has a package `workbench` whose files are not ours."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sorl

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in the wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(folder / built.stdout.split()[-1]) as wheel:
        return wheel.namelist()


def test_the_only_top_level_name_of_a_wheel_is_sorl(wheel_names: list[str]) -> None:
    top = {name.partition("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"sorl"}


def test_a_wheel_holds_every_file_of_the_folder(wheel_names: list[str]) -> None:
    here = {
        path.relative_to(ROOT / "workbench").as_posix()
        for path in (ROOT / "workbench").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name.removeprefix("sorl/") for name in wheel_names if name.startswith("sorl/")} == here


def test_entry_points_name_modules_of_sorl(wheel_names: list[str]) -> None:
    assert any(name.endswith("entry_points.txt") for name in wheel_names)
    text = (ROOT / "pyproject.toml").read_text()
    assert 'sorl = "sorl.cli.main:main"' in text
    assert 'sorl = "sorl.trainers.verl"' in text


def test_scripts_and_settings_that_name_the_former_address_of_a_trainer_still_work() -> None:
    assert importlib.import_module("sorl.integrations.trl").record is sorl.record
    code = "import sys, sorl.integrations.verl; assert 'sorl.trainers.verl' in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_public_names_exist_and_importing_sorl_brings_no_torch() -> None:
    code = (
        "import sys, sorl; assert 'torch' not in sys.modules; [getattr(sorl, name) for name in sorl.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert sorl.record.__module__ == "sorl.trainers.trl"
    with pytest.raises(AttributeError, match="it has Clip"):
        sorl.recorder  # noqa: B018


def test_importing_the_folder_by_its_own_name_says_what_to_write() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import workbench"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "write `import sorl`" in done.stderr

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Sorl
from workbench.cli import app as verb


def test_a_missing_extra_is_named_with_what_to_type(
    sorl: Sorl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    result = sorl("app", runs=tmp_path)
    assert result.exit_code == 2
    assert "pip install 'sorl[app]'" in result.stderr


def test_a_taken_port_is_refused_by_number(sorl: Sorl, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = sorl("app", "--port", port, runs=tmp_path)
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in result.stderr


def test_an_address_of_another_machine_is_refused(sorl: Sorl, tmp_path: Path) -> None:
    result = sorl("app", "--port", 8999, "--host", "192.0.2.1", runs=tmp_path)
    assert result.exit_code == 2
    assert "cannot listen on 192.0.2.1" in result.stderr


def test_the_app_gets_the_runs_folder_and_stays_on_this_machine(
    sorl: Sorl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("streamlit.web.cli.main", lambda words, standalone_mode: asked.append(words))
    monkeypatch.setenv("SORL_RUNS", "elsewhere")
    result = sorl("app", runs=tmp_path)
    assert (result.exit_code, os.environ["SORL_RUNS"]) == (0, str(tmp_path))
    assert asked[0][2:] == ["--server.address", "127.0.0.1"]
    assert Path(asked[0][1]).is_file()

"""The verbs that serve: app and retriever."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import done
from tests.store.processes import ROOT
from workbench.agent.retrievers.http import HTTPRetriever


def test_the_app_gets_the_runs_folder_and_stays_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("streamlit.web.cli.main", lambda words, standalone_mode: started.append(words))
    monkeypatch.setenv("SORL_RUNS", "elsewhere")
    done("app", runs=tmp_path)
    assert os.environ["SORL_RUNS"] == str(tmp_path)
    assert started[0][2:] == ["--server.address", "127.0.0.1"]
    assert Path(started[0][1]).is_file()


def test_the_retriever_answers_our_client_until_sigterm(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "1", "contents": "Lima is the capital of Peru."}))
    command = [sys.executable, "cli.py", "retriever", "serve", "--corpus", str(corpus), "--port", "0"]
    environment = os.environ | {"SORL_CACHE": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert HTTPRetriever(url).retrieve(["capital of Peru"], 3)[0][0].id == "1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

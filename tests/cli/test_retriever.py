from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Sorl
from workbench.agent.retrievers.http import HTTPRetriever

CLI = Path(__file__).parents[2] / "cli.py"


def test_serve_answers_our_client_until_it_is_told_to_stop(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "1", "contents": "Lima is the capital of Peru."}))
    with subprocess.Popen(
        [sys.executable, str(CLI), "retriever", "serve", "--corpus", str(corpus), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"SORL_CACHE": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert HTTPRetriever(url).retrieve(["capital of Peru"], 3)[0][0].id == "1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_mistakes_are_named(sorl: Sorl, tmp_path: Path) -> None:
    missing = sorl("retriever", "serve", "--corpus", tmp_path / "none.jsonl")
    assert (missing.exit_code, "no corpus file" in missing.stderr) == (2, True)
    kind = sorl("retriever", "serve", "--corpus", tmp_path / "none.jsonl", "--kind", "bm52")
    assert (kind.exit_code, "did you mean 'bm25'" in kind.stderr) == (2, True)

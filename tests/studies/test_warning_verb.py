"""`sorl bench warning`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.render import ROOT
from studies.early_warning import corpus as corpora
from studies.early_warning import peers
from studies.early_warning.page import CORPUS, PEER
from tests.studies.runs import corpus
from workbench.cli.main import app


def sorl(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output + str(done.exception or "")


def test_a_corpus_is_evaluated_and_can_be_kept(tmp_path: Path) -> None:
    file, again = tmp_path / "corpus.parquet", tmp_path / "again.parquet"
    corpora.write(corpus(), file)
    code, told = sorl("bench", "warning", "--from", file, "--from", file, "--output", again)
    assert code == 0, told
    assert "| half of the seeds |" in told
    assert len(corpora.read(again)) == 40


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "few.parquet"), "at least 20 collapsed and 20 healthy runs, not 3 and 3"),
        (("--from", "none.parquet"), "no file 'none.parquet'"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    corpora.write(corpus(3), Path("few.parquet"))
    code, told = sorl("bench", "warning", *words)
    assert code != 0
    assert says in told


def test_the_shipped_runs_are_small_and_the_peer_was_asked_about_each_of_them() -> None:
    file = ROOT / CORPUS
    runs = corpora.read(file)
    assert file.stat().st_size < 4 * 2**20
    assert {run.run_id for run in runs} == set(peers.read(file.with_name(PEER)).told)

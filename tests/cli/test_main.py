"""The command as a whole: what it imports, where its runs are, what it serves, and how it writes LaTeX."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command import done
from tests.store.processes import ROOT
from workbench.agent.retrievers.http import HTTPRetriever
from workbench.cli.main import EXTRAS, VERBS
from workbench.cli.tables import escape, tabular

HEAVY = ("torch", "transformers", "vllm", "streamlit", "plotly", "scipy", "duckdb", "pandas")
LOOKING = (
    "ls", "show ppo-s0", "sql", "sql --saved worst_turns", "sync", "rescan --dry-run", "algorithms",
    "algorithms st-ppo", "diagnostics", "diagnose ppo-s0",
)  # fmt: skip


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_help_of_every_verb_starts_without_heavy_packages() -> None:
    code = (
        "import io, sys\nfrom contextlib import redirect_stdout\nfrom workbench.cli.main import main\n"
        "for verb in sys.argv[1:]:\n"
        "    sys.argv, out = ['sorl', *verb.split()], io.StringIO()\n"
        "    try:\n        with redirect_stdout(out):\n            main()\n"
        "    except SystemExit as end:\n        code = end.code\n"
        f"    heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "    print(verb, code, 'Usage: sorl' in out.getvalue(), heavy, sep='|')\n"
    )
    verbs = ["--help", *(f"{verb} --help" for verb in VERBS)]
    found = python(code, *verbs)
    assert found.stderr == ""
    assert found.stdout.splitlines() == [f"{verb}|0|True|[]" for verb in verbs]


def test_the_help_page_imports_no_verb_and_looking_needs_the_core_alone(grid: Path) -> None:
    own = ("workbench.spec", "workbench.cli.run", "pydantic", "pandas", "numpy", "duckdb", "torch")
    for lines, heavy in ((("--help",), own), (LOOKING, (*EXTRAS, "vllm"))):
        code = (
            "import sys\nfrom workbench.cli.main import app\n"
            f"sys.modules |= dict.fromkeys({[*EXTRAS] if heavy != own else []})\n"  # their import fails
            f"for line in {lines!r}:\n    app(['--runs', sys.argv[1], *line.split()], standalone_mode=False)\n"
            f"print([name for name in {sorted(heavy)} if sys.modules.get(name)], file=sys.stderr)\n"
        )
        found = python(code, str(grid))
        assert found.returncode == 0, found.stderr
        assert found.stderr.splitlines()[-1] == "[]"
        if heavy == own:
            assert all(words in found.stdout for words in ("Measure speed", "List the algorithms", "Serve passages"))


def test_runs_may_stand_before_or_after_the_verb_or_in_the_environment(grid: Path) -> None:
    expected = done("ls", runs=grid).stdout
    assert "demo: 8 runs" in expected
    assert not set("│┃━─╭╰\x1b") & set(expected), "results are plain in a pipe"
    for words in (["--runs", grid, "ls"], [f"--runs={grid}", "ls"], ["ls", f"--runs={grid}"]):
        assert done(*words).stdout == expected
    environment, command = os.environ | {"SORL_RUNS": str(grid)}, [sys.executable, "cli.py", "ls"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)
    assert found.stdout == expected


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


# What may stand outside a LaTeX command: an ordinary, an escaped and a named character, an accented letter, a sign.
ORDINARY, ESCAPED, NAMED = r"[^\\{}$&#^_~%<>|\x80-\U0010ffff]", r"\\[&%$\#_{}]", r"\\text[a-z]+\{\}"
HARMLESS = re.compile(rf"""(?:{ORDINARY}|{ESCAPED}|{NAMED}|\\["'`^~rc]\{{[A-Za-z]\}}|\$(?:-|\\[a-z]+)\$)*""")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_no_text_at_all_is_a_latex_command(text: str) -> None:
    assert HARMLESS.fullmatch(escape(text))


def test_latex_reads_a_text_as_it_was_written_and_no_cell_as_the_argument_of_the_line_break_before_it() -> None:
    assert escape(r"50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"
    assert escape("\\x^2~") == r"\textbackslash{}x\textasciicircum{}2\textasciitilde{}"
    assert escape("é · 日") == r"\'{e} $\cdot$ [U+65E5]"
    lines = tabular(["arm", "n"], [["[2pt]", "1"], ["* x", "2"], ["ppo", "3"]]).splitlines()
    assert lines[4:7] == [r"{}[2pt] & 1 \\", r"{}* x & 2 \\", r"ppo & 3 \\"]

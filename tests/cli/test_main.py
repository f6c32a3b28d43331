"""The command as a whole: what it imports, where its runs are, what it serves, and how it writes LaTeX."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.agent.retrievers.http import HTTPRetriever
from sorl.cli import app as verb
from sorl.cli import run as training
from sorl.cli.main import EXTRAS, VERBS
from sorl.cli.tables import escape, tabular
from tests.cli.command import done, grid_file, refused
from tests.store.processes import ROOT

HEAVY = ("torch", "transformers", "vllm", "streamlit", "plotly", "scipy", "duckdb", "pandas")
LOOKING = (
    "ls",
    "show ppo-s0",
    "sql",
    "sql --saved worst_turns",
    "sync",
    "rescan --dry-run",
    "algorithms",
    "algorithms st-ppo",
    "diagnostics",
    "diagnose ppo-s0",
)


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_help_of_every_verb_starts_without_heavy_packages():
    code = (
        "import io, sys\nfrom contextlib import redirect_stdout\nfrom sorl.cli.main import main\n"
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


def test_the_help_page_imports_no_verb_and_looking_needs_the_core_alone(grid):
    own = ("sorl.spec", "sorl.cli.run", "pydantic", "pandas", "numpy", "duckdb", "torch")
    for lines, heavy in ((("--help",), own), (LOOKING, (*EXTRAS, "vllm"))):
        code = (
            "import sys\nfrom sorl.cli.main import app\n"
            f"sys.modules |= dict.fromkeys({[*EXTRAS] if heavy != own else []})\n"  # their import fails
            f"for line in {lines!r}:\n    app(['--runs', sys.argv[1], *line.split()],"
            " standalone_mode=False)\n"
            f"print([name for name in {sorted(heavy)} if sys.modules.get(name)], file=sys.stderr)\n"
        )
        found = python(code, str(grid))
        assert found.returncode == 0, found.stderr
        assert found.stderr.splitlines()[-1] == "[]"
        if heavy == own:
            assert all(
                words in found.stdout for words in ("Measure speed", "List the algorithms", "Serve passages")
            )


def test_a_log_of_scalars_is_diagnosed_without_what_runs_of_ours_and_other_formats_need(tmp_path):
    unneeded = (*HEAVY[:-1], "pyarrow.parquet", "sorl.recording", "sorl.spec.settings")
    unneeded += ("sorl.importing.text_records", "sorl.importing.printed_settings")
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(json.dumps({"step": step, "reward": step / 40}) for step in range(40)))
    code = (
        "import sys\nfrom sorl.cli.main import app\n"
        "app(['diagnose', sys.argv[1]], standalone_mode=False)\n"
        f"print([name for name in {unneeded!r} if name in sys.modules], file=sys.stderr)\n"
    )
    found = python(code, str(file))
    assert found.returncode == 0, found.stderr
    assert "Healthy: the reward rises" in found.stdout
    assert found.stderr.splitlines()[-1] == "[]"


def test_runs_may_stand_before_or_after_the_verb_or_in_the_environment(grid):
    expected = done("ls", runs=grid).stdout
    assert "demo: 8 runs" in expected
    assert not set("│┃━─╭╰\x1b") & set(expected), "results are plain in a pipe"
    for words in (["--runs", grid, "ls"], [f"--runs={grid}", "ls"], ["ls", f"--runs={grid}"]):
        assert done(*words).stdout == expected
    environment = os.environ | {"SORL_RUNS": str(grid)}
    command = [sys.executable, "cli.py", "ls"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)
    assert found.stdout == expected


def test_the_app_gets_the_runs_folder_and_stays_local(tmp_path, monkeypatch):
    started: list[list[str]] = []
    monkeypatch.setattr("streamlit.web.cli.main", lambda words, standalone_mode: started.append(words))
    monkeypatch.setenv("SORL_RUNS", "elsewhere")
    done("app", runs=tmp_path)
    assert os.environ["SORL_RUNS"] == str(tmp_path)
    assert started[0][2:] == ["--server.address", "127.0.0.1"]
    assert Path(started[0][1]).is_file()


def test_the_retriever_answers_our_client_until_sigterm(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "1", "contents": "Lima is the capital of Peru."}))
    command = [sys.executable, "cli.py", "retriever", "serve", "--corpus", str(corpus), "--port", "0"]
    environment = os.environ | {"SORL_CACHE": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert HTTPRetriever(url).retrieve(["capital of Peru"], 3)[0][0].id == "1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


# What may stand outside a LaTeX command: an ordinary, an escaped and a named character, an accented letter, a
# sign.
ORDINARY = r"[^\\{}$&#^_~%<>|\x80-\U0010ffff]"
ESCAPED = r"\\[&%$\#_{}]"
NAMED = r"\\text[a-z]+\{\}"
HARMLESS = re.compile(rf"""(?:{ORDINARY}|{ESCAPED}|{NAMED}|\\["'`^~rc]\{{[A-Za-z]\}}|\$(?:-|\\[a-z]+)\$)*""")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_no_text_at_all_is_a_latex_command(text):
    assert HARMLESS.fullmatch(escape(text))


def test_latex_reads_a_text_as_it_was_written_and_no_cell_as_the_argument_of_the_line_break_before_it():
    assert escape(r"50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"
    assert escape("\\x^2~") == r"\textbackslash{}x\textasciicircum{}2\textasciitilde{}"
    assert escape("é · 日") == r"\'{e} $\cdot$ [U+65E5]"
    lines = tabular(["arm", "n"], [["[2pt]", "1"], ["* x", "2"], ["ppo", "3"]]).splitlines()
    assert lines[4:7] == [r"{}[2pt] & 1 \\", r"{}* x & 2 \\", r"ppo & 3 \\"]


NAME = "name an experiment (`sorl ls` lists them), or a file"
MISTAKES = [
    ("lss", "did you mean 'ls'"),
    ("ls dem", "no experiment 'dem' (did you mean 'demo'?)"),
    ("show ppo", "is the prefix of 2 runs: ppo-s0-aaaa0000, ppo-s1-aaaa0001"),
    ("show ppo-s3-aaaa0000", "did you mean 'ppo-s"),
    ("sql turm", "did you mean 'turn'"),
    ("sql --saved ratio_by_tern", "did you mean 'ratio_by_turn'"),
    ("sql 'SELECT * FROM runn'", 'Did you mean "run"'),
    ("sql 'DROP TABLE run'", "only one SELECT"),
    ("sql 'SELECT 1; SELECT 2'", "2 statements: only one SELECT"),
    ("sql 'SELECT 1' --format tsv", "allowed: table, csv, json, parquet"),
    ("sql 'SELECT 1' --format parquet", "add --output FILE.parquet"),
    ("sql 'SELECT 1' --saved worst_turns", "give only one"),
    ("sql 'SELECT 1' --output /no/such/folder/x.csv", "cannot write '/no/such/folder/x.csv'"),
    ("sql 'SELECT 1' --output no/x.parquet --format parquet", "cannot write 'no/x.parquet'"),
    ("sql 'SELECT count(*) FROM range(1000000000) a, range(1000) b' --seconds 0.2", "stopped after 0.2 s"),
    ("compare dema", "no experiment 'dema' (did you mean 'demo'?)"),
    ("compare demo --format jsn", "did you mean 'json'?"),
    ("compare demo --against st-pp", "--against 'st-pp': demo has no such arm (did you mean 'st-ppo'?)"),
    ("compare demo --export no/such.csv", "cannot write 'no/such.csv'"),
    ("diagnose nothing", "no run 'nothing'"),
    ("diagnose nowhere.jsonl", "there is no file 'nowhere.jsonl'"),
    ("diagnose demo --format html", "--format 'html' is unknown"),
    ("diagnose demo --fail-on worst", "--fail-on 'worst' is unknown"),
    ("replay nobody --step 4", "no run 'nobody'"),
    ("report", NAME),
    ("report dem", "no experiment 'dem' (did you mean 'demo'?)"),
    ("report demo --format pdf", "--format 'pdf' is unknown; allowed: html, md"),
    (
        "report --from nowhere.parquet",
        "no file 'nowhere.parquet'; `sorl report EXPERIMENT --export FILE.parquet`",
    ),
    ("report demo --format md -o no/such/page.md", "cannot write 'no/such/page.md'"),
    ("report demo --export no/such/file.parquet", "cannot write 'no/such/file.parquet'"),
    ("rescan demi", "did you mean 'demo'"),
    ("run nothing.toml", "no grid file nothing.toml"),
    ("plan nothing.toml", "no grid file nothing.toml"),
    ("run demo.toml --set learn.epoch=2", "did you mean 'learn.epochs'?"),
    ("run demo.toml --executor rya", "did you mean 'ray'?"),
    ("run demo.toml --set 'axes.algorithm=[\"pp\"]'", "unknown algorithm 'pp'"),
    ("run demo.toml --set 'axes.algorithm=[\"grpo\"]' --set learn.episodes=12", "groups of 8"),
    ("run demo.toml --set slots.clip.hihg=0.3", "did you mean 'high'?"),
    ("run demo.toml --memory 0", "--memory 0 is no size; write GiB, for example --memory 4"),
    ("run demo.toml --memory -1", "--memory -1 is no size"),
    ("run demo.toml --memory inf", "--memory inf is no size"),
    ("run demo.toml --retries -1", "Invalid value for '--retries'"),
    ("run demo.toml --hang-seconds -3", "Invalid value for '--hang-seconds'"),
    (
        "run demo.toml --retries 1000000000",
        "--retries 1,000,000,000 is over 1,000, the most: every cell that",
    ),
    ("run demo.toml --hang-seconds 1e300", "is over 10,000,000, the most: that is a third of a year"),
    ("run demo.toml --hang-seconds nan", "Invalid value for '--hang-seconds'"),
    (
        "run demo.toml --workers 1000000000",
        "--workers 1,000,000,000 is over 1,024, the most: each is a process",
    ),
    ("plan demo.toml --workers 1000000000", "--workers 1,000,000,000 is over 1,024"),
    ("sql 'SELECT 1' --limit 99999999999999999999", "the most: --output FILE --format csv writes all rows"),
    ("sql 'SELECT 1' --seconds inf", "--seconds inf is over 1,000,000, the most"),
    ("eval x --data x --max-turns 1000000000", "is over 256, the most: an episode is held in memory"),
    ("eval x --data x --max-turn-tokens 1000000000", "is over 1,048,576, the most"),
    ("eval x --data x --batch 1000000000", "the most: the episodes of a batch are in memory together"),
    ("eval x --data x --limit 99999999999999999999", "--limit 99,999,999,999,999,999,999 is over"),
    ("replay x --threads 1000000000", "--threads 1,000,000,000 is over 1,024, the most"),
    ("bench --rounds 1000000000", "--rounds 1,000,000,000 is over 10,000, the most"),
    ("bench --threads 1000000000", "--threads 1,000,000,000 is over 1,024"),
    ("bench --only browse --size 1000000x1000000x8", "is over 10,000,000,000 rows of turns, the most"),
    ("fork x --workers 1000000000", "--workers 1,000,000,000 is over 1,024"),
    ("diagnose x --test --draws 1000000000", "Invalid value for '--draws'"),
    ("plan demo.toml --format yaml", "--format 'yaml' is unknown"),
    ("plan demo.toml --hazard-ratio 1", "--hazard-ratio 1 is no effect"),
    ("plan demo.toml --hazard-ratio -0.2", "above 0"),
    ("plan demo.toml --power 80", "--power 80 is not between 0.05 and 1"),
    ("plan demo.toml --incidence 0", "--incidence 0 is not between 0 and 1"),
    ("algorithms grop", "did you mean 'grpo'?"),
    ("algorithms diff ppo", "sorl algorithms diff ppo st-ppo"),
    ("diagnostics grad_nrm", "did you mean 'grad_norm'?"),
    ("retriever serve --corpus none.jsonl", "no corpus file"),
    ("retriever serve --corpus none.jsonl --kind bm52", "did you mean 'bm25'"),
    ("app --port 8999 --host 192.0.2.1", "cannot listen on 192.0.2.1"),
    ("bench speed", "'speed' is unknown"),
    ("bench diagnose fault_lab", "takes no experiment"),
    ("bench diagnose", "experiments/fault_lab.toml"),
]


@pytest.mark.parametrize(("line", "says"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_message_and_nothing_starts(grid, tmp_path, monkeypatch, line, says):
    monkeypatch.chdir(tmp_path)
    grid_file(tmp_path)
    before = sorted(grid.rglob("*"))
    refused(says, *shlex.split(line), runs=None if line.startswith("retriever") else grid)
    assert sorted(grid.rglob("*")) == before


def test_a_missing_runs_folder_is_named_and_not_made(tmp_path):
    for line in ("ls", "show x", "sql 'SELECT 1'", "sync", "rescan"):
        refused("sorl: no runs folder '", *shlex.split(line), runs=tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()


def test_a_taken_port_is_refused_and_a_folder_of_another_runs_folder_with_the_command_that_reads_it(
    grid, runs
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(f"cannot listen on 127.0.0.1 port {port}", "app", "--port", port, runs=runs)
    refused(f"--runs {grid} diagnose demo", "diagnose", grid / "demo", runs=runs)


MISSING = [
    ("app", "streamlit", "app"),
    ("compare demo", "lifelines", "analysis"),
    ("run demo.toml", "torch", "train"),
]


@pytest.mark.parametrize(("line", "package", "extra"), MISSING)
def test_a_missing_package_comes_with_the_extra_that_installs_it(grid, monkeypatch, line, package, extra):
    monkeypatch.setitem(sys.modules, "lifelines", None)
    for module in (verb, training):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    words = line.split()
    says = f"`sorl {words[0]}` needs {package}, which is not installed: run `pip install 'sorl[{extra}]'`"
    refused(says, *words, runs=grid)


def test_one_results_file_holds_one_experiment(two, tmp_path):
    other = "experiments/results/six_by_five.parquet"
    both = tmp_path / "both.parquet"
    says = "--export writes one experiment to a file, not 2 (six_by_five, demo)"
    refused(says, "report", "demo", "--from", other, "--export", both, runs=two)

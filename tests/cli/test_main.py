from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.store.processes import ROOT
from workbench.cli.main import VERBS, Verbs, app

HEAVY = ("torch", "transformers", "vllm", "streamlit", "plotly", "scipy", "duckdb", "pandas")


def verbs() -> list[str]:
    return Verbs(name="sorl").list_commands(None)


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
    asked = ["--help", *(f"{verb} --help" for verb in verbs())]
    done = subprocess.run([sys.executable, "-c", code, *asked], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{verb}|0|True|[]" for verb in asked]


def test_the_help_page_imports_no_verb() -> None:
    code = (
        "import sys\nfrom workbench.cli.main import app\napp(['--help'], standalone_mode=False)\n"
        "heavy = {'workbench.spec', 'workbench.cli.run', 'pydantic', 'pandas', 'numpy', 'duckdb', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "[]" in done.stderr.splitlines(), done.stderr
    assert all(verb in done.stdout for verb in ("Measure speed", "List the algorithms", "Serve passages"))


def test_every_module_named_like_a_verb_is_a_verb() -> None:
    assert {"ls", "show", "sql", "sync", "rescan", "doctor", "run", "plan", "compare"} <= set(verbs()) <= set(VERBS)


def test_looking_needs_no_torch(grid: Path) -> None:
    code = (
        "import sys\nfrom workbench.cli.main import app\n"
        "verbs = 'ls', 'show ppo-s0', 'sql', 'sql --saved worst_turns', 'sync', 'rescan --dry-run'\n"
        "verbs += 'algorithms', 'algorithms st-ppo', 'diagnostics'\n"
        "for line in map(str.split, verbs):\n    app(['--runs', sys.argv[1], *line], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(grid)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_an_unknown_verb_names_the_nearest(sorl: Any) -> None:
    result = sorl("lss")
    assert result.exit_code == 2
    assert "did you mean 'ls'" in result.stderr.replace("│", "").replace("\n", " ")


def test_runs_may_stand_before_or_after_the_verb_or_in_the_environment(grid: Path, sorl: Any) -> None:
    expected = sorl("ls", runs=grid).stdout
    assert "demo: 8 runs" in expected
    for words in (["--runs", grid, "ls"], [f"--runs={grid}", "ls"], ["ls", f"--runs={grid}"]):
        assert sorl(*words).stdout == expected
    environment = os.environ | {"SORL_RUNS": str(grid)}
    command = [sys.executable, "cli.py", "ls"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == expected


def test_results_are_plain_in_a_pipe(grid: Path, sorl: Any) -> None:
    assert app is not None
    output = sorl("ls", runs=grid).stdout
    assert "\x1b" not in output
    assert not set("│┃━─╭╰") & set(output)

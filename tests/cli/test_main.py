import os
import subprocess
import sys
from pathlib import Path

from tests.cli.command import done
from tests.store.processes import ROOT
from workbench.cli.main import VERBS

HEAVY = ("torch", "transformers", "vllm", "streamlit", "plotly", "scipy", "duckdb", "pandas")
LOOKING = (
    "ls", "show ppo-s0", "sql", "sql --saved worst_turns", "sync", "rescan --dry-run", "algorithms",
    "algorithms st-ppo", "diagnostics",
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


def test_the_help_page_imports_no_verb_and_looking_needs_no_torch(grid: Path) -> None:
    own = ("workbench.spec", "workbench.cli.run", "pydantic", "pandas", "numpy", "duckdb", "torch")
    for lines, heavy in ((("--help",), own), (LOOKING, ("torch", "transformers", "vllm"))):
        code = (
            "import sys\nfrom workbench.cli.main import app\n"
            f"for line in {lines!r}:\n    app(['--runs', sys.argv[1], *line.split()], standalone_mode=False)\n"
            f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)\n"
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

"""Helpers of tests that need a second process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(code: str, *args: object) -> subprocess.Popen[str]:
    """Start `code` in a process of its own, with the checkout importable; sys.argv[1:] are `args`."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Opens the database for writing (or reading), says "open", and holds it until its stdin closes.
HOLD = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=len(sys.argv) > 2)
print("open", flush=True)
sys.stdin.read()
"""

SYNC = """
import sys
from pathlib import Path
from sorl.store.sync import sync
sys.stdin.readline()
report = sync(Path(sys.argv[1]), seconds=200)
print(report.segments, report.rows)
"""

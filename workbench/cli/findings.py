"""The generated part of docs/findings.md: the report of the results that ship with the code, without its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(files: Sequence[str]) -> str:
    """The report of these files (paths from the root of the checkout) as Markdown, headings from level 2."""
    from workbench.analysis.results import read
    from workbench.cli.report import commands, written

    found = [read(ROOT / file) for file in files]
    return written(found, commands(found, [], [Path(file) for file in files]), "md", level=2)

"""The generated parts of docs/code.md: the layers of the imports, and the tree of the code."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "spec",
    "batch.py",
    "objective",
    "algorithms",
    "measures",
    "collapse",
    "agent",
    "learn",
    "recording",
    "importing",
    "trainers",
    "store",
    "grid",
    "analysis",
    "diagnosis",
    "difference",
    "replay",
    "audit",
    "app",
    "cli",
    "integrations",
)
IN_FULL = ("learn", "store", "diagnosis", "app")  # rooms whose files are named one by one
NUCLEUS = ("batch.py", "objective", "algorithms", "learn/loop.py", "learn/update.py", "learn/rollouts.py")
WIDTH = 116  # characters of a line
NAME_WIDTH = 30


def layers() -> str:
    """Return the layers of pyproject.toml as a code block, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    contract = next(contract for contract in contracts if contract["type"] == "layers")
    return _code_block(contract["layers"])


def tree() -> str:
    """Return the tree as a code block: path, and the first sentence of its docstring."""
    lines = [_line(path, depth) for path, depth in _paths()]
    rest = (
        (
            "experiments/",
            "grid files, each with its question; results/; LOG.md: dated findings, negative ones too",
        ),
        ("bench/", "benchmarks, each against its baseline (`sorl bench`); not installed"),
        ("studies/", "how often diagnosis, attribution, early warning and search are right; not installed"),
        ("docs/", "the pages; generate/ writes their generated blocks"),
        ("tests/", "mirrors the folders above"),
    )
    return _code_block([*lines, *(f"{name:<{NAME_WIDTH}}{text}" for name, text in rest)])


def _code_block(lines: Iterable[str]) -> str:
    return "\n".join(["```text", *lines, "```"])


def _paths() -> Iterator[tuple[Path, int]]:
    for room in ROOMS:
        top = ROOT / "workbench" / room
        yield top, 0
        if top.is_dir():
            yield from _inside(top, 1, room in IN_FULL)


def _inside(folder: Path, depth: int, full: bool) -> Iterator[tuple[Path, int]]:
    if full:
        files = [file for file in sorted(folder.glob("*.py")) if not file.name.startswith("__")]
        yield from ((file, depth) for file in files)
    for inner in sorted(p for p in folder.iterdir() if p.is_dir() and (p / "__init__.py").is_file()):
        yield inner, depth
        yield from _inside(inner, depth + 1, full)


def _line(path: Path, depth: int) -> str:
    name = path.name + ("/" if path.is_dir() else "")
    left = "  " * depth + (f"workbench/{name}" if depth == 0 else name)
    text = _first_sentence(path / "__init__.py" if path.is_dir() else path)
    return f"{left:<{NAME_WIDTH}}{text}".rstrip()


def _first_sentence(file: Path) -> str:
    """Return the docstring's first sentence, cut at its last clause that fits the line."""
    text = " ".join(
        (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split()
    )
    sentence = text.split(". ")[0].rstrip(".")
    while (
        len(sentence) > WIDTH - NAME_WIDTH
        and (cut := max(sentence.rfind(mark) for mark in (";", ":", ","))) > 0
    ):
        sentence = sentence[:cut]
    return sentence

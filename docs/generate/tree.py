"""The tree of README.md, in reading order: every folder, and every file where a newcomer has to find one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "spec",
    "batch.py",
    "objective",
    "algorithms",
    "diagnostics",
    "agent",
    "learn",
    "recording",
    "integrations",
    "store",
    "grid",
    "analysis",
    "diagnosis",
    "replay",
    "audit",
    "app",
    "cli",
)
IN_FULL = ("learn", "store", "diagnosis", "app")  # rooms whose files are named one by one
NUCLEUS = ("batch.py", "objective", "algorithms", "learn/loop.py", "learn/update.py", "learn/rollouts.py")
WIDTH = 120


def tree() -> str:
    """Return the tree as indented lines: path, and the first sentence of its docstring."""
    lines = [_line(path, depth) for path, depth in _paths()]
    rest = (
        (
            "experiments/",
            "grid files, each with its question; results/; LOG.md: dated findings, negative ones too",
        ),
        ("bench/", "benchmarks, each against its baseline (`sorl bench`); not installed"),
        ("studies/", "how often diagnosis, attribution, early warning and search are right; not installed"),
        ("docs/", "hand-written pages; render.py, tree.py and measured.py write their generated blocks"),
        ("tests/", "mirrors the folders above"),
    )
    return "\n".join([*lines, *(f"    {name:<30}{text}" for name, text in rest)])


def nucleus() -> int:
    """Return the lines of the nucleus: batch, objective, algorithms and the training loop."""
    files = [file for name in NUCLEUS for file in _files(ROOT / "workbench" / name)]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


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
    return f"    {left:<30}{text}".rstrip()


def _first_sentence(file: Path) -> str:
    """Return the docstring's first sentence, cut at its last clause that fits the line."""
    text = " ".join(
        (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split()
    )
    sentence = text.split(". ")[0].rstrip(".")
    while len(sentence) > WIDTH - 34 and (cut := max(sentence.rfind(mark) for mark in (";", ":", ","))) > 0:
        sentence = sentence[:cut]
    return sentence

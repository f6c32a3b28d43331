"""Readability, counted: `python -m tests.style.ratchet` checks, `--write` lowers the counts after a clean-up.

A formatter keeps lines short, but it cannot see what is dense inside a line. So the tool counts per file
what a reader has to hold in mind: long functions, many names, two statements in one. `limits.toml` holds the
counts of today. A count may fall, never rise; a new file begins at zero. Lengths are in characters and names,
so that packing does not help.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMITS = ROOT / "limits.toml"

MAX_LINE = 110  # characters, but for a URL
MAX_BODY = 1500  # characters of a function without docstring, comments and indentation
MAX_NAMES = 15  # names that a function binds, parameters among them
MAX_PARAMETERS = 8

VAGUE_NAMES = {"said", "told", "found", "made", "kept", "seen", "shown", "here", "one"}

HABITS = {
    "long_line": f"line over {MAX_LINE} characters",
    "formatter_off": "the formatter is switched off",
    "long_body": f"function body over {MAX_BODY} characters",
    "many_names": f"function that binds over {MAX_NAMES} names",
    "many_parameters": f"function with over {MAX_PARAMETERS} parameters: make a value object of related ones",
    "double_assignment": "`a, b = x, y` that neither swaps nor unpacks: one assignment a line",
    "walrus_in_comprehension": "`:=` inside a comprehension: use a loop",
    "nested_comprehension": "comprehension with two `for`, or inside another: use a loop or a function",
    "nested_conditional": "conditional expression inside another: use `if` statements",
    "text_times_truth": "text or a list times a truth value: use a conditional",
    "bare_tuple": "answer of three or more values as a bare tuple: make it a class",
    "vague_name": f"module-level function or public parameter called {', '.join(sorted(VAGUE_NAMES))}",
}

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Habit(NamedTuple):
    """One place in a file that a reader stumbles over."""

    kind: str  # a key of HABITS
    line: int
    where: str  # name of the function, or the line's beginning


def habits_of_source(source: str) -> list[Habit]:
    """All habits in the source text of a module, in the order of their lines."""
    tree = ast.parse(source)
    found = [*_of_lines(source), *_of_expressions(tree), *_of_functions(tree, source)]
    return sorted(found, key=lambda habit: habit.line)


def _of_lines(source: str) -> Iterator[Habit]:
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > MAX_LINE and "http" not in line:
            yield Habit("long_line", number, line.strip()[:60])
        if re.search(r"# *fmt: *(skip|off)", line):
            yield Habit("formatter_off", number, line.strip()[:60])


def _of_expressions(tree: ast.Module) -> Iterator[Habit]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_double_assignment(node):
            yield _at(node, "double_assignment")
        if isinstance(node, _COMPREHENSIONS):
            inside = [child for child in ast.walk(node) if child is not node]
            if any(isinstance(child, ast.NamedExpr) for child in inside):
                yield _at(node, "walrus_in_comprehension")
            if len(node.generators) > 1 or any(isinstance(child, _COMPREHENSIONS) for child in inside):
                yield _at(node, "nested_comprehension")
        if isinstance(node, ast.IfExp) and _holds_conditional(node):
            yield _at(node, "nested_conditional")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _is_text_times_truth(node):
            yield _at(node, "text_times_truth")


def _of_functions(tree: ast.Module, source: str) -> Iterator[Habit]:
    module_level = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if not isinstance(node, _FUNCTIONS):
            continue
        if _body_characters(node, source) > MAX_BODY:
            yield _at(node, "long_body")
        if len(_bound_names(node)) > MAX_NAMES:
            yield _at(node, "many_names")
        parameters = _parameters(node)
        if len(parameters) > MAX_PARAMETERS:
            yield _at(node, "many_parameters")
        if _answers_with_bare_tuple(node):
            yield _at(node, "bare_tuple")
        public = id(node) in module_level and not node.name.startswith("_")
        names = {node.name, *parameters} if public else set()
        for name in sorted(names & VAGUE_NAMES):
            yield Habit("vague_name", node.lineno, f"{node.name}: {name}")


def _at(node: ast.expr | ast.stmt, kind: str) -> Habit:
    text = node.name if isinstance(node, _FUNCTIONS) else ast.unparse(node)[:60]
    return Habit(kind, node.lineno, text)


def _is_double_assignment(node: ast.Assign) -> bool:
    """Whether several values go to several targets at once; a swap names the same things on both sides."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    left = {ast.unparse(part) for part in target.elts}
    right = {ast.unparse(part) for part in node.value.elts}
    return left != right


def _holds_conditional(node: ast.IfExp) -> bool:
    parts = (node.test, node.body, node.orelse)
    return any(isinstance(child, ast.IfExp) for part in parts for child in ast.walk(part))


def _is_text_times_truth(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    has_sequence = any(isinstance(side, ast.JoinedStr | ast.List) or _is_text(side) for side in sides)
    return has_sequence and any(_is_truth(side) for side in sides)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_truth(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("bool", "isinstance")
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _body_characters(function: _Function, source: str) -> int:
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    lines = source.splitlines()[body[0].lineno - 1 : function.end_lineno]
    stripped = (line.strip() for line in lines)
    return sum(len(line) for line in stripped if not line.startswith("#"))


def _parameters(function: _Function) -> list[str]:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def _bound_names(function: _Function) -> set[str]:
    """Names that the function binds itself, not those of functions inside it."""
    names = set(_parameters(function))
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            continue  # their names live inside them
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        waiting.extend(ast.iter_child_nodes(node))
    return names


def _answers_with_bare_tuple(function: _Function) -> bool:
    annotation = function.returns
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return False
    parts = annotation.slice.elts
    is_tuple = isinstance(annotation.value, ast.Name) and annotation.value.id == "tuple"
    open_ended = any(isinstance(part, ast.Constant) and part.value is Ellipsis for part in parts)
    return is_tuple and not open_ended and len(parts) >= 3


# ----------------------------------------------------------------------------------------------------
# Files and limits


def python_files(root: Path = ROOT) -> list[str]:
    """Python files that git tracks or would track, relative to `root`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    return [name for name in sorted(set(listed)) if name and (root / name).is_file()]


def habits_of_tree(root: Path = ROOT) -> dict[str, list[Habit]]:
    """The habits of every file that has any."""
    habits = {}
    for name in python_files(root):
        of_file = habits_of_source((root / name).read_text(encoding="utf-8"))
        if of_file:
            habits[name] = of_file
    return habits


def count_habits(habits: list[Habit]) -> dict[str, int]:
    """How often each kind occurs, in the order of HABITS."""
    counts = Counter(habit.kind for habit in habits)
    return {kind: counts[kind] for kind in HABITS if counts[kind]}


def read_limits(file: Path = LIMITS) -> dict[str, dict[str, int]]:
    """The allowed counts: file -> kind -> number."""
    return tomllib.loads(file.read_text(encoding="utf-8"))["files"] if file.exists() else {}


def write_limits(counts: Mapping[str, Mapping[str, int]], file: Path = LIMITS) -> None:
    """Write the allowed counts, a row a file."""
    lines = [
        "# What a reader stumbles over, by file. `python -m tests.style.ratchet` counts, `--write` lowers.",
        "# A count may fall and never rise; a file that is not named has none. Kinds: the tool's HABITS.",
        "",
        "[files]",
    ]
    for name, of_file in sorted(counts.items()):
        entries = ", ".join(f"{kind} = {number}" for kind, number in of_file.items())
        lines.append(f'"{name}" = {{ {entries} }}')
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def complaints(
    habits: Mapping[str, list[Habit]], limits: Mapping[str, Mapping[str, int]]
) -> tuple[list[str], list[str]]:
    """Lines about counts that rose, with their places; lines about limits that a clean-up made too loose."""
    risen = []
    loose = []
    for name in sorted({*habits, *limits}):
        of_file = habits.get(name, [])
        counts = count_habits(of_file)
        allowed = limits.get(name, {})
        for kind, meaning in HABITS.items():
            number = counts.get(kind, 0)
            limit = allowed.get(kind, 0)
            if number > limit:
                risen.append(f"{name}: {number} x {kind}, allowed {limit} ({meaning})")
                places = [habit for habit in of_file if habit.kind == kind]
                risen.extend(f"    line {habit.line}: {habit.where}" for habit in places)
            if number < limit:
                loose.append(f"{name}: {kind} {limit} -> {number}")
    return risen, loose


def main() -> int:
    """Check the tree against limits.toml; exit code 1 if a count rose or a limit is loose."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="lower the limits to today's counts")
    parser.add_argument(
        "--total", action="store_true", help="print how often each kind occurs under workbench/"
    )
    arguments = parser.parse_args()
    habits = habits_of_tree()
    if arguments.total:
        package = [
            habit for name, of_file in habits.items() if name.startswith("workbench/") for habit in of_file
        ]
        for kind, number in count_habits(package).items():
            print(f"{number:5} {kind}: {HABITS[kind]}")
        return 0
    limits = read_limits()
    first_time = not LIMITS.exists()
    risen, loose = ([], []) if first_time else complaints(habits, limits)
    if risen:
        print("\n".join(risen))
        print("Counts may not rise: simplify these places.")
        return 1
    if arguments.write:
        write_limits({name: count_habits(of_file) for name, of_file in habits.items()})
        return 0
    if loose:
        print("\n".join(loose))
        print("Well done: now run `python -m tests.style.ratchet --write` and commit limits.toml.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
